"""A CUDA device that runs full: unreferenced KV is evicted, the request is retried once, then a typed error is raised.

The process is limited to a fraction of the device (`set_per_process_memory_fraction`), so that its allocator refuses at a
chosen number on any card, and the memory of other processes is not touched.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from runtime import LanguageModel, load
from runtime.errors import MemoryBudgetError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.fakes import engine_of
from tests.runtime.backends.reference import expected, random_ids
from tests.tiny_models import tiny_path

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")]

MIB = 1 << 20
HELD = 64 * MIB  # of unreferenced KV on the device
WANTED = 32 * MIB  # taken temporarily by a forward: fits only after the KV is evicted
TOLERANCE = 1e-3  # nats; against the CPU


@pytest.fixture
def at_most() -> Iterator[Callable[[int], None]]:
    """Limits this process to so many bytes beyond its present device memory."""
    total = torch.cuda.get_device_properties(0).total_memory

    def bound(more: int) -> None:
        torch.cuda.empty_cache()  # cached blocks of the allocator would serve a request without asking the device
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    yield bound
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.fixture
def model() -> Iterator[LanguageModel]:
    """A tiny model with a budget so large that the device runs full first."""
    with load(tiny_path("llama"), backend="hf", dtype="float32", kv_cache_bytes=1 << 30) as made:
        assert made.info.device.startswith("cuda")
        yield made


def ids(seed: int, n: int = 40) -> list[int]:
    return [int(i) for i in random_ids(seed, n)]


def fill(model: LanguageModel) -> None:
    """Caches unreferenced texts, at least `HELD` bytes of KV in all."""
    n = 1000
    for seed in range(HELD // (n * model.info.kv_bytes_per_token) + 2):  # some share their first tokens
        model.cache_kv(ids(1000 + seed, n))
    assert model.cache_report().bytes >= HELD


@contextmanager
def hungry(model: LanguageModel, nbytes: int, after: int = 0) -> Iterator[list[int]]:
    """Makes forwards from number `after` on allocate `nbytes` temporarily; yields a list that grows with each attempt."""
    forwards = itertools.count()
    tries: list[int] = []

    def take(*_: Any) -> None:
        if next(forwards) < after:
            return
        tries.append(nbytes)
        torch.empty(nbytes, dtype=torch.uint8, device=model.info.device)

    handle = engine_of(model).backend.model.model.layers[0].register_forward_pre_hook(take)  # type: ignore[attr-defined]  # hf's own
    try:
        yield tries
    finally:
        handle.remove()


def assert_right(got: Any, path: list[int]) -> None:
    np.testing.assert_allclose(got, expected("llama", path)[-1], atol=TOLERANCE, rtol=0)


def test_unreferenced_kv_is_evicted_and_the_request_is_retried_once(
    model: LanguageModel, at_most: Callable[[int], None]
) -> None:
    # given a device nearly full of unreferenced KV
    fill(model)
    at_most(WANTED // 2)
    # when a forward needs more than is free
    with hungry(model, WANTED) as tries:
        assert_right(model.next_token_logprobs_sync(ids(1)), ids(1))
    # then it was tried twice, and the unreferenced KV was evicted although the budget had room
    assert len(tries) == 2
    assert model.prefix_match(ids(1000, 1000)).tokens == 0
    metrics = model.metrics()
    assert metrics.kv_evicted_bytes >= HELD
    assert metrics.kv_peak_bytes < metrics.kv_budget


def test_a_request_that_cannot_fit_raises_a_typed_error_and_the_model_keeps_working(
    model: LanguageModel, at_most: Callable[[int], None]
) -> None:
    # given
    before = torch.cuda.memory_allocated()
    fill(model)
    at_most(WANTED // 2)
    # when a forward needs more than everything that can be evicted
    with hungry(model, 2 * HELD) as tries, pytest.raises(MemoryBudgetError, match="the device ran out of memory") as caught:
        model.next_token_logprobs_sync(ids(2))
    # then it was retried exactly once, and the caught error keeps no device memory alive
    assert len(tries) == 2
    assert caught.value.__traceback__ is not None
    assert torch.cuda.memory_allocated() < before + HELD // 2
    # and the model keeps working
    assert_right(model.next_token_logprobs_sync(ids(2)), ids(2))
    assert model.cache_report().leases == 0


def test_a_stream_that_runs_out_of_memory_keeps_its_records(model: LanguageModel, at_most: Callable[[int], None]) -> None:
    said: list[TokenRecord] = []
    options = GenerationOptions(max_tokens=20, ignore_eos=True, sampling=SamplingOptions(temperature=0.0))

    async def main() -> None:
        async for record in model.generate(ids(3), options):
            said.append(record)  # noqa: PERF401  # the records before the error are asserted below

    # given a device with room for the first forwards only, fewer than are needed before one is recorded
    at_most(WANTED)
    # when
    with hungry(model, 2 * WANTED, after=3) as tries, pytest.raises(MemoryBudgetError, match="the device ran out of memory"):
        asyncio.run(main())
    assert len(tries) == 2
    # then the records before the error are right, and the next answer too
    assert 0 < len(said) < 20
    path = ids(3) + [record.token_id for record in said]
    rows = expected("llama", path)
    for at, record in enumerate(said, len(ids(3)) - 1):
        assert record.logprob == pytest.approx(float(rows[at][record.token_id]), abs=TOLERANCE)
    assert_right(model.next_token_logprobs_sync(path), path)


def test_the_budget_is_a_share_of_the_free_device_memory() -> None:
    def budget() -> int:
        with load(tiny_path("llama"), backend="hf", dtype="float32") as made:
            assert made.info.device.startswith("cuda")
            free = torch.cuda.mem_get_info()[0]
            assert made.metrics().kv_budget == pytest.approx(free / 4, rel=0.05)
            return made.metrics().kv_budget

    # given the budget of a model on the device as it is
    alone = budget()
    # when another allocation takes a part of the device, then the budget shrinks by an eighth of that part at least
    taken = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    assert budget() <= alone - taken.nbytes // 8


def test_kv_on_the_device_stays_within_the_budget(model: LanguageModel) -> None:
    # given a budget too small for many texts
    model.next_token_logprobs_sync(ids(4))  # libraries allocate their own workspace at the first product
    model.clear_cache()
    budget, before = 16 * MIB, torch.cuda.memory_allocated()
    model.set_kv_budget(budget)
    # when their KV is cached
    fill_more = 2 * HELD // (1000 * model.info.kv_bytes_per_token)
    most = 0
    for seed in range(fill_more):
        model.cache_kv(ids(2000 + seed, 1000))
        most = max(most, torch.cuda.memory_allocated() - before)
    # then the device holds no more for them than the budget, apart from the allocator's rounding
    metrics = model.metrics()
    assert metrics.kv_evicted_bytes > HELD
    assert metrics.kv_bytes <= metrics.kv_peak_bytes <= budget
    assert budget // 4 < most <= budget + MIB
