"""The part of a distribution that a token record holds: the likeliest tokens, and the total probability of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Self

import numpy as np

from runtime.errors import InvalidRequestError
from runtime.numerics.stage_table import Stage
from runtime.records import Float32, TokenRecord
from runtime.sampling.chain import Bool

_BELOW = 1e-5  # nats; more than float32 rounds away


@dataclass(frozen=True, slots=True)
class Heads:
    """The known tokens of a distribution, and bounds for the others.

    The probabilities of the others lie between two extremes: all equal, or as unequal as the order permits. A result that is
    the same for both does not depend on them.

    Attributes:
        ids: Known tokens with their raw log-probabilities.
        others: How many other tokens could be drawn.
        mass: Their total probability.
        most: Upper bound of their log-probabilities.
        formed: Whether only tokens that a grammar allowed count.
    """

    ids: dict[int, float]
    others: int
    mass: float
    most: float
    formed: bool

    @classmethod
    def of(cls, record: TokenRecord, *, within_grammar: bool) -> Self:
        """Reads a record made with stages.

        Raises:
            InvalidRequestError: It has no alternatives.
        """
        stages = {stage.name: stage for stage in record.stages or ()}
        raw, grammar = stages["raw"], stages.get("grammar") if within_grammar else None
        shares = {token: share for token, share in zip(raw.ids, raw.after, strict=True) if share > 0}
        least, whole, count = min(record.top_logprobs, default=-np.inf), 1.0, raw.kept
        if grammar is None:
            ids = {token: float(np.log(share)) for token, share in shares.items()}
            ids |= dict(zip(record.top_ids, record.top_logprobs, strict=True))
            if record.logprob is not None:
                ids.setdefault(record.token_id, record.logprob)
        else:
            left = {token: share for token, share in zip(grammar.ids, grammar.after, strict=True) if share > 0}
            left = {token: share for token, share in left.items() if token in shares}
            ids = {token: float(np.log(shares[token])) for token in left}
            least = min((logprob for token, logprob in ids.items() if token != record.token_id), default=0.0)
            likeliest = max(left, key=left.__getitem__, default=None)
            whole = shares[likeliest] / left[likeliest] if likeliest is not None else 0.0
            count = grammar.kept
        ids = {token: logprob for token, logprob in ids.items() if logprob > -np.inf}
        if not ids:
            raise InvalidRequestError("the record has no alternatives to draw from: generate with top_k above 0")
        others = max(count - len(ids), 0)
        mass = max(whole - float(np.exp(list(ids.values())).sum()), 0.0) if others else 0.0
        return cls(ids, others, mass, least, formed=grammar is not None)

    def row(self, named: Sequence[int], *, steep: bool) -> Float32:
        """Log-probabilities ``(vocab,)`` with all of `named`; the others are equal, or as unequal as possible."""
        size = max(len(self.ids) + self.others, max(map(int, [*self.ids, *named])) + 1)
        row: Float32 = np.full(size, -np.inf, np.float32)
        row[list(self.ids)] = list(self.ids.values())
        if self.mass > 0.0:
            free = np.flatnonzero(np.isneginf(row))[: self.others]
            most = np.exp(self.most - _BELOW)  # below all known tokens, whatever their ids
            each = min(self.mass / self.others, most)
            if steep and most > each:
                count = int(self.mass / most)
                row[free[:count]] = np.log(most)
                each, free = max(self.mass - count * most, 1e-30), free[count : count + 1]
            row[free] = np.log(each)
        if not self.formed:  # corrects rounding
            row -= np.float32(np.log(np.exp(row, dtype=np.float64).sum()))
        return row

    def mask(self, row: Float32, allowed: Bool | None) -> Bool | None:
        """``(vocab,)`` bool: tokens of `row` that may be drawn; None: all."""
        if allowed is None:
            return row > -np.inf if self.formed else None
        return np.pad(allowed, (0, max(len(row) - len(allowed), 0)))[: len(row)]

    def known(self, stages: Sequence[Stage]) -> tuple[Stage, ...]:
        """The stages without the tokens that represent the others."""
        found = []
        for stage in stages:
            known = [token in self.ids for token in stage.ids]
            columns = ("ids", "before", "after", "cumulative")
            shown: dict[str, Any] = {name: tuple(compress(getattr(stage, name), known)) for name in columns}
            found.append(replace(stage, **shown))
        return tuple(found)
