"""The result of a comparison of two models, in columns, by spans between the token borders that both sides have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from runtime import html
from runtime.records import NO_TOKEN, Int32, TokenRun
from runtime.tables import Columns, Tabular
from runtime.text.utf8 import texts_of

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
OnComparison = Callable[[int, int], None]  # tokens done and in all; on the caller's loop


@dataclass(frozen=True, slots=True)
class Total:
    """One model's totals over the spans that both models have scored, the same bytes on either side."""

    logprob: float  # sum, nats
    tokens: int  # of the model, in those spans
    bytes: int  # of the text in those spans

    @property
    def perplexity(self) -> float | None:
        """Per token of the model; not comparable between tokenizers. None where nothing is scored."""
        return _perplexity(self.logprob, self.tokens)

    @property
    def byte_perplexity(self) -> float | None:
        """Per byte: comparable between any two models."""
        return _perplexity(self.logprob, self.bytes)


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """The scores of one model.

    Attributes:
        name: The model's.
        run: Its own tokens of the text, scored.
        borders: ``(m + 1,)`` span i has the tokens from border i to border i + 1.
        top_bytes: ``(n,)`` the bytes of the likeliest token at the position of each token; b"" where unknown.
    """

    name: str
    run: TokenRun
    borders: Int64
    top_bytes: tuple[bytes, ...]

    @property
    def logprob(self) -> Float64:
        """``(m,)`` nats of each span; NaN where one of its tokens is not scored (the first one never is)."""
        return span_sums(self.run.logprob, self.borders)

    @property
    def rank(self) -> Int32:
        """``(m,)`` ranks of spans of one token; 0 for other spans."""
        return np.where(self.single, np.append(self.run.rank, 0)[self.borders[:-1]], 0).astype(np.int32)

    @property
    def single(self) -> npt.NDArray[np.bool_]:
        """``(m,)`` whether a span is one token of this side."""
        found: npt.NDArray[np.bool_] = np.diff(self.borders) == 1
        return found

    @property
    def top_logprob(self) -> Float64:
        """``(m,)`` nats of the likeliest token at the start of each span; NaN where unknown."""
        known = self.run.top_ids[:, 0] != NO_TOKEN
        tops: Float64 = np.where(known, self.run.top_logprobs[:, 0].astype(np.float64), np.nan)
        return np.append(tops, np.nan)[self.borders[:-1]]

    def top_of(self, span: int) -> bytes:
        """The bytes of the likeliest token at the start of a span; b"" where unknown."""
        start = int(self.borders[span])
        return self.top_bytes[start] if start < len(self.top_bytes) else b""

    def tokens_of(self, span: int) -> tuple[bytes, ...]:
        """The bytes of the tokens of a span."""
        return self.run.token_bytes[int(self.borders[span]) : int(self.borders[span + 1])]


@dataclass(frozen=True, slots=True)
class ModelComparison(Tabular):
    """One text under two models, span by span: tokens where both tokenize it alike, else the text between common borders.

    Attributes:
        left: The first model.
        right: The second.
        aligned_by: "tokens" where both read the same ids (every span is a token), else "bytes".
        kl: ``(m,)`` nats, KL(left || right) of the distributions before each span's token; NaN where full vectors were not
            compared. None where this was not requested, or the vocabularies differ.
    """

    left: ComparedSide
    right: ComparedSide
    aligned_by: Literal["tokens", "bytes"]
    kl: Float64 | None = None

    def __len__(self) -> int:
        """Number of spans."""
        return len(self.left.borders) - 1

    def _repr_html_(self) -> str:
        parts = []
        for side, total in zip(self.sides, self.totals(), strict=True):
            values = ("token", total.perplexity), ("byte", total.byte_perplexity)
            each = [(f"perplexity per {what}", "-" if value is None else f"{value:,.3f}") for what, value in values]
            numbers = [("model", side.name), ("log-probability", f"{total.logprob:,.2f} nats"), *each]
            parts += [html.table(numbers), side.run.html()]
        disagree = f"{self.disagrees():,} of {len(self):,} places disagree about the likeliest token"
        return html.page(*parts, caption=f"{disagree}; aligned by {self.aligned_by}")

    def table_columns(self) -> Columns:
        """A row per span, by the names of `elsewise score --against`; `kl` where it was requested."""
        spans = range(len(self))
        spelled = [b"".join(self.left.tokens_of(i) or self.right.tokens_of(i)) for i in spans]
        columns: Columns = {
            "position": np.arange(len(self), dtype=np.int32),
            "text": texts_of(spelled),
            "bytes": spelled,
            "tokens": np.diff(self.left.borders),
            "logprob": self.left.logprob,
            "against_tokens": np.diff(self.right.borders),
            "against_logprob": self.right.logprob,
            "difference": self.difference,
            "rank": np.ma.masked_equal(self.left.rank, 0),
            "against_rank": np.ma.masked_equal(self.right.rank, 0),
            "likeliest": [self.left.top_of(i).decode(errors="replace") for i in spans],
            "against_likeliest": [self.right.top_of(i).decode(errors="replace") for i in spans],
            "disagree": self.disagree,
        }
        return columns if self.kl is None else {**columns, "kl": self.kl}

    @property
    def sides(self) -> tuple[ComparedSide, ComparedSide]:
        """Left and right."""
        return self.left, self.right

    @property
    def difference(self) -> Float64:
        """``(m,)`` nats: log-probability of right less that of left. NaN where one of them is not scored."""
        with np.errstate(invalid="ignore"):  # -inf on both sides
            found: Float64 = self.right.logprob - self.left.logprob
        return found

    @property
    def scored(self) -> npt.NDArray[np.bool_]:
        """``(m,)`` whether both models have scored a span."""
        return ~(np.isnan(self.left.logprob) | np.isnan(self.right.logprob))

    @property
    def disagree(self) -> npt.NDArray[np.bool_]:
        """``(m,)`` whether the likeliest tokens differ: neither begins with the other."""
        tops = [(self.left.top_of(i), self.right.top_of(i)) for i in range(len(self))]
        return np.array([bool(a and b) and not (a.startswith(b) or b.startswith(a)) for a, b in tops], np.bool_)

    def disagrees(self) -> int:
        """Number of spans where the likeliest tokens differ."""
        return int(self.disagree.sum())

    def totals(self) -> tuple[Total, Total]:
        """Totals of left and right over the same bytes."""
        both = self.scored
        lengths = np.diff(np.concatenate(([0], ends_of(self.left.run.token_bytes)))[self.left.borders])
        size = int(lengths[both].sum())
        left, right = (
            Total(float(side.logprob[both].sum()), int(np.diff(side.borders)[both].sum()), size) for side in self.sides
        )
        return left, right


def _perplexity(logprob: float, count: int) -> float | None:
    if not count:
        return None
    mean = -logprob / count
    return math.exp(mean) if mean < 700 else math.inf


def ends_of(token_bytes: Sequence[bytes]) -> Int64:
    """``(n,)``: the byte at which each token ends."""
    return np.cumsum([len(data) for data in token_bytes], dtype=np.int64)


def common_borders(left: Int64, right: Int64) -> tuple[Int64, Int64]:
    """The token borders that two sides have in common.

    A token without bytes belongs to the span that ends before it (the very first token to the first span). Tokens of one side
    beyond the other's last byte are a span in which the other has no token.

    Args:
        left: ``(n,)`` from `ends_of`.
        right: ``(k,)`` from `ends_of`.

    Returns:
        ``(m + 1,)`` of either side: span i has the tokens from border i to border i + 1.
    """
    shared = np.intersect1d(left, right)
    shared = shared[shared > 0]
    borders = [np.concatenate(([0], np.searchsorted(ends, shared, side="right"))) for ends in (left, right)]
    if borders[0][-1] < len(left) or borders[1][-1] < len(right):
        borders = [np.append(of, len(ends)) for of, ends in zip(borders, (left, right), strict=True)]
    return borders[0].astype(np.int64), borders[1].astype(np.int64)


def span_sums(values: npt.NDArray[np.floating], borders: Int64) -> Float64:
    """``(m,)``: the sum over the tokens of each span; NaN where one of them is NaN, or there is no token."""
    starts, stops = borders[:-1], borders[1:]
    if not len(starts):
        return np.empty(0)
    sums: Float64 = np.add.reduceat(np.append(values.astype(np.float64), 0.0), starts)
    sums[starts == stops] = np.nan
    return sums


def kl_rows(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> Float64:
    """``(n,)`` nats: KL(left || right) of rows of log-probabilities ``(n, vocab)``.

    Infinite where right excludes a token that left allows. A sum that rounding makes negative becomes 0.
    """
    found = np.empty(len(left))
    for i, (p, q) in enumerate(zip(left, right, strict=True)):
        possible = ~np.isneginf(p)
        wide = p[possible].astype(np.float64)
        found[i] = max(np.exp(wide) @ (wide - q[possible]), 0.0)
    return found
