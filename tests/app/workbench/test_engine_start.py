"""No engine starts, or none that can answer: the turn names the way out, the text is kept, the next message works."""

from __future__ import annotations

import asyncio

import pytest

from runtime import (
    BackendUnavailableError,
    EngineDiedError,
    LoadProgress,
    MemoryBudgetError,
    ModelLoadError,
    ModelMissingError,
    RuntimeFault,
    UnknownBackendError,
)
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, own_tokens, rows, until
from ui import BranchAdded, EngineState, Refusal, SessionChanged, TurnStatus

OBITUARY = (
    "the engine process has ended: signal 9 (SIGKILL), which the system sends when memory runs out: choose a smaller model "
    "or kv_cache_bytes if it repeats. What it had answered is kept; load the model again to go on; its log is /data/engine.log"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "note", "state"),
    [
        (
            ModelLoadError("no model 'x' here; fetch it with: `elsewise models get x`"),
            "no model 'x' here; fetch it with: Settings > Models",
            EngineState.NONE,
        ),
        (
            ModelMissingError("x is not in /models; fetch it with: `elsewise models fetch org/x`", "org/x"),
            "x is not on this computer",
            EngineState.NONE,
        ),
        (
            BackendUnavailableError("torch is missing (`pip install torch`)"),
            "torch is missing; choose another engine in the model menu (hf, mlx), then regenerate",
            EngineState.NONE,
        ),
        (
            UnknownBackendError("unknown backend 'nope': known: fake, hf, mlx, mock, vllm"),
            "unknown backend 'nope'; choose another engine in the model menu (hf, mlx), then regenerate",
            EngineState.NONE,
        ),
        (
            EngineDiedError(OBITUARY),
            "engine stopped while loading (signal 9, SIGKILL); your text is kept. Send again to restart it",
            EngineState.DIED,
        ),
    ],
)
def test_an_engine_that_cannot_load_is_reported_at_the_turn(
    play: Play, fault: RuntimeFault, note: str, state: EngineState
) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [fault]
        await s.workbench.answers.send(session_id, "hello")
        view = await s.view(session_id)
        assert view.turns[-1].note == note
        assert view.turns[-1].needs_model == (state is EngineState.NONE)
        assert view.turns[-1].can_retry == (state is EngineState.DIED or isinstance(fault, ModelLoadError))
        assert view.turns[-1].stats is not None
        assert (view.turns[-1].stats.reused, view.turns[-1].stats.computed) == (None, None)
        assert view.turns[-1].status is TurnStatus.PARTIAL
        assert view.turns[-2].run.text == "hello"
        assert rows(s.path, "SELECT text FROM nodes WHERE role = 'user'") == [("hello",)]
        assert s.workbench.status.engine is state
        assert s.workbench.status.reason == note

        await s.workbench.answers.send(session_id, "again")
        view = await s.view(session_id)
        assert len(own_tokens(view.turns[-1])) == 12
        assert [t.role for t in view.turns] == ["system", "user", "user", "assistant"]  # the failed answer is skipped
        text = b"".join(b for t in view.turns[:3] for b in t.run.token_bytes).decode()
        assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>user\nagain<|im_end|>"
        assert all((t.run.rank > 0).all() for t in view.turns[2:])

    play(scene)


def test_after_the_choice_of_another_model_the_turn_offers_to_try_again(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [ModelLoadError("no room"), ModelLoadError("no room either")]
        await s.workbench.answers.send(session_id, "hello")
        failed = await s.last(session_id)
        assert (failed.needs_model, failed.can_retry) == (True, True)
        # when another one is chosen
        await s.workbench.models.choose("other")
        assert (await s.last(session_id)).needs_model is False
        # and that one cannot be loaded either
        await until(lambda: not s.engine.refuses)
        s.engine.refuses = [ModelLoadError("no room either")]
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        assert (await s.last(session_id)).needs_model is True

    play(scene)


def test_a_chosen_token_without_a_model_to_continue_it_asks_for_one_too(play: Play) -> None:
    kept: dict[str, int] = {}

    async def first(s: Scene) -> None:
        kept["session"] = await s.asked()

    async def second(s: Scene) -> None:
        turn = await s.last(kept["session"])
        at = own_tokens(turn)[4]
        token = alternative(turn, at)
        s.engine.refuses = [ModelLoadError("not here")]
        await s.workbench.answers.branch(kept["session"], turn.node_id, at, token)
        branch = await s.last(kept["session"])
        assert int(branch.run.ids[-1]) == token
        assert (branch.note, branch.needs_model) == ("not here", True)
        await s.workbench.answers.continue_turn(kept["session"], branch.node_id)
        assert (await s.last(kept["session"])).needs_model is False

    play(first)
    play(second)


def test_another_engine_is_offered_if_one_cannot_run(play: Play) -> None:
    async def scene(s: Scene) -> None:
        # given
        session_id = await s.new()
        s.engine.refuses = [
            UnknownBackendError("unknown backend 'nope': known: hf"),
            UnknownBackendError("unknown backend 'no'"),
        ]
        await s.workbench.answers.send(session_id, "hello")
        failed = await s.last(session_id)
        assert failed.can_retry is False
        # when another one is chosen that fails too, then one that works
        await s.workbench.models.choose_backend("no")
        shown = [event.view for event in s.events if isinstance(event, SessionChanged)]
        assert shown[-1].turns[-1].can_retry is True
        await until(lambda: not s.engine.refuses)  # it is started at once
        s.engine.refuses = [UnknownBackendError("unknown backend 'no'")]
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        failed = await s.last(session_id)
        assert failed.can_retry is False
        await s.workbench.models.choose_backend("hf")
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        # then the question is answered
        assert [turn.role for turn in (await s.view(session_id)).turns] == ["system", "user", "assistant"]
        assert len(own_tokens(await s.last(session_id))) == 12

    play(scene)


def test_an_answer_that_never_began_can_be_tried_again(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [ModelLoadError("not here")]
        await s.workbench.answers.send(session_id, "hello")
        failed = await s.last(session_id)
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        view = await s.view(session_id)
        assert [t.role for t in view.turns] == ["system", "user", "assistant"]
        assert len(own_tokens(view.turns[-1])) == 12

    play(scene)


@pytest.mark.parametrize("again", ["retry", "send", "step back"])
def test_nothing_remains_of_a_failed_answer(play: Play, again: str) -> None:
    async def scene(s: Scene) -> None:
        # given: a first answer that failed; the list has the person's own words
        session_id = await s.new()
        if again == "step back":
            await s.workbench.answers.send(session_id, "hello")
            first = await s.last(session_id)
            s.engine.on_look = no_memory
            await s.workbench.answers.regenerate(session_id, first.node_id)
        else:
            s.engine.refuses = [ModelLoadError("not here; fetch it")]
            await s.workbench.answers.send(session_id, "hello")
        assert [row.title for row in await s.workbench.sessions.list()] == ["hello"]
        view = await s.view(session_id)
        failed = view.turns[-1]
        assert (failed.status, own_tokens(failed)) == (TurnStatus.PARTIAL, [])
        assert failed.note in ("not here; fetch it", "no room for the prompt: 2 MB are free, 9 MB are needed")
        names = [row.name for row in view.branches]
        assert (names[0], names[-1]) == ("hello", "no answer" if again == "step back" else "hello")
        # when
        s.engine.on_look = lambda _what: None
        if again == "retry":
            await s.workbench.answers.regenerate(session_id, failed.node_id)
        elif again == "send":
            await s.workbench.answers.send(session_id, "again")
        else:
            await s.workbench.branches.select(session_id, first.node_id)
        # then nothing is left of it, on the screen or on the disk
        view = await s.view(session_id)
        assert len(view.branches) == 1
        assert len(own_tokens(view.turns[-1])) == 12
        assert view.turns[-1].variants == (view.turns[-1].node_id,)
        assert rows(s.path, "SELECT count(*) FROM nodes WHERE role = 'assistant'") == [(1,)]
        assert await s.store.verify() == []

    play(scene)


@pytest.mark.parametrize("then", ["asked again", "left", "left beside another answer"])
def test_a_branch_with_a_failed_answer_can_be_undone_and_redone(play: Play, then: str) -> None:
    async def scene(s: Scene) -> None:
        # given a branch by an edit, or by another answer, that failed at once
        session_id = await s.new()
        answers, select = s.workbench.answers, s.workbench.branches.select
        await answers.send(session_id, "hello")
        path = (await s.view(session_id)).turns
        s.engine.on_look = no_memory
        if then == "left beside another answer":
            await answers.regenerate(session_id, path[-1].node_id)
        else:
            await answers.send(session_id, "in other words", path[1].node_id)
        (told,) = [event for event in s.events if isinstance(event, BranchAdded)]
        s.engine.on_look = lambda _what: None
        if then == "asked again":
            await answers.regenerate(session_id, told.after)
        new = (await s.view(session_id)).turns
        # when it is undone, and redone
        assert (await select(session_id, told.before)).turns[-1].node_id == path[-1].node_id
        assert s.workbench.branches.has(session_id, told.after) is (then != "left beside another answer")
        if then == "left beside another answer":  # nothing of it remains
            with pytest.raises(Refusal):
                await select(session_id, told.after)
            return
        shown = [turn.node_id for turn in (await select(session_id, told.after)).turns]
        # then the answer that replaced it is shown, or else the question
        assert shown == [turn.node_id for turn in (new if then == "asked again" else new[:-1])]

    play(scene)


def no_memory(what: str) -> None:
    """The prompt is read, then there is no room for its answer."""
    if what == "generate":
        raise MemoryBudgetError("no room for the prompt: 2 MB are free, 9 MB are needed")


def test_a_message_after_a_failed_first_answer_and_a_restart_is_answered(play: Play) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [ModelLoadError("not here; fetch it")]
        await s.workbench.answers.send(session_id, "hello")

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        assert (await s.last(session_id)).note == "not here; fetch it"
        await s.workbench.answers.send(session_id, "again")
        assert len(own_tokens(await s.last(session_id))) == 12

    play(first)
    play(second)


def test_a_picked_token_is_kept_if_no_engine_starts_to_continue_it(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        token = alternative(old, at)
        s.engine.refuses = [ModelLoadError("not here")]
        await s.workbench.answers.branch(session_id, old.node_id, at, token)
        new = await s.last(session_id)
        assert (new.note, int(new.run.ids[-1]), len(new.run)) == ("not here", token, at + 1)

    async def third(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        new = await s.last(session_id)
        await s.workbench.answers.continue_turn(session_id, new.node_id)
        assert len(own_tokens(await s.last(session_id))) == 4 + 12

    play(first)
    play(second)
    play(third)


def test_the_turn_and_the_status_show_the_load_progress(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.engine.tell is not None)
        assert s.engine.tell is not None
        s.engine.tell(LoadProgress(1200, 4000))
        assert (await s.last(session_id)).note == "starting the engine… loading x: reading weights, 1,200 of 4,000"
        assert s.workbench.services.supervisor.reason == "loading x: reading weights, 1,200 of 4,000"
        s.engine.tell(LoadProgress(0, 0, "checking"))
        assert s.workbench.services.supervisor.reason == "loading x: checking the numbers"
        assert s.engine.loading is not None
        s.engine.loading.set()
        await sending
        # then the progress is cleared, also if another event was pending
        s.engine.tell(LoadProgress(4000, 4000))
        assert s.workbench.services.supervisor.state is EngineState.READY
        assert "engine" not in (await s.last(session_id)).note

    play(scene, engine=Engine(loading=asyncio.Event()))


def test_stopping_a_load_stops_the_answer_that_waits_for_it(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hello"))
        await until(lambda: s.engine.tell is not None)
        assert s.engine.tell is not None
        s.engine.tell(LoadProgress(1200, 4000))
        assert s.workbench.status.load_share == 0.3
        await s.workbench.models.stop_loading()
        await sending
        # then the message is kept, and its answer can be requested again
        assert s.workbench.status.engine is EngineState.NONE
        stopped = await s.last(session_id)
        assert (stopped.note, len(own_tokens(stopped))) == ("stopped", 0)
        assert s.engine.loading is not None
        s.engine.loading.set()
        await s.workbench.answers.regenerate(session_id, stopped.node_id)
        assert own_tokens(await s.last(session_id))

    play(scene, engine=Engine(loading=asyncio.Event()))
