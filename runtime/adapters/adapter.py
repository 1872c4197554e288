"""An adapter as plain numbers, independent of the layout of its file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from runtime.records import Float32

AdapterKind = Literal["lora", "alora"]
ModuleShape = tuple[int, int]  # (input features, output features)


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """The product added to one module: ``scaling * b @ (a @ x)``."""

    a: Float32  # ``(rank, in) float32``
    b: Float32  # ``(out, rank) float32``
    scaling: float  # peft: alpha / rank, or alpha / sqrt(rank) if rank-stabilised; mlx-lm: the file's scale
    # ``(out, in) float32``: the file's copy of the module's own weights, if it has one (peft saves it for a head). A backend
    # refuses the adapter if the copy differs from the model's weights
    base: Float32 | None = None

    @property
    def rank(self) -> int:
        return len(self.a)

    @property
    def shape(self) -> ModuleShape:
        return self.a.shape[1], self.b.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """The weights of an adapter by module path."""

    modules: Mapping[str, LowRank]  # low-rank products by module path
    digest: str  # SHA-256 of the numbers, the same in any layout or file

    @classmethod
    def of(cls, modules: Mapping[str, LowRank]) -> Adapter:
        """Makes an adapter with its digest: over module paths, shapes, scalings and numbers."""
        found = hashlib.sha256()
        for path in sorted(modules):
            pair = modules[path]
            found.update(f"{path}{pair.a.shape}{pair.b.shape}{pair.scaling!r}".encode())
            found.update(np.ascontiguousarray(pair.a).data)
            found.update(np.ascontiguousarray(pair.b).data)
        return cls(modules, found.hexdigest())
