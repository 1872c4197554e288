"""The text of a line or a stretch of lines, with a map from its characters to their tokens."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

from msgspec import Struct

from ui.transcript.tokens import END, TEMPLATE, Tokens
from ui.widgets.visible import Visible, is_plain, utf16_length, visible

_LONG = 2000  # characters; the visible text of a longer token is cached, as each of its stretches needs it
_remembered = lru_cache(maxsize=8)(visible)


class TurnPlace(Struct, frozen=True, order=True):
    """A place in a turn: before character `offset` of the visible text of token `token`."""

    token: int
    offset: int = 0


@dataclass(slots=True)
class Composed:
    """Text made of pieces of consecutive tokens. Positions in `starts` and `codes` are QChars (UTF-16 units)."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)  # the token of each piece
    offsets: list[int] = field(default_factory=list)  # first character of each piece in its token's visible text
    starts: list[int] = field(default_factory=list)  # of each piece
    codes: list[tuple[int, int]] = field(default_factory=list)  # ranges that are drawn small
    end: TurnPlace = field(default_factory=lambda: TurnPlace(0))  # the beginning of the next stretch
    newline: bool = False  # a newline separates the text from `end`
    astral: bool = False  # some characters take two QChars

    def place(self, position: int) -> TurnPlace:
        if not self.tokens:
            return self.end
        piece = max(bisect_right(self.starts, position) - 1, 0)
        inside = position - self.starts[piece]
        if self.astral and inside:
            stop = self.starts[piece + 1] if piece + 1 < len(self.starts) else None
            inside = _characters(self.text, self.starts[piece], stop, inside)
        return TurnPlace(self.tokens[piece], self.offsets[piece] + inside)


def shown(text: str) -> Visible:
    """`visible`, cached for long texts, which are cut into many stretches."""
    return visible(text) if len(text) < _LONG else _remembered(text)


def is_hidden(mark: int, *, template: bool) -> bool:
    """Whether a token is not shown."""
    return not template and bool(mark & (TEMPLATE | END))


def compose(tokens: Tokens, start: TurnPlace, *, template: bool, limit: int, end: TurnPlace | None = None) -> Composed:
    """Composes the text from `start` to a newline, `end`, the last token, or about `limit` characters."""
    if end is not None:
        whole = _plain(tokens, start, end, template=template)
        if whole is not None:
            return whole
    made = Composed()
    parts: list[str] = []
    length = size = 0  # QChars and characters so far
    hide = 0 if template else TEMPLATE | END
    texts, marks = tokens.texts, tokens.marks
    last = len(texts) if end is None else min(end.token + 1, len(texts))
    made.end = TurnPlace(last)
    for index in range(start.token, last):
        text = texts[index]
        if not text or marks[index] & hide:
            continue
        codes: tuple[tuple[int, int], ...] = ()
        if not is_plain(text):
            view = shown(text)
            text, codes = view.text, view.codes
        first = start.offset if index == start.token else 0
        stop = len(text) if end is None or index != end.token else end.offset
        newline = text.find("\n", first, stop)
        if newline >= 0:
            made.newline, stop = True, newline
        elif size + stop - first > limit:
            stop = first + max(limit - size, 1)
        if stop > first or newline >= 0:
            piece = text[first:stop]
            made.tokens.append(index)
            made.offsets.append(first)
            made.starts.append(length)
            parts.append(piece)
            made.codes += _ranges(codes, first, stop, piece, length)
            size += stop - first
            length += utf16_length(piece)
        if newline >= 0:
            stop += 1
        if stop < len(text) or newline >= 0 or size >= limit:
            made.end = TurnPlace(index, stop) if stop < len(text) else TurnPlace(index + 1)
            break
    made.text = "".join(parts)
    made.astral = length != size
    return made


def _plain(tokens: Tokens, start: TurnPlace, end: TurnPlace, *, template: bool) -> Composed | None:
    """A fast path for most lines: no hidden tokens, invisible characters, newlines, fragments or astral characters."""
    last = end.token + (end.offset > 0)
    texts = tokens.texts[start.token : last]
    if not texts or "" in texts or (not template and max(tokens.marks[start.token : last]) >= TEMPLATE):
        return None
    if end.offset:
        texts[-1] = texts[-1][: end.offset]
    if start.offset:
        texts[0] = texts[0][start.offset :]
    text = "".join(texts)
    if not text.isprintable() or not (text.isascii() or max(text) <= "\uffff") or not is_plain(text):
        return None
    starts = [0, *accumulate(map(len, texts))]
    starts.pop()
    offsets = [0] * len(texts)
    offsets[0] = start.offset
    return Composed(text, list(range(start.token, last)), offsets, starts, end=end)


def direction(text: str) -> bool | None:
    """Whether the first letter with a direction runs from right to left; None without such a letter."""
    if text.isascii():
        return False if any(c.isalpha() for c in text) else None
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return kind != "L"
    return None


def _ranges(codes: tuple[tuple[int, int], ...], first: int, stop: int, piece: str, at: int) -> list[tuple[int, int]]:
    if not codes:
        return []
    low = bisect_left(codes, (first, first))
    if low and codes[low - 1][1] > first:
        low -= 1
    found = []
    for begin, finish in codes[low:]:
        if begin >= stop:
            break
        a, b = max(begin - first, 0), min(finish, stop) - first
        found.append((at + utf16_length(piece[:a]), at + utf16_length(piece[:b])))
    return found


def _characters(text: str, start: int, stop: int | None, inside: int) -> int:
    """The number of characters in the first `inside` QChars of a piece; start and stop are its QChars in `text`."""
    encoded = text.encode("utf-16-le", "surrogatepass")[start * 2 : None if stop is None else stop * 2]
    return len(encoded[: inside * 2].decode("utf-16-le", "surrogatepass"))
