"""Vectors of the process tests' model: they follow from the texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.info import OnProgress
from runtime.numerics.pooling import Pooling
from runtime.records import Float32


class FakeVectors:
    """The members of `runtime.members.vectors`."""

    async def embed(
        self,
        texts: Sequence[str],
        pooling: Pooling = "last",
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,  # the Protocol's signature
    ) -> Float32:
        return self.embed_sync(texts, pooling)

    def embed_sync(self, texts: Sequence[str], pooling: Pooling = "last", *, adapters: Adapters = None) -> Float32:
        return np.array([[len(text), len(pooling)] for text in texts], np.float32)
