"""Settings of glibc's allocator, which otherwise keeps freed memory, and of Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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
def paused_collection() -> Iterator[Callable[[], object]]:
    """Pauses garbage collection, if it is on: a tenth of a load passes over the 400,000 objects of torch and transformers.

    Yields:
        Collects the garbage made meanwhile, if collection was on; for the thread that must destroy it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield partial(gc.collect, 0) if enabled else (lambda: None)
    finally:
        if enabled:
            gc.enable()
