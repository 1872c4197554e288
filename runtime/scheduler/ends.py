"""How an answer ends by itself: with an end-of-text token, or where its grammar lets nothing follow."""

from __future__ import annotations

from runtime.grammar.constraint import Constraint
from runtime.records import Finish


def own_end(constraint: Constraint | None, *, eos: bool) -> Finish:
    """Why the answer ends with the token that its grammar has just accepted; NONE where it does not by itself.

    Args:
        constraint: Where it stands in its grammar.
        eos: The token is an end of text.
    """
    if constraint is None:
        return Finish.EOS if eos else Finish.NONE
    if eos:
        return Finish.EOS if constraint.sound(1) else Finish.EOS_UNSOUND
    if constraint.finished:
        return Finish.GRAMMAR if constraint.sound() else Finish.GRAMMAR_UNSOUND
    return Finish.NONE
