"""The engine dies, or its model fails: the turn names the way out, the text is kept, the next message works."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from runtime import (
    EngineDiedError,
    LanguageModel,
    NonFiniteLogitsError,
    load,
)
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, answered, assert_same_view, own_tokens, rows, until, words
from ui import EngineState, Refusal, SessionView, TurnStatus

DIED = "engine stopped; your text is kept. Send again to restart it"


def state_of(s: Scene) -> EngineState:
    return s.workbench.status.engine


def test_an_engine_that_dies_in_the_middle_keeps_the_text_and_is_restarted(play: Play) -> None:
    shown: list[SessionView] = []

    async def scene(s: Scene) -> None:
        session_id = await s.asked("one")
        s.engine.dies_after = 5
        await s.workbench.answers.send(session_id, "two")
        dead = await s.last(session_id)
        assert (dead.status, dead.note) == (TurnStatus.PARTIAL, DIED)
        assert len(own_tokens(dead)) == 5
        assert dead.run.record(len(dead.run) - 1).finish_reason == "engine_died"
        assert state_of(s) is EngineState.DIED
        assert s.workbench.status.reason == DIED

        await s.workbench.answers.send(session_id, "three")
        assert len(own_tokens(await s.last(session_id))) == 12
        assert s.engine.starts == 2
        assert state_of(s) is EngineState.READY
        await s.workbench.answers.continue_turn(session_id, dead.node_id)
        assert len(own_tokens(await s.last(session_id))) == 5 + 12
        shown.append(await s.view(session_id))

    async def later(s: Scene) -> None:
        assert_same_view(await s.view(shown[0].session_id), shown[0])

    play(scene)
    play(later)


def test_an_engine_that_dies_during_two_answers_is_restarted_once(play: Play) -> None:
    async def scene(s: Scene) -> None:
        one, two = await s.new(), await s.new()
        s.engine.holds_after = 3
        first = asyncio.create_task(s.workbench.answers.send(one, "first"))
        second = asyncio.create_task(s.workbench.answers.send(two, "second"))
        await until(lambda: s.arrived(one) == s.arrived(two) == 3)
        model = s.workbench.services.supervisor.running
        assert model is not None
        await s.workbench.services.supervisor.died(model)
        s.engine.holds_after = None
        replacement = await s.workbench.services.supervisor.model()
        await s.workbench.services.supervisor.died(model)  # the second request notices only now
        assert s.workbench.services.supervisor.running is replacement
        s.workbench.answers.stop(one)
        s.workbench.answers.stop(two)
        await asyncio.gather(first, second)

    play(scene)


def test_an_engine_that_dies_while_it_reads_typed_words_is_restarted_by_the_next_attempt(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        model = s.workbench.services.supervisor.running
        assert model is not None

        async def dies(text: str, **_: object) -> list[int]:
            raise EngineDiedError("its process is gone")

        monkeypatch.setattr(model, "tokenize_async", dies, raising=False)
        with pytest.raises(Refusal):
            await s.workbench.answers.write(session_id, old.node_id, at, " two words")
        assert state_of(s) is EngineState.DIED
        await s.workbench.answers.write(session_id, old.node_id, at, " two words")
        assert (s.engine.starts, state_of(s)) == (2, EngineState.READY)
        written = words(" two words")
        assert (await s.last(session_id)).run.ids[at : at + len(written)].tolist() == written

    play(scene)


def test_a_fault_of_the_model_in_the_middle_keeps_the_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()

        def look(what: str) -> None:
            if what == "generate":
                raise NonFiniteLogitsError("token 3: the logits hold NaN; try another dtype")

        s.engine.on_look = look
        await s.workbench.answers.send(session_id, "two")
        failed = await s.last(session_id)
        assert failed.note == "token 3: the logits hold NaN; try another dtype"
        assert state_of(s) is EngineState.READY
        s.engine.on_look = lambda _what: None
        await s.workbench.answers.regenerate(session_id, failed.node_id)
        assert len(own_tokens(await s.last(session_id))) == 12
        assert s.engine.starts == 1

    play(scene)


def test_an_internal_error_during_an_answer_is_logged_and_ends_the_turn(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.refuses = [KeyError("hidden_size")]
        await s.workbench.answers.send(session_id, "hello")
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


def test_a_model_with_another_tokenizer_is_refused_instead_of_reading_wrong_words(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        async def start(*_: object, **__: object) -> LanguageModel:
            return cast("LanguageModel", Shifted(await asyncio.to_thread(load, "x", backend="fake")))

        s.workbench.services.supervisor.start_engine = start
        session_id = (await s.workbench.sessions.list())[0].session_id
        before = rows(s.path, "SELECT count(*) FROM token_chunks")
        await s.view(session_id)
        await s.workbench.answers.send(session_id, "two")
        answer = await s.last(session_id)
        assert "written with another tokenizer" in answer.note
        assert "Choose the model it was written with" in answer.note
        assert rows(s.path, "SELECT count(*) FROM token_chunks") == before

    play(first)
    play(second)


def test_numbers_of_another_model_are_not_taken_for_those_of_the_answering_one(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        await s.workbench.answers.branch(session_id, old.node_id, at, alternative(old, at))
        new = await s.last(session_id)
        assert new.note == "reached the length limit"
        model = s.workbench.services.supervisor.running
        assert model is not None
        path = await s.path_ids(session_id)
        own = await model.score_run(path, start=len(path) - 12 - 1)
        assert new.run.logprob[at:] == pytest.approx(own.logprob, abs=1e-5)
        assert new.run.logprob[:at] == pytest.approx(old.run.logprob[:at], nan_ok=True)  # still the first model's
        prints = dict(rows(s.path, "SELECT id, kv_fingerprint FROM nodes"))
        assert prints[new.node_id] == model.info.kv_fingerprint != prints[old.node_id]
        await s.workbench.answers.regenerate(session_id, new.node_id)
        header = (await s.last(session_id)).run[: own_tokens(old)[0]]
        path = await s.path_ids(session_id)
        own = await model.score_run(path)
        start = len(path) - 12 - len(header)
        assert header.logprob == pytest.approx(own.logprob[start : start + len(header)], abs=1e-5)

    play(first)
    play(second, engine=Engine(source=(Behaviour(recurrent=True), None)))  # the same bytes, other numbers
