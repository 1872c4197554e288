"""An engine that dies under an answer is started again for its session: once, and the turn says what happened."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.faults import STOPPED
from app.workbench.answers.columns import CUT_OFF
from app.workbench.answers.reopening import AGAIN, DONE, UNDER_WAY, Reopening
from runtime import EngineDiedError, ModelLoadError
from tests.app.workbench.conftest import Play
from tests.app.workbench.fan_scene import last_columns
from tests.app.workbench.scene import Engine, Scene, answered, own_tokens, until
from ui import ColumnsChanged, EngineState, Refusal, SessionChanged, Tier, TurnStatus


def watched(s: Scene) -> Scene:
    """As the window's."""
    each = s.workbench.services
    Reopening(each.sessions, each.supervisor, each.adapters, each.running, each.tasks, each.windows)
    return s


def noted(s: Scene) -> list[str]:
    """What the last turn said, in order."""
    notes = [event.view.turns[-1].note for event in s.events if isinstance(event, SessionChanged) and event.view.turns]
    return [note for note, before in zip(notes, ["", *notes], strict=False) if note != before]


def test_the_session_is_warm_again_and_says_so(play: Play) -> None:
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
        # nothing was said by itself, and the answer goes on from where it was
        assert len(s.engine.prompts) == 2
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        assert len(own_tokens(await s.last(session_id))) == 5 + 12
        assert s.engine.starts == 2

    play(scene)


def test_exactly_once_until_something_goes_well(play: Play) -> None:
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
        # the second time the error stands, and the way on with it
        stands = await s.last(session_id)
        assert stands.note == STOPPED
        assert s.workbench.status.engine is EngineState.DIED
        # whoever asks again gets an engine, and after an answer it is reopened once more
        await s.workbench.answers.continue_turn(session_id, stands.node_id)
        assert s.engine.starts == 3
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "three")
        await until(lambda: noted(s)[-1:] == [DONE])
        assert s.engine.starts == 4

    play(scene)


def test_an_engine_that_dies_of_this_very_session_is_left_alone(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_an_engine_that_does_not_start_again_says_why(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        s.engine.refuses = [ModelLoadError("the model is gone")]
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: "the model is gone" in noted(s)[-1])
        assert s.engine.starts == 2

    play(scene)


def test_continuations_side_by_side_say_it_once_for_all_and_each_as_a_turn(play: Play) -> None:
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
        for column in columns.columns:  # each is a version of the turn, and its turn says so too
            assert (await s.workbench.branches.select(session_id, column.node_id)).turns[-1].note == DONE
        # what had ended by itself did so before
        s.engine.dies_after = 6
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert {column.note for column in last_columns(s).columns} == {STOPPED}
        assert s.engine.starts == 2  # once, until something goes well

    play(scene)


def test_of_continuations_that_said_nothing_the_turn_shown_says_it(play: Play) -> None:
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
def test_a_continuation_that_ended_before_the_engine_did_is_no_answer_that_went_well(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id, old = await answered(s)

        async def cut_short() -> set[str]:
            """Of three, some have come to their end when the engine dies; what the others say."""
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
        # whoever asks again gets an engine; continuations that all come to their end have gone well
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 3)
        assert s.engine.starts == 3
        assert await cut_short() == {CUT_OFF}
        await until(lambda: last_columns(s).note == DONE)
        assert s.engine.starts == 4
        # and so has an answer after a fan, and a fan after an answer
        assert await cut_short() == {STOPPED}
        await s.workbench.answers.send(session_id, "two")
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "three")
        await until(lambda: noted(s)[-1:] == [DONE])
        assert s.engine.starts == 6

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_an_answer_that_says_nothing_has_not_gone_well(play: Play, how: str) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        s.engine.options["context_length"] = 1_000
        session_id = await s.asked("one")
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "two")
        await until(lambda: noted(s)[-1:] == [DONE])
        # given a message that comes to nothing
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
        # when the engine dies once more, it is not started by itself
        s.engine.dies_after = 3
        await s.workbench.answers.send(session_id, "four")
        assert (await s.last(session_id)).note == STOPPED
        assert s.engine.starts == 2

    play(scene)


def test_what_is_gone_before_the_engine_has_started_again_is_not_asked_for(play: Play) -> None:
    async def scene(s: Scene) -> None:
        watched(s)
        session_id = await s.asked("one")
        s.engine.dies_after, s.engine.loading = 0, asyncio.Event()
        await s.workbench.answers.send(session_id, "two")
        assert (await s.last(session_id)).note == UNDER_WAY
        lost = (await s.last(session_id)).node_id
        # when somebody leaves the answer that said nothing, it is taken away
        (task,) = s.workbench.services.tasks
        session = s.workbench.services.sessions.opened(session_id)
        await s.workbench.services.sessions.take_back(session, lost)
        assert lost not in session.tree.nodes
        s.engine.loading.set()
        await task
        # then what is shown instead is read
        assert (s.workbench.status.engine, s.engine.starts) == (EngineState.READY, 2)
        assert {turn.tier for turn in (await s.view(session_id)).turns if len(turn.run)} == {Tier.WARM}

    play(scene)


def test_a_command_has_nobody_to_reopen_it_for(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        await s.workbench.answers.send(session_id, "two")
        assert (await s.last(session_id)).note == STOPPED
        assert not len(s.workbench.services.tasks)
        assert s.engine.starts == 1

    play(scene, engine=Engine())
