"""Going from token to token: to the next visible, underlined or uncertain one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import is_hidden
from ui.transcript.tokens import RARE

_UNCERTAIN_SHARE = 0.1  # of the path's generated tokens
_UNCERTAIN_LEAST = 3


class TokenAt(Struct, frozen=True, order=True):
    """A token of the path: which turn, and its index in the turn's run."""

    turn: int
    token: int


def neighbour(turns: Sequence[TranscriptTurn], at: TokenAt, by: int, *, template: bool) -> TokenAt | None:
    """The next (`by` is 1) or previous (-1) visible token; None at the ends of the path."""
    turn, token = at.turn, at.token + by
    while 0 <= turn < len(turns):
        marks = turns[turn].tokens.marks
        while 0 <= token < len(marks):
            if not is_hidden(marks[token], template=template):
                return TokenAt(turn, token)
            token += by
        turn += by
        token = 0 if by > 0 or not 0 <= turn < len(turns) else len(turns[turn].tokens) - 1
    return None


def last(turns: Sequence[TranscriptTurn], *, template: bool) -> TokenAt | None:
    """The last visible token."""
    return neighbour(turns, TokenAt(len(turns) - 1, len(turns[-1].tokens)), -1, template=template) if turns else None


def next_underlined(turns: Sequence[TranscriptTurn], at: TokenAt | None, *, template: bool) -> TokenAt | None:
    """The next visible underlined token after `at`, cyclically."""
    first: TokenAt | None = None
    for number, turn in enumerate(turns):
        for token, mark in enumerate(turn.tokens.marks):
            if mark & RARE and not is_hidden(mark, template=template):
                found = TokenAt(number, token)
                if at is None or found > at:
                    return found
                first = first or found
    return first


def next_uncertain(turns: Sequence[TranscriptTurn], at: TokenAt | None) -> TokenAt | None:
    """The next token after `at`, cyclically, among the tenth of the generated tokens with the highest entropy."""
    places, entropy = _scored(turns)
    if not places:
        return None
    wanted = min(max(round(len(places) * _UNCERTAIN_SHARE), _UNCERTAIN_LEAST), len(places))
    bar = np.partition(entropy, -wanted)[-wanted]
    high = [places[i] for i in np.flatnonzero(entropy >= bar)]
    after = (place for place in high if at is not None and (place.turn, place.token) > (at.turn, at.token))
    return next(after, high[0])


def most_uncertain(turns: Sequence[TranscriptTurn]) -> TokenAt | None:
    """The generated token with the highest entropy."""
    places, entropy = _scored(turns)
    return places[int(entropy.argmax())] if places else None


def _scored(turns: Sequence[TranscriptTurn]) -> tuple[list[TokenAt], npt.NDArray[np.float32]]:
    """The scored generated tokens, and their entropies, ``(n,) float32``."""
    places: list[TokenAt] = []
    found = [np.empty(0, np.float32)]
    for number, turn in enumerate(turns):
        entropies, generated = turn.tokens.entropy(), turn.tokens.generated()
        scored = generated[~np.isnan(entropies[generated])]
        places += [TokenAt(number, token) for token in scored.tolist()]
        found.append(entropies[scored])
    return places, np.concatenate(found)
