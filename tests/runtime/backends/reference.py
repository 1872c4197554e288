"""The reference of the contract tests: transformers' own full forward without a cache, in float32."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.backends.base import ROOT
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.backends.packs.packed import Backend
from runtime.backends.registry import resolve_backend
from runtime.options.load import LoadOptions
from tests.tiny_models import tiny_folder, tiny_path

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

TOLERANCE = 1e-4  # nats, float32, tiny models
PACKED = {"auto": 0.0, "float16": TOLERANCE, "bfloat16": 0.1, "int8": 0.1, "int4": 0.1}  # against the same packed weights
RESTED = {"auto": TOLERANCE, "q8": 0.5}  # with KV stored quantised; the tiny models have large weights on purpose

HF = (
    *("llama", "llama_wide", "qwen2", "qwen3", "gpt2", "gemma2", "gemma3", "gemma3_80", "mistral", "phi3"),
    *("mamba", "lfm2", "falcon_h1"),
)
RECURRENT = ("mamba", "lfm2", "falcon_h1", "recurrent")


def in_turn(names: Sequence[str]) -> list[Any]:
    """Each model with both libraries, as parameters: alternately one library in the fast tests, the other in the slow."""
    return [
        pytest.param((backend, name), id=f"{backend}-{name}", marks=() if (at + place) % 2 == 0 else pytest.mark.slow)
        for place, backend in enumerate(("hf", "mlx"))
        for at, name in enumerate(names)
    ]


@functools.cache
def library_model(name: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()


@functools.lru_cache(maxsize=512)
def remembered(name: str, ids: tuple[int, ...]) -> Float32:
    """`expected` for a tuple of ids, cached."""
    return _forward(library_model(name), ids)


def _forward(model: Any, ids: tuple[int, ...]) -> Float32:
    import torch

    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return log_softmax(logits.numpy())


def expected(name: str, ids: Sequence[int]) -> Float32:
    """``(len(ids), vocab)`` log-probabilities after each token of one text."""
    return remembered(name, tuple(int(i) for i in ids))


def log_softmax(logits: npt.NDArray[Any]) -> Float32:
    """Log-softmax over the last axis, computed in float64, returned as float32."""
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(-1, keepdims=True))
    return wide.astype(np.float32)


def random_ids(seed: int, n: int, vocab: int = 1000) -> Int64:
    """Token ids below `vocab`."""
    return np.random.default_rng(seed).integers(0, vocab, n)


def chain(base: int, n: int, parent: int) -> Int64:
    """Parents of n new slots that form one chain under `parent`, in a pack that holds `base` slots."""
    parents = np.arange(base - 1, base - 1 + n)
    parents[0] = parent
    return parents


def append(backend: Any, pack: Any, ids: Sequence[int] | Int64, parent: int = ROOT) -> tuple[Int64, Float32]:
    """Pushes one chain and returns its slots and the log-probabilities of every row."""
    ids = np.asarray(ids, np.int64)
    slots, logits = backend.forward(pack, ids, chain(backend.size(pack), len(ids), parent), np.arange(len(ids)))
    return slots, log_softmax(logits)


class Loaded:
    """A backend over one tiny model (or a toy), with the helpers the tests share.

    Toys have no library to compare with: their reference is a fresh, single, uncached run. The reference of weights in fewer
    bits is transformers' full forward on the same weights.
    """

    def __init__(self, backend: str, name: str, options: LoadOptions | None = None) -> None:
        self.name = name
        options = options or LoadOptions()
        self.tolerance = max(RESTED[options.kv_dtype], PACKED[options.weights])
        self.packed = options.weights != "auto"
        self.toy = name in ("toy", "recurrent")
        source: Any = (Behaviour(recurrent=name == "recurrent"), None) if self.toy else tiny_folder(name)
        self.backend: Backend = resolve_backend(backend)(source, options)
        self.recurrent = name in RECURRENT

    def ids(self, seed: int, n: int) -> Int64:
        """Token ids within the vocabulary of the model."""
        return random_ids(seed, n, 259 if self.toy else 1000)

    def expected(self, ids: Sequence[int]) -> Float32:
        """``(len(ids), vocab)`` log-probabilities after each token of one text."""
        if self.toy:
            return np.stack([log_softmax(self.backend.logits_uncached(ids[: i + 1])) for i in range(len(ids))])
        if self.packed:
            return _forward(self.backend.model, tuple(ids))  # type: ignore[attr-defined]  # the hf backend's own
        return expected(self.name, ids)

    def check(self, got: Float32, ids: Sequence[int] | Int64, rows: Any = slice(None)) -> None:
        """Compares log-probabilities with the reference for one whole text."""
        np.testing.assert_allclose(got, self.expected([int(i) for i in ids])[rows], atol=self.tolerance, rtol=0)


def third_backend(source: Any, options: LoadOptions) -> FakeBackend:
    """A third-party backend, as `register_backend` and entry points add."""
    return FakeBackend(options, Behaviour())
