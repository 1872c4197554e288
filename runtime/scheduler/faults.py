"""What fails: how a failing batch is narrowed down to the guilty one, and what the caller is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from runtime.errors import RuntimeFault
from runtime.scheduler.finish import gone
from runtime.scheduler.prefill import Prefill
from runtime.scheduler.rows import Row

Work = TypeVar("Work", Prefill, Row)


def bisect(
    items: list[Work], error: BaseException, again: Callable[[list[Work]], object], fail: Callable[[Work, BaseException], None]
) -> None:
    """A failing batch is halved until the guilty one is alone.

    Args:
        items: What was in the batch.
        error: How it failed.
        again: Runs a part of it.
        fail: Ends the guilty one with the error.
    """
    if len(items) == 1:
        fail(items[0], typed(error))
        return
    half = len(items) // 2
    for part in (items[:half], items[half:]):
        wanted = [item for item in part if not gone(item.job)]
        if wanted:
            again(wanted)


def typed(error: BaseException) -> Exception:
    """The error itself, or a `RuntimeFault` around what is no Exception (a panic in native code)."""
    if isinstance(error, Exception):
        return error
    fault = RuntimeFault(f"the model's library failed: {error!r}")
    fault.__cause__ = error
    return fault
