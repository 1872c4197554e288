"""The table of wrapped lines of one turn: built in slices, appended to at the cost of the new tokens.

Lines are frozen as soon as another one follows; only the last is laid out again when tokens arrive. The text is handed
to Qt's line breaker in stretches of a bounded length, so one paragraph of 100,000 tokens costs as much per token as many.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from time import perf_counter

from PySide6.QtGui import QTextLayout

from ui.transcript.text.compose import Composed, TurnPlace, compose, direction, is_hidden
from ui.transcript.text.faces import Faces
from ui.transcript.tokens import Tokens

_STRETCH = 1500  # characters laid out together; a line holds about 90
RIGHT_TO_LEFT = 1
NEUTRAL = 2  # no letter yet: the direction is undecided
PARAGRAPH = 4  # the line begins a paragraph
INSIDE = 8  # the paragraph begins inside a block of code
CODE = 16  # the line is code or a fence
OPEN = 32  # a block of code is open after the paragraph
FENCES = ("```", "~~~")


class LineTable:
    """The beginnings of a turn's lines; `done` once all tokens are wrapped."""

    def __init__(self, tokens: Tokens, faces: Faces, width: float, *, template: bool) -> None:
        self.width = width
        self.template = template
        self._tokens = tokens
        self._faces = faces
        self._first = array("I", [0])
        self._offset = array("I", [0])
        self._flags = bytearray([PARAGRAPH | NEUTRAL])
        self._wrapped = 0  # number of wrapped tokens

    def __len__(self) -> int:
        """The number of visible lines: an empty line after a closing newline does not count."""
        n = len(self._first)
        return n - 1 if n > 1 and self._first[-1] >= self._wrapped and self.done else n

    @property
    def done(self) -> bool:
        return self._wrapped >= len(self._tokens)

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was wrapped yet."""
        return self._wrapped == 0

    @property
    def remaining(self) -> int:
        return len(self._tokens) - self._wrapped

    def start(self, line: int) -> TurnPlace:
        """The beginning of a line; for the line after the last, the end of the text."""
        if line >= len(self._first):
            return TurnPlace(len(self._tokens))
        return TurnPlace(self._first[line], self._offset[line])

    def text_of(self, line: int) -> Composed:
        """The text of a line; of an unfinished last line one stretch at most."""
        if line + 1 >= len(self._first) and not self.done:
            return compose(self._tokens, self.start(line), template=self.template, limit=_STRETCH)
        return compose(self._tokens, self.start(line), template=self.template, limit=1 << 62, end=self.start(line + 1))

    def is_right_to_left(self, line: int) -> bool:
        """Whether the line's paragraph runs from right to left."""
        return bool(self._flags[line] & RIGHT_TO_LEFT)

    def is_code(self, line: int) -> bool:
        """Whether the line belongs to a fenced block of code."""
        return bool(self._flags[line] & CODE)

    def line_of(self, place: TurnPlace) -> int:
        """The line that holds a place."""
        wanted, lines = (place.token, place.offset), range(len(self._first))
        found = bisect_right(lines, wanted, key=lambda line: (self._first[line], self._offset[line])) - 1
        return min(max(found, 0), max(len(self) - 1, 0))

    def extend(self, deadline: float | None = None) -> int:
        """Wraps more tokens, until `deadline` (of `perf_counter`) has passed.

        Returns:
            The first line that may have changed.
        """
        changed = len(self._first) - 1
        if changed and self._first[-1] >= self._wrapped:
            changed -= 1  # the last line is empty, and the caret is on the line above
        while not self.done:
            self._stretch()
            if deadline is not None and perf_counter() > deadline:
                break
        return changed

    def _stretch(self) -> None:
        start, flags = TurnPlace(self._first.pop(), self._offset.pop()), self._flags.pop()
        composed = compose(self._tokens, start, template=self.template, limit=_STRETCH)
        if flags & PARAGRAPH:
            flags = _fenced(flags, composed.text)
        if flags & NEUTRAL:
            towards = False if flags & CODE else direction(composed.text)
            flags = (flags & ~(NEUTRAL | RIGHT_TO_LEFT)) | (NEUTRAL if towards is None else RIGHT_TO_LEFT * towards)
        rtl, code = bool(flags & RIGHT_TO_LEFT), bool(flags & CODE)
        layout = self._faces.layout(composed.text, composed.codes, right_to_left=rtl, wrap=True, mono=code)
        breaks = wrap_positions(layout, self.width)
        at_end = composed.newline or composed.end.token >= len(self._tokens)
        closed = at_end or len(breaks) == 1
        if not composed.text and not composed.newline:
            start = self._first_fragment(start, composed.end)
        for position in breaks if closed else breaks[:-1]:
            self._push(composed.place(position) if position else start, flags)
            flags &= ~PARAGRAPH
        if composed.newline:
            self._push(composed.end, PARAGRAPH | NEUTRAL | (INSIDE if flags & OPEN else 0))
        elif not closed:
            self._push(composed.place(breaks[-1]), flags)
        elif not at_end:  # a whole stretch on one line, of marks without width: the line is cut
            self._push(composed.end, flags)
        self._wrapped = composed.end.token if at_end else self._first[-1]

    def _first_fragment(self, start: TurnPlace, end: TurnPlace) -> TurnPlace:
        """The beginning of a line without visible text: its first incomplete character, else `end`."""
        for token in range(start.token, end.token):
            if not self._tokens.texts[token] and not is_hidden(self._tokens.marks[token], template=self.template):
                return TurnPlace(token)
        return end

    def _push(self, place: TurnPlace, flags: int) -> None:
        self._first.append(place.token)
        self._offset.append(place.offset)
        self._flags.append(flags)


def _fenced(flags: int, text: str) -> int:
    """The flags of a paragraph that begins with `text`: a fence opens or closes a block of code."""
    words, inside = text.strip(" "), bool(flags & INSIDE)
    fence = words.startswith(FENCES) and not (inside and words.strip("`~"))
    kept = flags & ~(CODE | OPEN)
    return kept | (CODE if inside or fence else 0) | (OPEN if inside != fence else 0)


def wrap_positions(layout: QTextLayout, width: float) -> list[int]:
    """The first QChar of each line if lines are `width` pixels wide; at least one."""
    positions = []
    layout.beginLayout()
    while True:
        line = layout.createLine()
        if not line.isValid():
            break
        line.setLineWidth(width)
        positions.append(line.textStart())
    layout.endLayout()
    return positions or [0]
