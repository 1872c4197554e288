"""Several continuations that are stopped, whose engine dies, or whose app ends: their text is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import arrived, last_columns
from tests.app.workbench.scene import Engine, Scene, answered, own_tokens, rows, until
from ui import ColumnsChanged, Refusal, TurnStatus


def test_stop_stops_all_continuations_and_keeps_their_text(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after = 9
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3))
        await until(lambda: arrived(s) >= 9)
        # meanwhile no other answer can start here
        with pytest.raises(Refusal, match="stop it first"):
            await s.workbench.answers.send(session_id, "and?")
        s.workbench.answers.stop(session_id)
        await work
        columns = last_columns(s)
        assert not columns.running
        assert sum(len(c.run) for c in columns.columns) == 9
        assert {c.note for c in columns.columns} == {"stopped"}
        for column in columns.columns:
            assert rows(s.path, "select status, finish_reason, length(text) from nodes where id = ?", column.node_id) == [
                ("partial", "cancelled", len(column.run.text))
            ]
        # and the session is free again
        engine.holds_after = None
        await s.workbench.answers.send(session_id, "and?")

    play(scene, engine=engine)


@pytest.mark.parametrize("stops", [1, 3])
def test_stop_while_nodes_are_added_leaves_no_empty_nodes(play: Play, monkeypatch: pytest.MonkeyPatch, stops: int) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        add, waits, goes_on = s.store.add_node, asyncio.Event(), asyncio.Event()

        async def slow(*what: Any, **how: Any) -> int:
            node_id = await add(*what, **how)  # it is saved
            waits.set()
            await goes_on.wait()
            return node_id

        monkeypatch.setattr(s.store, "add_node", slow)
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3))
        await waits.wait()
        for _ in range(stops):
            s.workbench.answers.stop(session_id)
            await asyncio.sleep(0.01)
        goes_on.set()
        await work
        assert (await s.last(session_id)).variants == (old.node_id,)
        assert rows(s.path, "select max(id) from nodes") == [(old.node_id,)]
        assert [event.view for event in s.events if isinstance(event, ColumnsChanged)][-1] is None

    async def later(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        assert len((await s.last(session_id)).variants) == 1

    play(scene)
    play(later)


def test_the_text_of_continuations_is_kept_when_the_engine_dies(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.dies_after = 6
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        columns = last_columns(s)
        assert "engine stopped" in columns.note
        assert sum(len(c.run) for c in columns.columns) == 6
        # the next request restarts the engine
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert engine.starts == 2
        assert len(last_columns(s).columns) == 2

    play(scene, engine=engine)


def test_the_text_of_continuations_is_kept_when_the_app_ends(play: Play) -> None:
    engine = Engine()
    made: dict[str, list[int]] = {}

    async def evening(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after = 8
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2))
        await until(lambda: arrived(s) >= 8)
        made["nodes"] = [c.node_id for c in last_columns(s).columns]
        made["session"] = [session_id]
        await s.workbench.close()
        await work

    async def morning(s: Scene) -> None:
        view = await s.view(made["session"][0])
        assert set(made["nodes"]) <= set(view.turns[-1].variants)
        shown = await s.workbench.branches.select(view.session_id, made["nodes"][0])
        assert shown.turns[-1].status is TurnStatus.PARTIAL
        assert len(own_tokens(shown.turns[-1])) > 2  # the text before it, and its own

    play(evening, engine=engine)
    engine.holds_after = None
    play(morning, engine=engine)
