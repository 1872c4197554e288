"""The cost of an answer: tokens found in the cache, tokens computed, and the time to the first token."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from app.workbench.tree.turn_notes import stored_stats
from runtime import SamplingOptions
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Engine, Scene, own_tokens
from tests.app.workbench.trees import node
from tests.fakes import Gate
from ui import Event, Guess, TurnChanged, TurnStats

CHUNK = 64  # tokens of a long prompt at a time
LONG = "word " * 200


def in_chunks(gate: Gate | None = None) -> Engine:
    return Engine(source=(Behaviour(before_forward=gate), None), options={"prefill_chunk_tokens": CHUNK})


@pytest.mark.parametrize("first", [True, False])
def test_an_answer_stopped_during_prefill_counts_the_tokens_read(play: Play, first: bool) -> None:
    gate = Gate()

    async def scene(s: Scene) -> None:
        # given a model that waits after the first chunk that is new to it
        session_id = await (s.new() if first else s.asked("hi"))
        before = len(await s.path_ids(session_id))

        def stop_in_the_middle(event: Event) -> None:
            words = event.turn.note.split() if isinstance(event, TurnChanged) else []
            if words[:1] == ["reading"] and int(words[1].replace(",", "")) > before:
                task = next(iter(s.workbench.services.running)).task
                assert task is not None
                s.workbench.answers.stop(session_id)
                task.add_done_callback(lambda _: gate.open())  # not before the model got the request

        # when
        s.workbench.subscribe(stop_in_the_middle)
        gate.shut(after=1)
        await s.workbench.answers.send(session_id, LONG)
        # then
        stopped = await s.last(session_id)
        assert (stopped.note, own_tokens(stopped)) == ("stopped", [])
        assert stopped.stats is not None
        assert stopped.stats.reused == max(before - 1, 0)
        assert stopped.stats.computed is not None
        assert 0 < stopped.stats.computed < len(LONG)
        assert s.workbench.status.computed == stopped.stats.computed

    play(scene, engine=in_chunks(gate))


def test_an_answer_stopped_while_the_engine_loads_has_no_counts(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        s.engine.on_look = lambda what: s.workbench.answers.stop(session_id) if what == "start" else None
        await s.workbench.answers.send(session_id, "hello")
        await s.workbench.services.supervisor.model()  # loading continues
        stopped = await s.last(session_id)
        assert stopped.stats is not None
        assert (stopped.stats.reused, stopped.stats.computed, stopped.stats.first_token_seconds) == (None, None, None)
        assert (s.workbench.status.reused, s.workbench.status.computed) == (None, None)

    play(scene)


def test_a_prompt_is_either_found_or_computed(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked(LONG)
        first = (await s.last(session_id)).stats
        assert first is not None
        assert (first.reused, first.computed) == (0, len(s.engine.prompts[-1]))
        before = len(await s.path_ids(session_id))
        await s.workbench.answers.send(session_id, LONG)
        second = (await s.last(session_id)).stats
        assert second is not None
        assert (second.reused, second.computed) == (before - 1, len(s.engine.prompts[-1]) - before + 1)

    play(scene, engine=in_chunks())


def test_the_first_token_is_timed_from_when_the_engine_is_ready(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a clock that moves only when the engine loads (100 s) and reads (3 s)
    clock = [0.0]
    monkeypatch.setattr("app.workbench.answers.streaming.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def work(what: str) -> None:
        clock[0] += {"start": 100.0, "score": 0.0, "generate": 3.0}[what]

    async def scene(s: Scene) -> None:
        s.engine.on_look = work
        session_id = await s.asked()
        stats = (await s.last(session_id)).stats
        assert stats is not None
        assert stats.first_token_seconds == 3.0

    play(scene)


def test_an_answer_says_how_many_guesses_were_right(play: Play) -> None:
    # given a repeated letter, which prompt lookup guesses right
    options = replace(OPTIONS, max_tokens=40, sampling=SamplingOptions(logit_bias={97: 100.0}))
    told: list[tuple[int | None, int | None]] = []

    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        plain = await s.last(session_id)
        assert plain.stats is not None
        assert (plain.stats.drafted, plain.stats.accepted) == (None, None)
        # when two answers use speculation
        await s.workbench.setup.set_guess(session_id, Guess.PROMPT_LOOKUP)
        for _ in range(2):
            await s.workbench.answers.send(session_id, "and then?")
            turn = await s.last(session_id)
            assert turn.stats is not None
            told.append((turn.stats.drafted, turn.stats.accepted))
            made = s.workbench.answers.how_made(session_id, turn.node_id)
            assert made is not None
            drafted, accepted = turn.stats.drafted or 0, turn.stats.accepted or 0
            assert made.facts["drafted"] == f"{drafted} tokens, {accepted} accepted ({100 * accepted // drafted} %)"
        # then each answer has its own guesses, which add up to those of the model
        metrics = (await s.workbench.services.supervisor.model()).metrics()
        assert [sum(part or 0 for part in parts) for parts in zip(*told, strict=True)] == [
            metrics.tokens_drafted,
            metrics.tokens_accepted,
        ]
        assert all(drafted and accepted and accepted <= drafted for drafted, accepted in told)

    async def reopened(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        turns = [turn for turn in (await s.view(session_id)).turns if turn.role == "assistant"]
        stats = [turn.stats for turn in turns]
        assert [(one.drafted, one.accepted) for one in stats if one is not None] == [(None, None), *told]

    play(scene, options=options)
    play(reopened, options=options)


def test_an_answer_without_guesses_has_a_count_of_zero(play: Play) -> None:
    async def scene(s: Scene) -> None:
        # given an answer whose only token is drawn after the prefill
        session_id = await s.new()
        await s.workbench.setup.set_guess(session_id, Guess.PROMPT_LOOKUP)
        await s.workbench.answers.send(session_id, "hello")
        turn = await s.last(session_id)
        assert turn.stats is not None
        assert (turn.stats.drafted, turn.stats.accepted) == (0, 0)
        made = s.workbench.answers.how_made(session_id, turn.node_id)
        assert made is not None
        assert made.facts["drafted"] == "0 tokens"

    play(scene, options=replace(OPTIONS, max_tokens=1))


def test_invalid_stored_numbers_are_ignored() -> None:
    names = ("reused", "computed", "first_token_seconds", "tokens_per_second", "logprob", "drafted", "accepted")
    told = replace(node(4, 3, "assistant"), stats={"generated": 3, **dict.fromkeys(names, "many")})
    assert stored_stats(told) == TurnStats(None, None, None, None, None)
    # and a turn that is not an answer has none of them
    assert stored_stats(node(4, 3, "user")) is None
