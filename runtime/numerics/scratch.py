"""Memory that is used again: a fresh array of a vocabulary's size costs as much in page faults as a pass over it."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

MOST_ENTRIES = 1 << 19  # 2 MiB of float32 for each use on each thread; what is larger is made anew


class _Kept(threading.local):
    """Each thread's own."""

    def __init__(self) -> None:
        self.arrays: dict[str, npt.NDArray[np.float32]] = {}


_kept = _Kept()


def scratch(use: str, entries: int) -> npt.NDArray[np.float32]:
    """``(entries,)`` float32 of the calling thread's, with anything in it; holds until the thread asks for the same use again.

    Args:
        use: What for: two arrays that are needed at a time have different ones.
        entries: How many.
    """
    if entries > MOST_ENTRIES:
        return np.empty(entries, np.float32)
    kept = _kept.arrays.get(use)
    if kept is None or len(kept) < entries:
        kept = _kept.arrays[use] = np.empty(entries, np.float32)
    return kept[:entries]
