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
    """One report. `total` is 0 where it is not known."""

    stage: str  # what is being done: "check", "convert", "copy", "download"
    done: int  # in units of the stage (bytes, tensors)
    total: int


OnProgress = Callable[[Progress], None]  # may raise to cancel: the work is undone and the exception goes through


def ignore(progress: Progress) -> None:
    """For callers who do not want to know."""
    del progress


T = TypeVar("T")
TELL_SECONDS: Final = 0.1  # between two lines about a load


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How much of a model's weights is in place; beside weights on disk (offload), how much has its place.

    Attributes:
        done: Tensors.
        total: Of so many; 0 in a stage that counts none.
        stage: "reading" the weights, or "checking" the numbers once they are in place.
    """

    done: int
    total: int
    stage: Literal["reading", "checking"] = "reading"


OnLoad = Callable[[LoadProgress], None]
_listener: ContextVar[OnLoad | None] = ContextVar("load progress", default=None)


def current_listener() -> OnLoad | None:
    """Who listens to what is loaded on this thread, or in this task."""
    return _listener.get()


@contextmanager
def progress_listener(on_progress: OnLoad | None) -> Iterator[None]:
    """What is loaded inside, on this thread, is reporting_progress to `on_progress`, on this thread.

    What that raises ends the load and comes out as it is, whatever the libraries between made of it.
    """
    raised: list[BaseException] = []

    def tell(progress: LoadProgress) -> None:
        assert on_progress is not None
        try:
            on_progress(progress)
        except BaseException as fault:
            raised.append(fault)
            raise

    token = _listener.set(None if on_progress is None else tell)
    try:
        yield
    except BaseException as fault:
        if raised and fault is not raised[0]:
            raise raised[0] from None
        raise
    finally:
        _listener.reset(token)


def report_checking() -> None:
    """The weights are in place, and are checked."""
    on_progress = current_listener()
    if on_progress is not None:
        on_progress(LoadProgress(0, 0, "checking"))


def reporting_progress(tensors: Iterable[T]) -> Iterator[T]:
    """The same, one by one, with a word at the beginning, now and then, and at the end; nobody need listen."""
    on_progress = current_listener()
    if on_progress is None or not isinstance(tensors, Sized):
        yield from tensors
        return
    total, said = len(tensors), -TELL_SECONDS
    for done, tensor in enumerate(tensors):
        now = time.monotonic()
        if now - said >= TELL_SECONDS:
            said = now
            on_progress(LoadProgress(done, total))
        yield tensor
    on_progress(LoadProgress(total, total))
