"""Requests that go away at any moment, and requests that the model fails on, beside some that stay: on the real libraries."""

from __future__ import annotations

import asyncio
import contextlib
import random

import numpy as np
import pytest

from runtime.errors import NonFiniteLogitsError
from runtime.options import GenerationOptions, SamplingOptions
from tests.runtime.backends.reference import TOLERANCE
from tests.runtime.model.trouble import CASES, Case, audit, troubled

RAISES, NO_NUMBER = 999, 998  # tokens that the model fails on; innocent texts never have them, and answers may not say them
INNOCENT = SamplingOptions(temperature=0.0, banned_tokens=(RAISES, NO_NUMBER))
GREEDY = GenerationOptions(max_tokens=8, sampling=INNOCENT, ignore_eos=True, top_k=0)
AT_ONCE = 12
LIBRARIES = [case for case in CASES if case[0] != "fake"]


class Crowd:
    """Asks, and leaves or stays. `left`, `stayed` and `failed` count how it went."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.chance = case, random.Random(seed)
        self.stems = [case.ids(i, 24) for i in range(3)]
        self.left = self.stayed = self.failed = 0

    def text(self) -> list[int]:
        """The beginning of a stem, and something new."""
        stem = self.chance.choice(self.stems)
        return [*stem[: self.chance.randrange(1, 24)], *self.case.ids(self.chance.randrange(20), self.chance.randrange(9))]

    async def one(self) -> None:
        """One request: asked, perhaps waited for, perhaps one that must fail."""
        chance, ids = self.chance, self.text()
        guilty = chance.choice([RAISES, NO_NUMBER]) if chance.random() < 0.15 else None
        if guilty is not None:
            ids.insert(chance.randrange(len(ids)) + 1, guilty)
            if guilty == NO_NUMBER:
                del ids[ids.index(guilty) + 1 :]  # only a row that somebody looks at shows it
        task = asyncio.ensure_future(chance.choice([self.query, self.score, self.stream])(ids))
        for _ in range(chance.choice([0, 0, 1, 2, 5, 20])):
            await asyncio.sleep(0)
        if chance.random() < 0.3:  # a moment in which the owner thread steps
            await asyncio.sleep(chance.random() * 0.01)
        if guilty is None and chance.random() < 0.6:
            self.left += not task.done()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        elif guilty is None:
            await task
            self.stayed += 1
        else:
            with pytest.raises(ZeroDivisionError if guilty == RAISES else NonFiniteLogitsError):
                await task
            self.failed += 1

    async def query(self, ids: list[int]) -> None:
        got = await self.case.model.next_token_logprobs(ids)
        self.case.check(got, ids)

    async def score(self, ids: list[int]) -> None:
        records = await self.case.model.score([*ids, 5], top_k=0)
        assert records[-1].logprob == pytest.approx(float(self.case.right(ids)[5]), abs=TOLERANCE)

    async def stream(self, ids: list[int]) -> None:
        said = [record.token_id async for record in self.case.model.generate(ids, GREEDY)]
        assert len(said) == GREEDY.max_tokens
        for at in (0, 3, 7):
            row = self.case.right([*ids, *said[:at]])[: min(RAISES, NO_NUMBER)]  # those are the last of all
            assert row[said[at]] >= row.max() - 2 * TOLERANCE

    async def many(self, requests: int) -> None:
        async def some() -> None:
            for _ in range(requests // AT_ONCE):
                await self.one()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


@pytest.mark.parametrize("requests", [60, pytest.param(600, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("backend", "name"), LIBRARIES)
def test_nobody_notices_who_leaves_and_who_fails(backend: str, name: str, requests: int) -> None:
    # given little room, small chunks and batches
    with troubled(backend, name, prefill_chunk_tokens=16, max_batch_rows=5, threads=1) as case:
        case.faults.raise_on, case.faults.bad_on = {RAISES: ZeroDivisionError("broken kernel")}, {NO_NUMBER: np.nan}
        held = case.model._engine.backend
        case.model.set_kv_budget(400 * held.slot_bytes + 40 * held.state_bytes)
        # when they come and go
        crowd = Crowd(case, 1)
        asyncio.run(crowd.many(requests))
        # then those who stayed had right answers, those who had to fail their error, and nothing is left of any
        assert min(crowd.left, crowd.stayed) > requests // 10
        assert crowd.failed > requests // 40
        audit(case.model)
