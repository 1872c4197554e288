"""Base, A, B, A+B, scales, swaps and unloading: compared with peft on every kind of architecture and both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from tests.fakes import engine_of
from tests.runtime.adapters.makers import TARGETS, Peft, adapters_of
from tests.runtime.adapters.said import assert_same_bits, what_it_says
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

TOLERANCE = 1e-4  # nats, as in all tests of tiny models
SAME_KERNELS = 1e-5  # peft and the hf backend both use transformers' forward
FAST = ("hf-llama", "mlx-gemma3", "hf-lfm2")  # full attention and a head, sliding windows, recurrent state
CASES = [
    pytest.param((backend, name), id=f"{backend}-{name}", marks=() if f"{backend}-{name}" in FAST else pytest.mark.slow)
    for name in TARGETS
    for backend in ("hf", "mlx")
]
STACKS = ((), (("A", 1.0),), (("B", 1.0),), (("A", 1.0), ("B", 1.0)), (("A", 0.5), ("B", -2.0)), (("B", 1.0), ("A", 1.0)))


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, root: Path) -> Iterator[tuple[LanguageModel, Peft, float]]:
    backend, name = request.param
    a, b = adapters_of(name, root)
    with load(tiny_path(name), backend=backend) as model:
        for folder in (a, b):
            model.load_adapter(model.add_adapter(folder))
        yield model, Peft(name, A=a, B=b), SAME_KERNELS if backend == "hf" else TOLERANCE


@pytest.mark.sampled(1)
def test_every_stack_gives_the_numbers_of_peft(case: tuple[LanguageModel, Peft, float]) -> None:
    model, peft, tolerance = case
    ids = random_ids(3, 40).tolist()
    base = peft.logprobs(ids)[-1]
    for stack in STACKS:
        expected = peft.logprobs(ids, *stack)[-1]
        assert not stack or np.abs(expected - base).max() > 0.05  # the adapter has a visible effect
        np.testing.assert_allclose(model.next_token_logprobs_sync(ids, adapters=stack), expected, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(model.next_token_logprobs_uncached(ids, adapters=stack), expected, atol=tolerance, rtol=0)


@pytest.mark.sampled(1)
def test_swapping_stacks_recomputes_no_prefix(case: tuple[LanguageModel, Peft, float]) -> None:
    model, peft, _ = case
    prefix, more = random_ids(4, 30).tolist(), random_ids(5, 8).tolist()
    for stack in STACKS[:3]:  # each is computed the first time
        model.cache_kv(prefix) if not stack else model.next_token_logprobs_sync(prefix, adapters=stack)
    # when they alternate, each with one more token
    ids = list(prefix)
    for token in more:
        ids.append(token)
        for stack in STACKS[:3]:
            before = model.metrics().tokens_computed
            got = model.next_token_logprobs_sync(ids, adapters=stack)
            assert model.metrics().tokens_computed - before == 1
            np.testing.assert_allclose(got, peft.logprobs(ids, *stack)[-1], atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_rows_under_an_adapter_do_not_copy_their_prefix(
    case: tuple[LanguageModel, Peft, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a prefix under an adapter, and rows after it, which run one by one on models with recurrent state
    model, peft, _ = case
    prefix, chosen = random_ids(7, 60).tolist(), (("A", 1.0),)
    model.clear_cache()  # with many other segments in the pack a copy would be cheaper
    model.next_token_logprobs_sync(prefix, adapters=chosen)
    backend: Any = engine_of(model).backend
    copied: list[int] = []
    push, launch = backend.push, backend.launch

    def pushed(pack: Any, step: Any) -> Any:
        copied.append(0 if step.path is None else step.path.size)
        return push(pack, step)

    def launched(packs: Any, steps: Any, request: Any = None) -> Any:
        copied.extend(0 if step.path is None else step.path.size for step in steps)
        return launch(packs, steps, request)

    monkeypatch.setattr(backend, "push", pushed)  # used by recurrent models
    monkeypatch.setattr(backend, "launch", launched)  # used by the others
    rows = [[*prefix, token] for token in range(3)]

    async def ask() -> list[Any]:
        return await asyncio.gather(*(model.next_token_logprobs(row, adapters=chosen) for row in rows))

    # when they are requested, and again with one more token
    for _ in range(2):
        for row, got in zip(rows, asyncio.run(ask()), strict=True):
            np.testing.assert_allclose(got, peft.logprobs(row, *chosen)[-1], atol=TOLERANCE, rtol=0)
            row.append(int(got.argmax()))
    # then each is right, without a copy
    assert copied
    assert sum(copied) == 0


def test_the_base_is_bit_identical_with_loaded_adapters_and_after_unloading(case: tuple[LanguageModel, Peft, float]) -> None:
    model, peft, tolerance = case
    ids = random_ids(6, 25).tolist()
    with_them = model.next_token_logprobs_uncached(ids, adapters=())
    model.push_lora("A")
    under = model.next_token_logprobs_uncached(ids)
    assert not np.array_equal(under, with_them)
    np.testing.assert_allclose(under, peft.logprobs(ids, ("A", 1.0))[-1], atol=tolerance, rtol=0)
    model.unload_adapter("A")  # also removes it from the stack
    model.unload_adapter("B")
    assert model.lora_stack == ()
    assert model.list_adapters() == []
    assert sum(adapter.bytes for adapter in model.info.adapters) == 0
    np.testing.assert_array_equal(model.next_token_logprobs_uncached(ids), with_them)
    model.load_adapter("A")
    model.load_adapter("B")
    np.testing.assert_array_equal(model.next_token_logprobs_uncached(ids, adapters=["A"]), under)


@pytest.mark.slow
@pytest.mark.parametrize("which", CASES)
def test_the_base_is_bit_identical_to_a_model_without_adapters(which: tuple[str, str], root: Path) -> None:
    backend, name = which
    # given the answers of a model before any adapter, twice
    with load(tiny_path(name), backend=backend) as model:
        before = what_it_says(model)
        assert_same_bits(what_it_says(model), before)
        # when adapters are loaded
        for folder in adapters_of(name, root):
            model.load_adapter(model.add_adapter(folder))
        # then they change the answers where they are requested, and nothing elsewhere
        assert_same_bits(what_it_says(model), before)
        model.push_lora("A")
        model.push_lora("B", 0.5)
        under = what_it_says(model)
        for row, other in zip(under[0], before[0], strict=True):
            assert np.abs(row - other).max() > 0.05
        # and nothing once they are unloaded
        model.unload_adapter("A")
        model.unload_adapter("B")
        assert model.lora_stack == ()
        assert_same_bits(what_it_says(model), before)
