"""Sliding windows, for scoring a text that is longer than the context."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from runtime.api.checks import RequestChecks
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import is_whole, plain_number, shown
from runtime.records import Int32, TokenRun
from runtime.text.utf8 import texts_of


class ScoreWindow(NamedTuple):
    """The part ``ids[begin:end]`` of a text, scored as a text of its own; only positions from `start` on are used."""

    begin: int
    end: int
    start: int  # position in the window


def sliding_windows(ids: Sequence[int], vocab: int, room: int, start: int, stride: int) -> tuple[Int32, list[ScoreWindow]]:
    """The checked ids, and windows of up to `room` tokens that advance by `stride` tokens.

    Each position from `start` on is scored in one window. As in transformers' guide to the perplexity of fixed-length models,
    the tokens scored after the first window have at least ``room - stride`` tokens before them.

    Raises:
        InvalidRequestError: Ids, a start or a stride out of range.
    """
    path = RequestChecks(vocab, sys.maxsize).ids(ids)
    length = len(path)
    if not is_whole(stride, 1, room - 1):
        raise InvalidRequestError(
            f"stride is a whole number from 1 to {room - 1:,} (less than the {room:,} tokens of a window), not {stride!r}"
        )
    if not is_whole(plain_number(start), 0, length - 1):
        raise InvalidRequestError(f"start must lie within 0 and {length - 1}, not {shown(start)}")
    windows: list[ScoreWindow] = []
    scored = 0
    for begin in range(0, length, stride):
        end = min(begin + room, length)
        first = max(scored, start)
        if first < end:
            windows.append(ScoreWindow(begin, end, first - begin))
        scored = end
        if end == length:
            break
    return path, windows


class WindowTotal:
    """Sums the progress of all windows."""

    def __init__(self, on_progress: OnProgress, windows: Sequence[ScoreWindow]) -> None:
        self._on_progress = on_progress
        self._total = sum(window.end - window.begin for window in windows)
        self._last = PromptProgress(0, 0, 0, 0)

    def next_window(self) -> OnProgress:
        """The `on_progress` of the next window."""
        before = self._last

        def add(progress: PromptProgress) -> None:
            self._last = replace(
                progress,
                done=before.done + progress.done,
                total=self._total,
                reused=_sum(before.reused, progress.reused),
                computed=_sum(before.computed, progress.computed),
            )
            self._on_progress(self._last)

        return add


def _sum(before: int | None, more: int | None) -> int | None:
    return None if before is None or more is None else before + more


def joined(runs: Sequence[TokenRun]) -> TokenRun:
    """The scores of all windows as one run. The text is decoded again, since a character may span two windows."""
    run = TokenRun.concat(runs)
    return replace(run, texts=texts_of(run.token_bytes))
