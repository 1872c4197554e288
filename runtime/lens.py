"""The logit lens: the next-token distribution after each layer of a model.

The hidden state after a layer goes through the model's own final norm and head (nostalgebraist, "interpreting GPT: the logit
lens", 2020, https://www.lesswrong.com/posts/AcKRB8wDpdaN6v6ru). Row 0 is the embedding, before the first layer; the last
row is the model's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from runtime import html
from runtime.errors import InvalidRequestError
from runtime.info import ModelInfo
from runtime.numerics.scoring import log_softmax, ranks_of, top_k
from runtime.options.checking import is_whole, plain_number, shown
from runtime.records import NO_TOKEN, Float32, Int32, text_of
from runtime.tables import LN2, Columns, Tabular, token_numbers, top_columns

MOST_BYTES = 256 << 20  # of an answer
MOST_TOKENS = 64  # requested ids: each is ranked among the whole vocabulary, in every layer
MOMENT_BYTES = 256 << 20  # of the logits in memory at once; the logits of one position are always allowed
_SCALARS = ("deviation", "reused")
_NAMED = 20  # characters of a token in a cell
ENTRY_BYTES = 12  # of one logit: in the library's form, as float32, and its weight


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class LensRun(Tabular):
    """The next-token scores after each layer at n positions. Log-probabilities and entropies are in nats.

    A notebook shows the likeliest tokens coloured by surprise, a row for each layer and a column for each position.

    Attributes:
        positions: ``(n,)``: row i predicts the token after ``positions[i]``, as `next_token_logprobs(ids[: position + 1])`.
        token_ids: ``(n, 1 + m)``: the token that follows in the text (`NO_TOKEN` after the last), then the requested `tokens`.
        logprobs: ``(n, layers + 1, 1 + m)`` of `token_ids`; NaN for `NO_TOKEN`.
        ranks: ``(n, layers + 1, 1 + m)`` of `token_ids`, 1 = likeliest; 0 for `NO_TOKEN`.
        top_ids: ``(n, layers + 1, k)``, likeliest first.
        top_logprobs: ``(n, layers + 1, k)``.
        entropy: ``(n, layers + 1)``.
        deviation: The largest difference, in nats, between the last layer and the ordinary log-probabilities at the last
            position, over the tokens with a probability of at least 0.001.
        reused: Tokens before the positions whose keys and values were in the cache.
        vocabulary: The bytes of every id, shared with the model, for showing tokens; without it tokens are shown by id.
    """

    positions: Int32
    token_ids: Int32
    logprobs: Float32
    ranks: Int32
    top_ids: Int32
    top_logprobs: Float32
    entropy: Float32
    deviation: float = 0.0
    reused: int = 0
    vocabulary: Sequence[bytes] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, rows: slice | npt.NDArray[np.int64]) -> Self:
        """A selection of the positions, in the given order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS if name not in _SCALARS})

    def __repr__(self) -> str:
        return f"LensRun({self.summary})"

    def _repr_html_(self) -> str:
        shown = self[: max(html.MOST_TOKENS // (self.layers + 1), 1)]
        places, left = range(len(shown)), len(self) - len(shown)
        head = [f"{shown.positions[place]:,} {self._name(shown.token_ids[place, 0])}" for place in places]
        rows = [(str(layer), [self._cell(place, layer) for place in places]) for layer in range(self.layers + 1)]
        return html.page(html.grid(head, rows, f"... and {left:,} more positions" if left else ""), caption=self.summary)

    @property
    def summary(self) -> str:
        """Counts of positions and layers; the layer from which the following token leads, or how many of several lead."""
        text = f"{len(self):,} position{'s' * (len(self) != 1)}, {self.layers} layers"
        leads = self.leads_from()
        if len(self) == 1 and leads[0] >= 0:
            return f"{text}, {self._name(self.token_ids[0, 0])!r} leads from layer {leads[0]}"
        following = int((self.token_ids[:, 0] != NO_TOKEN).sum())
        return f"{text}, {int((leads >= 0).sum()):,} of {following:,} tokens lead at the end"

    def _name(self, token: int) -> str:
        if token == NO_TOKEN:
            return ""
        text = text_of(token, self.vocabulary)
        return f"id {token}" if text is None else text[:_NAMED]

    def _cell(self, place: int, layer: int) -> html.GridCell:
        """The likeliest token of a layer, marked where it is the token that follows in the text."""
        ids, logprobs = self.top_ids[place, layer].tolist(), self.top_logprobs[place, layer].tolist()
        following, rank = int(self.token_ids[place, 0]), int(self.ranks[place, layer, 0])
        lines = [f"layer {layer} after token {self.positions[place]:,}, entropy {self.entropy[place, layer] / LN2:.2f} bits"]
        lines += html.likeliest(ids, logprobs, self.vocabulary)
        if rank:
            lines += [f"{self._spelled(following)}, which follows:", self._chance(place, layer, 0)]
        asked = enumerate(self.token_ids[place, 1:].tolist(), 1)
        lines += [f"{self._spelled(token)}: {self._chance(place, layer, column)}" for column, token in asked]
        if not ids:
            return html.GridCell("", np.nan, "\n".join(lines))
        return html.GridCell(self._name(ids[0]), -logprobs[0] / LN2, "\n".join(lines), marked=rank == 1)

    def _spelled(self, token: int) -> str:
        return html.spelled(token, self.vocabulary[token] if token < len(self.vocabulary) else b"")

    def _chance(self, place: int, layer: int, column: int) -> str:
        return f"{html.chance(self.logprobs[place, layer, column])}, rank {self.ranks[place, layer, column]:,}"

    @property
    def layers(self) -> int:
        """The number of layers of the model: one less than the rows."""
        return int(self.entropy.shape[1]) - 1

    def leads_from(self, column: int = 0) -> Int32:
        """``(n,)``: the first layer from which a token is the likeliest up to the last layer; -1: not the likeliest there.

        Args:
            column: The token's column in `token_ids`.
        """
        leads = self.ranks[:, :, column] == 1
        behind = leads[:, ::-1].cumprod(axis=1).sum(axis=1)  # number of last rows in which the token leads without a gap
        return np.where(behind > 0, self.entropy.shape[1] - behind, -1).astype(np.int32)

    def table_columns(self) -> Columns:
        """A row per position and layer; `after` is the position, `position` that of the following token.

        The requested tokens are in the lists `asked_ids`, `asked_logprobs` and `asked_ranks`.
        """
        n, rows = self.entropy.shape
        following: npt.NDArray[Any] = np.ma.masked_equal(np.repeat(self.token_ids[:, 0], rows), NO_TOKEN)
        after = np.repeat(self.positions, rows)
        numbers = [self.logprobs[:, :, 0].ravel(), self.ranks[:, :, 0].ravel(), self.entropy.ravel()]
        asked = {
            "asked_ids": np.repeat(self.token_ids[:, 1:], rows, axis=0),
            "asked_logprobs": self.logprobs[:, :, 1:].reshape(n * rows, -1),
            "asked_ranks": self.ranks[:, :, 1:].reshape(n * rows, -1),
        }
        return {
            "after": after,
            "layer": np.tile(np.arange(rows, dtype=np.int32), n),
            "position": np.ma.array(after + 1, mask=np.ma.getmaskarray(following)),
            "token_id": following,
            "text": [text_of(token, self.vocabulary) for token in self.token_ids[:, 0].tolist() for _ in range(rows)],
            **token_numbers(*numbers),
            **top_columns(self.top_ids.reshape(n * rows, -1), self.top_logprobs.reshape(n * rows, -1)),
            **(asked if self.token_ids.shape[1] > 1 else {}),
        }

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name, without the vocabulary."""
        return {name: np.asarray(getattr(self, name)) for name in _COLUMNS}

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[Any]]) -> Self:
        """The inverse of `to_columns`.

        Raises:
            ValueError: Shapes that do not match.
        """
        n, rows = columns["entropy"].shape
        wanted, k = columns["token_ids"].shape[1], columns["top_ids"].shape[2]
        shapes = {"logprobs": (n, rows, wanted), "ranks": (n, rows, wanted), "token_ids": (n, wanted), "positions": (n,)}
        shapes |= {"top_ids": (n, rows, k), "top_logprobs": (n, rows, k), "entropy": (n, rows), "deviation": (), "reused": ()}
        if {name: column.shape for name, column in columns.items()} != shapes:
            raise ValueError(f"a lens of {n} positions has columns of other shapes")
        found: dict[str, Any] = {**columns, "deviation": float(columns["deviation"]), "reused": int(columns["reused"])}
        return cls(**found)


_COLUMNS = tuple(each.name for each in fields(LensRun) if each.name != "vocabulary")


@dataclass(frozen=True, slots=True)
class LensCost:
    """The cost of a lens, known before it is computed.

    Attributes:
        positions: Tokens pushed through the model again, one for each position.
        head_rows: Rows of logits that the head computes.
        answer_bytes: Bytes of the answer.
        moment_bytes: Bytes of the logits in memory at once.
        like_tokens: Prompt tokens that take about as long.
    """

    positions: int
    head_rows: int
    answer_bytes: int
    moment_bytes: int
    like_tokens: int

    @classmethod
    def of(cls, info: ModelInfo, positions: int, top_k: int = 5, tokens: int = 0) -> Self:
        """The cost of a lens over this number of positions; computes no lens."""
        rows = info.layers + 1
        answer = positions * (8 + 4 * tokens + rows * (4 + 8 * top_k + 8 * (1 + tokens)))
        moment = min(positions, positions_at_once(info)) * rows * info.vocab_size * ENTRY_BYTES
        return cls(positions, positions * rows, answer, moment, round(positions * (1 + rows * head_share(info))))

    def check(self) -> None:
        """Refuses an answer that is too large.

        Raises:
            InvalidRequestError: With the numbers, and the most positions per call.
        """
        if self.answer_bytes > MOST_BYTES:
            most = self.positions * MOST_BYTES // self.answer_bytes
            raise InvalidRequestError(
                f"{self.positions:,} positions are {self.head_rows:,} rows and {self.answer_bytes:,} bytes of answer, more "
                f"than {MOST_BYTES:,}: ask for {most:,} positions at a time, or a smaller top_k"
            )


def head_share(info: ModelInfo) -> float:
    """The cost of a row of the head, relative to the forward of a token through the whole model."""
    return min(info.hidden_size * info.vocab_size / max(info.parameters, 1), 1.0)


def positions_at_once(info: ModelInfo) -> int:
    """Positions whose logits may be in memory together."""
    return max(MOMENT_BYTES // ((info.layers + 1) * info.vocab_size * ENTRY_BYTES), 1)


def check_positions(positions: Sequence[int] | None, n: int) -> Int32:
    """Checked positions in a text of `n` tokens, ``(p,) int32``, in the given order; None: the last position.

    Raises:
        InvalidRequestError: No position, a position given twice, or one outside the text.
    """
    if positions is None:
        return np.array([n - 1], np.int32)
    if isinstance(positions, str | bytes) or not hasattr(positions, "__len__"):
        raise InvalidRequestError(f"positions is a list of places in the text, not {shown(positions)}")
    if not len(positions):
        raise InvalidRequestError("positions is empty: give at least one, or leave it out for the last token")
    if len(positions) > n:  # before an array of them is made
        raise InvalidRequestError(
            f"{len(positions):,} positions of a text of {n:,} tokens: give each at most once, from 0 to {n - 1:,}"
        )
    for position in positions:
        if not is_whole(plain_number(position), 0, n - 1):
            raise InvalidRequestError(f"a position lies within 0 and {n - 1:,}, not {shown(position)}")
    given = np.array([int(position) for position in positions], np.int32)
    if len(np.unique(given)) < len(given):
        raise InvalidRequestError("a position is given twice")
    return given


def empty_lens(positions: Int32, ids: Int32, rows: int, k: int, tokens: Int32) -> LensRun:
    """A run with positions and tokens filled in, and room for the scores."""
    n, following = len(positions), np.append(ids[1:], NO_TOKEN)[positions]
    token_ids = np.concatenate([following[:, None], np.tile(tokens, (n, 1))], axis=1).astype(np.int32)
    wanted = token_ids.shape[1]
    return LensRun(
        positions=positions,
        token_ids=token_ids,
        logprobs=np.full((n, rows, wanted), np.nan, np.float32),
        ranks=np.zeros((n, rows, wanted), np.int32),
        top_ids=np.full((n, rows, k), NO_TOKEN, np.int32),
        top_logprobs=np.full((n, rows, k), -np.inf, np.float32),
        entropy=np.full((n, rows), np.nan, np.float32),
    )


def read_layers(logits: Float32, into: LensRun, first: int) -> Float32:
    """Fills rows of an answer from raw logits ``(p, layers + 1, vocab)``, which become log-probabilities.

    Args:
        logits: Overwritten.
        into: The answer.
        first: The answer's row for the first position.

    Returns:
        ``(vocab,)``: the log-probabilities of the last layer at the last position.
    """
    vocab = logits.shape[-1]
    width = min(into.top_ids.shape[-1], vocab)
    entropy = np.empty(logits.shape[1])
    for row, layers in enumerate(logits, first):
        logprobs = log_softmax(layers, entropy=entropy, out=layers)
        into.entropy[row] = entropy
        into.top_ids[row, :, :width], into.top_logprobs[row, :, :width] = top_k(logprobs, width)
        for column, token in enumerate(into.token_ids[row].tolist()):
            if token != NO_TOKEN:
                into.logprobs[row, :, column] = logprobs[:, token]
                into.ranks[row, :, column] = ranks_of(logprobs, logprobs[:, token])
    last: Float32 = logits[-1, -1]
    return last
