"""Thousands of requests that are cancelled or abandoned at any moment, beside some that are awaited."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from typing import Any

import pytest

from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from runtime.options.generation import GenerationOptions, SamplingOptions
from tests.fakes import assert_right, fake_model, reference, some_ids
from tests.runtime.model.trouble import audit

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
AT_ONCE = 60
STEMS = [some_ids(i, 20) for i in range(4)]


class Crowd:
    """Submits requests and cancels most of them. `left` counts those cancelled before their answer.

    Args:
        model: The model under test.
        seed: Decides which requests it makes, and when.
        kind: Selects the reference.
    """

    def __init__(self, model: LanguageModel, seed: int, kind: str) -> None:
        self.model, self.kind = model, kind
        self.chance = random.Random(seed)
        self.left = self.stayed = 0

    async def one(self) -> None:
        """One request, awaited or cancelled."""
        chance, model = self.chance, self.model
        ids = [*chance.choice(STEMS)[: chance.randrange(1, 20)], *some_ids(chance.randrange(40), chance.randrange(8))]
        work: Any = chance.choice([self.query, self.query, self.score, self.sample, self.stream, self.abandon])
        if chance.random() < 0.03:
            work = model.cache_kv_async if chance.random() < 0.5 else self.query
        task = asyncio.ensure_future(work(ids))
        for _ in range(chance.choice([0, 0, 0, 1, 1, 2, 3, 5, 9, 20])):  # phases: turns of the loop, ...
            await asyncio.sleep(0)
        if chance.random() < 0.2:  # ... or moments in which the owner thread steps
            await asyncio.sleep(chance.random() * 0.004)
        if chance.random() < 0.1:
            await task
            self.stayed += 1
        else:
            self.left += not task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def query(self, ids: list[int]) -> None:
        assert_right(await self.model.next_token_logprobs(ids), ids, self.kind)

    async def score(self, ids: list[int]) -> None:
        records = await self.model.score(ids, top_k=0)
        if len(ids) > 1:
            assert records[-1].logprob == pytest.approx(float(reference(ids[:-1], self.kind)[ids[-1]]), abs=1e-5)

    async def sample(self, ids: list[int]) -> None:
        got = await self.model.sample(ids, 5, [], temperature=0.0)
        assert got[0] == int(reference(ids, self.kind).argmax())

    async def stream(self, ids: list[int]) -> None:
        said = [record.token_id async for record in self.model.generate(ids, GREEDY)]
        assert said[1] == int(reference([*ids, said[0]], self.kind).argmax())

    async def abandon(self, ids: list[int]) -> None:
        """Leaves an iterator without closing it."""
        async for _ in self.model.generate(ids, GREEDY):
            if self.chance.random() < 0.5:
                break

    async def until(self, leavers: int) -> None:
        """Runs requests, some at a time, until so many were cancelled before their answer."""

        async def some() -> None:
            while self.left < leavers:
                await self.one()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


@pytest.mark.slow
@pytest.mark.parametrize("leavers", [1_500, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["overlapping"])  # tests/reliability runs the others
def test_thousands_of_cancelled_requests_leave_nothing_behind(kind: str, leavers: int) -> None:
    # given little memory, small chunks, and iterators in another thread that are dropped without being closed
    behaviour = Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")
    with fake_model(behaviour, prefill_chunk_tokens=16, max_batch_rows=7, kv_cache_bytes=150_000) as model:

        def drop() -> None:
            for seed in range(200):
                runs = model.generate_sync(some_ids(seed % 9, 1 + seed % 12), GREEDY)
                if seed % 3:
                    next(iter(runs))

        other = threading.Thread(target=drop)
        other.start()
        # when requests come and go
        crowd = Crowd(model, 1, kind)
        asyncio.run(crowd.until(leavers))
        other.join()
        # then those that were awaited had right answers, and nothing of the others is left
        assert crowd.stayed > leavers // 20
        audit(model)
