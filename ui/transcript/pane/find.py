"""Where words stand in the conversation that is shown: whatever its capitals, its line breaks and its Markdown."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec import Struct

from ui.transcript.path import Path, Turn
from ui.transcript.read_mode.document import with_marks_alone
from ui.transcript.read_mode.markup import MARKS, NO_MARKS
from ui.transcript.text.compose import Place, is_hidden, shown

BETWEEN = r"[*_~`]*\s+[*_~`]*"  # what may stand between words that are read together
# Markdown's, anywhere in what Read shows without it; behind a backslash also what `NO_MARKS` puts there
_MARK = r"[*~`]|\\(?=[!-/:-@\[-`{-~\U000f0021-\U000f007e])|!?\[(?=[^\]\n]*\]\()|\]\([^()\s]*\)"
_BEGINNING = 60  # characters of a turn that show where it begins


class Match(Struct, frozen=True):
    """A place where the words stand: from `first` up to `last` in a turn."""

    turn: int
    first: Place
    last: Place
    words: str  # as they stand there
    seen: str  # the pattern of what was looked for, as Read shows it


class Finder:
    """Goes from place to place along the whole path, of which the beginning may be known by its texts alone.

    Args:
        path: What is shown now.
        show: Takes the place to show; None: none is marked any more.
        ask: The texts of the turns before those that are shown are wanted.
        go_back: That turn, one of those, is wanted.
    """

    def __init__(
        self, path: Path, show: Callable[[Match | None], None], ask: Callable[[], None], go_back: Callable[[int], None]
    ) -> None:
        self._path = path
        self._show, self._ask, self._go_back = show, ask, go_back
        self.found: list[Match] = []  # all places in the turns that are shown, in reading order
        self._earlier: Sequence[tuple[int, str, str]] = ()  # node, role and text of the turns before those that are shown
        self._before: list[int] = []  # the turn of each place there
        self._top: int | None = None  # the first turn that was shown when the texts were asked for
        self._held: tuple[int, Place, Place] | None = None  # the place that is shown, whatever comes before its turn
        self._awaited: tuple[int, int] | None = None  # a turn that is on its way, and which of its places is to be shown
        self._seeks = False  # nothing was found yet: the first place of the texts that come is to be shown
        self.words = ""
        self.template = False
        self.typeset = False  # marks are not shown: words go on behind them
        self.place: int | None = None  # of the one that is shown, in the whole path

    @property
    def total(self) -> int:
        """How many places the whole path has."""
        return len(self._before) + len(self.found)

    def look_for(self, words: str, start: tuple[int, int]) -> None:
        """Shows the first place at or after a token (turn, index), else the first of all."""
        self.words, self._awaited, self._held = words, None, None
        self.refresh()
        behind = (i for i, one in enumerate(self.found) if (one.turn, one.first.token) >= start)
        self._seeks = not self.found
        if self.total:
            self._go(len(self._before) + next(behind, 0) if self.found else 0)
        else:
            self._show(None)

    def step(self, by: int) -> None:
        """Shows the next or the previous place; after the last comes the first."""
        self.refresh()
        if self.total:
            self._go((((-1 if by > 0 else 0) if self.place is None else self.place) + by) % self.total)

    def take_earlier(self, texts: Sequence[tuple[int, str, str]]) -> None:
        """What the turns say that come before those that are shown."""
        self._earlier = texts
        self.refresh()
        if self._seeks and self._before:
            self._go(0)

    def refresh(self) -> None:
        """Looks again, after the conversation has changed; the place that is shown stays, and one that has come is shown."""
        turns = self._path.turns
        shown = {turn.node_id for turn in turns}
        if not self.words or self._top not in shown:  # it is another path, or the end of the search
            self._earlier, self._top, self._awaited, self._seeks = (), None, None, False
            if self.words and turns and self._path.view is not None and self._path.view.earlier:
                self._top = turns[0].node_id
                self._ask()
        self.found = matches(turns, self.words, template=self.template, typeset=self.typeset)
        pattern, texts = pattern_of(self.words, typeset=self.typeset), self._earlier if self.words else ()
        before = ((node, role, text) for node, role, text in texts if node not in shown)
        self._before = [node for node, role, text in before for _ in _found(pattern, text, role, typeset=self.typeset)]
        if self._awaited is not None and self._awaited[0] in shown:
            (node, nth), self._awaited = self._awaited, None
            there = [i for i, one in enumerate(self.found) if turns[one.turn].node_id == node]
            if there:
                self._go(len(self._before) + there[min(nth, len(there) - 1)])
                return
        if self._awaited is None:
            keys = [self._key(one) for one in self.found]
            self.place = len(self._before) + keys.index(self._held) if self._held in keys else None

    def _go(self, place: int) -> None:
        self.place, self._seeks = place, False
        if place < len(self._before):
            node = self._before[place]
            self._awaited, self._held = (node, self._before[:place].count(node)), None
            self._go_back(node)
        else:
            match = self.found[place - len(self._before)]
            self._awaited, self._held = None, self._key(match)
            self._show(match)

    def _key(self, match: Match) -> tuple[int, Place, Place]:
        return self._path.turns[match.turn].node_id, match.first, match.last


def beginning(turns: Sequence[Turn], number: int | None) -> Match | None:
    """The first words of a turn as a place of it; None where it has none."""
    found = None if number is None else re.search(rf"\S(?:.{{0,{_BEGINNING}}}(?!\S)|.{{0,{_BEGINNING}}})", turns[number].text)
    if number is None or found is None:
        return None
    pattern = re.compile(re.escape(found.group()))
    return next(iter(_within(number, turns[number], pattern, pattern.pattern, template=False, typeset=False)), None)


def matches(turns: Sequence[Turn], words: str, *, template: bool, typeset: bool = False) -> list[Match]:
    """All places, in reading order; none for no words. A match may begin and end inside tokens, and never spans turns."""
    if not words:
        return []
    pattern, seen = pattern_of(words, typeset=typeset), _pattern(words, "", r"\s+").pattern
    return [
        match
        for number, turn in enumerate(turns)
        for match in _within(number, turn, pattern, seen, template=template, typeset=typeset)
    ]


def pattern_of(words: str, *, typeset: bool = False) -> re.Pattern[str]:
    """What is looked for: in any case and form of accents, any white space between words, and Markdown's marks beside it.

    `typeset`: it is Markdown, of which the text alone is seen.
    """
    if not typeset:
        return _pattern(words, "", BETWEEN)
    return _pattern(words, f"(?:{_MARK})*", rf"(?:{_MARK}|_)*\s+(?:{_MARK}|_)*")


def _pattern(words: str, inside: str, between: str) -> re.Pattern[str]:
    """`inside`: what may stand between two characters; `between`: what may stand in the place of white space."""
    parts = re.split(r"(\s+)", unicodedata.normalize("NFC", words))
    signs = (between if part.isspace() else inside.join(map(_in_any_form, part)) for part in parts)
    return re.compile("".join(signs), re.IGNORECASE)


def _in_any_form(sign: str) -> str:
    parted = unicodedata.normalize("NFD", sign)
    if sign in MARKS:
        return f"[{re.escape(sign)}{sign.translate(NO_MARKS)}]"
    return re.escape(sign) if parted == sign else f"(?:{sign}|{parted})"


def _found(pattern: re.Pattern[str], text: str, role: str, *, typeset: bool) -> list[re.Match[str]]:
    """`role`: only what a person or the model says is Markdown."""
    found = list(pattern.finditer(text))
    if not (found and typeset):
        return found
    return list(pattern.finditer(with_marks_alone(text) if role in ("user", "assistant") else text.translate(NO_MARKS)))


def _within(number: int, turn: Turn, pattern: re.Pattern[str], seen: str, *, template: bool, typeset: bool) -> list[Match]:
    tokens = turn.tokens
    texts = ["" if is_hidden(m, template=template) else t for t, m in zip(tokens.texts, tokens.marks, strict=True)]
    text = "".join(texts)
    found = _found(pattern, text, turn.view.role, typeset=typeset)
    if not found:
        return []
    ends = list(accumulate(map(len, texts)))
    made = []
    for one in found:
        first = bisect_right(ends, one.start())  # the token that holds the first character
        last = bisect_left(ends, one.end())  # and the last one
        begin, stop = one.start() - ends[first] + len(texts[first]), one.end() - ends[last] + len(texts[last])
        first_place, last_place = Place(first, _drawn(texts[first], begin)), _behind(texts[last], last, stop)
        made.append(Match(number, first_place, last_place, text[one.start() : one.end()], seen))
    return made


def _drawn(text: str, offset: int) -> int:
    """Where a character is in what is drawn; a token that is drawn as codes counts as a whole."""
    return offset if shown(text).text == text else 0


def _behind(text: str, token: int, offset: int) -> Place:
    return Place(token, offset) if offset < len(text) and shown(text).text == text else Place(token + 1)
