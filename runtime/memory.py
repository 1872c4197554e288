"""Memory that was freed goes back to the system, where the C library keeps it for the next time."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

MOST_ARENAS: Final = 2
_M_ARENA_MAX: Final = -8  # a parameter of `mallopt`, from glibc's malloc.h


def limit_arenas() -> None:
    """On glibc: threads share `MOST_ARENAS` of malloc's arenas, instead of up to eight for each processor.

    Every model has new threads, which take other arenas; what lies free between blocks in one of them serves no thread of
    another, so that a process that loads and closes models grows while the bytes in use do not. Arenas that are there already
    stay. Nothing is changed where the environment says how many there are, and elsewhere than on glibc there is nothing to do.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def return_memory() -> None:
    """On glibc: gives back what lies free between blocks that are in use; elsewhere the allocator does so by itself."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
