"""Going from token to token: to the next one that is shown, to the next one the model was unsure of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ui.transcript.compose import Place, is_hidden
from ui.transcript.turn import Turn

START = Place(0)
_UNCERTAIN_SHARE = 0.1  # of the path's generated tokens
_UNCERTAIN_LEAST = 3


@dataclass(frozen=True, slots=True, order=True)
class TokenAt:
    """A token of the path: which turn, and its index in the turn's run."""

    turn: int
    token: int


def end_of(turn: Turn) -> Place:
    """The place behind the turn's last token."""
    return Place(len(turn.tokens))


def neighbour(turns: Sequence[Turn], at: TokenAt, by: int, *, template: bool) -> TokenAt | None:
    """The next token that is shown, `by` is 1 or -1; None at the ends of the path."""
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


def last(turns: Sequence[Turn], *, template: bool) -> TokenAt | None:
    """The last token that is shown."""
    return neighbour(turns, TokenAt(len(turns), 0), -1, template=template) if turns else None


def next_uncertain(turns: Sequence[Turn], at: TokenAt | None) -> TokenAt | None:
    """The next of the tenth of the generated tokens with the highest entropy, after `at`, then from the start again."""
    found: list[TokenAt] = []
    entropies: list[float] = []
    for number, turn in enumerate(turns):
        generated = turn.tokens.generated()
        if len(generated):
            entropies += turn.tokens.entropy()[generated].tolist()
            found += [TokenAt(number, int(token)) for token in generated]
    scored = [(at, e) for at, e in zip(found, entropies, strict=True) if not np.isnan(e)]
    if not scored:
        return None
    wanted = min(max(round(len(scored) * _UNCERTAIN_SHARE), _UNCERTAIN_LEAST), len(scored))
    bar = sorted((e for _, e in scored), reverse=True)[wanted - 1]
    high = [token for token, e in scored if e >= bar]
    return next((token for token in high if at is None or token > at), high[0])
