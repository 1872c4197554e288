"""A third backend: transformers slowed down, so that a test can stop, kill or watch a running answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from runtime.adapters.stacks import TokenStacks
from runtime.backends.hf.backend import HfBackend
from runtime.backends.hf.cache import TorchPack
from runtime.backends.hf.loading import load_model
from runtime.backends.packs.packed import Backend
from runtime.backends.packs.tree import Float32, ForwardStep
from runtime.loading.model_folder import ModelFolder
from runtime.numerics.ranking import RankRequest
from runtime.options.load import LoadOptions

PACE_SECONDS = 0.03
SPECIALS = 3  # the tiny tokenizer's control tokens come first
UNLIKELY = 1e4


def load(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> Backend:
    """The registry's factory."""
    return PacedBackend(load_model(source, options), options)


class PacedBackend(HfBackend):
    """The same, but slower."""

    def launch(
        self, packs: Sequence[TorchPack], steps: Sequence[ForwardStep], request: RankRequest | None = None
    ) -> Callable[[], Float32]:
        """Delays the logits, and suppresses eos, which random weights would draw now and then."""
        assert request is None  # on a processor
        time.sleep(PACE_SECONDS)
        waiting = super().launch(packs, steps)

        def wait() -> Float32:
            logits = waiting()
            assert isinstance(logits, np.ndarray)
            return endless(logits)

        return wait

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        """The same model, so the same numbers."""
        return endless(super().logits_uncached(ids, stacks))


def endless(logits: Float32) -> Float32:
    """Logits in which control tokens are very unlikely."""
    changed = logits.copy()
    changed[..., :SPECIALS] -= UNLIKELY
    return changed
