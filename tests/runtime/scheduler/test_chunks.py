"""The size of prefill chunks: what the model computes in a given time, and on recurrent models at most 512 tokens."""

from __future__ import annotations

import asyncio
import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions
from runtime.options.priority import Priority
from runtime.scheduler.prefill.prefill import CHECKPOINT_TOKENS
from tests.fakes import KINDS, assert_right, engine_of, fake_model, generate_job, query_job, some_ids
from tests.tiny_models import tiny_path


class Clock:
    """A clock that advances only with the tokens of each forward: a model of a known speed."""

    def __init__(self, speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seconds, self._speed = 0.0, speed
        self.sizes: list[int] = []
        for module in ("prefill", "prompts"):
            monkeypatch.setattr(f"runtime.scheduler.prefill.{module}.time", SimpleNamespace(monotonic=lambda: self._seconds))

    def __call__(self, tokens: Any) -> None:
        self.sizes.append(len(tokens))
        self._seconds += len(tokens) / self._speed


def read(model: LanguageModel, ids: list[int]) -> Any:
    waiter: Future[Any] = Future()
    engine_of(model).submit([query_job(model, ids, waiter)])
    return waiter.result(60)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_holds_what_the_model_computes_in_its_time_limit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model of 1,000 tokens a second, whose speed is not known at first
    clock = Clock(1_000.0, monkeypatch)
    behaviour = Behaviour(before_forward=clock, recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour, prefill_chunk_tokens=4_096) as model:
        # when it reads a prompt alone, then chunks grow until they take 400 ms
        read(model, some_ids(1, 5_000))
        assert clock.sizes[0] < 200
        assert all(before <= after for before, after in zip(clock.sizes[:-1], clock.sizes[1:-1], strict=False))
        assert 395 <= clock.sizes[-2] <= 400
        # when it reads beside a streaming answer, then until they take 80 ms
        begun, ended = threading.Event(), threading.Event()
        job = generate_job(model, some_ids(2, 20), GenerationOptions(max_tokens=100_000, seed=1, ignore_eos=True))
        job.on_run = lambda _: begun.set()
        job.on_end = lambda _: ended.set()
        engine_of(model).submit([job])
        assert begun.wait(10)
        clock.sizes.clear()
        read(model, some_ids(3, 2_000))
        job.cancelled = True
        engine_of(model).nudge()
        assert ended.wait(10)
        chunks = [size for size in clock.sizes if size > 1]
        assert all(75 <= size <= 80 for size in chunks[:-1])


def test_background_work_alone_is_read_in_longer_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model of 400 tokens a second with only long background texts to read
    clock = Clock(400.0, monkeypatch)

    def read_behind(seed: int, n: int) -> list[int]:
        clock.sizes.clear()
        waiter: Future[Any] = Future()
        job = replace(query_job(model, some_ids(seed, n), waiter), priority=Priority.BACKGROUND)
        engine_of(model).submit([job])
        waiter.result(60)
        return clock.sizes[:-1]

    with fake_model(Behaviour(before_forward=clock), prefill_chunk_tokens=4_096) as model:
        # then chunks grow from 400 ms to a second and a half
        sizes = read_behind(1, 7_500)
        assert sizes == sorted(sizes)
        assert sizes[0] == 160
        assert sizes[-1] == 600
        # and are short again after any other work, however little
        read(model, some_ids(3, 20))
        assert 155 <= read_behind(4, 400)[0] <= 160


def test_a_slow_model_still_reads_32_tokens_per_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(10.0, monkeypatch)
    with fake_model(Behaviour(before_forward=clock)) as model:
        read(model, some_ids(1, 1_000))
        assert clock.sizes[-2] == 32


@pytest.mark.slow
def test_checkpoints_of_a_fast_recurrent_model_are_at_most_512_tokens_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model that could read thousands of tokens in the time of a chunk, and is allowed to
    text = some_ids(1, 6_000)
    clock = Clock(100_000.0, monkeypatch)
    with fake_model(Behaviour(before_forward=clock), prefill_chunk_tokens=4_096, max_batch_tokens=4_096) as model:
        read(model, text)
        assert max(clock.sizes) > 4_000
    clock = Clock(100_000.0, monkeypatch)
    behaviour = Behaviour(before_forward=clock, recurrent=True)
    with fake_model(behaviour, prefill_chunk_tokens=4_096, max_batch_tokens=4_096) as model:
        # then a recurrent one keeps a state at least every 512 tokens
        read(model, text)
        assert sum(clock.sizes) == 6_000
        assert max(clock.sizes) <= CHECKPOINT_TOKENS == 512
        # and a branch anywhere computes no more than the tokens between two checkpoints
        for at in (5_900, 4_000, 1_700, 513):
            before, path = model.metrics().tokens_computed, [*text[:at], 7]
            assert_right(read(model, path), path, "recurrent")
            assert model.metrics().tokens_computed - before <= CHECKPOINT_TOKENS + 1
        # several texts that are read together still share a forward
        clock.sizes.clear()
        waiters: list[Future[Any]] = [Future() for _ in range(3)]
        engine_of(model).submit([query_job(model, some_ids(9 + i, 500), waiter) for i, waiter in enumerate(waiters)])
        for waiter in waiters:
            waiter.result(60)
        assert len(clock.sizes) <= 2


@pytest.mark.slow
@pytest.mark.parametrize(("speed", "known", "most"), [(10.0, True, 32), (10.0, False, 160), (100_000.0, True, 256)])
def test_the_first_forward_over_many_short_contexts_matches_the_speed_of_the_model(
    speed: float, known: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a cached beginning, and four callers at once, each with 150 contexts that add a token to it
    clock, trunk = Clock(speed, monkeypatch), some_ids(1, 5)
    with fake_model(Behaviour(before_forward=clock), max_batch_rows=256) as model:
        read(model, trunk)
        for seed in range(10) if known else ():
            read(model, some_ids(100 + seed, 16))  # its speed is measured
        clock.sizes.clear()
        answers: list[Future[Any]] = [Future() for _ in range(600)]
        jobs = [query_job(model, [*trunk, *divmod(i, 200)], answer) for i, answer in enumerate(answers)]

        def ask() -> None:  # between two steps
            for at in range(0, 600, 150):
                engine_of(model).submit(jobs[at : at + 150])

        engine_of(model).call(ask).result(60)
        for i, answer in enumerate(answers):
            assert_right(answer.result(60)[0], [*trunk, *divmod(i, 200)])
    # then a forward holds what the model computes in its time limit (measured or guessed), and no more than the row limit
    assert sum(clock.sizes) == 603
    assert most <= clock.sizes[0] <= most + 3


def test_a_model_that_was_slow_at_load_begins_with_a_small_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a machine on which the forward at load took a second
    ticks = itertools.count()
    monkeypatch.setattr("runtime.backends.selftest.time", SimpleNamespace(monotonic=lambda: float(next(ticks))), raising=False)
    told: list[int] = []
    with load(tiny_path("llama"), backend="hf") as model:
        asyncio.run(model.score_run(some_ids(1, 100), on_progress=lambda progress: told.append(progress.done)))
    assert told[:2] == [0, 32]
    assert told[-1] == 100
