"""Requests of every kind, cancelled at random moments on every engine, beside some that stay and some that must fail."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.beams import BeamOptions
from runtime.errors import NonFiniteLogitsError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import BlockOptions
from runtime.records import Float32
from tests import fakes
from tests.fakes import engine_of
from tests.reliability.suite import Order, Tally
from tests.runtime.backends import reference
from tests.runtime.backends.reference import TOLERANCE
from tests.runtime.model.trouble import CASES, Case, audit, troubled

RAISES, NO_NUMBER = 999, 998  # tokens on which a model fails; no other text contains them, and they are banned in answers
TOYS = {RAISES: 258, NO_NUMBER: 257}  # of the toy models, which have a smaller vocabulary
TOKENS, WIDTH = 8, 3
AT_ONCE = 12
TEXTS = ("Where should we go?", "It rains.", "A text that is longer than the others, and says less.", "Why not")
MEMORY = 1.05  # limit of memory at the end, relative to that after a quarter of the cancels
LITTLE = {"prefill_chunk_tokens": 16, "max_batch_rows": 5, "threads": 1}  # small chunks and batches, so that requests overlap


class Crowd:
    """Sends requests and cancels some. `left`, `stayed` and `failed` count the outcomes, `wrong` collects the failures.

    Args:
        case: The model.
        seed: Seed of the requests and of their timing.
        snapshot: A file of `kv_snapshot`; None: no restores.
    """

    def __init__(self, case: Case, seed: int, snapshot: Path | None = None) -> None:
        self.case, self.chance, self.snapshot = case, random.Random(seed), snapshot
        self.raises, self.no_number = (TOYS[RAISES], TOYS[NO_NUMBER]) if case.toy else (RAISES, NO_NUMBER)
        sampling = SamplingOptions(temperature=0.0, banned_tokens=(self.raises, self.no_number))
        self.greedy = GenerationOptions(max_tokens=TOKENS, sampling=sampling, ignore_eos=True, top_k=0)
        self.stems = [case.ids(i, 24) for i in range(3)]
        self.vectors = None if case.toy else case.model.embed_sync(TEXTS, "mean")  # the toys share a foreign tokenizer
        self.left = self.stayed = self.failed = 0
        self.wrong: list[tuple[str, BaseException]] = []
        case.faults.raise_on = {self.raises: ZeroDivisionError("broken kernel")}
        case.faults.bad_on = {self.no_number: np.nan}

    def text(self) -> list[int]:
        """A prefix of a stem, followed by new tokens."""
        stem = self.chance.choice(self.stems)
        return [*stem[: self.chance.randrange(1, 24)], *self.case.ids(self.chance.randrange(20), self.chance.randrange(9))]

    async def one(self) -> None:
        """One request: cancelled at some moment, or awaited, or one that must fail."""
        chance, ids = self.chance, self.text()
        guilty = chance.choice([self.raises, self.no_number]) if chance.random() < 0.1 else None
        if guilty is not None:
            ids.insert(chance.randrange(len(ids)) + 1, guilty)
            if guilty == self.no_number:
                del ids[ids.index(guilty) + 1 :]  # the fault shows only in a row that is read
        asks: list[Callable[[list[int]], Coroutine[Any, Any, None]]] = [self.query, self.score, self.stream, self.beams]
        if guilty is None:
            asks += [self.restore] if self.vectors is None else [self.restore, self.embed]
        ask = chance.choice(asks)
        task = asyncio.ensure_future(ask(ids))
        for _ in range(chance.choice([0, 0, 1, 2, 5, 20])):
            await asyncio.sleep(0)
        if chance.random() < 0.3:  # a moment in which the owner thread steps
            await asyncio.sleep(chance.random() * 0.01)
        try:
            if guilty is None and chance.random() < 0.8:
                self.left += not task.done()
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            elif guilty is None:
                await task
                self.stayed += 1
            else:
                with pytest.raises(ZeroDivisionError if guilty == self.raises else NonFiniteLogitsError):
                    await task
                self.failed += 1
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # the others continue, and the error is recorded
            self.wrong.append((getattr(ask, "__name__", ""), error))

    async def query(self, ids: list[int]) -> None:
        self.case.check(await self.case.model.next_token_logprobs(ids), ids)

    async def score(self, ids: list[int]) -> None:
        records = await self.case.model.score([*ids, 5], top_k=0)
        assert records[-1].logprob == pytest.approx(float(self.case.right(ids)[5]), abs=TOLERANCE)

    async def stream(self, ids: list[int]) -> None:
        said = [record.token_id async for record in self.case.model.generate(ids, self.greedy)]
        assert len(said) == TOKENS
        for at in (0, 3, 7):
            row = self.allowed([*ids, *said[:at]])
            assert row[said[at]] >= row.max() - 2 * TOLERANCE

    def allowed(self, ids: Sequence[int]) -> Float32:
        """The expected answer over the allowed tokens: the failing ones are the last of the vocabulary."""
        return self.case.right(ids)[: min(self.raises, self.no_number)]

    async def beams(self, ids: list[int]) -> None:
        options = BeamOptions(width=WIDTH, max_tokens=3, ignore_eos=True, top_k=0)
        try:
            found = await self.case.model.beam_generate(ids, options)
        except (ZeroDivisionError, NonFiniteLogitsError):
            assert self.guilty_beam(ids), "innocent beams have failed"
            if {self.raises, self.no_number} & set(ids):
                raise  # as expected
            return
        assert len(found) == WIDTH
        for beam in found:
            rows = [float(self.case.right([*ids, *beam.ids[:at]])[token]) for at, token in enumerate(beam.ids)]
            assert beam.logprob == pytest.approx(sum(rows), abs=len(rows) * TOLERANCE)

    def guilty_beam(self, ids: list[int]) -> bool:
        """Whether a search of two steps meets a token on which the model fails: a search cannot ban it."""
        guilty = {self.raises, self.no_number}
        if guilty & set(ids):
            return True
        first = np.argsort(-self.case.right(ids))[:WIDTH].tolist()
        rows = {token: self.case.right([*ids, token]) + self.case.right(ids)[token] for token in first}
        second = sorted(((row[token], token) for row in rows.values() for token in range(len(row))), reverse=True)
        return bool(guilty & {*first, *(token for _, token in second[:WIDTH])})

    async def embed(self, _: list[int]) -> None:
        assert self.vectors is not None
        at = self.chance.sample(range(len(TEXTS)), 2)
        vectors = await self.case.model.embed([TEXTS[i] for i in at], "mean")
        np.testing.assert_allclose(vectors, self.vectors[at], atol=TOLERANCE, rtol=0)

    async def restore(self, ids: list[int]) -> None:
        """Restores from a snapshot, or from the block file by a query; both with an empty cache."""
        await self.case.model.clear_kv_cache_async()
        if self.snapshot is not None:
            await self.case.model.kv_restore_async(self.snapshot)
        await self.query([*self.stems[0], *ids])

    async def until(self, leavers: int) -> None:
        """Sends requests, some at a time, until `leavers` were cancelled before their answer."""

        async def some() -> None:
            for _ in range(leavers):  # an upper bound, far above the number of cancelled ones
                if self.left >= leavers:
                    return
                await self.one()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


def resident() -> int:
    """Bytes of this process, without freed memory and without the expected answers that tests cache."""
    fakes.remembered_reference.cache_clear()
    reference.remembered.cache_clear()
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cancels(order: Order) -> Tally:
    """Cancels on each engine and each kind of layer: other answers stay correct, and no lease, pin or memory remains."""
    tally = Tally()
    cases = [CASES[0], *CASES]  # the first one warms the process up; its memory is measured afterwards
    each = -(-order.count // len(cases))
    for number, (backend, name) in enumerate(cases):
        folder = order.folder / f"{number}"
        folder.mkdir()
        blocks = BlockOptions("storage:open_blocks", str(folder / "blocks.db"), 1 << 26)
        with troubled(backend, name, blocks=blocks, **LITTLE) as case:
            grown = _crowd_of(case, f"{backend} {name}", order.seed + number, each, folder, tally)
        if number and grown:
            tally.failures.append(grown)
    return tally


def _crowd_of(case: Case, title: str, seed: int, each: int, folder: Path, tally: Tally) -> str:
    """Runs one case; returns the growth of memory if it is above the limit."""
    model, snapshot = case.model, folder / "snapshot.safetensors"
    stem = case.ids(0, 24)
    model.cache_kv(stem)
    model.save_blocks(stem)
    model.kv_snapshot(stem, snapshot)
    held = engine_of(model).backend
    model.set_kv_budget(400 * held.slot_bytes + 40 * held.state_bytes)
    crowd = Crowd(case, seed, snapshot)
    asyncio.run(crowd.until(-(-each // 4)))
    early = resident()
    asyncio.run(crowd.until(each))
    late = resident()
    tally.tried += crowd.left
    tally.seen[f"on {title}"] += crowd.left
    for what, error in crowd.wrong:
        tally.fail(f"{title}, {what}", error)
    if crowd.left < each or not (crowd.stayed and crowd.failed):
        tally.failures.append(f"{title}: {crowd.left} have left, {crowd.stayed} stayed, {crowd.failed} failed")
    try:
        audit(model)
    except AssertionError as error:
        tally.fail(f"{title}, what is left", error)
    return f"{title}: {early:,} bytes after a quarter, {late:,} at the end" if late > early * MEMORY else ""
