"""Progress of imports and of loads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal, TypeVar


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an import or a download; `total` is 0 where it is unknown."""

    stage: str  # "check", "convert", "copy", "download", ...
    done: int  # bytes or tensors
    total: int


OnProgress = Callable[[Progress], None]  # may raise to cancel: the work is undone and the exception propagates


def ignore_progress(progress: object) -> None:
    """Ignores a report."""
    del progress


def counting_bytes(progress: OnProgress, total: int, stage: str = "check") -> Callable[[int], None]:
    """Returns a function to call with the bytes of each read; it reports their sum every `REPORT_SECONDS` and at the end."""
    done, reported = 0, -REPORT_SECONDS

    def add(count: int) -> None:
        nonlocal done, reported
        done, now = done + count, time.monotonic()
        if now - reported >= REPORT_SECONDS or done >= total:
            reported = now
            progress(Progress(stage, done, total))

    return add


T = TypeVar("T")
REPORT_SECONDS: Final = 0.1  # between two reports


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of a load.

    Attributes:
        done: Loaded tensors; offloaded ones count once their place on disk is known.
        total: Tensors in all; 0 in a stage that counts none.
        stage: "importing" a GGUF file that is not on the shelf yet (`done` and `total` are those of its `Progress`), "reading"
            the weights, or "checking" the numbers afterwards.
    """

    done: int
    total: int
    stage: Literal["importing", "reading", "checking"] = "reading"


OnLoad = Callable[[LoadProgress], None]
_listener: ContextVar[OnLoad | None] = ContextVar("load progress", default=None)


def current_listener() -> OnLoad | None:
    """The listener of loads on this thread, or in this task."""
    return _listener.get()


@contextmanager
def progress_listener(on_progress: OnLoad | None) -> Iterator[None]:
    """Calls `on_progress` with the progress of loads that run in the block; both on this thread.

    An exception from `on_progress` ends the load and is raised unchanged, even where a library wrapped it.
    """
    raised: list[BaseException] = []

    def report(progress: LoadProgress) -> None:
        assert on_progress is not None
        try:
            on_progress(progress)
        except BaseException as fault:
            raised.append(fault)
            raise

    token = _listener.set(None if on_progress is None else report)
    try:
        yield
    except BaseException as fault:
        if raised and fault is not raised[0]:
            raise raised[0] from None
        raise
    finally:
        _listener.reset(token)


def report_checking() -> None:
    """Reports that the weights are in place and are being checked."""
    on_progress = current_listener()
    if on_progress is not None:
        on_progress(LoadProgress(0, 0, "checking"))


def reporting_progress(tensors: Iterable[T]) -> Iterator[T]:
    """Yields the tensors and reports progress at the beginning, every 0.1 s and at the end."""
    on_progress = current_listener()
    if on_progress is None or not isinstance(tensors, Sized):
        yield from tensors
        return
    total, reported = len(tensors), -REPORT_SECONDS
    for done, tensor in enumerate(tensors):
        now = time.monotonic()
        if now - reported >= REPORT_SECONDS:
            reported = now
            on_progress(LoadProgress(done, total))
        yield tensor
    on_progress(LoadProgress(total, total))
