"""Scores of given tokens: the group of members of `LanguageModel`, texts longer than the context included."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from runtime.adapters.uses import Adapters
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.options.priority import Priority
from runtime.records import TokenRecord, TokenRun
from runtime.text.utf8 import texts_of

if TYPE_CHECKING:
    from runtime.language_model import LanguageModel


class Window(NamedTuple):
    """A part of a text that is scored as a text of its own: ``ids[begin:end]``, of which positions from `start` on count."""

    begin: int
    end: int
    start: int  # in the window


def sliding_windows(length: int, context: int, stride: int, start: int = 0) -> list[Window]:
    """Windows of up to `context` tokens, each `stride` tokens further; each position from `start` on counts in one of them.

    As in transformers' guide to the perplexity of fixed-length models: after the first window, the tokens that count have at
    least ``context - stride`` before them.
    """
    windows: list[Window] = []
    scored = 0
    for begin in range(0, length, stride):
        end = min(begin + context, length)
        first = max(scored, start)
        if first < end:
            windows.append(Window(begin, end, first - begin))
        scored = end
        if end == length:
            break
    return windows


class ScoringMembers(Protocol):
    """`score` and its kin; see `LanguageModel`. Implementations say how one window is scored."""

    async def score(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        stride: int | None = None,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        on_progress: OnProgress | None = None,
    ) -> list[TokenRecord]:
        """What the model thinks of each given token.

        Args:
            ids: The whole sequence, from its first token on.
            top_k: Alternatives recorded per token.
            start: The first position wanted; those before it are context only.
            stride: Where `ids` are longer than the context: they are scored in windows of the context's length, each
                `stride` tokens further than the one before (1 to the context less one). Each token is scored once, and all
                but those of the first window with at least ``context - stride`` tokens before it. A window is a text of its
                own, computed anew: half the context is a fair stride, a quarter gives lower perplexities in twice the time.
                None: what does not fit is refused. What fits is scored as without.
            adapters: As of `next_token_logprobs`.
            priority: Before whom it is read; a generation's prompt is read as `Priority.CHAT`.
            on_progress: Hears how far it is after each chunk, on the caller's loop, in order; the last time before the
                answer. So of `generate`, for its prompt. Of windows it counts the tokens of all.

        Returns:
            ``len(ids) - start`` records: record i scores ``ids[start + i]`` given everything before it (in its window).
            Where nothing precedes a token, its numbers are None.
        """
        return list(
            await self.score_run(
                ids, top_k, start, stride=stride, adapters=adapters, priority=priority, on_progress=on_progress
            )
        )

    async def score_run(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        stride: int | None = None,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
        on_progress: OnProgress | None = None,
    ) -> TokenRun:
        """`score` as columns, for the pipe and the window."""
        if stride is None:
            return await self._score_window(ids, top_k, start, adapters=adapters, priority=priority, on_progress=on_progress)
        whole, windows = self._windows(ids, start, stride)
        tell = None if on_progress is None else _Total(on_progress, windows)
        runs: list[TokenRun] = []
        for begin, end, first in windows:
            hears = None if tell is None else tell.window()
            part = whole[begin:end]
            runs.append(await self._score_window(part, top_k, first, adapters=adapters, priority=priority, on_progress=hears))
        return _joined(runs)

    def score_sync(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        stride: int | None = None,
        adapters: Adapters = None,
        priority: Priority = Priority.INSPECTOR,
    ) -> list[TokenRecord]:
        """`score`, blocking."""
        if stride is None:
            return list(self._score_window_sync(ids, top_k, start, adapters=adapters, priority=priority))
        whole, windows = self._windows(ids, start, stride)
        runs = [
            self._score_window_sync(whole[begin:end], top_k, first, adapters=adapters, priority=priority)
            for begin, end, first in windows
        ]
        return list(_joined(runs))

    @abstractmethod
    async def _score_window(
        self,
        ids: Sequence[int],
        top_k: int,
        start: int,
        *,
        adapters: Adapters,
        priority: Priority,
        on_progress: OnProgress | None,
    ) -> TokenRun:
        """Scores what fits into the context."""

    @abstractmethod
    def _score_window_sync(
        self, ids: Sequence[int], top_k: int, start: int, *, adapters: Adapters, priority: Priority
    ) -> TokenRun:
        """The same, blocking."""

    def _windows(self, ids: Sequence[int], start: int, stride: int) -> tuple[list[int], list[Window]]:
        """All ids, checked before the first window is scored, and the windows."""
        from runtime.scheduler.ids import check_ids  # which a process without a model does without

        info = cast("LanguageModel", self).info
        whole: list[int] = check_ids(ids, vocab=info.vocab_size, context=sys.maxsize).tolist()
        if isinstance(stride, bool) or not isinstance(stride, int) or not 0 < stride < info.context_length:
            raise InvalidRequestError(
                f"stride is a whole number from 1 to {info.context_length - 1:,} (the context less one), not {stride!r}"
            )
        if not 0 <= start < len(whole):
            raise InvalidRequestError(f"start must lie within 0 and {len(whole) - 1}, not {start}")
        return whole, sliding_windows(len(whole), info.context_length, stride, start)


class _Total:
    """Progress of all windows together, out of that of each."""

    def __init__(self, on_progress: OnProgress, windows: Sequence[Window]) -> None:
        self._on_progress = on_progress
        self._total = sum(window.end - window.begin for window in windows)
        self._last = PromptProgress(0, 0, 0, 0)

    def window(self) -> OnProgress:
        """Hears the next window's."""
        before = self._last

        def tell(progress: PromptProgress) -> None:
            self._last = replace(
                progress,
                done=before.done + progress.done,
                total=self._total,
                reused=before.reused + progress.reused,
                computed=before.computed + progress.computed,
            )
            self._on_progress(self._last)

        return tell


def _joined(runs: Sequence[TokenRun]) -> TokenRun:
    """The windows' scores as one run; a character whose bytes two windows share is whole again."""
    run = TokenRun.concat(runs)
    return replace(run, texts=texts_of(run.token_bytes))
