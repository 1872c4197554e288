"""The disk is full, or cannot be written: nothing is lost, and the messages name the way out."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from storage import SessionStore, StoreFullError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, assert_same_view, own_tokens, rows, until
from ui import ColumnsChanged, ColumnTokens, Refusal, SessionView, TurnStatus


async def fill(store: SessionStore, *, full: bool) -> None:
    """Lets SQLite refuse new pages as on a full disk, or have room again."""

    def change(db: object) -> None:
        conn: sqlite3.Connection = db.conn  # type: ignore[attr-defined]  # sqlite_utils.Database
        conn.execute("PRAGMA cache_size = -64")
        used = conn.execute("PRAGMA page_count").fetchone()[0]
        conn.execute(f"PRAGMA max_page_count = {used if full else 1 << 30}")

    await store._database.read(change)  # noqa: SLF001  # the limit holds for one connection: it must be the store's


def test_a_closed_store_refuses_requests_with_the_reason(play: Play) -> None:
    async def scene(s: Scene) -> None:
        await s.store.close()
        with pytest.raises(Refusal, match="closed"):
            await s.workbench.settings.hints()

    play(scene)


def test_a_message_is_refused_if_the_disk_is_full(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        before = await s.view(session_id)
        await fill(s.store, full=True)
        with pytest.raises(Refusal, match="the disk is full"):
            await s.workbench.answers.send(session_id, "x" * 100_000)  # the window keeps the draft
        assert_same_view(await s.view(session_id), before)
        await fill(s.store, full=False)
        await s.workbench.answers.send(session_id, "y")
        assert len(own_tokens(await s.last(session_id))) == 12

    play(scene)


@pytest.mark.slow
def test_a_disk_that_fills_up_during_a_stream_loses_no_token(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shown: list[SessionView] = []

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 6)
        refuse(s.store, "append_chunk", "finish_node")
        await until(lambda: "cannot be saved yet" in caplog.text)  # the stream continues meanwhile
        s.workbench.answers.stop(session_id)
        with pytest.raises(Refusal, match=r"the disk is full.*stays on the screen"):
            await sending
        answer = await s.last(session_id)
        assert len(own_tokens(answer)) == 6
        assert answer.status is TurnStatus.PARTIAL
        assert "not saved yet" in answer.note

        with pytest.raises(Refusal, match="not saved yet; make room"):
            await s.workbench.answers.send(session_id, "two")
        allow(s.store)
        s.engine.holds_after = None
        await s.workbench.answers.send(session_id, "two")
        view = await s.view(session_id)
        assert view.turns[2].note == "stopped"
        assert len(own_tokens(view.turns[2])) == 6
        shown.append(view)

    async def later(s: Scene) -> None:
        assert_same_view(await s.view(shown[0].session_id), shown[0])

    play(scene, engine=Engine(holds_after=6))
    play(later)


@pytest.mark.parametrize("room", [True, False], ids=["another disk", "no other disk"])
def test_tokens_unsaved_at_the_end_are_written_elsewhere_or_reported(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, room: bool
) -> None:
    caplog.set_level(logging.INFO)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "temporary" if room else folder / "gone"))
    monkeypatch.setattr("pathlib.Path.home", lambda: folder if room else folder / "gone")
    monkeypatch.setattr("pathlib.Path.cwd", lambda: folder / "gone")

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 6)
        refuse(s.store, "append_chunk", "finish_node")
        s.workbench.answers.stop(session_id)
        with pytest.raises(Refusal, match="the disk is full"):
            await sending
        answer = await s.last(session_id)
        await s.workbench.close()
        (said,) = s.workbench.services.unsaved
        assert "the disk is full" in said
        assert "has only the beginning of the last answer" in said
        if room:
            (file,) = folder.iterdir()
            assert said.endswith(f"is in {file}")
            text = "".join(answer.run.texts).rpartition("assistant\n")[2]
            assert file.read_text().endswith(f"user: hello\n\nassistant: {text}\n")
        else:
            told, _, text = said.partition("\n\n")
            assert told.endswith("could not be written elsewhere either: copy them from the details")
            assert text == "".join(answer.run.texts).rpartition("assistant\n")[2]

    play(scene, engine=Engine(holds_after=6))


@pytest.mark.slow
def test_a_disk_that_has_room_again_before_the_end_causes_no_error(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.on_look = lambda what: refuse(s.store, "append_chunk") if what == "generate" else None
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.arrived(session_id) == 6 and "cannot be saved yet" in caplog.text)
        allow(s.store)
        s.workbench.answers.stop(session_id)
        await sending
        answer = await s.last(session_id)
        assert answer.note == "stopped"
        saved = rows(s.path, "SELECT max(first + count) FROM token_chunks WHERE node_id = ?", answer.node_id)
        assert saved == [(len(answer.run),)]

    play(scene, engine=Engine(holds_after=6))


def test_unsaved_tokens_are_saved_at_the_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.on_look = lambda what: refuse(s.store, "finish_node") if what == "generate" else None
        with pytest.raises(Refusal, match="the disk is full"):
            await s.workbench.answers.send(session_id, "hello")
        allow(s.store)

    async def later(s: Scene) -> None:
        answer = await s.last((await s.workbench.sessions.list())[0].session_id)
        assert answer.note == "reached the length limit"
        assert len(own_tokens(answer)) == 12

    play(scene)
    play(later)


def test_ids_that_cannot_be_saved_are_not_shown_to_the_model(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.on_look = lambda _what: refuse(s.store, "append_chunk")
        with pytest.raises(Refusal):
            await failed_write(s, session_id)
        allow(s.store)
        s.engine.on_look = lambda _what: None
        assert s.engine.prompts == []
        await s.workbench.answers.send(session_id, "again")
        assert len(own_tokens(await s.last(session_id))) == 12

    async def failed_write(s: Scene, session_id: int) -> None:
        await s.workbench.answers.send(session_id, "hello")
        note = (await s.last(session_id)).note
        assert "the disk is full" in note
        raise Refusal(note)

    play(scene)


def test_a_damaged_turn_is_named_and_the_others_are_shown(play: Play, path: object) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.asked("one")
        await s.workbench.answers.send(session_id, "two")
        await s.asked("other")

    async def second(s: Scene) -> None:
        titles = [row.title for row in await s.workbench.sessions.list()]
        assert titles == ["other", "one"]
        view = await s.view((await s.workbench.sessions.list())[1].session_id)
        assert [t.status for t in view.turns][2] is TurnStatus.DAMAGED
        assert "damaged" in view.turns[2].note
        assert view.turns[3].run.text.count("two") == 1

    play(first)
    with sqlite3.connect(str(path)) as conn:
        conn.execute("UPDATE token_chunks SET columns = zeroblob(length(columns)) WHERE node_id = 3")
    conn.close()
    play(second)


@pytest.mark.slow
@pytest.mark.parametrize("aside", [False, True])
def test_no_model_continues_a_damaged_turn(play: Play, path: object, aside: bool) -> None:
    """A part inside an answer is lost: a continuation would follow another text."""
    kept: dict[str, int] = {}

    async def first(s: Scene) -> None:
        session_id = await s.asked("one")
        kept["damaged"] = (await s.last(session_id)).node_id
        await s.workbench.answers.send(session_id, "two")

    async def second(s: Scene) -> None:
        if aside:
            assert await s.workbench.settings.verify_data()
            assert await s.workbench.settings.verify_data() == []
        session_id = (await s.workbench.sessions.list())[0].session_id
        view = await s.view(session_id)
        damaged = view.turns[2]
        assert (damaged.node_id, damaged.status) == (kept["damaged"], TurnStatus.DAMAGED)
        stored = {node.id: node for node in (await s.store.load_session(session_id)).nodes}
        assert stored[kept["damaged"]].text in damaged.run.text  # the whole text is shown
        before = rows(s.path, "SELECT count(*) FROM nodes")
        with pytest.raises(Refusal, match="turn 3 is damaged"):
            await s.workbench.answers.send(session_id, "three")
        with pytest.raises(Refusal, match="turn 3 is damaged"):
            await s.workbench.answers.regenerate(session_id, view.turns[-1].node_id)
        with pytest.raises(Refusal, match="turn 3 is damaged"):
            await s.workbench.answers.continue_turn(session_id, kept["damaged"])
        with pytest.raises(Refusal, match="turn 3 is damaged"):
            await s.workbench.answers.regenerate_exactly(session_id, kept["damaged"])
        assert rows(s.path, "SELECT count(*) FROM nodes") == before
        assert s.engine.prompts == []
        await s.workbench.answers.regenerate(session_id, kept["damaged"])  # as a sibling
        await s.workbench.answers.send(session_id, "three")
        after = await s.view(session_id)
        assert TurnStatus.DAMAGED not in [turn.status for turn in after.turns]
        assert len(s.engine.prompts) == 2

    play(first)
    with sqlite3.connect(str(path)) as conn:
        chunks = conn.execute("SELECT id, columns FROM token_chunks WHERE node_id = ?", [kept["damaged"]]).fetchall()
        for chunk_id, columns in chunks:  # one, or several if the answer was slow
            bent = columns[:30] + bytes([columns[30] ^ 1]) + columns[31:]
            conn.execute("UPDATE token_chunks SET columns = ? WHERE id = ?", [bent, chunk_id])
        assert chunks
    conn.close()
    play(second)


def refuse(store: SessionStore, *members: str) -> None:
    """Lets these methods fail as on a full disk."""

    async def fail(*_: object, **__: object) -> None:
        raise StoreFullError("sessions.db: the disk is full; free some space")

    for name in members:
        setattr(store, name, fail)


def allow(store: SessionStore) -> None:
    for name in ("append_chunk", "finish_node"):
        store.__dict__.pop(name, None)


def test_columns_that_cannot_be_written_are_kept_and_written_later(play: Play) -> None:
    kept: dict[str, list[int]] = {}

    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        old = await s.last(session_id)
        s.engine.holds_after = 9
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3))
        await until(lambda: sum(len(e.run) for e in s.events if isinstance(e, ColumnTokens)) == 9)
        refuse(s.store, "append_chunk", "finish_node")
        s.workbench.answers.stop(session_id)
        await work
        columns = [e.view for e in s.events if isinstance(e, ColumnsChanged)][-1]
        assert columns is not None
        assert "not saved yet" in columns.note
        assert sum(len(column.run) for column in columns.columns) == 9
        # no other message is accepted before they are saved
        with pytest.raises(Refusal, match="not saved yet; make room"):
            await s.workbench.answers.send(session_id, "two")
        allow(s.store)
        s.engine.holds_after = None
        await s.workbench.answers.send(session_id, "two")
        kept.update({str(column.node_id): column.run.ids.tolist() for column in columns.columns})

    async def later(s: Scene) -> None:
        stored = await s.store.load_tokens([int(node) for node in kept])
        for node, ids in kept.items():
            assert [int(i) for chunk in stored[int(node)] for i in chunk.columns["ids"]] == ids
        assert rows(s.path, "select count(*) from nodes where status = 'open'") == [(0,)]

    play(scene, engine=Engine())
    play(later)
