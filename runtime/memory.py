"""Settings of glibc's allocator, which otherwise keeps freed memory, and of Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

MOST_ARENAS: Final = 2
_M_ARENA_MAX: Final = -8  # a parameter of `mallopt`, from glibc's malloc.h


def limit_arenas() -> None:
    """On glibc, limits malloc to `MOST_ARENAS` arenas, instead of up to eight for each processor.

    Every model starts new threads, which take other arenas. Free memory between blocks of one arena is of no use to threads of
    another, so a process that loads and closes models grows although the bytes in use do not. Existing arenas stay. Does
    nothing on other C libraries, or where the environment sets the number of arenas.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "glibc.malloc.arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, MOST_ARENAS)


def return_memory() -> None:
    """On glibc, returns the free memory between used blocks to the system; other allocators do so on their own."""
    with suppress(OSError, AttributeError):  # no glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def paused_collection() -> Iterator[None]:
    """Pauses garbage collection, if it is on: a tenth of a load passes over the 400,000 objects of torch and transformers."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def exempt_from_collection() -> None:
    """Exempts all live objects from garbage collection, and switches it on.

    Full passes over the objects of torch and transformers pause streams for 0.2 s. For a process with one model, which ends
    with it: objects that die later in a cycle are not freed.
    """
    gc.collect()  # garbage would be exempt as well
    gc.freeze()
    gc.enable()
