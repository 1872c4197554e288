"""Only the logits of a step leave the device, once, however many streams it has; everything else is computed from them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from runtime import LanguageModel, load
from runtime.backends.mlx import backend as mlx
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.fakes import some_ids
from tests.tiny_models import tiny_path

STREAMS = 8
TOKENS = 10


class Numpy:
    """Stands in for numpy in the mlx backend: records the shapes of the device arrays that it converts."""

    def __init__(self, moved: list[tuple[int, ...]]) -> None:
        self._moved = moved

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def array(self, given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, mx.array):
            self._moved.append(tuple(given.shape))
        return np.array(given, *args, **kwargs)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all tensors that become numpy arrays or Python numbers."""
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(mlx, "np", Numpy(shapes))
    for name in ("numpy", "item", "tolist"):
        whole = getattr(torch.Tensor, name)

        def watched(tensor: torch.Tensor, *args: Any, whole: Any = whole, **kwargs: Any) -> Any:
            shapes.append(tuple(tensor.shape))
            return whole(tensor, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)
    return shapes


async def streams(
    model: LanguageModel, prompts: Sequence[Sequence[int]], options: GenerationOptions
) -> list[list[TokenRecord]]:
    async def one(ids: Sequence[int]) -> list[TokenRecord]:
        return [record async for record in model.generate(ids, options)]

    return await asyncio.gather(*map(one, prompts))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("backend", "name"), [("hf", "llama"), ("mlx", "llama"), ("hf", "lfm2"), ("mlx", "lfm2")])
def test_one_array_leaves_the_device_per_step(
    backend: str, name: str, temperature: float, moved: list[tuple[int, ...]]
) -> None:
    # given streams with alternatives, ranks and entropies, whose prompts are cached
    options = GenerationOptions(
        max_tokens=TOKENS, top_k=10, ignore_eos=True, seed=1, sampling=SamplingOptions(temperature=temperature)
    )
    prompts = [some_ids(seed, 12) for seed in range(STREAMS)]
    with load(tiny_path(name), backend=backend, threads=1 if backend == "hf" else None) as model:
        model.batch_next_token_logprobs_sync(prompts)
        before = model.metrics().forward_calls
        moved.clear()
        answers = asyncio.run(streams(model, prompts, options))
        # then each step is one forward, and only its logits are moved
        steps = TOKENS - 1
        assert model.metrics().forward_calls - before == steps
        assert moved == [(STREAMS, model.info.vocab_size)] * steps
        assert all(len(record.top_ids) == 10 and (record.entropy or 0) > 0 for answer in answers for record in answer)
