"""KV as plain arrays by name: what a backend exports and takes back, and the one thing that is the same for all of them.

Arrays whose names begin with ``keys``, ``values``, ``kv`` or ``tokens`` hold one entry for each token; ``n`` counts the
tokens; whatever else there is belongs to the last token (recurrent state).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.errors import SnapshotFormatError

Stored = dict[str, npt.NDArray[np.generic]]
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
    """How many tokens some arrays hold; -1 where they do not say, or disagree."""
    found = {int(arrays["n"])} if "n" in arrays else set()
    for name, array in arrays.items():
        axis = _TOKEN_AXES.get(name.partition(".")[0])
        if axis is not None:
            found.add(int(array.shape[axis]) if array.ndim > axis else -1)
    return found.pop() if len(found) == 1 else -1


def check_shapes(what: str, found: Sequence[tuple[int, ...] | None], expected: Sequence[tuple[int, ...] | None]) -> None:
    """Raises `SnapshotFormatError` where stored arrays have not the model's shapes."""
    if list(found) != list(expected):
        raise SnapshotFormatError(f"stored {what} of shapes {list(found)}, where the model's are {list(expected)}")


def nbytes(arrays: Stored) -> int:
    """Bytes that they hold."""
    return sum(int(array.nbytes) for array in arrays.values())


def first(arrays: Stored, tokens: int) -> Stored:
    """The first tokens alone, as views; what belongs to the last one is gone with it."""
    found: Stored = {}
    for name, array in arrays.items():
        axis = _TOKEN_AXES.get(name.partition(".")[0])
        if axis is not None:
            found[name] = array[(slice(None),) * axis + (slice(tokens),)]
        elif name == "n":
            found[name] = np.array(tokens)
    return found
