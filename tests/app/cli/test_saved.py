"""`elsewise ask --session` and `elsewise sessions`: the window's store from a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.cli import options, saved_session
from app.workbench.setup.values import SessionValues
from runtime import GenerationOptions, LanguageModel, ModelLoadError, SamplingOptions
from storage import DataFolderLock, NewNode, SessionStore, StoreFullError
from tests.app.cli.conftest import Elsewise
from tests.app.workbench.scene import rows
from tests.runtime.adapters.toys import toy_adapter
from tests.storage.helpers import sql
from ui import AdapterChoice

ASK = ("--backend", "fake", "--max-tokens", "6", "--seed", "1")


def test_a_session_is_created_and_then_continued(elsewise: Elsewise) -> None:
    first = elsewise("ask", "where to?", "--session", "Trip", *ASK)
    second = elsewise("ask", "and then?", "--session", "Trip", *ASK)
    assert (first.code, second.code) == (0, 0)

    listed = elsewise("sessions", "list").out.splitlines()
    assert len(listed) == 2
    assert listed[1].split()[:3] == ["1", "Trip", "1"]
    shown = elsewise("sessions", "show", "1")
    assert shown.out.startswith("# Trip\n\nuser: where to?\n\nassistant: ")
    assert "user: and then?" in shown.out
    assert first.out.strip() in shown.out
    assert second.out.strip() in shown.out


@pytest.mark.slow
def test_an_answer_cut_inside_its_structure_is_stored_as_incomplete(elsewise: Elsewise, data: Path) -> None:
    # given a structure that is cut by a stop text, and one that is complete
    flags = ("ask", "hello", "--session", "S", *ASK)
    assert elsewise(*flags, "--stop", "END", "--regex", "ab(END)x").code == 1
    assert elsewise(*flags, "--stop", "bb", "--regex", "ab*").code == 0
    # then only the second is stored as complete
    answers = "SELECT status, finish_reason FROM nodes WHERE role = 'assistant' ORDER BY id"
    assert rows(data / "sessions.db", answers) == [("partial", "stop"), ("complete", "eos")]


def test_options_of_the_command_override_the_preset_which_overrides_the_model(
    elsewise: Elsewise, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = GenerationOptions(sampling=SamplingOptions(top_k=33, min_p=0.4))
    monkeypatch.setattr(LanguageModel, "own_options", own)
    assert elsewise("ask", "where to?", "--session", "Trip", *ASK, "--top-p", "0.5").code == 0
    ((stats,),) = rows(data / "sessions.db", "SELECT stats FROM nodes WHERE role = 'assistant'")
    told = json.loads(str(stats))
    assert told["sampling"] == {"temperature": 0.8, "top_k": 33, "top_p": 0.5, "min_p": 0.05}
    assert (told["seed"], told["generated"]) == (1, 6)


@pytest.mark.parametrize("there", [False, True])
def test_written_files_are_readable_by_their_owner_alone(elsewise: Elsewise, data: Path, there: bool) -> None:
    # given a data folder that other users may read, or none
    if there:
        data.mkdir()
        data.chmod(0o755)
    before = os.umask(0o022)
    try:
        assert elsewise("ask", "where to?", "--session", "Trip", *ASK).code == 0
    finally:
        os.umask(before)
    # then an existing folder keeps its mode; everything created is readable by its owner alone
    assert stat.S_IMODE(data.stat().st_mode) == (0o755 if there else 0o700)
    made = list(data.rglob("*"))
    assert data / "sessions.db" in made
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_the_second_answer_depends_on_the_first_turn(elsewise: Elsewise) -> None:
    elsewise("ask", "one", "--session", "A", *ASK)
    continued = elsewise("ask", "two", "--session", "A", *ASK)
    alone = elsewise("ask", "two", "--session", "B", *ASK)
    assert continued.out != alone.out


def test_json_and_alternatives_work_in_a_session_too(elsewise: Elsewise) -> None:
    done = elsewise("ask", "one", "--session", "A", *ASK, "--json", "--alternatives", "2")
    *tokens, end = [json.loads(line) for line in done.out.splitlines()]
    assert [len(token["top"]) for token in tokens] == [2] * 6
    assert bytes.fromhex(tokens[0]["bytes"]).decode(errors="replace") == tokens[0]["text"]
    assert {"type": "end", "tokens": 6, "finish_reason": "length", "seed": 1}.items() <= end.items()
    assert (end["model"], end["backend"]) == ("fake", "fake")
    # and the final object names the source of each option, as it is stored
    assert end["options"]["max_tokens"] == {"value": 6, "source": "call"}
    assert end["options"]["sampling.min_p"] == {"value": 0.05, "source": "preset"}
    assert end["options"]["sampling.typical_p"] == {"value": 1.0, "source": "default"}


def test_an_answer_of_a_session_reports_its_speed_too(elsewise: Elsewise) -> None:
    said = elsewise("ask", "one", "--session", "A", *ASK).err
    assert re.search(r"^6 tokens, length, [0-9.]+ tok/s, seed 1$", said, re.MULTILINE), said
    end = json.loads(elsewise("ask", "two", "--session", "A", *ASK, "--json").out.splitlines()[-1])
    assert end["tokens_per_second"] > 0


def test_a_locked_data_folder_is_refused_before_any_model_is_loaded(
    elsewise: Elsewise, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(saved_session, "load_model", never)
    lock = DataFolderLock(data, "window")
    assert lock.acquire()
    done = elsewise("ask", "hi", "--session", "A", *ASK)
    assert (done.code, done.out) == (1, "")
    assert "is in use by window, pid " in done.err
    assert "close it, or ask without --session" in done.err
    monkeypatch.undo()
    lock.release()


def test_a_locked_data_folder_does_not_stop_a_plain_ask_or_reading(elsewise: Elsewise, data: Path) -> None:
    elsewise("ask", "hello", "--session", "A", *ASK)
    lock = DataFolderLock(data, "window")
    assert lock.acquire()
    assert elsewise("ask", "hello", *ASK).code == 0
    assert elsewise("sessions", "show", "1").code == 0
    assert elsewise("sessions", "verify").code == 0
    lock.release()


def test_an_answer_that_fails_keeps_the_message_and_exits_1(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ModelLoadError("no model; fetch it with: elsewise models get smollm2")

    monkeypatch.setattr(saved_session, "load_model", missing)
    failed = elsewise("ask", "hello", "--session", "A", *ASK)
    assert (failed.code, failed.out) == (1, "")
    assert "elsewise models get smollm2" in failed.err
    assert "user: hello" in elsewise("sessions", "show", "1").out

    monkeypatch.setattr(saved_session, "load_model", options.load_model)
    assert elsewise("ask", "again", "--session", "A", *ASK).code == 0
    assert len(elsewise("sessions", "list").out.splitlines()) == 2  # the same session


def test_a_missing_model_is_reported_with_the_command_that_fetches_it(elsewise: Elsewise) -> None:
    plain = elsewise("ask", "hello", "--model", "nowhere")
    saved = elsewise("ask", "hello", "--model", "nowhere", "--session", "A")
    assert (saved.code, saved.out) == (plain.code, plain.out) == (1, "")
    assert saved.err == plain.err
    assert "elsewise models" in saved.err


@pytest.mark.slow
def test_a_prompt_longer_than_the_context_exits_1(elsewise: Elsewise) -> None:
    done = elsewise("ask", "x" * 40_000, "--session", "A", "--backend", "mock")
    assert (done.code, done.out) == (1, "")
    assert "do not fit into the context of 32,768" in done.err


def test_a_data_folder_that_cannot_be_made_is_named(elsewise: Elsewise, data: Path) -> None:
    data.parent.joinpath("data").write_text("a file")
    assert elsewise("ask", "hi", "--session", "A", *ASK).code == 2  # a file instead of a folder: click reports it
    data.unlink()
    data.mkdir()
    (data / "lock").mkdir()
    done = elsewise("ask", "hi", "--session", "A", *ASK)
    assert done.code == 1
    assert "the data folder cannot be written" in done.err


@pytest.mark.parametrize(("arguments", "code"), [(("list",), 0), (("search", "x"), 0), (("verify",), 0), (("show", "1"), 1)])
def test_a_data_folder_without_sessions_is_reported_and_not_created(
    elsewise: Elsewise, data: Path, arguments: tuple[str, ...], code: int
) -> None:
    done = elsewise("sessions", *arguments)
    assert (done.code, done.out) == (code, "")
    assert "no sessions yet" in done.err
    assert not data.exists()


def test_search_finds_words_of_any_branch(elsewise: Elsewise) -> None:
    elsewise("ask", "lighthouse keeper", "--session", "A", *ASK)
    elsewise("ask", "cats", "--session", "B", *ASK)
    assert [line.split()[1] for line in elsewise("sessions", "search", "lighthouse").out.splitlines()[1:]] == ["A"]
    nothing = elsewise("sessions", "search", "zebra")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no session found\n")


def test_a_long_title_stays_on_one_line_for_other_programs(elsewise: Elsewise) -> None:
    title = "word " * 40
    elsewise("ask", "hi", "--session", title.strip(), *ASK)
    assert title.strip() in elsewise("sessions", "list").out


def test_control_sequences_in_a_title_have_no_effect_in_a_terminal(elsewise: Elsewise, data: Path) -> None:
    title, shown = "\x1b]0;x\x07a\u202eb\u3000c 👩\u200d👧", "?]0;x?a?b\u3000c 👩\u200d👧"
    elsewise("ask", "hi", "--session", title, *ASK)
    file = data.parent / "a.elsewise"
    elsewise("sessions", "export", "1", str(file), "--portable")
    for command in (("list",), ("show", "1"), ("import", str(file))):
        out = elsewise("sessions", *command).out
        assert shown in out
        assert title not in out


def test_control_sequences_in_turns_are_removed_in_a_terminal_and_kept_in_a_file(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewise("ask", "a\x1b]0;x\x07b\n\tc\x9bd", "--session", "A", *ASK)
    assert "user: a\x1b]0;x\x07b\n\tc\x9bd\n" in elsewise("sessions", "show", "1").out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "user: a]0;xb\n\tcd\n" in elsewise("sessions", "show", "1").out


def test_of_several_sessions_of_one_title_the_last_changed_is_continued(elsewise: Elsewise, data: Path) -> None:
    # given an older one that is pinned
    async def two(store: SessionStore) -> None:
        sessions = [await store.create_session("T") for _ in range(2)]
        for session in sessions:
            await store.add_node(NewNode(session, None, "user", text="before"))
        await store.pin_session(sessions[0])

    store = SessionStore.open(data / "sessions.db")
    asyncio.run(two(store))
    store.close_sync()
    sql(data / "sessions.db", "UPDATE sessions SET updated = updated + id")
    assert elsewise("ask", "after", "--session", "T", *ASK).code == 0
    assert rows(data / "sessions.db", "SELECT session_id FROM nodes WHERE text = 'after'") == [(2,)]


def test_a_title_of_digits_is_not_taken_for_a_number(elsewise: Elsewise, data: Path) -> None:
    assert elsewise("ask", "hi", "--session", "²", *ASK).code == 0
    assert elsewise("sessions", "diff", "²").code == 0
    done = elsewise("sessions", "diff", "9" * 5_000)
    assert (done.code, done.out) == (1, "")
    assert "there is no session '99" in done.err


def test_an_unknown_session_is_named(elsewise: Elsewise) -> None:
    elsewise("ask", "hi", "--session", "A", *ASK)
    done = elsewise("sessions", "show", "99")
    assert (done.code, done.out) == (1, "")
    assert "99" in done.err
    assert elsewise("sessions", "show", "first").code == 2


def test_verify_names_damaged_rows(elsewise: Elsewise, data: Path) -> None:
    elsewise("ask", "hi", "--session", "Trip", *ASK)
    sound = elsewise("sessions", "verify")
    assert (sound.code, sound.out, sound.err) == (0, "", "sound\n")
    conn = sqlite3.connect(data / "sessions.db")
    conn.execute("UPDATE nodes SET text = 'forged' WHERE role = 'user'")
    conn.commit()
    conn.close()
    lock = DataFolderLock(data, "window")
    assert lock.acquire()
    done = elsewise("sessions", "verify")
    lock.release()
    assert done.code == 1
    assert "'Trip', turn 2: the run's row fails its checksum" in done.out
    assert "damaged\nnothing was changed: " in done.err
    assert "close it and verify again" in done.err


def test_damaged_rows_are_set_aside_once(elsewise: Elsewise, data: Path) -> None:
    elsewise("ask", "hi", "--session", "Trip", *ASK)
    conn = sqlite3.connect(data / "sessions.db")
    conn.execute("UPDATE nodes SET text = 'forged' WHERE role = 'user'")
    conn.commit()
    conn.close()
    done = elsewise("sessions", "verify")
    assert done.code == 1
    assert "'Trip', turn 2: the run's row fails its checksum" in done.out
    assert done.err.endswith("1 set aside: every session opens, with the text that is left\n")
    again = elsewise("sessions", "verify")
    assert (again.code, again.out) == (0, "")
    assert again.err == "set aside before: 'Trip', turn 2: the run's row failed its checksum\nsound\n"
    assert "user: forged" in elsewise("sessions", "show", "1").out
    refused = elsewise("ask", "more", "--session", "Trip", *ASK)
    assert refused.code == 1
    assert "turn 2 is damaged" in refused.err


def test_a_file_that_is_not_a_database_is_not_changed(elsewise: Elsewise, data: Path) -> None:
    data.mkdir()
    (data / "sessions.db").write_bytes(b"not a database" * 100)
    for arguments in (("sessions", "list"), ("sessions", "verify"), ("ask", "hi", "--session", "A", *ASK)):
        done = elsewise(*arguments)
        assert done.code == 1
        assert "not a database" in (done.out if "verify" in arguments else done.err)
    assert (data / "sessions.db").read_bytes() == b"not a database" * 100


def test_reading_commands_do_not_disturb_a_writing_process(elsewise: Elsewise, data: Path) -> None:
    store = SessionStore.open(data / "sessions.db")

    async def write(session: int, parent: int | None, text: str) -> int:
        return await store.add_node(NewNode(session, parent, "user", text=text))

    session = asyncio.run(store.create_session("A"))
    parent = asyncio.run(write(session, None, "before"))
    assert "A" in elsewise("sessions", "search", "before").out.split()
    assert elsewise("sessions", "search", "afterwards").out == ""
    answer = asyncio.run(store.add_node(NewNode(session, parent, "assistant", status="open")))
    assert elsewise("sessions", "list").code == 0
    assert elsewise("sessions", "verify").code == 0
    asyncio.run(write(session, parent, "after"))
    tree = asyncio.run(store.load_session(session))
    assert [node.status for node in tree.nodes if node.id == answer] == ["open"]  # not taken for the remains of a crash
    assert [node.text for node in tree.nodes][-1] == "after"
    store.close_sync()


def set_up(data: Path, title: str, values: dict[str, object]) -> None:
    """Stores settings of a session as the window does."""

    async def run() -> None:
        store = SessionStore.open(data / "sessions.db")
        session_id = next(row.id for row in await store.sessions() if row.title == title)
        await store.set_session_setup(session_id, values)
        await store.close()

    asyncio.run(run())


def stats_of_answers(data: Path) -> list[dict[str, Any]]:
    told = rows(data / "sessions.db", "SELECT stats FROM nodes WHERE role = 'assistant' ORDER BY id")
    return [json.loads(str(stats)) for (stats,) in told]


def test_a_sessions_own_seed_applies_unless_the_command_gives_one(elsewise: Elsewise, data: Path) -> None:
    plain = ("--backend", "fake", "--max-tokens", "3", "--json")
    first = elsewise("ask", "one", "--session", "A", *plain)
    set_up(data, "A", SessionValues(options={"seed": 77}).stored())
    second = elsewise("ask", "two", "--session", "A", *plain)
    third = elsewise("ask", "three", "--session", "A", *plain, "--seed", "5")
    # then the seed is reported, and its source is stored
    told = [json.loads(done.out.splitlines()[-1])["seed"] for done in (first, second, third)]
    answers = stats_of_answers(data)
    assert told == [stats["seed"] for stats in answers]
    assert told[1:] == [77, 5]
    chosen = [[who for who, names in stats["made"]["sources"].items() if "seed" in names] for stats in answers]
    assert chosen == [[], ["session"], ["call"]]


def test_adapters_for_a_session_with_its_own_are_refused(
    elsewise: Elsewise, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))
    assert elsewise("ask", "one", "--session", "A", *ASK, "--adapter", folder).code == 0  # it has none yet
    set_up(data, "A", SessionValues(adapters=(AdapterChoice(folder, "pirate", 0.5),)).stored())
    assert elsewise("ask", "two", "--session", "A", *ASK).code == 0

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(saved_session, "load_model", never)
    done = elsewise("ask", "three", "--session", "A", *ASK, "--adapter", f"{folder}:0.8")
    assert (done.code, done.out) == (2, "")
    assert "has a stack of its own (pirate × 0.5); leave out --adapter" in done.err
    assert len(stats_of_answers(data)) == 2


def test_the_list_shows_the_folder_and_the_tags_of_a_session(elsewise: Elsewise, data: Path) -> None:
    elsewise("ask", "where to?", "--session", "Trip", *ASK)
    elsewise("ask", "what to cook?", "--session", "Soup", *ASK)
    assert "folder" not in elsewise("sessions", "list").out

    async def place() -> None:
        store = SessionStore.open(data / "sessions.db")
        try:
            folder = await store.places.create_folder("Far away")
            await store.places.move(1, folder)
            await store.places.set_tags(1, ["sea", "2026"])
        finally:
            await store.close()

    asyncio.run(place())
    for listed in (elsewise("sessions", "list").out, elsewise("sessions", "search", "where").out):
        assert listed.splitlines()[0].split()[-2:] == ["folder", "tags"]
        [trip] = [line for line in listed.splitlines() if "Trip" in line]
        assert trip.rstrip().endswith("sea, 2026")
        assert "Far away" in trip


@pytest.mark.slow
def test_commands_make_a_backup_on_each_day(
    elsewise: Elsewise, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def backups() -> list[str]:
        return sorted(file.name for file in (data / "backups").glob("*"))

    # given three answers on two days
    for day in ("2030-01-01", "2030-01-01", "2030-01-02"):
        monkeypatch.setattr("storage.repair.backup.today", lambda day=day: day)
        assert elsewise("ask", "where to?", "--session", "Trip", *ASK).code == 0
    # then there is a backup of each day, with the turns up to its first command
    assert backups() == ["sessions.daily-000001.2030-01-01.db", "sessions.daily-000002.2030-01-02.db"]
    count = "SELECT count(*) FROM nodes WHERE role = 'user'"
    assert [rows(data / "backups" / name, count) for name in backups()] == [[(1,)], [(3,)]]
    # and an imported session is in one too
    assert elsewise("sessions", "export", "Trip", str(tmp_path / "trip.json")).code == 0
    monkeypatch.setattr("storage.repair.backup.today", lambda: "2030-01-03")
    assert elsewise("sessions", "import", str(tmp_path / "trip.json")).code == 0
    assert rows(data / "backups" / backups()[-1], "SELECT count(*) FROM sessions") == [(2,)]


def test_a_damaged_row_does_not_prevent_the_backup_of_a_command(elsewise: Elsewise, data: Path) -> None:
    assert elsewise("ask", "where to?", "--session", "Trip", *ASK).code == 0
    for backup in (data / "backups").iterdir():
        backup.unlink()
    with closing(sqlite3.connect(data / "sessions.db")) as conn:
        conn.execute("UPDATE nodes SET text = 'bent' WHERE role = 'user'")
        conn.commit()
    assert elsewise("ask", "hello", "--session", "Other", *ASK).code == 0
    assert len(list((data / "backups").glob("sessions.daily-*"))) == 1
    assert elsewise("sessions", "verify").code == 0


def test_a_command_names_the_place_of_an_answer_that_a_full_disk_refused_at_first(
    elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that is full when an answer ends, and has room again when the command does
    finish, refused = SessionStore.finish_node, list[Any]()

    async def full_once(store: SessionStore, *arguments: Any, **named: Any) -> Any:
        if not refused:
            refused.append(arguments)
            raise StoreFullError("sessions.db: the disk is full")
        return await finish(store, *arguments, **named)

    monkeypatch.setattr(SessionStore, "finish_node", full_once)
    done = elsewise("ask", "hi", "--session", "Trip", "--backend", "fake", "--max-tokens", "3")
    # then it names the session that holds the text, and the session does hold it
    assert done.code == 1
    (told,) = [line for line in done.err.splitlines() if "the disk is full" in line]
    assert told.endswith("what had arrived of it is in the session 'Trip'")
    shown = elsewise("sessions", "show", "1").out
    assert "assistant: " in shown
    assert shown.rstrip().endswith(done.out.rstrip())
