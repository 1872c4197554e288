"""Guesses from the text itself: what followed the same few tokens when they last occurred.

Prompt lookup decoding (A. Saxena, 2023; transformers' `prompt_lookup_num_tokens`), with an index that grows by a token at
a time in place of a search through the whole text at each step.
"""

from __future__ import annotations

from collections.abc import Sequence


class PromptLookup:
    """An index of every short run of tokens, by where it was last seen and continued.

    Args:
        longest: Tokens that must recur, at most: the longest recurrence that is found wins.
        shortest: And at least.
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self._lengths = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # a run -> the place of what followed it last

    def extend(self, tokens: Sequence[int]) -> None:
        """The text has grown."""
        text, after = self._text, self._after
        for token in tokens:
            place = len(text)
            for n in self._lengths:  # entered once something follows: what is found can always be continued
                if n <= place:
                    after[tuple(text[place - n :])] = place
            text.append(token)

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next; none where nothing recurs."""
        text = self._text
        for n in self._lengths:
            if n <= len(text):
                place = self._after.get(tuple(text[-n:]))
                if place is not None:
                    return text[place : place + limit]
        return []

    def close(self) -> None:
        """Holds nothing outside Python."""
