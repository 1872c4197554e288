"""What fails: how a failing batch is narrowed down to the guilty one, and what the caller is told."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from typing import TypeVar

from runtime.errors import MemoryBudgetError, RuntimeFault
from runtime.scheduler.decode.rows import Row
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)
Work = TypeVar("Work", Prefill, Row)


def all_of(ends: Iterable[Callable[[], None]]) -> None:
    """Does all of what ends requests, whatever fails of it."""
    for end in ends:
        try:
            end()
        except BaseException:  # the others are told all the same
            log.exception("a request could not be ended in order")


def bisect(
    items: list[Work], error: BaseException, again: Callable[[list[Work]], object], fail: Callable[[Work, BaseException], None]
) -> None:
    """A failing batch is halved until the guilty one is alone; of those that have no room together the largest ends.

    Args:
        items: What was in the batch.
        error: How it failed.
        again: Runs a part of it.
        fail: Ends the guilty one with the error.
    """
    if len(items) == 1:
        fail(items[0], typed(error))
        return
    if isinstance(error, NoRoomError):  # not one batch is too large, all together are: the largest goes
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


def _size(item: Prefill | Row) -> int:
    """Tokens that stand in the workspace for it, or will."""
    return len(item.path) if isinstance(item, Row) else item.total


def typed(error: BaseException) -> Exception:
    """The error itself, or a `RuntimeFault` around what is no Exception (a panic in native code).

    Its traceback keeps its lines but none of their variables: arrays die on the owner thread, not with the caller.
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
    """Empties the frames that an error, its cause and its context name."""
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
            except RuntimeError:  # the outermost ones still run: they must not be named, or they would be kept as they end
                one.__traceback__ = one.__traceback__ and one.__traceback__.tb_next
