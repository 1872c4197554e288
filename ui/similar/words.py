"""How likeness is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ui.port import SimilarTurn, SimilarTurns, translate
from ui.transcript.path import ROLES
from ui.widgets.numbers import count, signed

if TYPE_CHECKING:
    from runtime import Pooling


def pooling_label(pooling: Pooling) -> str:
    """A pooling, as it is chosen."""
    return {
        "mean": translate("Similar", "mean"),
        "last": translate("Similar", "last"),
        "max": translate("Similar", "max"),
        "cls": translate("Similar", "cls"),
    }[pooling]


def pooling_explained(pooling: Pooling) -> str:
    """What it does."""
    return {
        "mean": translate("Similar", "the mean of all tokens' states: what the turn is about"),
        "last": translate("Similar", "the last token's state, which has seen the whole turn: how it ends"),
        "max": translate("Similar", "each number's largest over all tokens: what stands out somewhere"),
        "cls": translate("Similar", "the first token's state, which this model was trained to sum a text up in"),
    }[pooling]


def role(name: str) -> str:
    """Whose turn it is, as the conversation says it."""
    return translate("Transcript", ROLES.get(name, name))


def cosine(value: float) -> str:
    """A similarity: "0.912"."""
    return signed(value, 3)


def aside(turn: SimilarTurn, limit: int) -> str:
    """What is said at the end of a row: where the turn stands, how much of it was compared."""
    return " · ".join(part for part in (_cut(turn, limit), "" if turn.on_path else _branch(turn)) if part)


def spoken(turn: SimilarTurn, limit: int) -> str:
    """A row for those who hear it."""
    here = translate("Similar", "on this branch")
    where = here if turn.on_path else translate("Similar", "on the branch {0}").format(_branch(turn))
    number = translate("Similar", "similarity {0}").format(cosine(turn.similarity))
    return ", ".join(part for part in (number, role(turn.role), turn.words, where, _cut(turn, limit)) if part)


def bar_explained() -> str:
    """What the length of a bar says."""
    return translate("Similar", "The bar is empty at the least similar turn, and full at the same text")


def title(words: str) -> str:
    """Which turn is compared."""
    return translate("Similar", "Similar to “{0}”").format(words)


def summary(found: SimilarTurns) -> str:
    """What was compared, and what was not."""
    others = translate("Similar", "1 other turn") if len(found.rows) == 1 else translate("Similar", "{0} other turns")
    parts = [others.format(count(len(found.rows)))]
    parts.append(translate("Similar", "cosine of the hidden states of {0}").format(found.model))
    if found.tokens:
        cut = translate("Similar", "of this turn the first {0} of {1} tokens")
        parts.append(cut.format(count(found.limit), count(found.tokens)))
    if found.damaged:
        one = found.damaged == 1
        left = translate("Similar", "1 damaged turn left out") if one else translate("Similar", "{0} damaged turns left out")
        parts.append(left.format(count(found.damaged)))
    return " · ".join(parts)


def _branch(turn: SimilarTurn) -> str:
    return turn.branch or translate("Similar", "another branch")


def _cut(turn: SimilarTurn, limit: int) -> str:
    if not turn.tokens:
        return ""
    return translate("Similar", "first {0} of {1} tokens").format(count(limit), count(turn.tokens))
