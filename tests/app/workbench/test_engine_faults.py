"""The engine dies, or cannot load: the turn says what to do, the text is kept, the next message works."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from runtime import (
    BackendUnavailableError,
    EngineDiedError,
    LanguageModel,
    MemoryBudgetError,
    ModelLoadError,
    NonFiniteLogitsError,
    RuntimeFault,
    load,
)
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, assert_same_view, own_tokens, rows, until
from ui import EngineState, SessionView, TurnStatus

DIED = "engine stopped; your text is kept. Send again to restart it"


def state_of(s: Scene) -> EngineState:
    return s.workbench.status.engine


def test_an_engine_that_dies_in_the_middle_keeps_the_text_and_is_restarted(play: Play) -> None:
    shown: list[SessionView] = []

    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        await s.workbench.send(session_id, "two")
        dead = await s.last(session_id)
        assert (dead.status, dead.note) == (TurnStatus.PARTIAL, DIED)
        assert len(own_tokens(dead)) == 5
        assert state_of(s) is EngineState.DIED
        assert s.workbench.status.reason == DIED

        await s.workbench.send(session_id, "three")
        assert len(own_tokens(await s.last(session_id))) == 12
        assert s.engine.starts == 2
        assert state_of(s) is EngineState.READY
        await s.workbench.continue_turn(session_id, dead.node_id)
        assert len(own_tokens(await s.last(session_id))) == 5 + 12
        shown.append(await s.view(session_id))

    async def later(s: Scene) -> None:
        assert_same_view(await s.view(shown[0].session_id), shown[0])

    play(scene)
    play(later)


def test_an_engine_that_dies_under_two_answers_is_restarted_once(play: Play) -> None:
    async def scene(s: Scene) -> None:
        one, two = await s.new(), await s.new()
        s.engine.holds_after = 3
        first = asyncio.create_task(s.workbench.send(one, "first"))
        second = asyncio.create_task(s.workbench.send(two, "second"))
        await until(lambda: s.arrived(one) == s.arrived(two) == 3)
        model = s.workbench.supervisor.running
        assert model is not None
        await s.workbench.supervisor.died(model)
        s.engine.holds_after = None
        replacement = await s.workbench.supervisor.model()
        await s.workbench.supervisor.died(model)  # the second request notices only now
        assert s.workbench.supervisor.running is replacement
        s.workbench.stop(one)
        s.workbench.stop(two)
        await asyncio.gather(first, second)

    play(scene)


@pytest.mark.parametrize(
    ("fault", "words", "state"),
    [
        (ModelLoadError("no model 'x' here; fetch it with: elsewise models get x"), "elsewise models get x", EngineState.NONE),
        (BackendUnavailableError("torch not installed: pip install 'elsewise[hf]'"), "pip install", EngineState.NONE),
        (EngineDiedError("signal 9 (SIGKILL): out of memory?"), "Send again to try again", EngineState.DIED),
    ],
)
def test_an_engine_that_cannot_load(play: Play, fault: RuntimeFault, words: str, state: EngineState) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [fault]
        await s.workbench.send(session_id, "hello")
        view = await s.view(session_id)
        assert words in view.turns[-1].note
        assert str(fault) in view.turns[-1].note
        assert view.turns[-1].status is TurnStatus.PARTIAL
        assert view.turns[-2].run.text == "hello"
        assert rows(s.path, "SELECT text FROM nodes WHERE role = 'user'") == [("hello",)]
        assert state_of(s) is state
        assert str(fault) in s.workbench.status.reason

        await s.workbench.send(session_id, "again")
        view = await s.view(session_id)
        assert len(own_tokens(view.turns[-1])) == 12
        assert [t.role for t in view.turns] == ["system", "user", "user", "assistant"]  # the failed answer is passed over
        text = b"".join(b for t in view.turns[:3] for b in t.run.token_bytes).decode()
        assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>user\nagain<|im_end|>"
        assert all((t.run.rank > 0).all() for t in view.turns[2:])

    play(scene)


def test_trying_again_where_the_answer_never_began(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [ModelLoadError("not here")]
        await s.workbench.send(session_id, "hello")
        failed = await s.last(session_id)
        await s.workbench.regenerate(session_id, failed.node_id)
        view = await s.view(session_id)
        assert [t.role for t in view.turns] == ["system", "user", "assistant"]
        assert len(own_tokens(view.turns[-1])) == 12

    play(scene)


@pytest.mark.parametrize("again", ["retry", "send", "step back"])
def test_nothing_half_made_remains_of_a_failed_answer(play: Play, again: str) -> None:
    async def scene(s: Scene) -> None:
        # given: a first answer that failed; the list has the person's own words
        session_id = await s.new()
        if again == "step back":
            await s.workbench.send(session_id, "hello")
            first = await s.last(session_id)
            s.engine.on_look = no_memory
            await s.workbench.regenerate(session_id, first.node_id)
        else:
            s.engine.refuses = [ModelLoadError("not here; fetch it")]
            await s.workbench.send(session_id, "hello")
        assert [row.title for row in await s.workbench.sessions()] == ["hello"]
        view = await s.view(session_id)
        failed = view.turns[-1]
        assert (failed.status, own_tokens(failed)) == (TurnStatus.PARTIAL, [])
        assert failed.note in ("not here; fetch it", "no room for the prompt: 2 MB are free, 9 MB are needed")
        names = [row.name for row in view.branches]
        assert (names[0], names[-1]) == ("hello", "no answer" if again == "step back" else "hello")
        # when
        s.engine.on_look = lambda _what: None
        if again == "retry":
            await s.workbench.regenerate(session_id, failed.node_id)
        elif again == "send":
            await s.workbench.send(session_id, "again")
        else:
            await s.workbench.select(session_id, first.node_id)
        # then nothing is left of it, on the screen or on the disk
        view = await s.view(session_id)
        assert len(view.branches) == 1
        assert len(own_tokens(view.turns[-1])) == 12
        assert view.turns[-1].variants == (view.turns[-1].node_id,)
        assert rows(s.path, "SELECT count(*) FROM nodes WHERE role = 'assistant'") == [(1,)]
        assert await s.store.verify() == []

    play(scene)


def no_memory(what: str) -> None:
    """The prompt is read, then there is no room for its answer."""
    if what == "generate":
        raise MemoryBudgetError("no room for the prompt: 2 MB are free, 9 MB are needed")


def test_a_failed_first_answer_after_a_restart_of_the_app(play: Play) -> None:
    async def first(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [ModelLoadError("not here; fetch it")]
        await s.workbench.send(session_id, "hello")

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions())[0].session_id
        assert (await s.last(session_id)).note == "not here; fetch it"
        await s.workbench.send(session_id, "again")
        assert len(own_tokens(await s.last(session_id))) == 12

    play(first)
    play(second)


def test_a_pick_is_kept_when_no_engine_comes_to_go_on_with_it(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions())[0].session_id
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        token = alternative(old, at)
        s.engine.refuses = [ModelLoadError("not here")]
        await s.workbench.branch(session_id, old.node_id, at, token)
        new = await s.last(session_id)
        assert (new.note, int(new.run.ids[-1]), len(new.run)) == ("not here", token, at + 1)

    async def third(s: Scene) -> None:
        session_id = (await s.workbench.sessions())[0].session_id
        new = await s.last(session_id)
        await s.workbench.continue_turn(session_id, new.node_id)
        assert len(own_tokens(await s.last(session_id))) == 4 + 12

    play(first)
    play(second)
    play(third)


def test_a_fault_of_the_model_in_the_middle_keeps_the_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()

        def look(what: str) -> None:
            if what == "generate":
                raise NonFiniteLogitsError("token 3: the logits hold NaN; try another dtype")

        s.engine.on_look = look
        await s.workbench.send(session_id, "two")
        failed = await s.last(session_id)
        assert failed.note == "token 3: the logits hold NaN; try another dtype"
        assert state_of(s) is EngineState.READY
        s.engine.on_look = lambda _what: None
        await s.workbench.regenerate(session_id, failed.node_id)
        assert len(own_tokens(await s.last(session_id))) == 12
        assert s.engine.starts == 1

    play(scene)


def test_a_bug_under_an_answer_is_logged_and_ends_the_turn(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [KeyError("hidden_size")]
        await s.workbench.send(session_id, "hello")
        assert "your text is kept" in (await s.last(session_id)).note

    play(scene)
    assert "an answer failed" in caplog.text
    caplog.clear()


class Shifted:
    """Another model, whose ids mean other bytes."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.info = replace(model.info, kv_fingerprint="another", model_fingerprint="another")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def decode_token(self, token: int) -> bytes:
        return self._model.decode_token((token + 1) % 259)


def test_another_tokenizer_is_refused_instead_of_reading_wrong_words(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        async def start(*_: object, **__: object) -> LanguageModel:
            return Shifted(await asyncio.to_thread(load, "x", backend="fake"))

        s.workbench.supervisor._start_engine = start
        session_id = (await s.workbench.sessions())[0].session_id
        before = rows(s.path, "SELECT count(*) FROM token_chunks")
        await s.view(session_id)
        await s.workbench.send(session_id, "two")
        answer = await s.last(session_id)
        assert "written with another tokenizer" in answer.note
        assert "Choose the model it was written with" in answer.note
        assert rows(s.path, "SELECT count(*) FROM token_chunks") == before

    play(first)
    play(second)


def test_numbers_of_another_model_are_not_taken_for_those_of_the_one_that_answers(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions())[0].session_id
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        await s.workbench.branch(session_id, old.node_id, at, alternative(old, at))
        new = await s.last(session_id)
        assert new.note == "reached the length limit"
        model = s.workbench.supervisor.running
        assert model is not None
        path = await s.path_ids(session_id)
        own = await model.score_run(path, start=len(path) - 12 - 1)
        assert new.run.logprob[at:] == pytest.approx(own.logprob, abs=1e-5)
        assert new.run.logprob[:at] == pytest.approx(old.run.logprob[:at], nan_ok=True)  # still the first model's
        prints = dict(rows(s.path, "SELECT id, kv_fingerprint FROM nodes"))
        assert prints[new.node_id] == model.info.kv_fingerprint != prints[old.node_id]
        await s.workbench.regenerate(session_id, new.node_id)
        header = (await s.last(session_id)).run[: own_tokens(old)[0]]
        path = await s.path_ids(session_id)
        own = await model.score_run(path)
        start = len(path) - 12 - len(header)
        assert header.logprob == pytest.approx(own.logprob[start : start + len(header)], abs=1e-5)

    play(first)
    play(second, engine=Engine(source=(Behaviour(recurrent=True), None)))  # the same bytes, other numbers
