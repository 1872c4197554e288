"""Prompt lookup decoding: drafts the tokens that followed the last occurrence of the text's final n-gram.

After A. Saxena, 2023 (transformers' `prompt_lookup_num_tokens`), with an incremental index instead of a search through the
whole text at each step.
"""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """An index of every n-gram of a text by its last occurrence that has a continuation.

    Args:
        longest: Largest n; the longest matching n-gram wins.
        shortest: Smallest n.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its last occurrence

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens to the text."""
        text, after = self._text, self._after
        for token in tokens:
            place = len(text)
            for n in self._lengths:  # entered with the token that follows: every match has a continuation
                if n <= place:
                    after[tuple(text[place - n :])] = place
            text.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next; empty without a match."""
        text = self._text
        for n in self._lengths:
            if n <= len(text):
                place = self._after.get(tuple(text[-n:]))
                if place is not None:
                    return text[place : place + limit]
        return []

    def close(self) -> None:
        """Does nothing: there is nothing to free."""
