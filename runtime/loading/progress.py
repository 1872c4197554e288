"""How far a long piece of work is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


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
