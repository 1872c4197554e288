"""How much one request delays another: a prompt without room, and thousands of contexts, counted in forwards and tokens."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions
from runtime.records import Float32
from tests.fakes import KINDS, assert_right, engine_of, fake_model, generate_job, query_job, settled, some_ids

TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


class Scene:
    """Requests that arrive at given forwards, and the order in which they are answered; all on the owner thread."""

    def __init__(self, behaviour: Behaviour) -> None:
        behaviour.before_forward = self._forward
        self._kind = "recurrent" if behaviour.recurrent else "attention"
        self.forwards = 0
        self.ended: list[str] = []
        self.begun: dict[str, int] = {}  # the step in which each was submitted
        self.answered: dict[str, int] = {}  # and answered
        self._model: LanguageModel | None = None
        self._due: dict[int, list[Callable[[], None]]] = {}
        self._running: list[threading.Event] = []
        self._answers: dict[str, tuple[list[int], Future[Float32]]] = {}

    def play(self, model: LanguageModel) -> None:
        """Runs until everything has ended, and checks the answer of every query."""
        self._model = model
        while self._due:  # where the model is idle, the next action begins at once
            for act in self._due.pop(min(self._due)):
                act()
            while not all(event.is_set() for event in self._running):
                for event in list(self._running):
                    assert event.wait(280)
        for ids, answer in self._answers.values():
            assert_right(answer.result(280)[0], ids, self._kind)

    def steps(self, name: str) -> list[int]:
        """Steps between the arrival and the answer of each request whose name begins with `name`."""
        return [self.answered[each] - self.begun[each] for each in self.begun if each.startswith(name)]

    def at(self, forward: int, act: Callable[[], None]) -> None:
        """Runs `act` before forward number `forward` (0: before all)."""
        self._due.setdefault(forward, []).append(act)

    def chat(self, name: str, prompt: Sequence[int], tokens: int) -> None:
        assert self._model is not None
        job = generate_job(self._model, prompt, GenerationOptions(max_tokens=tokens, seed=1, ignore_eos=True))
        job.on_end = partial(self._end, name, self._begin(name))
        engine_of(self._model).submit([job])

    def query(self, name: str, *contexts: list[int]) -> None:
        """One call, of one context or of several."""
        assert self._model is not None
        ended, jobs = self._begin(name), []
        for i, ids in enumerate(contexts):
            answer: Future[Float32] = Future()
            self._answers[f"{name} {i}"] = ids, answer
            if i == len(contexts) - 1:
                answer.add_done_callback(partial(self._end, name, ended))
            jobs.append(query_job(self._model, ids, answer))
        engine_of(self._model).submit(jobs)

    def _begin(self, name: str) -> threading.Event:
        assert self._model is not None
        self.begun[name] = self._model.transport.heartbeat()[0]
        self._running.append(threading.Event())
        return self._running[-1]

    def _end(self, name: str, event: threading.Event, error: object) -> None:
        assert not isinstance(error, BaseException)
        self.ended.append(name)
        assert self._model is not None
        self.answered[name] = self._model.transport.heartbeat()[0]
        event.set()

    def _forward(self, _: Any) -> None:
        self.forwards += 1
        for act in self._due.pop(self.forwards, ()):
            act()


@pytest.mark.parametrize("kind", KINDS)
def test_a_short_query_is_answered_while_a_prompt_waits_for_room(kind: str) -> None:
    # given an answer that streams, and a prompt for which there is no room beside it
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    scene = Scene(behaviour)
    with fake_model(behaviour, kv_cache_bytes=200 * TOKEN) as model:
        scene.at(0, lambda: scene.chat("answer", some_ids(1, 60), 60))
        scene.at(10, lambda: scene.chat("long", some_ids(2, 150), 1))
        # when short ones arrive
        for n in range(20):
            scene.at(15 + 2 * n, partial(scene.chat, f"short {n}", some_ids(10 + n, 10), 1))
        scene.play(model)
        # then each is read in the next step, in the order of their arrival; the long one when the answer has ended
        assert scene.ended == [*(f"short {n}" for n in range(20)), "answer", "long"]
        assert scene.steps("short") == [1] * 20
        # and no token was computed twice: the prompt was not read, and thrown away, meanwhile
        assert settled(model)[0].tokens_computed <= 60 + 59 + 150 + 20 * 10


def test_two_chats_that_do_not_fit_together_are_computed_once_each() -> None:
    behaviour = Behaviour()
    scene = Scene(behaviour)
    with fake_model(behaviour, kv_cache_bytes=220 * TOKEN, prefill_chunk_tokens=16) as model:
        scene.at(0, lambda: scene.chat("first", some_ids(1, 100), 80))
        scene.at(5, lambda: scene.chat("second", some_ids(2, 130), 60))
        scene.play(model)
        assert scene.ended == ["first", "second"]
        assert settled(model)[0].tokens_computed <= 100 + 79 + 130 + 59


def test_a_prompt_that_is_pushed_out_by_a_growing_answer_is_read_again_once() -> None:
    # given two chats that fit together at first, and no more once the first has grown, while queries come and go
    behaviour = Behaviour()
    scene = Scene(behaviour)
    with fake_model(behaviour, kv_cache_bytes=400 * TOKEN, prefill_chunk_tokens=8) as model:
        scene.at(0, lambda: scene.chat("first", some_ids(1, 200), 150))
        scene.at(90, lambda: scene.chat("second", some_ids(2, 120), 1))
        for n in range(40):
            scene.at(100 + 2 * n, partial(scene.query, f"short {n}", some_ids(10 + n, 10)))
        scene.play(model)
        needed = 200 + 149 + 120 + 40 * 10
        # then the second is begun twice at most
        assert settled(model)[0].tokens_computed <= needed + 120


def test_a_long_text_gives_way_to_short_ones_once() -> None:
    # given a text that takes nearly the whole budget, when short ones keep arriving
    behaviour = Behaviour()
    scene = Scene(behaviour)
    with fake_model(behaviour, kv_cache_bytes=320 * TOKEN, prefill_chunk_tokens=16) as model:
        scene.at(0, lambda: scene.query("long", some_ids(1, 300)))
        for n in range(10):
            scene.at(5 + 4 * n, partial(scene.query, f"short {n}", some_ids(10 + n, 30)))
        scene.play(model)
        # then the first short one does not wait, the others do not keep the long text out, and it is begun twice at most
        assert scene.ended[0] == "short 0"
        assert scene.steps("short")[0] == 2  # chunks of 16 tokens
        assert settled(model)[0].tokens_computed <= 2 * 300 + 10 * 30


def test_a_prompt_without_room_is_not_kept_out_for_ever() -> None:
    # given a prompt that has to wait for an answer to end, and queries that never cease
    behaviour = Behaviour()
    scene = Scene(behaviour)
    with fake_model(behaviour, kv_cache_bytes=300 * TOKEN, prefill_chunk_tokens=32) as model:
        scene.at(0, lambda: scene.chat("answer", some_ids(1, 60), 40))
        scene.at(10, lambda: scene.chat("long", some_ids(2, 260), 1))

        def ask(n: int) -> None:
            """Submits queries of four steps each, one in every second step: two are always in work."""
            scene.query(f"short {n}", some_ids(10 + n, 110))
            if "long" not in scene.ended and n < 200:
                scene.at(scene.forwards + 2, partial(ask, n + 1))

        scene.at(12, partial(ask, 0))
        scene.play(model)
        # then it is begun as soon as the queries that were in work when the answer ended are done
        assert scene.answered["long"] - scene.answered["answer"] <= 40


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_contexts_delay_no_other_query(kind: str) -> None:
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    scene = Scene(behaviour)
    with fake_model(behaviour) as model:
        # given a call of 1,000 contexts, when other calls query one each
        scene.at(0, lambda: scene.query("large", *(some_ids(100 + i, 12) for i in range(1_000))))
        for n in range(5):
            scene.at(2 + 4 * n, partial(scene.query, f"short {n}", some_ids(10 + n, 30)))
        scene.play(model)
        # then each is answered with the step after the one in which it arrived
        assert scene.ended == [*(f"short {n}" for n in range(5)), "large"]
        assert scene.steps("short") == [1] * 5


def test_a_call_of_long_contexts_takes_turns_with_a_short_one() -> None:
    behaviour = Behaviour()
    scene = Scene(behaviour)
    with fake_model(behaviour, prefill_chunk_tokens=64) as model:
        scene.at(0, lambda: scene.query("large", *(some_ids(100 + i, 400) for i in range(20))))
        scene.at(3, lambda: scene.query("short", some_ids(1, 30)))
        scene.play(model)
        assert scene.ended == ["short", "large"]
        assert scene.steps("short") == [1]


@pytest.mark.slow
def test_a_call_of_a_thousand_contexts_and_a_query_beside_it_are_right() -> None:
    with fake_model() as model:
        contexts = [some_ids(i, 5) for i in range(1_000)]

        async def main() -> tuple[Float32, Float32]:
            large = asyncio.ensure_future(model.batch_next_token_logprobs(contexts))
            return await model.next_token_logprobs(some_ids(5_000, 20)), await large

        short, rows = asyncio.run(main())
        assert_right(short, some_ids(5_000, 20))
        for ids, row in zip(contexts, rows, strict=True):
            assert_right(row, ids)


def calls(model: LanguageModel, act: Callable[[], object]) -> int:
    """How many Python functions the owner thread calls during `act`, steps of generators among them."""
    count = 0

    def called(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event == "call"

    engine_of(model).call(lambda: sys.setprofile(called)).result()
    act()
    engine_of(model).call(lambda: sys.setprofile(None)).result()
    return count


@pytest.mark.slow
def test_a_query_after_a_pause_costs_the_same_whatever_is_cached() -> None:
    def after_pauses(edges: int) -> int:
        with fake_model() as model:
            rows = [[1, i // 200, i % 200] for i in range(edges)]
            for at in range(0, edges, 200):
                model.batch_next_token_logprobs_sync(rows[at : at + 200])
            assert settled(model)[1].edges >= edges

            def ask() -> None:
                for i in range(5):
                    time.sleep(0.05)  # the pause
                    model.next_token_logprobs_sync([1, i, 255])
                time.sleep(0.05)

            return calls(model, ask)

    assert after_pauses(4_000) <= 1.5 * after_pauses(400)


@pytest.mark.slow
def test_the_cost_of_a_waiting_query_does_not_grow_with_their_number() -> None:
    def for_each(n: int) -> float:
        rows = [[1, i // 200, i % 200, 7] for i in range(n)]
        with fake_model() as model:
            return calls(model, lambda: model.batch_next_token_logprobs_sync(rows)) / n

    assert for_each(2_000) <= 1.2 * for_each(500)
