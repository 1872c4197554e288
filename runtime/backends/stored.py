"""KV as plain arrays by name: the form that all backends export and restore.

Arrays whose names begin with ``keys``, ``values``, ``kv`` or ``tokens`` hold one entry for each token; ``n`` is the number
of tokens; all others belong to the last token (recurrent state).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.errors import SnapshotFormatError

Array = TypeVar("Array")  # of a library, as the next two
Dtype = TypeVar("Dtype")
Layer = TypeVar("Layer")
Stored = dict[str, npt.NDArray[np.generic]]
Shape = tuple[int, int, int]  # of an attention layer: heads, width of a key, width of a value
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


def check_shapes(what: str, found: Sequence[tuple[int, ...] | None], expected: Sequence[tuple[int, ...] | None]) -> None:
    """Raises `SnapshotFormatError` unless stored arrays have the model's shapes."""
    if list(found) != list(expected):
        raise SnapshotFormatError(f"stored {what} of shapes {list(found)}, where the model's are {list(expected)}")


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


@dataclass(frozen=True, slots=True)
class Restored(Generic[Array]):
    """Stored KV in a library's arrays: keys and values as ``(layers, kv_heads, n, ...)``, the state after the last token."""

    n: int
    keys: tuple[Array, ...]
    values: tuple[Array, ...]
    state: tuple[Array | None, ...] | None


def exported(
    keys: Sequence[Array],
    values: Sequence[Array],
    state: Sequence[Array | None] | None,
    n: int,
    plain: Callable[[Array], npt.NDArray[np.generic]],
) -> Stored:
    """The KV of `n` tokens by name, and their last state unless it is None; `plain` converts to a numpy array."""
    arrays: Stored = {"n": np.array(n)}
    for i, (key, value) in enumerate(zip(keys, values, strict=True)):
        arrays[f"keys.{i}"], arrays[f"values.{i}"] = plain(key), plain(value)
    if state is not None:
        arrays["states"] = np.array(len(state))
        arrays |= {f"state.{i}": plain(array) for i, array in enumerate(state) if array is not None}
    return arrays


def restored(
    arrays: Stored, dtypes: Sequence[Dtype], state_dtype: Dtype, own: Callable[[npt.NDArray[Any], Dtype], Array]
) -> Restored[Array]:
    """The inverse of `exported`.

    Args:
        arrays: Exported arrays, not checked yet.
        dtypes: Of the codec's parts of keys and values.
        state_dtype: Of most arrays of a recurrent state.
        own: Converts to a library's array of a dtype; raises ValueError where another one was stored.

    Raises:
        SnapshotFormatError: Arrays that are missing, of another dtype, or not of `n` tokens.
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
    return Restored(n, keys, values, state)


def check_layers(
    found: Restored[Array],
    shape_of: Callable[[Array], tuple[int, ...]],
    shapes: Sequence[Shape],
    state_shapes: StateShapes | None,
    widths: Callable[[int], Iterable[int]],
) -> None:
    """Raises `SnapshotFormatError` unless layers, heads and widths are the model's.

    Args:
        found: The stored KV.
        shape_of: The shape of a library's array.
        shapes: Of the model's attention layers.
        state_shapes: Of its recurrent state; None where they are not known.
        widths: The widths of the codec's parts of a row, by the width of the row.
    """
    for at, (what, arrays) in enumerate((("keys", found.keys), ("values", found.values))):
        expected = [
            (layers, shape[0], found.n, width) for shape, layers in Counter(shapes).items() for width in widths(shape[1 + at])
        ]
        check_shapes(what, [shape_of(array) for array in arrays], expected)
    if found.state is not None and state_shapes is not None:
        check_shapes("state", [None if array is None else shape_of(array) for array in found.state], state_shapes)


def grouped(layers: Sequence[Layer], shapes: Sequence[Shape]) -> list[list[Layer]]:
    """Attention layers of equal shape together, in order of first appearance."""
    found: dict[Shape, list[Layer]] = {}
    for layer, shape in zip(layers, shapes, strict=True):
        found.setdefault(shape, []).append(layer)
    return list(found.values())
