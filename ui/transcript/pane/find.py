"""Finding words in the conversation, regardless of case, line breaks and Markdown."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec import Struct

from ui.transcript.path import TranscriptPath, TranscriptTurn
from ui.transcript.read_mode.document import with_marks_alone
from ui.transcript.read_mode.markup import MARKS, NO_MARKS
from ui.transcript.text.compose import TurnPlace, is_hidden, shown

BETWEEN = r"[*_~`]*\s+[*_~`]*"  # what may separate consecutive words
# Markdown's marks, which Read mode hides; after a backslash also the characters of `NO_MARKS`
_MARK = r"[*~`]|\\(?=[!-/:-@\[-`{-~\U000f0021-\U000f007e])|!?\[(?=[^\]\n]*\]\()|\]\([^()\s]*\)"
_BEGINNING = 60  # characters that mark the beginning of a turn


class TextMatch(Struct, frozen=True):
    """A match from `first` up to `last` in a turn."""

    turn: int
    first: TurnPlace
    last: TurnPlace
    words: str  # the matched text
    seen: str  # the pattern of the search for the text as Read mode shows it


class Finder:
    """Goes from match to match along the whole path, of which early turns may not be loaded.

    Args:
        path: The loaded turns.
        show: Shows a match; None: removes the mark.
        ask: Requests the texts of the turns before the loaded ones.
        go_back: Requests that one of those turns is loaded.
    """

    def __init__(
        self,
        path: TranscriptPath,
        show: Callable[[TextMatch | None], None],
        ask: Callable[[], None],
        go_back: Callable[[int], None],
    ) -> None:
        self._path = path
        self._show, self._ask, self._go_back = show, ask, go_back
        self.found: list[TextMatch] = []  # the matches in the loaded turns, in reading order
        self._earlier: Sequence[tuple[int, str, str]] = ()  # node id, role and text of the turns before the loaded ones
        self._before: list[int] = []  # the node id of each match in them
        self._top: int | None = None  # the first loaded turn when the texts were requested
        self._held: tuple[int, TurnPlace, TurnPlace] | None = None  # the shown match, by node id
        self._awaited: tuple[int, int] | None = None  # a turn that is being loaded, and the number of its match to show
        self._show_first = False  # no match yet: the first one in the requested texts is to be shown
        self.words = ""
        self.template = False
        self.typeset = False  # Read mode: Markdown's marks are not shown, and words continue across them
        self.place: int | None = None  # number of the shown match in the whole path

    @property
    def total(self) -> int:
        """The number of matches in the whole path."""
        return len(self._before) + len(self.found)

    def look_for(self, words: str, start: tuple[int, int]) -> None:
        """Shows the first match at or after a token (turn, index), else the first of all."""
        self.words, self._awaited, self._held = words, None, None
        self.refresh()
        behind = (i for i, one in enumerate(self.found) if (one.turn, one.first.token) >= start)
        self._show_first = not self.found
        if self.total:
            self._go(len(self._before) + next(behind, 0) if self.found else 0)
        else:
            self._show(None)

    def step(self, by: int) -> None:
        """Shows the next or the previous match, cyclically."""
        self.refresh()
        if self.total:
            self._go((((-1 if by > 0 else 0) if self.place is None else self.place) + by) % self.total)

    def take_earlier(self, texts: Sequence[tuple[int, str, str]]) -> None:
        """Takes the texts of the turns before the loaded ones."""
        self._earlier = texts
        self.refresh()
        if self._show_first and self._before:
            self._go(0)

    def refresh(self) -> None:
        """Searches again after a change; the shown match stays, and an awaited one is shown if it is loaded."""
        turns = self._path.turns
        shown = {turn.node_id for turn in turns}
        if not self.words or self._top not in shown:  # another path, or the end of the search
            self._earlier, self._top, self._awaited, self._show_first = (), None, None, False
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
        self.place, self._show_first = place, False
        if place < len(self._before):
            node = self._before[place]
            self._awaited, self._held = (node, self._before[:place].count(node)), None
            self._go_back(node)
        else:
            match = self.found[place - len(self._before)]
            self._awaited, self._held = None, self._key(match)
            self._show(match)

    def _key(self, match: TextMatch) -> tuple[int, TurnPlace, TurnPlace]:
        return self._path.turns[match.turn].node_id, match.first, match.last


def beginning(turns: Sequence[TranscriptTurn], number: int | None) -> TextMatch | None:
    """The first words of a turn as a match; None if it has none."""
    found = None if number is None else re.search(rf"\S(?:.{{0,{_BEGINNING}}}(?!\S)|.{{0,{_BEGINNING}}})", turns[number].text)
    if number is None or found is None:
        return None
    pattern = re.compile(re.escape(found.group()))
    return next(iter(_within(number, turns[number], pattern, pattern.pattern, template=False, typeset=False)), None)


def matches(turns: Sequence[TranscriptTurn], words: str, *, template: bool, typeset: bool = False) -> list[TextMatch]:
    """All matches, in reading order. A match may begin and end inside tokens, and never spans turns."""
    if not words:
        return []
    pattern, seen = pattern_of(words, typeset=typeset), _pattern(words, "", r"\s+").pattern
    return [
        match
        for number, turn in enumerate(turns)
        for match in _within(number, turn, pattern, seen, template=template, typeset=typeset)
    ]


def pattern_of(words: str, *, typeset: bool = False) -> re.Pattern[str]:
    """A pattern for words in any case and form of accents, with any white space and Markdown marks between words.

    `typeset`: the searched text is Markdown, and marks may be anywhere.
    """
    if not typeset:
        return _pattern(words, "", BETWEEN)
    return _pattern(words, f"(?:{_MARK})*", rf"(?:{_MARK}|_)*\s+(?:{_MARK}|_)*")


def _pattern(words: str, inside: str, between: str) -> re.Pattern[str]:
    """`inside`: pattern that may separate two characters; `between`: pattern in place of white space."""
    parts = re.split(r"(\s+)", unicodedata.normalize("NFC", words))
    signs = (between if part.isspace() else inside.join(map(_in_any_form, part)) for part in parts)
    return re.compile("".join(signs), re.IGNORECASE)


def _in_any_form(sign: str) -> str:
    parted = unicodedata.normalize("NFD", sign)
    if sign in MARKS:
        return f"[{re.escape(sign)}{sign.translate(NO_MARKS)}]"
    return re.escape(sign) if parted == sign else f"(?:{sign}|{parted})"


def _found(pattern: re.Pattern[str], text: str, role: str, *, typeset: bool) -> list[re.Match[str]]:
    """`role`: only turns of the user and the model are Markdown."""
    found = list(pattern.finditer(text))
    if not (found and typeset):
        return found
    return list(pattern.finditer(with_marks_alone(text) if role in ("user", "assistant") else text.translate(NO_MARKS)))


def _within(
    number: int, turn: TranscriptTurn, pattern: re.Pattern[str], seen: str, *, template: bool, typeset: bool
) -> list[TextMatch]:
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
        first_place, last_place = TurnPlace(first, _drawn(texts[first], begin)), _behind(texts[last], last, stop)
        made.append(TextMatch(number, first_place, last_place, text[one.start() : one.end()], seen))
    return made


def _drawn(text: str, offset: int) -> int:
    """The place of a character in the drawn text; a token that is drawn as codes is found as a whole."""
    return offset if shown(text).text == text else 0


def _behind(text: str, token: int, offset: int) -> TurnPlace:
    return TurnPlace(token, offset) if offset < len(text) and shown(text).text == text else TurnPlace(token + 1)
