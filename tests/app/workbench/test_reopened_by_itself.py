"""An engine that dies during an answer is restarted for its session: once, with a note at the turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.faults import STOPPED
from app.workbench.answers.columns import CUT_OFF
from app.workbench.answers.reopening import AGAIN, DONE, UNDER_WAY, Reopening
from runtime import EngineDiedError, ModelLoadError
from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import last_columns
from tests.app.workbench.scene import Engine, Scene, answered, own_tokens, until
from ui import ColumnsChanged, EngineState, Refusal, SessionChanged, Tier, TurnStatus


def watched(s: Scene) -> Scene:
    """Attaches the automatic restart of the engine, as a window does."""
    each = s.workbench.services
    Reopening(each.sessions, each.supervisor, each.adapters, each.running, each.tasks, each.windows)
    return s


def noted(s: Scene) -> list[str]:
    """The notes of the last turn, in order."""
    notes = [event.view.turns[-1].note for event in s.events if isinstance(event, SessionChanged) and event.view.turns]
    return [note for note, before in zip(notes, ["", *notes], strict=False) if note != before]


def test_the_session_is_warm_again_with_a_note(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: noted(s)[-1:] == [DONE])
        assert noted(s)[-2:] == [UNDER_WAY, DONE]
        turn = await s.last(session_id)
        assert (turn.status, turn.note, turn.tier) == (TurnStatus.PARTIAL, DONE, Tier.WARM)
        assert len(own_tokens(turn)) == 5
        assert s.engine.starts == 2
        assert s.workbench.status.engine is EngineState.READY
        # no answer was generated automatically, and the answer continues at its end
        assert len(s.engine.prompts) == 2
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        assert len(own_tokens(await s.last(session_id))) == 5 + 12
        assert s.engine.starts == 2

    play(scene)


def test_the_engine_is_restarted_only_once_until_an_answer_succeeds(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.new()
        for count, starts in ((1, 2), (2, 2)):
            s.engine.dies_after = 3
            turn = await s.last(session_id) if count > 1 else None
            await (
                s.workbench.answers.send(session_id, "two")
                if turn is None
                else s.workbench.answers.continue_turn(session_id, turn.node_id)
            )
            if count == 1:
                await until(lambda: noted(s)[-1:] == [DONE])
            assert s.engine.starts == starts
        # the second time the error is shown, with the way out
        stands = await s.last(session_id)
        assert stands.note == STOPPED
        assert s.workbench.status.engine is EngineState.DIED
        # the next request starts an engine, and after an answer it is restarted automatically again
        await s.workbench.answers.continue_turn(session_id, stands.node_id)
        assert s.engine.starts == 3
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "three")
        await until(lambda: noted(s)[-1:] == [DONE])
        assert s.engine.starts == 4

    play(scene)


def test_an_engine_that_dies_on_reading_the_session_again_is_not_restarted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after = 5

        async def dies(*_: Any, **__: Any) -> None:
            raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")

        monkeypatch.setattr("tests.app.workbench.scene.FrailModel.cache_kv_async", dies, raising=False)
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: noted(s)[-1:] == [AGAIN])
        assert (s.engine.starts, s.workbench.status.engine) == (2, EngineState.DIED)
        assert (await s.last(session_id)).note == AGAIN

    play(scene)


def test_an_engine_that_cannot_be_restarted_is_reported_with_the_reason(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        s.engine.refuses = [ModelLoadError("the model is gone")]
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: "the model is gone" in noted(s)[-1])
        assert s.engine.starts == 2

    play(scene)


def test_continuations_have_one_common_note_and_one_for_each_turn(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id, old = await answered(s)
        s.engine.dies_after = 6
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3)
        await until(lambda: last_columns(s).note == DONE)
        columns = last_columns(s)
        said = [event.view.note for event in s.events if isinstance(event, ColumnsChanged) and event.view is not None]
        assert UNDER_WAY in said
        assert not columns.running
        assert len(columns.columns) > 1
        assert {column.note for column in columns.columns} == {CUT_OFF}
        assert sum(len(column.run) for column in columns.columns) == 6
        assert s.engine.starts == 2
        for column in columns.columns:  # each is a version of the turn, and has the note too
            assert (await s.workbench.branches.select(session_id, column.node_id)).turns[-1].note == DONE
        # a continuation that had ended by itself has no note
        s.engine.dies_after = 6
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert {column.note for column in last_columns(s).columns} == {STOPPED}
        assert s.engine.starts == 2  # once, until an answer succeeds

    play(scene)


def test_the_shown_turn_has_the_note_of_continuations_without_tokens(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id, old = await answered(s)
        s.engine.dies_after = 0
        with pytest.raises(Refusal, match="engine stopped"):
            await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        await until(lambda: noted(s)[-1:] == [DONE])
        assert (await s.last(session_id)).note == DONE
        assert s.engine.starts == 2

    play(scene)


@pytest.mark.slow
def test_a_continuation_that_ended_before_the_engine_does_not_count_as_a_success(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id, old = await answered(s)

        async def cut_short() -> set[str]:
            """Of three, some have ended when the engine dies; returns the notes of the others."""
            s.engine.dies_after = 3 * 12 - 1
            await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3)
            notes = [column.note for column in last_columns(s).columns]
            assert 0 < sum(not note for note in notes) < 3
            return set(notes) - {""}

        assert await cut_short() == {CUT_OFF}
        await until(lambda: last_columns(s).note == DONE)
        # a second time the engine stays down, although two of the three ended by themselves
        assert await cut_short() == {STOPPED}
        await until(lambda: not len(s.workbench.services.tasks))
        assert (s.engine.starts, s.workbench.status.engine) == (2, EngineState.DIED)
        # the next request starts an engine; continuations that all end by themselves count as a success
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3)
        assert s.engine.starts == 3
        assert await cut_short() == {CUT_OFF}
        await until(lambda: last_columns(s).note == DONE)
        assert s.engine.starts == 4
        # and so do an answer after continuations, and continuations after an answer
        assert await cut_short() == {STOPPED}
        await s.workbench.answers.send(session_id, "two")
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "three")
        await until(lambda: noted(s)[-1:] == [DONE])
        assert s.engine.starts == 6

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_an_empty_answer_does_not_count_as_a_success(play: Play, how: str) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        s.engine.options["context_length"] = 1_000
        session_id = await s.asked("one")
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: noted(s)[-1:] == [DONE])
        # given a message whose answer fails
        if how == "stopped":
            s.engine.holds_after = 0
            sending = asyncio.create_task(s.workbench.answers.send(session_id, "three"))
            await until(lambda: len(s.engine.prompts) == 3)
            s.workbench.answers.stop(session_id)
            await sending
            s.engine.holds_after = None
        else:
            await s.workbench.answers.send(session_id, "x" * 2_000)
            assert "context" in (await s.last(session_id)).note
        # when the engine dies once more, it is not restarted automatically
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "four")
        assert (await s.last(session_id)).note == STOPPED
        assert s.engine.starts == 2

    play(scene)


def test_an_answer_removed_before_the_restart_is_not_read_again(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after, s.engine.loading = 0, asyncio.Event()
        await s.workbench.answers.send(session_id, "two")
        assert (await s.last(session_id)).note == UNDER_WAY
        lost = (await s.last(session_id)).node_id
        # when another branch is selected, the empty answer is removed
        (task,) = s.workbench.services.tasks
        session = s.workbench.services.sessions.opened(session_id)
        await s.workbench.services.sessions.take_back(session, lost)
        assert lost not in session.tree.nodes
        s.engine.loading.set()
        await task
        # then the shown path is read instead
        assert (s.workbench.status.engine, s.engine.starts) == (EngineState.READY, 2)
        assert {turn.tier for turn in (await s.view(session_id)).turns if len(turn.run)} == {Tier.WARM}

    play(scene)


def test_without_a_window_the_engine_is_not_restarted(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        await s.workbench.answers.send(session_id, "two")
        assert (await s.last(session_id)).note == STOPPED
        assert not len(s.workbench.services.tasks)
        assert s.engine.starts == 1

    play(scene, engine=Engine())
