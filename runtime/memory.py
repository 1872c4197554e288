"""Settings of glibc's allocator, which otherwise keeps freed memory."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Final

MOST_ARENAS: Final = 2
_M_ARENA_MAX: Final = -8  # a parameter of `mallopt`, from glibc's malloc.h


def limit_arenas() -> None:
    """On glibc, limits malloc to `MOST_ARENAS` arenas, instead of up to eight for each processor.

    Every model has new threads, which take other arenas. Free memory between blocks of one arena serves no thread of another,
    so that a process that loads and closes models grows while the bytes in use do not. Existing arenas stay. Does nothing where
    the environment sets the number, and on other C libraries.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def return_memory() -> None:
    """On glibc, returns the free memory between used blocks to the system; other allocators do so by themselves."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)
