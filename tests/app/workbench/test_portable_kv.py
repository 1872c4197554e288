"""A session is exported with its KV while the engine runs, and continued elsewhere without computing it again."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.block_files import apart, put_into, take_from
from app.portable_kv import carries_blocks, keys_of
from resources.processes import child_command
from runtime import BlockOptions
from storage import BlockFile, SessionStore
from tests.app.workbench.scene import Engine, Scene
from ui import Refusal

TEXT = "hello, this is a message of some length, so that it is worth a look " * 3


def scene(folder: Path) -> Scene:
    folder.mkdir(exist_ok=True)
    engine = Engine()
    engine.options["blocks"] = BlockOptions("storage:open_blocks", str(folder / "blocks.db"), 1 << 30)
    made = Scene.open(folder / "s.db", engine)
    made.workbench.services.supervisor.options["blocks"] = {"path": str(folder / "blocks.db")}
    return made


def heard(_done: int, _total: int) -> None:
    """Ignores the progress."""


@pytest.mark.slow
@pytest.mark.parametrize("running", [True, False])
def test_an_exported_session_is_warm_after_the_import(tmp_path: Path, running: bool) -> None:
    file = tmp_path / "trip.kv.elsewise"

    async def out() -> tuple[int, list[int]]:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)
        path = await here.path_ids(session_id)
        model = here.workbench.services.supervisor.running
        assert model is not None
        saved = await model.save_blocks_async(path)
        if not running:
            await here.workbench.close()
            here = scene(tmp_path / "here")
        await here.workbench.transfers.export(session_id, "portable-kv", file, heard)
        await here.workbench.close()
        return saved.tokens, path

    async def import_and_continue(tokens: int, path: list[int]) -> None:
        store = SessionStore.open(tmp_path / "there.db")
        imported = await store.import_file(file)
        keys = await keys_of(store, imported.sessions[0])
        await store.close()
        there = tmp_path / "there"
        there.mkdir()
        (tmp_path / "there.db").rename(there / "s.db")
        assert take_from(file, there / "blocks.db", keys, 1 << 30) >= tokens // 64
        new = scene(there)
        view = await new.view(imported.sessions[0])
        assert await new.path_ids(view.session_id) == path
        model = await new.workbench.services.supervisor.model()
        assert len(path) - tokens <= 1
        await model.next_token_logprobs(path)
        counted = model.metrics()
        assert (counted.tokens_restored, counted.tokens_computed) == (tokens, 1)
        await new.workbench.answers.send(view.session_id, "and?")
        await new.workbench.close()

    tokens, path = asyncio.run(out())
    assert tokens > 64
    assert carries_blocks(file)
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []
    asyncio.run(import_and_continue(tokens, path))


def test_a_file_whose_blocks_are_an_endless_view_is_treated_as_one_without_blocks(tmp_path: Path) -> None:
    file = tmp_path / "endless.elsewise"
    with closing(sqlite3.connect(file)) as conn:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS rowid, i AS x FROM n WHERE i < 0"
        conn.execute(f"CREATE VIEW endless AS {endless}")
        conn.execute("CREATE VIRTUAL TABLE kv_blocks USING fts5(x, content='endless', content_rowid='rowid')")
    assert not carries_blocks(file)


def test_a_failing_block_file_leaves_no_incomplete_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "trip.kv.elsewise"
    file.write_bytes(b"mine")

    async def out() -> None:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)

        def failing(*_: object) -> int:
            raise OSError("the disk is gone")

        monkeypatch.setattr(BlockFile, "copy_to", failing)
        with pytest.raises(Refusal, match="the disk is gone"):
            await here.workbench.transfers.export(session_id, "portable-kv", file, heard)
        await here.workbench.close()

    asyncio.run(out())
    assert file.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("form", ["json", "portable-kv"])
@pytest.mark.parametrize("name", ["s.db", "s.db-wal"])
def test_an_export_never_replaces_a_file_of_the_store(tmp_path: Path, form: str, name: str) -> None:
    async def out() -> None:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)
        path = tmp_path / "here" / name
        number = path.stat().st_ino
        with pytest.raises(Refusal, match="choose another name"):
            await here.workbench.transfers.export(session_id, form, path, heard)
        assert path.stat().st_ino == number
        await here.workbench.close()

    asyncio.run(out())


@pytest.fixture
def no_block_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if this process opens a block file."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the window opened the block file")

    monkeypatch.setattr(BlockFile, "__init__", refused)


@pytest.mark.slow
@pytest.mark.usefixtures("no_block_file")
def test_the_window_opens_no_block_file_itself(tmp_path: Path) -> None:
    """Without an engine a process of its own opens it: its failure is only an error here."""
    blocks, file = tmp_path / "blocks.db", tmp_path / "a.elsewise"
    assert apart(file, blocks, [b"k" * 32]) == 0, "there is none yet"
    blocks.mkdir()
    with pytest.raises(OSError, match=r"blocks\.db"):
        apart(file, blocks, [b"k" * 32])
    with pytest.raises(AssertionError, match="the window opened"):
        put_into(file, blocks, [b"k" * 32])


def test_a_process_that_dies_on_a_block_file_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.block_files.child_command", lambda _: child_command("tests.no_such_module"))
    with pytest.raises(OSError, match="the process that reads it has ended"):
        apart(tmp_path / "a.elsewise", tmp_path / "blocks.db", [])


def exported(tmp_path: Path) -> tuple[Path, int]:
    """A portable file with KV of two blocks and more, and how many tokens of it are kept."""
    file = tmp_path / "trip.kv.elsewise"

    async def out() -> int:
        here = scene(tmp_path / "here")
        session_id = await here.asked(TEXT)
        model = await here.workbench.services.supervisor.model()
        saved = await model.save_blocks_async(await here.path_ids(session_id))
        await here.workbench.transfers.export(session_id, "portable-kv", file, heard)
        await here.workbench.close()
        return saved.tokens

    return file, asyncio.run(out())


@pytest.mark.slow
@pytest.mark.parametrize("running", [True, False])
def test_the_window_imports_kv(tmp_path: Path, running: bool) -> None:
    """While the engine runs, it imports the blocks itself, since it holds the block file."""
    file, tokens = exported(tmp_path)
    told: list[tuple[int, int]] = []

    async def take() -> None:
        there = scene(tmp_path / "there")
        if running:
            await there.asked("something else")
        result = await there.workbench.transfers.import_file(file, heard)
        assert result.carries_kv
        taken = await there.workbench.transfers.take_kv(result.sessions, file, lambda done, total: told.append((done, total)))
        assert taken == -(-tokens // 64)
        assert told[-1][0] == told[-1][1] > taken
        path = await there.path_ids(result.sessions[0])
        model = await there.workbench.services.supervisor.model()
        match, before = await model.prefix_match_async(path), model.metrics()
        assert match.tokens == tokens
        await model.next_token_logprobs(path)
        after = model.metrics()
        # the common beginning of conversations may be in memory already
        assert after.tokens_restored - before.tokens_restored == tokens - (match.warm or 0) > tokens - 64
        assert after.tokens_computed - before.tokens_computed == 1
        await there.workbench.close()

    asyncio.run(take())


def test_the_import_of_kv_can_be_stopped_between_two_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The imported blocks and the session are kept, and nothing waits for the rest."""
    file, tokens = exported(tmp_path)
    monkeypatch.setattr("app.portable_kv.AT_ONCE", 1)

    async def take() -> None:
        there = scene(tmp_path / "there")
        model = await there.workbench.services.supervisor.model()
        result = await there.workbench.transfers.import_file(file, heard)
        path = await there.path_ids(result.sessions[0])
        work: asyncio.Task[int] | None = None

        def progress(done: int, _total: int) -> None:
            if done == 3:  # the first block of the grid, its possible checkpoint, the second block
                assert work is not None
                work.cancel()

        work = asyncio.create_task(there.workbench.transfers.take_kv(result.sessions, file, progress))
        with pytest.raises(asyncio.CancelledError):
            await work
        assert (await model.prefix_match_async(path)).tokens == 128 < tokens
        await there.workbench.answers.send(result.sessions[0], "and?")
        await there.workbench.close()

    asyncio.run(take())
