"""KV as plain arrays by name: the form that all backends export and restore.

Arrays whose names begin with ``keys``, ``values``, ``kv`` or ``tokens`` hold one entry for each token; ``n`` is the number
of tokens; all others belong to the last token (recurrent state).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.errors import SnapshotFormatError


class LibraryArray(Protocol):
    """The part of a library's array that is used here."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def nbytes(self) -> int: ...

    def __getitem__(self, index: Any) -> Any: ...


Array = TypeVar("Array", bound=LibraryArray)  # of a library, like the next two
Dtype = TypeVar("Dtype")
Layer = TypeVar("Layer")
Stored = dict[str, npt.NDArray[np.generic]]
Shape = tuple[int, int, int]  # of an attention layer: number of heads, width of a key, width of a value
StateShapes = tuple[tuple[int, ...] | None, ...]  # None: a part that the state does not have

_TOKEN_AXES = {"keys": 2, "values": 2, "kv": 0, "tokens": 0}  # by the name up to its first dot


def concatenated(parts: Sequence[Stored]) -> Stored:
    """The arrays of consecutive tokens, one part after the other, in memory of their own.

    Raises:
        ValueError, KeyError: The parts do not belong together.
    """
    last = parts[-1]
    whole: Stored = {}
    for name, array in last.items():
        axis = _TOKEN_AXES.get(name.partition(".")[0])
        if axis is not None:
            whole[name] = np.concatenate([part[name] for part in parts], axis=axis)
        elif name == "n":
            whole[name] = np.array(sum(int(part["n"]) for part in parts))
        else:
            whole[name] = array
    return whole


def count(arrays: Stored) -> int:
    """The number of tokens in some arrays; -1 where no array shows it, or two disagree."""
    found = {int(arrays["n"])} if "n" in arrays else set()
    for name, array in arrays.items():
        axis = _TOKEN_AXES.get(name.partition(".")[0])
        if axis is not None:
            found.add(int(array.shape[axis]) if array.ndim > axis else -1)
    return found.pop() if len(found) == 1 else -1


def nbytes(arrays: Stored) -> int:
    """Bytes of all arrays."""
    return sum(int(array.nbytes) for array in arrays.values())


def first(arrays: Stored, tokens: int) -> Stored:
    """The first tokens as views, without the arrays that belong to the last token."""
    found: Stored = {}
    for name, array in arrays.items():
        axis = _TOKEN_AXES.get(name.partition(".")[0])
        if axis is not None:
            found[name] = array[(slice(None),) * axis + (slice(tokens),)]
        elif name == "n":
            found[name] = np.array(tokens)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class LayerPayload(ABC, Generic[Array]):
    """KV of `n` consecutive tokens. Layers of one shape are stacked: ``(layers, kv_heads, n, head_dim)``.

    The parts of a codec are consecutive for each shape; tokens are on axis 2 of all arrays.
    """

    n: int
    keys: tuple[Array, ...]  # per shape, in order of first appearance
    values: tuple[Array, ...]
    state: tuple[Array | None, ...] | None  # recurrent state after the last token

    @property
    def nbytes(self) -> int:
        return sum(int(a.nbytes) for a in (*self.keys, *self.values, *(self.state or ())) if a is not None)

    def export(self, start: int, stop: int) -> Stored:
        """Some of the tokens as plain arrays by name, with the state if they are the last; bfloat16 as uint16."""
        arrays: Stored = {"n": np.array(stop - start)}
        for i, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            arrays[f"keys.{i}"] = self.plain(key[:, :, start:stop])
            arrays[f"values.{i}"] = self.plain(value[:, :, start:stop])
        if self.state is not None and stop == self.n:
            arrays["states"] = np.array(len(self.state))
            arrays |= {f"state.{i}": self.plain(array) for i, array in enumerate(self.state) if array is not None}
        return arrays

    @staticmethod
    @abstractmethod
    def plain(array: Array) -> npt.NDArray[np.generic]:
        """A library's array as numpy's, bfloat16 as uint16; it may share its memory."""


def restored(
    arrays: Stored,
    own: Callable[[npt.NDArray[Any], Dtype], Array],
    dtypes: Sequence[Dtype],
    widths: Callable[[int], Iterable[int]],
    shapes: Sequence[Shape],
    state_dtype: Dtype,
    state_shapes: StateShapes | None,
) -> tuple[int, tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...] | None]:
    """The fields of an exported `LayerPayload`.

    Args:
        arrays: Exported arrays, not checked yet.
        own: Converts to a library's array of a dtype; raises ValueError where another one was stored.
        dtypes: Dtypes of the codec's parts of keys and values.
        widths: The widths of the codec's parts of a row, by the width of the row.
        shapes: Shapes of the model's attention layers.
        state_dtype: The dtype of most arrays of a recurrent state.
        state_shapes: Shapes of the model's recurrent state; None if they are not known.

    Raises:
        SnapshotFormatError: Arrays that are missing, of another dtype, not of `n` tokens, or of other shapes than the model's.
    """
    try:
        n = int(arrays["n"])
        number = sum(name.startswith("keys.") for name in arrays)
        by_part = list(dtypes) * (number // len(dtypes) + 1)
        keys, values = (tuple(own(arrays[f"{what}.{i}"], by_part[i]) for i in range(number)) for what in ("keys", "values"))
        state: tuple[Array | None, ...] | None = None
        if "states" in arrays:
            names = [f"state.{i}" for i in range(int(arrays["states"]))]
            state = tuple(own(arrays[name], state_dtype) if name in arrays else None for name in names)
    except (KeyError, TypeError, ValueError) as error:
        raise SnapshotFormatError(f"stored KV is not what this backend writes: {error}") from error
    plain = [arrays[f"{what}.{i}"] for what in ("keys", "values") for i in range(number)]
    if number % len(dtypes) or any(a.ndim != 4 or a.shape[2] != n for a in plain):
        raise SnapshotFormatError(f"stored KV says {n} tokens, but its arrays have other shapes")
    for at, (what, found) in enumerate((("keys", keys), ("values", values))):
        groups = Counter(shapes).items()
        expected = [(layers, heads, n, part) for (heads, *sides), layers in groups for part in widths(sides[at])]
        _check_shapes(what, found, expected)
    if state is not None and state_shapes is not None:
        _check_shapes("state", state, state_shapes)
    return n, keys, values, state


def _check_shapes(what: str, arrays: Iterable[Array | None], expected: Sequence[tuple[int, ...] | None]) -> None:
    found = [None if array is None else tuple(array.shape) for array in arrays]
    if found != list(expected):
        raise SnapshotFormatError(f"stored {what} of shapes {found}, where the model's are {list(expected)}")


def grouped(layers: Sequence[Layer], shapes: Sequence[Shape]) -> list[list[Layer]]:
    """Attention layers of equal shape together, in order of first appearance."""
    found: dict[Shape, list[Layer]] = {}
    for layer, shape in zip(layers, shapes, strict=True):
        found.setdefault(shape, []).append(layer)
    return list(found.values())
