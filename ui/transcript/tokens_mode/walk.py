"""Going from token to token: to the next one that is shown, to the next one the model was unsure of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from ui.transcript.path import Turn
from ui.transcript.text.compose import Place, is_hidden
from ui.transcript.tokens import RARE

START = Place(0)
_UNCERTAIN_SHARE = 0.1  # of the path's generated tokens
_UNCERTAIN_LEAST = 3


class TokenAt(Struct, frozen=True, order=True):
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
    return neighbour(turns, TokenAt(len(turns) - 1, len(turns[-1].tokens)), -1, template=template) if turns else None


def next_underlined(turns: Sequence[Turn], at: TokenAt | None, *, template: bool) -> TokenAt | None:
    """The next token that is shown and underlined, after `at`, then from the start again."""
    first: TokenAt | None = None
    for number, turn in enumerate(turns):
        for token, mark in enumerate(turn.tokens.marks):
            if mark & RARE and not is_hidden(mark, template=template):
                found = TokenAt(number, token)
                if at is None or found > at:
                    return found
                first = first or found
    return first


def next_uncertain(turns: Sequence[Turn], at: TokenAt | None) -> TokenAt | None:
    """The next of the tenth of the generated tokens with the highest entropy, after `at`, then from the start again."""
    owners, indices, entropies = [], [], []
    for number, turn in enumerate(turns):
        generated = turn.tokens.generated()
        owners.append(np.full(len(generated), number))
        indices.append(generated)
        entropies.append(turn.tokens.entropy()[generated])
    if not owners:
        return None
    entropy = np.concatenate(entropies)
    scored = np.flatnonzero(~np.isnan(entropy))
    if not len(scored):
        return None
    wanted = min(max(round(len(scored) * _UNCERTAIN_SHARE), _UNCERTAIN_LEAST), len(scored))
    bar = np.partition(entropy[scored], -wanted)[-wanted]
    high = scored[entropy[scored] >= bar]
    owner, index = np.concatenate(owners)[high], np.concatenate(indices)[high]
    after = np.empty(0, np.int64)
    if at is not None:
        after = np.flatnonzero((owner > at.turn) | ((owner == at.turn) & (index > at.token)))
    chosen = int(after[0]) if len(after) else 0
    return TokenAt(int(owner[chosen]), int(index[chosen]))
