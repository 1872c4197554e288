"""A session that no model has read, such as an imported one, gets the numbers of its tokens on request."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.workbench.tree.runs import content_of
from app.workbench.tree.session import WholeSession
from runtime import TokenRun
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, until
from ui import EngineState, Refusal, TurnChanged

SAID = (
    ("user", "What is the sea?"), ("assistant", "The sea is 水 and salt."), ("user", "And the rain?"), ("assistant", "Water."),
)  # fmt: skip


async def imported(s: Scene, said: tuple[tuple[str, str], ...] = SAID) -> int:
    file = s.path.with_suffix(".json")
    await asyncio.to_thread(file.write_text, json.dumps([{"role": role, "content": text} for role, text in said]))
    result = await s.workbench.transfers.import_file(file, lambda _done, _total: None)
    return (await s.view(result.sessions[0])).session_id


async def said_in(s: Scene, session_id: int) -> list[tuple[str, str]]:
    turns = (await s.view(session_id)).turns
    return [(turn.role, content_of(turn.run)) for turn in turns if turn.role != "system"]


def test_every_token_of_an_imported_session_is_scored_and_saved(play: Play) -> None:
    async def first(s: Scene) -> None:
        session_id = await imported(s)
        before = await said_in(s, session_id)
        told: list[tuple[int, int]] = []
        count = await s.workbench.answers.score(session_id, lambda done, total: told.append((done, total)))
        turns = (await s.view(session_id)).turns
        # then each turn, answers included, has its own tokens with the model's numbers, and the same text
        assert await said_in(s, session_id) == before
        assert [len(turn.run) > 3 for turn in turns if turn.role != "system"] == [True] * 4
        ids = np.concatenate([turn.run.ids for turn in turns])
        logprobs = np.concatenate([turn.run.logprob for turn in turns])
        assert ids.tolist() == await s.path_ids(session_id)
        model = await s.workbench.services.supervisor.model()
        alone = await model.score_run(ids.tolist())
        np.testing.assert_allclose(logprobs[1:], alone.logprob[1:], atol=1e-4)
        assert count == len(ids) - 1  # nothing precedes the first
        assert told[-1][0] == told[-1][1] > 0
        # and a second time nothing remains to be scored
        assert await s.workbench.answers.score(session_id, lambda _done, _total: None) == 0

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        turns = (await s.view(session_id)).turns
        assert all((turn.run.rank[1:] > 0).all() for turn in turns)
        # the conversation continues after it
        await s.workbench.answers.send(session_id, "hello")
        assert [text for _role, text in (await said_in(s, session_id))[:4]] == [text for _role, text in SAID]

    play(first)
    play(second)


def test_tokens_without_a_known_rank_count_as_scored(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await imported(s)
        model = await s.workbench.services.supervisor.model()
        score_run = model.score_run

        async def without_ranks(*ids: Any, **how: Any) -> TokenRun:  # as from a server, for tokens beyond its list
            run = await score_run(*ids, **how)
            return replace(run, rank=np.zeros_like(run.rank))

        monkeypatch.setattr(model, "score_run", without_ranks)
        count = await s.workbench.answers.score(session_id, lambda _done, _total: None)
        assert count == len(await s.path_ids(session_id)) - 1

    play(scene)


def test_a_session_that_ends_with_a_question_is_scored_to_its_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await imported(s, SAID[:3])
        assert await s.workbench.answers.score(session_id, lambda _done, _total: None) > 0
        turns = [turn for turn in (await s.view(session_id)).turns if turn.role != "system"]
        assert [(turn.run.rank[1:] > 0).all() and len(turn.run) > 3 for turn in turns] == [True] * 3

    play(scene)


@pytest.mark.parametrize("way", ["stop", "cancel"])
def test_scoring_can_be_stopped_and_is_refused_with_the_reason(play: Play, way: str) -> None:
    async def scene(s: Scene) -> None:
        session_id = await imported(s)
        scoring = asyncio.create_task(s.workbench.answers.score(session_id, lambda _done, _total: None))
        await until(lambda: s.engine.starts)
        # the session is locked for the scoring meanwhile
        with pytest.raises(Refusal, match="answer"):
            await s.workbench.answers.send(session_id, "hello")
        s.workbench.answers.stop(session_id) if way == "stop" else scoring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await scoring
        assert await said_in(s, session_id) == list(SAID)
        assert s.engine.loading is not None
        s.engine.loading.set()
        assert await s.workbench.answers.score(session_id, lambda _done, _total: None) > 0
        # an empty session
        with pytest.raises(Refusal, match="no messages"):
            await s.workbench.answers.score(await s.new(), lambda _done, _total: None)

    play(scene, engine=Engine(loading=asyncio.Event()))


def test_scoring_can_be_stopped_while_the_session_is_read(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await imported(s)
        reads, whole = asyncio.Event(), s.workbench.services.sessions.whole

        async def slowly(*ids: int) -> WholeSession:
            reads.set()
            await asyncio.Event().wait()
            return await whole(*ids)

        monkeypatch.setattr(s.workbench.services.sessions, "whole", slowly)
        scoring = asyncio.create_task(s.workbench.answers.score(session_id, lambda _done, _total: None))
        await reads.wait()
        with pytest.raises(Refusal, match="answer"):
            await s.workbench.answers.score(session_id, lambda _done, _total: None)
        s.workbench.answers.stop(session_id)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(scoring, 5)
        assert not s.engine.starts
        # and later it is scored
        monkeypatch.undo()
        assert await s.workbench.answers.score(session_id, lambda _done, _total: None) > 0

    play(scene)


def test_scoring_can_be_stopped_in_the_moment_that_the_session_was_read(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await imported(s)
        whole = s.workbench.services.sessions.whole

        async def read(*ids: int) -> WholeSession:
            session = await whole(*ids)
            asyncio.get_running_loop().call_soon(s.workbench.answers.stop, session_id)  # before the scoring goes on
            return session

        monkeypatch.setattr(s.workbench.services.sessions, "whole", read)
        with pytest.raises(asyncio.CancelledError):
            await s.workbench.answers.score(session_id, lambda _done, _total: None)
        assert not s.engine.starts

    play(scene)


def test_the_engine_is_ready_only_after_a_scoring_that_outlasts_an_answer(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, other = await imported(s), await s.new()
        s.engine.gate = asyncio.Semaphore(1)
        answering = asyncio.create_task(s.workbench.answers.send(other, "hello"))
        await until(lambda: s.arrived(other))
        s.engine.scores = asyncio.Event()
        scoring = asyncio.create_task(s.workbench.answers.score(session_id, lambda _done, _total: None))
        await until(lambda: len(s.workbench.services.running) == 2)
        for _ in range(20):
            s.engine.gate.release()
        await answering
        states = [s.workbench.status.engine]
        s.engine.scores.set()
        await scoring
        states.append(s.workbench.status.engine)
        assert states == [EngineState.BUSY, EngineState.READY]

    play(scene)


def test_a_message_reports_only_turns_that_got_tokens_or_numbers(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        for text in ("and then?", "and now?"):
            await s.workbench.answers.send(session_id, text)
        before = len(s.events)
        await s.workbench.answers.send(session_id, "is that all?")
        told = [event.turn for event in s.events[before:] if isinstance(event, TurnChanged) and event.turn.role == "user"]
        assert [content_of(turn.run) for turn in told] == ["is that all?"]

    play(scene)
