"""The trie accounts for all KV: no segment keeps a larger buffer alive, and no request changes one."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.scheduler.kv.workspace import SlotRun
from tests.fakes import engine_of
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

RECURRENT = ("lfm2", "falcon_h1", "mamba")
NAMES = ("llama", "gemma3", *RECURRENT)
T = TypeVar("T")


def ids(seed: int, n: int) -> list[int]:
    return [int(i) for i in random_ids(seed, n)]


def on_owner(model: LanguageModel, look: Callable[[], T]) -> T:
    return engine_of(model).call(look).result()


def work(model: LanguageModel) -> None:
    """Long texts, branches that split their edges, answers, scores: segments of every origin."""
    stem = ids(1, 150)
    model.cache_kv(stem)
    model.batch_next_token_logprobs_sync([[*stem[:at], at] for at in (3, 40, 77, 149, 150)])

    async def main() -> None:
        await model.batch_sample([stem[:100], ids(2, 40), [*stem, 1]], 70, [], temperature=0.0)
        await model.score([*stem[:60], *ids(3, 30)], top_k=3)

    asyncio.run(main())
    model.next_token_logprobs_sync([*ids(2, 20), 4])


def payloads(model: LanguageModel) -> list[Any]:
    return [node.payload for node in engine_of(model).scheduler.cache.trie.nodes()]


def arrays(payload: Any) -> list[Any]:
    if isinstance(payload, SlotRun):  # slots of a pack
        return []
    return [*payload.keys, *payload.values, *(a for a in payload.state or () if a is not None)]


def packs(model: LanguageModel) -> list[Any]:
    found = [a for ws in engine_of(model).scheduler.cache.workspaces.open for a in ws.pack.attention]
    return [array for layer in found for array in (layer.keys, layer.values)]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.slow
def test_every_tensor_of_a_segment_owns_exactly_its_storage(name: str) -> None:
    with load(tiny_path(name), backend="hf", threads=1, prefill_chunk_tokens=64) as model:
        work(model)

        def look() -> int:
            found = [tensor for payload in payloads(model) for tensor in arrays(payload)] or packs(model)
            for tensor in found:
                assert tensor.untyped_storage().nbytes() == tensor.nbytes
                assert tensor.grad_fn is None
            places = {tensor.untyped_storage().data_ptr() for tensor in found if tensor.nbytes}
            assert len(places) == sum(tensor.nbytes > 0 for tensor in found)  # nothing is counted twice
            return len(found)

        assert on_owner(model, look) > (20 if name in RECURRENT else 6)


@pytest.mark.slow
def test_memory_in_use_returns_to_the_segments_bytes(name: str) -> None:
    mx = pytest.importorskip("mlx.core")
    gc.collect()  # garbage of earlier tests is freed here, on the thread that it belongs to, and not where `in_use` collects
    with load(tiny_path(name), backend="mlx", prefill_chunk_tokens=64) as model:
        cache = engine_of(model).scheduler.cache

        def in_use() -> int:
            cache.workspaces.drop_idle()
            gc.collect()
            return int(mx.get_active_memory())

        def held() -> tuple[int, int]:
            found = [array for payload in payloads(model) for array in arrays(payload)] or packs(model)
            return sum(array.nbytes for array in found), len(found)

        limit = on_owner(model, lambda: mx.set_cache_limit(0))  # a reused buffer may be larger than requested
        try:
            model.next_token_logprobs_sync([1])
            model.clear_cache()
            before = on_owner(model, in_use)
            work(model)
            after = on_owner(model, in_use)
            nbytes, count = on_owner(model, held)
            assert count > (20 if name in RECURRENT else 6)
            assert nbytes <= after - before <= nbytes + 64 * count
            # and it is freed with them
            model.clear_cache()
            assert on_owner(model, in_use) - before <= 4096
        finally:
            on_owner(model, lambda: mx.set_cache_limit(limit))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_no_request_writes_into_a_cached_segment(backend: str, name: str) -> None:
    # given the KV of a text and a copy of it
    with load(tiny_path(name), backend=backend) as model:
        stem = ids(1, 60)
        model.cache_kv(stem)
        cache = engine_of(model).scheduler.cache
        trie, export = cache.trie, cache.kv_budget.payloads.export

        def exported() -> dict[str, Any]:
            with trie.lookup([(model.info.kv_fingerprint, np.array(stem, np.int32))], exact=True) as lease:
                parts = [export(node.payload, 0, len(node.tokens)) for node in lease.node.path()]
            assert lease.length == -1
            names = [key for key in parts[0] if key.startswith(("keys", "values"))]
            whole = {key: np.concatenate([part[key] for part in parts], axis=2) for key in names}
            whole |= {key: array for key, array in parts[-1].items() if key.startswith("state.")}
            assert whole
            return whole

        before = on_owner(model, exported)
        # when it is continued, branched at many places, sampled from and scored, in old and new packs
        asyncio.run(model.batch_sample([stem, [*stem, 3], stem[:30]], 12, [], seed=1))
        on_owner(model, engine_of(model).scheduler.cache.workspaces.drop_idle)
        model.batch_next_token_logprobs_sync([[*stem, t] for t in range(6)] + [[*stem[:at], 1] for at in range(1, 60, 9)])
        asyncio.run(model.score([*stem, 5]))
        # then it is unchanged, byte for byte; where state was missing in the middle, it was computed again
        after = on_owner(model, exported)
        assert after.keys() == before.keys()
        for key, array in before.items():
            np.testing.assert_allclose(after[key], array, atol=1e-5 if name in RECURRENT else 0, rtol=0)
