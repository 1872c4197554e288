"""A matcher in place of the library's, through which a test observes, and can delay, the computation of masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llguidance
import pytest

OnMask = Callable[[str, int], None]  # the grammar as passed to the library, and the number of tokens consumed


class WatchedMatcher:
    """An `llguidance.LLMatcher` that calls `on_mask` after each mask, on the thread that computed it."""

    def __init__(self, matcher: Any, grammar: str, on_mask: OnMask, consumed: int = 0) -> None:
        self._matcher, self._grammar, self._on_mask, self._consumed = matcher, grammar, on_mask, consumed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)

    def deep_copy(self) -> WatchedMatcher:
        return WatchedMatcher(self._matcher.deep_copy(), self._grammar, self._on_mask, self._consumed)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        taken: int = self._matcher.try_consume_tokens(tokens)
        self._consumed += taken
        return taken

    def unsafe_compute_mask_ptr(self, pointer: int, size: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(pointer, size)
        self._on_mask(self._grammar, self._consumed)


class _Matchers:
    """Replaces `llguidance.LLMatcher` for its callers."""

    def __init__(self, on_mask: OnMask) -> None:
        self._real, self._on_mask = llguidance.LLMatcher, on_mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, tokenizer: Any, grammar: str, **named: Any) -> WatchedMatcher:
        return WatchedMatcher(self._real(tokenizer, grammar, **named), grammar, self._on_mask)


def watch_masks(monkeypatch: pytest.MonkeyPatch, on_mask: OnMask) -> None:
    """Calls `on_mask` for every mask of the grammars compiled from now on; the mask is delivered when it returns."""
    monkeypatch.setattr(llguidance, "LLMatcher", _Matchers(on_mask))
