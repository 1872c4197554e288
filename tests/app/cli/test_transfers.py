"""`sessions export`, `import` and `diff` on the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from app import block_files
from app.block_files import UNBOUNDED
from app.cli.group import cli
from app.paths import DataFolder
from app.portable_kv import keys_of
from app.workbench.models.settings import disk_budget
from app.workbench.setup.beginning import Beginning
from runtime import Origin, TokenRun
from runtime.kv.store import Block
from storage import BlockFile, DataFolderLock, NewChunk, NewNode, SessionStore, open_blocks
from tests.storage.helpers import sql
from tests.storage.transfer.trees import branching
from ui import TextFile

Ask = Callable[..., Result]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """Runs a command on a data folder of its own."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(cli, ["--data-dir", str(tmp_path / "data"), "sessions", *map(str, words)])

    return run


@pytest.fixture
def session(tmp_path: Path) -> int:
    """The id of a session with branches in that folder."""
    data = DataFolder(tmp_path / "data")
    data.make()
    store = SessionStore.open(data.sessions)
    try:
        return asyncio.run(branching(store))
    finally:
        store.close_sync()


@pytest.mark.parametrize("words", [("a.json",), ("a.elsewise", "--portable"), ("a.txt", "--format", "json")])
def test_an_exported_session_can_be_imported(ask: Ask, tmp_path: Path, session: int, words: tuple[str, ...]) -> None:
    name, *options = words
    file = tmp_path / name
    done = ask("export", session, file, *options)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert f"{file.stat().st_size:,} bytes" in done.stderr
    done = ask("import", file)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{session + 1}\tÜnïcode")
    assert "the model 'A', which is not on this machine" in done.stderr
    assert "a model that the file does not name (model-b)" not in done.stderr, "no node is that model's own"
    assert ask("verify").exit_code == 0


@pytest.mark.parametrize("words", [("json",), ("markdown",), ("csv",), ("tokens",), ()])
def test_a_session_is_exported_to_stdout(
    ask: Ask, tmp_path: Path, session: int, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    form = ("--format", *words) if words else ("--portable",)
    done = ask("export", session, "-", *form)
    assert done.exit_code == 0, done.output
    assert not Path("-").exists()
    assert "session.elsewise" not in done.stderr
    file = Path("file.jsonl" if words == ("tokens",) else "file")
    assert ask("export", session, file, *form).exit_code == 0
    assert done.stdout_bytes == file.read_bytes()


def test_an_export_to_stdout_needs_a_format(ask: Ask, session: int) -> None:
    done = ask("export", session, "-")
    assert done.exit_code == 2
    assert "-: the ending says no format; give --format" in done.stderr
    assert done.stdout == ""


def test_one_path_is_exported_as_text_and_as_a_table(ask: Ask, tmp_path: Path, session: int) -> None:
    assert ask("export", session, tmp_path / "a.md").exit_code == 0
    text = (tmp_path / "a.md").read_text()
    assert text.startswith("# Ünïcode 漢字 🌧 לילה\n\n## System\n\nBe brief.\n\n## You\n\nWhere to? 🌧\n\n## Model\n\n")
    assert text.endswith("w0 w1rainy\n")
    for name, count in (("a.csv", 1 + 4 + 3 + 2), ("a.jsonl", 4 + 3 + 2)):
        assert ask("export", session, tmp_path / name).exit_code == 0
        assert len((tmp_path / name).read_text().splitlines()) == count


def test_the_text_has_the_pinned_files_and_the_table_has_tokens_without_ranks(ask: Ask, tmp_path: Path) -> None:
    beginning = Beginning("Be brief.", files=(TextFile("notes.txt", "Bring boots.\n"), TextFile("b.txt", "And a coat.")))
    words = ["It", " rains"]
    columns = TokenRun.unscored([1, 2], [word.encode() for word in words], words, Origin.SAMPLED).to_columns()
    columns["logprob"][1] = -3.0  # as from a server, for tokens beyond its list

    async def pinned(store: SessionStore) -> int:
        session = await store.create_session("trip")
        root = await store.add_node(NewNode(session, None, "system", beginning.system, stats=beginning.stats))
        said = NewNode(session, root, "assistant", "It rains")
        await store.set_current(session, await store.add_node(said, NewChunk("model", 0, 2, columns)))
        return session

    data = DataFolder(tmp_path / "data")
    data.make()
    store = SessionStore.open(data.sessions)
    session = asyncio.run(pinned(store))
    store.close_sync()
    assert ask("export", session, tmp_path / "a.md").exit_code == 0
    assert (tmp_path / "a.md").read_text() == f"# trip\n\n## System\n\n{beginning.content}\n\n## Model\n\nIt rains\n"
    assert ask("export", session, tmp_path / "a.jsonl").exit_code == 0
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(row["text"], row["logprob"], row["rank"]) for row in rows] == [("It", None, None), (" rains", -3.0, None)]


def test_an_existing_file_is_replaced_only_on_request(ask: Ask, tmp_path: Path, session: int) -> None:
    (tmp_path / "a.json").write_text("mine")
    done = ask("export", session, tmp_path / "a.json")
    assert done.exit_code == 1
    assert "--force" in done.output
    assert (tmp_path / "a.json").read_text() == "mine"
    assert ask("export", session, tmp_path / "a.json", "--force").exit_code == 0
    assert json.loads((tmp_path / "a.json").read_text())["version"] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", 99, "x.json"), "there is no session '99'"),
        (("export", 1, "x.unknown"), "--format"),
        (("export", 1, "x.json", "--format", "csv"), "JSON lines"),
        (("export", 1, "x.json", "--format", "json", "--portable"), "choose one"),
        (("export", 1, "x.json", "--with-kv"), "goes with --portable"),
        (("import", "not-there"), "does not exist"),
        (("diff", 1, 1), "two branches, or none"),
        (("diff", 1, 1, 99), "branches; 'sessions diff 1'"),
    ],
)
def test_invalid_arguments_are_refused(ask: Ask, session: int, words: tuple[object, ...], said: str) -> None:
    done = ask(*words)
    assert done.exit_code in (1, 2)
    assert said in done.output


def test_an_invalid_file_is_named_and_nothing_is_imported(ask: Ask, tmp_path: Path, session: int) -> None:
    (tmp_path / "bad.json").write_text('[{"role": "user", "content": "a"},\n {"role": "nobody", "content": "b"}]')
    done = ask("import", tmp_path / "bad.json")
    assert done.exit_code == 1
    assert "bad.json, line 2, message 2: role 'nobody'" in str(done.exception)
    assert ask("list").stdout.count("Ünïcode") == 1


def test_an_import_is_refused_while_the_window_is_open(ask: Ask, tmp_path: Path, session: int) -> None:
    (tmp_path / "m.json").write_text('[{"role": "user", "content": "a"}]')
    lock = DataFolderLock(tmp_path / "data", "window")
    assert lock.acquire()
    try:
        done = ask("import", tmp_path / "m.json")
        assert done.exit_code == 1
        assert "in use by window" in done.output
        assert "close it and try again, or import in its window (File > Import)" in done.output
        done = ask("export", session, tmp_path / "a.elsewise", "--portable", "--with-kv")
        assert done.exit_code == 1
        assert "or export from its window (File > Export Session File with KV), or leave out --with-kv" in done.output
        assert not (tmp_path / "a.elsewise").exists(), "nothing is written by halves"
        assert ask("export", session, tmp_path / "a.json").exit_code == 0, "exports only read"
    finally:
        lock.release()


@pytest.mark.parametrize("updated", [1e20, -1e20])
def test_an_invalid_date_does_not_break_the_list(ask: Ask, tmp_path: Path, session: int, updated: float) -> None:
    sql(DataFolder(tmp_path / "data").sessions, f"UPDATE sessions SET updated = {updated!r}")
    done = ask("list")
    assert done.exit_code == 0, done.output
    assert "Ünïcode" in done.stdout


def test_branches_by_number(ask: Ask, session: int) -> None:
    listed = ask("diff", session).stdout.splitlines()
    assert len(listed) > 2
    assert sum(line.startswith("*") for line in listed) == 1
    numbers = [n for n, line in enumerate(listed, 1) if "rainy" in line or "another" in line]
    assert len(numbers) == 2
    done = ask("diff", session, *numbers)
    assert done.exit_code == 0, done.output
    assert "tokens are the same in both" in done.stdout
    assert "after the shared beginning" in done.stdout
    assert any(line.startswith("+ ") for line in done.stdout.splitlines())


def test_blocks_are_transferred_only_if_export_and_import_request_them(ask: Ask, tmp_path: Path, session: int) -> None:
    data = DataFolder(tmp_path / "data")
    store = SessionStore.open(data.sessions, read_only=True)
    try:
        keys = asyncio.run(keys_of(store, session))
    finally:
        store.close_sync()
    assert len(keys) == len(set(keys)) >= 2
    # a damaged block is left out of the file, whose import then does not mention KV
    with closing(open_blocks(data.blocks, 1 << 20)) as blocks:
        blocks.put([Block(keys[0], None, 4, [b"computed"])])
    sql(data.blocks, "UPDATE kv_blocks SET tokens = 5")
    without = tmp_path / "without.elsewise"
    assert "0 KV blocks went with it" in ask("export", session, without, "--portable", "--with-kv").stderr
    assert "KV" not in ask("import", without).stderr
    with closing(open_blocks(data.blocks, 1 << 20)) as blocks:
        assert blocks.put([Block(keys[0], None, 4, [b"computed"])]) == 1
    file = tmp_path / "a.elsewise"
    assert "1 KV blocks went with it" in ask("export", session, file, "--portable", "--with-kv").stderr
    data.blocks.unlink()
    done = ask("import", file)
    assert done.exit_code == 0, done.output
    assert "were not imported" in done.stderr
    assert not data.blocks.exists()
    done = ask("import", file, "--with-kv")
    assert "1 KV blocks were taken" in done.stderr, done.output
    with closing(open_blocks(data.blocks, 1 << 20)) as blocks:
        assert blocks.get(keys[:1]) == [b"computed"]
    assert ask("verify").exit_code == 0


def test_a_failing_block_file_leaves_an_existing_export_unchanged(
    ask: Ask, tmp_path: Path, session: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.elsewise"
    file.write_bytes(b"mine")
    with closing(open_blocks(DataFolder(tmp_path / "data").blocks, 1 << 20)):
        pass

    def failing(*_: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(BlockFile, "copy_to", failing)
    assert ask("export", session, file, "--portable", "--with-kv", "--force").exit_code == 1
    assert file.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("name", ["sessions.db", "link", "blocks.db"])
def test_an_export_never_replaces_files_of_the_data_folder(ask: Ask, tmp_path: Path, session: int, name: str) -> None:
    data = DataFolder(tmp_path / "data")
    (data.root / "link").symlink_to(data.sessions)
    with closing(open_blocks(data.blocks, 1 << 20)):
        pass
    done = ask("export", session, data.root / name, "--format", "json", "--force")
    assert done.exit_code == 1
    assert "choose another name" in done.output
    assert ask("verify").exit_code == 0
    assert "Ünïcode" in ask("list").stdout


def test_the_disk_budget_of_the_settings_applies_to_transfers(
    ask: Ask, tmp_path: Path, session: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given more room than the default, in the settings
    data, room = DataFolder(tmp_path / "data"), 5 << 30
    store = SessionStore.open(data.sessions)
    try:
        asyncio.run(store.set_setting("settings", {"disk_bytes": room}))
        assert asyncio.run(disk_budget(store)) == room
        keys = asyncio.run(keys_of(store, session))
    finally:
        store.close_sync()
    with closing(open_blocks(data.blocks, 1 << 20)) as blocks:
        blocks.put([Block(keys[0], None, 4, [b"computed"])])
    opened: list[int] = []

    def watched(path: Path, budget: int) -> BlockFile:
        opened.append(budget)
        return open_blocks(path, budget)

    monkeypatch.setattr(block_files, "open_blocks", watched)
    # when blocks are exported and imported
    file = tmp_path / "a.elsewise"
    assert ask("export", session, file, "--portable", "--with-kv").exit_code == 0
    assert ask("import", file, "--with-kv").exit_code == 0
    # then opening has evicted no block within the budget
    assert opened == [UNBOUNDED, room]
