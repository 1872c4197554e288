"""What the layouts of adapter folders have in common, and the header that each is read into."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.adapters.adapter import Adapter, Kind, LowRank, ModuleShape
from runtime.adapters.tensors import read_tensors
from runtime.errors import AdapterError


@dataclass(frozen=True, slots=True)
class Pair:
    """Where a module's two tensors are, and how they are meant."""

    a: str  # names of tensors
    b: str
    transposed: bool  # (in, rank) and (rank, out), as mlx-lm writes them
    rank: int
    shape: ModuleShape
    scaling: float
    base: str | None = None  # the tensor that is a copy of the module's own weights


@dataclass(frozen=True, slots=True)
class AdapterHeader:
    """An adapter folder as its configuration and the header of its weights describe it; no number was read yet.

    Attributes:
        folder: Where it is.
        weights: Its safetensors file.
        layout: "peft" or "mlx".
        base: The model it says it was made for; empty where it says nothing.
        invocation: Token ids that switch an activated LoRA on; empty for a plain one.
        modules: Its tensors by module path.
    """

    folder: Path
    weights: Path
    layout: str
    base: str
    invocation: tuple[int, ...]
    modules: Mapping[str, Pair]

    @property
    def kind(self) -> Kind:
        """Plain or activated."""
        return "alora" if self.invocation else "lora"

    @property
    def parameters(self) -> int:
        """Numbers in all."""
        return sum(pair.rank * sum(pair.shape) for pair in self.modules.values())

    def read(self) -> Adapter:
        """The numbers.

        Raises:
            AdapterError: The file is damaged, or changed since its header was read.
        """
        tensors = read_tensors(self.weights)
        modules: dict[str, LowRank] = {}
        for path, pair in self.modules.items():
            a, b = tensors.get(pair.a), tensors.get(pair.b)
            if a is None or b is None:
                raise AdapterError(f"{self.weights} has changed: {pair.a} or {pair.b} is not there any more; add it again")
            a, b = (a.T, b.T) if pair.transposed else (a, b)
            if a.shape != (pair.rank, pair.shape[0]) or b.shape != (pair.shape[1], pair.rank):
                raise AdapterError(f"{self.weights} has changed: {path} has other shapes now; add it again")
            modules[path] = LowRank(a, b, pair.scaling, None if pair.base is None else tensors.get(pair.base))
        return Adapter.of(modules)


def pairs_of(
    weights: Path, shapes: Mapping[str, tuple[int, ...]], names: tuple[str, str], *, transposed: bool
) -> dict[str, tuple[str, str, int, ModuleShape]]:
    """Tensors two by two: module path -> (name of A, name of B, rank, shape of the module).

    Args:
        weights: The file, for messages.
        shapes: Its tensors.
        names: What the names of A and of B end with.
        transposed: Whether A is ``(in, rank)`` and B ``(rank, out)``.

    Raises:
        AdapterError: A tensor that belongs to no pair, or two that do not fit together.
    """
    found: dict[str, tuple[str, str, int, ModuleShape]] = {}
    for name, shape in shapes.items():
        path = next((name.removesuffix(end) for end in names if name.endswith(end)), None)
        if path is None:
            raise AdapterError(
                f"{weights}: {name} {shape} is no part of a LoRA product ({names[0]}, {names[1]}): adapters that train biases, "
                "magnitudes (DoRA), embeddings or whole modules are not supported"
            )
        a, b = path + names[0], path + names[1]
        if a not in shapes or b not in shapes:
            raise AdapterError(f"{weights}: {name} stands alone, {b if name == a else a} is missing; fetch the adapter again")
        left, right = shapes[a], shapes[b]
        if len(left) != 2 or len(right) != 2:
            raise AdapterError(f"{path}: {a} {left} and {b} {right} are no matrices; only linear modules are supported")
        rank_in, rank_out = (left[1], right[0]) if transposed else (left[0], right[1])
        inner, outer = (left[0], right[1]) if transposed else (left[1], right[0])
        if rank_in != rank_out or rank_in < 1:
            raise AdapterError(f"{path}: {a} {left} and {b} {right} do not share a rank")
        found[path] = a, b, rank_in, (inner, outer)
    return found


def number(folder: Path, name: str, value: Any, *, above: float = -math.inf) -> float:
    """A finite number of a configuration.

    Raises:
        AdapterError: It is none, or not above `above`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= above:
        limit = "" if above == -math.inf else f" above {above:g}"
        raise AdapterError(f"{folder / 'adapter_config.json'}: {name} must be a finite number{limit}, not {value!r:.60}")
    return float(value)
