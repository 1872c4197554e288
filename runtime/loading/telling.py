"""How far a load is: whoever reads weights tells, whoever asked for the model listens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

T = TypeVar("T")
TELL_SECONDS: Final = 0.1  # between two lines about a load


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How much of a model's weights is in place; beside weights on disk (offload), how much has its place.

    Attributes:
        done: Tensors.
        total: Of so many.
    """

    done: int
    total: int


OnLoad = Callable[[LoadProgress], None]
_listener: ContextVar[OnLoad | None] = ContextVar("load progress", default=None)


def listener() -> OnLoad | None:
    """Who listens to what is loaded on this thread, or in this task."""
    return _listener.get()


@contextmanager
def listening(on_progress: OnLoad | None) -> Iterator[None]:
    """What is loaded inside, on this thread, is told to `on_progress`, on this thread."""
    token = _listener.set(on_progress)
    try:
        yield
    finally:
        _listener.reset(token)


def told(tensors: Iterable[T]) -> Iterator[T]:
    """The same, one by one, with a word at the beginning, now and then, and at the end; nobody need listen."""
    on_progress = listener()
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
