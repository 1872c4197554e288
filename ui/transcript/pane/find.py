"""Where words stand in the conversation that is shown: as it was written, whatever its capitals."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec import Struct

from ui.transcript.path import Turn
from ui.transcript.text.compose import Place, is_hidden, shown

_BEGINNING = 60  # characters of a turn that show where it begins


class Match(Struct, frozen=True):
    """A place where the words stand: from `first` up to `last` in a turn."""

    turn: int
    first: Place
    last: Place
    words: str  # as they stand there


class Finder:
    """Goes from place to place.

    Args:
        turns: What is shown now.
        show: Takes the place to show; None: none is marked any more.
    """

    def __init__(self, turns: Callable[[], Sequence[Turn]], show: Callable[[Match | None], None]) -> None:
        self._turns = turns
        self._show = show
        self._found: list[Match] = []
        self.words = ""
        self.template = False
        self.place: int | None = None  # of the one that is shown

    @property
    def found(self) -> Sequence[Match]:
        """All places, in reading order."""
        return self._found

    @property
    def total(self) -> int:
        return len(self._found)

    def look_for(self, words: str, start: tuple[int, int]) -> None:
        """Shows the first place at or after a token (turn, index), else the first of all."""
        self.words = words
        self.refresh()
        behind = (i for i, one in enumerate(self._found) if (one.turn, one.first.token) >= start)
        self.place = next(behind, 0) if self._found else None
        self._show(self._found[self.place] if self.place is not None else None)

    def step(self, by: int) -> None:
        """Shows the next or the previous place; after the last comes the first."""
        self.refresh()
        if self._found:
            self.place = ((-1 if by > 0 else 0) if self.place is None else self.place) + by
            self.place %= len(self._found)
            self._show(self._found[self.place])

    def refresh(self) -> None:
        """Looks again, after the conversation has changed; the place that is shown stays."""
        held = self._found[self.place] if self.place is not None else None
        self._found = matches(self._turns(), self.words, template=self.template)
        self.place = self._found.index(held) if held in self._found else None


def beginning(turns: Sequence[Turn], number: int | None) -> Match | None:
    """The first words of a turn as a place of it; None where it has none."""
    found = None if number is None else re.search(rf"\S(?:.{{0,{_BEGINNING}}}(?!\S)|.{{0,{_BEGINNING}}})", turns[number].text)
    if number is None or found is None:
        return None
    return next(iter(_within(number, turns[number], re.compile(re.escape(found.group())), template=False)), None)


def matches(turns: Sequence[Turn], words: str, *, template: bool) -> list[Match]:
    """All places, in reading order; none for no words. A match may begin and end inside tokens, and never spans turns."""
    if not words:
        return []
    pattern = re.compile(re.escape(words), re.IGNORECASE)
    return [match for number, turn in enumerate(turns) for match in _within(number, turn, pattern, template=template)]


def _within(number: int, turn: Turn, pattern: re.Pattern[str], *, template: bool) -> list[Match]:
    tokens = turn.tokens
    texts = ["" if is_hidden(m, template=template) else t for t, m in zip(tokens.texts, tokens.marks, strict=True)]
    text = "".join(texts)
    found = list(pattern.finditer(text))
    if not found:
        return []
    ends = list(accumulate(map(len, texts)))
    made = []
    for one in found:
        first = bisect_right(ends, one.start())  # the token that holds the first character
        last = bisect_left(ends, one.end())  # and the last one
        begin, stop = one.start() - ends[first] + len(texts[first]), one.end() - ends[last] + len(texts[last])
        made.append(Match(number, Place(first, _drawn(texts[first], begin)), _behind(texts[last], last, stop), one.group()))
    return made


def _drawn(text: str, offset: int) -> int:
    """Where a character is in what is drawn; a token that is drawn as codes counts as a whole."""
    return offset if shown(text).text == text else 0


def _behind(text: str, token: int, offset: int) -> Place:
    return Place(token, offset) if offset < len(text) and shown(text).text == text else Place(token + 1)
