"""Fault handling: bisects a failing batch down to the faulty item, and makes the errors that callers receive."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

from runtime.errors import MemoryBudgetError, RuntimeFault
from runtime.scheduler.decode.rows import DecodeRow
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)
Work = TypeVar("Work", Prefill, DecodeRow)


def all_of(ends: Iterable[Callable[[], None]]) -> None:
    """Runs every callback; a failing one is logged and stops no other."""
    for end in ends:
        try:
            end()
        except BaseException:  # the other requests must end too
            log.exception("a request could not be ended in order")


def bisect(
    items: list[Work], error: BaseException, again: Callable[[list[Work]], object], fail: Callable[[Work, BaseException], None]
) -> None:
    """Halves a failing batch until the faulty item is alone; for lack of room, ends the largest item instead.

    Args:
        items: The batch.
        error: Its error.
        again: Runs a part of it.
        fail: Ends an item with the error.
    """
    if len(items) == 1:
        fail(items[0], typed(error))
        return
    if isinstance(error, NoRoomError):  # no single item is too large, all together are
        largest = max(items, key=_size)
        fail(largest, typed(error))
        rest = [item for item in items if item is not largest and not item.job.abandoned]
        if rest:
            again(rest)
        return
    half = len(items) // 2
    for part in (items[:half], items[half:]):
        wanted = [item for item in part if not item.job.abandoned]
        if wanted:
            again(wanted)


def _size(item: Prefill | DecodeRow) -> int:
    """Tokens that it has, or will have, in the workspace."""
    return len(item.path) if isinstance(item, DecodeRow) else item.total


def typed(error: BaseException) -> Exception:
    """The error itself, or a `RuntimeFault` around a `BaseException` (a panic in native code).

    Clears the local variables of its traceback: arrays must be freed on the owner thread, not by the caller.
    """
    clear_frames(error)
    if isinstance(error, NoRoomError):
        return MemoryBudgetError(str(error))
    if isinstance(error, Exception):
        return error
    fault = RuntimeFault(f"the model's library failed: {error!r}")
    fault.__cause__ = error
    return fault


def clear_frames(error: BaseException) -> None:
    """Clears the frames of an error, its cause and its context."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += [one.__cause__, one.__context__]
        for frame, _ in traceback.walk_tb(one.__traceback__):
            try:
                frame.clear()
            except RuntimeError:  # still running, like the outermost frames: a reference would keep its variables
                one.__traceback__ = one.__traceback__ and one.__traceback__.tb_next
