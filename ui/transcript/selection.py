"""A stretch of the conversation chosen with the mouse, and its exact text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ui.transcript.compose import Place, is_hidden, shown
from ui.transcript.turn import Turn

_BETWEEN_TURNS = "\n\n"


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A place in the conversation."""

    turn: int
    place: Place


@dataclass(frozen=True, slots=True)
class Selection:
    """From where the mouse went down to where it is; either may come first."""

    anchor: Spot
    head: Spot

    @property
    def is_empty(self) -> bool:
        """Whether nothing is chosen."""
        return self.anchor == self.head

    def within(self, turn: int, tokens: int) -> tuple[Place, Place] | None:
        """The part that lies in a turn of so many tokens."""
        first, last = sorted((self.anchor, self.head))
        if first == last or not first.turn <= turn <= last.turn:
            return None
        return (
            first.place if turn == first.turn else Place(0),
            last.place if turn == last.turn else Place(tokens),
        )

    def text(self, turns: Sequence[Turn], *, template: bool) -> str:
        """The exact text: what the model wrote, not the pictures drawn for its control characters."""
        parts = []
        for index, turn in enumerate(turns):
            part = self.within(index, len(turn.tokens))
            if part is not None:
                parts.append(_text(turn, *part, template=template))
        return _BETWEEN_TURNS.join(parts)


def _text(turn: Turn, first: Place, last: Place, *, template: bool) -> str:
    pieces = []
    tokens = turn.tokens
    for index in range(first.token, min(last.token + 1, len(tokens))):
        text = tokens.texts[index]
        if is_hidden(tokens.marks[index], template=template):
            continue
        start = first.offset if index == first.token else 0
        stop = last.offset if index == last.token else None
        if start == 0 and stop is None:
            pieces.append(text)
        elif shown(text).text == text:
            pieces.append(text[start:stop])
        elif stop is None or stop > start:  # drawn as codes: all of it or nothing
            pieces.append(text)
    return "".join(pieces)
