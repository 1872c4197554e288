"""Tokens and their numbers: `TokenRun` holds columns for many, `TokenRecord` is a view of one row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from operator import attrgetter
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from runtime import html
from runtime.errors import InvalidRequestError
from runtime.numerics.stage_table import Stage, StageTable
from runtime.tables import LN2, Columns, Tabular, token_numbers, top_columns
from runtime.text.utf8 import texts_of

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
UInt8 = npt.NDArray[np.uint8]

NO_TOKEN = -1  # fills unused places of top_ids; their log-probability is -inf
_NARROW_FILL = 0xFFFF  # `NO_TOKEN` in top_ids of 16 bits


class Origin(IntEnum):
    """How a token came into the text."""

    TEMPLATE = 0
    TYPED = 1
    SAMPLED = 2
    PICKED = 3
    GRAMMAR = 4
    IMPORTED = 5


class Finish(IntEnum):
    """Why a generation ended; NONE on every token but the last.

    Attributes:
        label: The name in files and for users ("eos", "length", ...); None for NONE.
        incomplete: Whether the answer was cut before its own end, or is unsound.
        by_eos: Whether an end-of-text token ended it; the token's text is not part of the answer.
        unsound: Whether the answer reached its end, but does not parse as the JSON that was asked for.
    """

    NONE = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    CONTEXT = 4
    CANCELLED = 5
    GRAMMAR = 6
    ERROR = 7
    ENGINE_DIED = 8
    STOP_INSIDE = 9  # a stop string inside a structure of the grammar
    EOS_UNSOUND = 10  # EOS of a JSON answer that does not parse: a name twice in an object, an infinite number
    GRAMMAR_UNSOUND = 11  # GRAMMAR of a JSON answer that does not parse

    def __init__(self, number: int) -> None:
        plain = self.name.removesuffix("_INSIDE").removesuffix("_UNSOUND")
        self.label = plain.lower() if number else None
        self.incomplete = self.name not in ("NONE", "EOS", "STOP", "GRAMMAR")
        self.by_eos = plain == "EOS"
        self.unsound = self.name.endswith("_UNSOUND")


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token with its scores. Log-probabilities and the entropy are in nats.

    `logprob`, `rank`, `entropy` and the top-k are None or empty where nothing precedes the token, or where it was not scored.
    For a server's model the rank of a token outside the alternatives may be unknown, and the entropy is known only where the
    alternatives are the whole vocabulary.
    """

    token_id: int
    token_bytes: bytes
    text: str  # the code points this token completes; may be empty
    logprob: float | None
    rank: int | None  # 1 + the number of tokens with a higher log-probability
    entropy: float | None
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    covered_mass: float | None  # probability of the top-k together
    origin: Origin
    finish_reason: str | None = None  # on the last token: `Finish.label`
    incomplete: bool = False  # on the last token: `Finish.incomplete`
    stages: tuple[Stage, ...] | None = None  # the sampler's stages, where they were requested
    shift: float | None = None  # raw logits minus log-probabilities; with stages
    # the id that a repeated draw from the stored alternatives gives; None without stages, or where it is not among them
    redrawn: int | None = None

    @property
    def surprisal_bits(self) -> float | None:
        """-log2 of the token's probability."""
        return None if self.logprob is None else -self.logprob / LN2


@dataclass(frozen=True, slots=True, repr=False)
class TokenRun(Tabular):
    """Columns for n consecutive tokens; in a notebook, tokens coloured by surprise.

    Unscored tokens have NaN in `logprob`, `entropy` and `covered_mass`, 0 in `rank`, `NO_TOKEN` in `top_ids`. `vocabulary` has
    the bytes of every id, shared with the model, for showing alternatives; without it alternatives are shown by id.
    """

    ids: Int32  # (n,)
    token_bytes: tuple[bytes, ...]
    texts: tuple[str, ...]
    logprob: Float32  # (n,) nats
    rank: Int32  # (n,)
    entropy: Float32  # (n,) nats
    top_ids: Int32  # (n, k), falling probability
    top_logprobs: Float32  # (n, k)
    covered_mass: Float32  # (n,)
    origin: UInt8  # (n,) of Origin
    finish: UInt8  # (n,) of Finish
    draw: Float32  # (n,) the uniform number u that a sampled token was drawn with; NaN for other tokens
    stages: StageTable | None = None  # the sampler's stages, where they were requested
    vocabulary: Sequence[bytes] = field(default=(), kw_only=True, compare=False)

    def __post_init__(self) -> None:
        n = len(self.ids)
        for name in _RUN_COLUMNS:
            if len(getattr(self, name)) != n:
                raise InvalidRequestError(f"column {name} has {len(getattr(self, name))} rows, ids has {n}")
        if self.stages is not None and len(self.stages) != n:
            raise InvalidRequestError(f"the stages have {len(self.stages)} rows, ids has {n}")

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[TokenRecord]:
        return map(self.record, range(len(self.ids)))

    def __getitem__(self, index: slice) -> TokenRun:
        """A run of some of the rows; arrays are views."""
        stages = None if self.stages is None else self.stages[index]
        columns = {name: getattr(self, name)[index] for name in _RUN_COLUMNS}
        return TokenRun(**columns, stages=stages, vocabulary=self.vocabulary)

    def __repr__(self) -> str:
        return f"TokenRun({self.summary}: {shortened(self.text)!r})"

    def _repr_html_(self) -> str:
        return html.page(self.html(), caption=self.summary)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def answer(self) -> str:
        """The text of an answer, without that of an end-of-text token."""
        return "".join(text for text, end in zip(self.texts, self.by_eos.tolist(), strict=True) if not end)

    @property
    def surprisal_bits(self) -> npt.NDArray[np.float64]:
        """``(n,)`` -log2 of each token's probability; NaN where it is not known."""
        return -self.logprob.astype(np.float64) / LN2

    @property
    def summary(self) -> str:
        """The number of tokens, and the bits and perplexity of the scored tokens."""
        return _summary(self.surprisal_bits)

    def html(self) -> str:
        """Only the coloured tokens, for `runtime.html.page`."""
        hovers = (_hover(html.spelled(each.token_id, each.token_bytes), each, self.vocabulary) for each in self)
        return html.tokens(self.texts, self.surprisal_bits.tolist(), hovers)

    def table_columns(self) -> Columns:
        """Position in the run, token, numbers, and the alternatives as lists."""
        return {
            "position": np.arange(len(self), dtype=np.int32),
            "token_id": self.ids,
            "text": self.texts,
            **token_numbers(self.logprob, self.rank, self.entropy),
            "bytes": self.token_bytes,
            "covered_mass": self.covered_mass,
            "origin": [Origin(origin).name.lower() for origin in self.origin.tolist()],
            "finish_reason": [Finish(finish).label for finish in self.finish.tolist()],
            "draw": self.draw,
            **top_columns(self.top_ids, self.top_logprobs),
        }

    @property
    def by_eos(self) -> npt.NDArray[np.bool_]:
        """``(n,)``: whether a token ended its answer as end-of-text; such a token's text is not part of the answer."""
        ends: npt.NDArray[np.bool_] = (self.finish == Finish.EOS) | (self.finish == Finish.EOS_UNSOUND)
        return ends

    @property
    def top_k(self) -> int:
        """The number of alternatives per row (k)."""
        return int(self.top_ids.shape[1])

    def record(self, i: int) -> TokenRecord:
        """Row `i` as a record."""
        rank = int(self.rank[i])
        logprob, entropy, covered = float(self.logprob[i]), float(self.entropy[i]), float(self.covered_mass[i])
        finish = Finish(int(self.finish[i]))
        top_ids, top_logprobs = self.top_ids[i].tolist(), self.top_logprobs[i].tolist()
        if NO_TOKEN in top_ids:
            held = top_ids.index(NO_TOKEN)
            top_ids, top_logprobs = top_ids[:held], top_logprobs[:held]
        return TokenRecord(
            token_id=int(self.ids[i]),
            token_bytes=self.token_bytes[i],
            text=self.texts[i],
            logprob=None if math.isnan(logprob) else logprob,
            rank=rank if rank > 0 else None,
            entropy=None if math.isnan(entropy) else entropy,
            top_ids=tuple(top_ids),
            top_logprobs=tuple(top_logprobs),
            covered_mass=None if math.isnan(covered) else covered,
            origin=Origin(int(self.origin[i])),
            finish_reason=finish.label,
            incomplete=finish.incomplete,
            **({} if self.stages is None else _stage_fields(self.stages, i)),
        )

    def to_columns(self, *, narrow: bool = False) -> dict[str, npt.NDArray[np.generic]]:
        """Plain arrays for the pipe and the database: bytes become `data` (uint8) and `lengths`.

        Args:
            narrow: Stores the ids of alternatives as uint16 where they fit, in half the bytes.
        """
        columns: dict[str, npt.NDArray[np.generic]] = {
            name: getattr(self, name) for name in _RUN_COLUMNS if name not in ("token_bytes", "texts")
        }
        columns["data"] = np.frombuffer(b"".join(self.token_bytes), np.uint8)
        columns["lengths"] = np.array([len(b) for b in self.token_bytes], np.int32)
        columns["text_data"] = np.frombuffer("".join(self.texts).encode(), np.uint8)
        columns["text_lengths"] = np.array([len(t.encode()) for t in self.texts], np.int32)
        if self.stages is not None:
            columns |= self.stages.to_columns(self.top_ids, self.top_logprobs)
        if narrow and int(self.top_ids.max(initial=0)) < _NARROW_FILL:
            columns["top_ids"] = np.where(self.top_ids == NO_TOKEN, _NARROW_FILL, self.top_ids).astype(np.uint16)
        return columns

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[np.generic]]) -> Self:
        """The inverse of `to_columns`.

        Missing columns, as in files of other programs, get the values of unscored tokens; `ids` is required.
        """
        if not columns.keys() >= _NEEDED:
            if not columns.keys() >= _TOP:  # only the ids or only the log-probabilities of alternatives
                columns = {name: column for name, column in columns.items() if name not in _TOP}
            columns = {**cls.unscored(columns["ids"].tolist(), *_pieces_of(columns), Origin.IMPORTED).to_columns(), **columns}
        plain = {name: columns[name] for name in _RUN_COLUMNS if name not in ("token_bytes", "texts")}
        if plain["top_ids"].dtype == np.uint16:
            narrow = plain["top_ids"].astype(np.int32)
            plain["top_ids"] = np.where(narrow == _NARROW_FILL, np.int32(NO_TOKEN), narrow)
        token_bytes = split_bytes(columns["data"].tobytes(), columns["lengths"])
        texts = tuple(t.decode() for t in split_bytes(columns["text_data"].tobytes(), columns["text_lengths"]))
        run = cls(token_bytes=token_bytes, texts=texts, **plain)  # type: ignore[arg-type]  # dtypes are the writer's
        stages = StageTable.from_columns(columns, run.top_ids, run.top_logprobs)
        return run if stages is None else replace(run, stages=stages)

    @classmethod
    def unscored(cls, ids: Sequence[int], token_bytes: Sequence[bytes], texts: Sequence[str], origin: Origin) -> Self:
        """Tokens without scores."""
        n = len(ids)
        nan = np.full(n, np.nan, np.float32)
        return cls(
            ids=np.asarray(ids, np.int32).reshape(n),
            token_bytes=tuple(token_bytes),
            texts=tuple(texts),
            logprob=nan,
            rank=np.zeros(n, np.int32),
            entropy=nan,
            top_ids=np.empty((n, 0), np.int32),
            top_logprobs=np.empty((n, 0), np.float32),
            covered_mass=nan,
            origin=np.full(n, int(origin), np.uint8),
            finish=np.zeros(n, np.uint8),
            draw=nan,
        )

    @classmethod
    def scored(cls, ids: Int32, vocabulary: Sequence[bytes], scores: Scores) -> Self:
        """Typed tokens with their scores."""
        token_bytes = [vocabulary[token] for token in ids.tolist()]
        return replace(cls.unscored(ids.tolist(), token_bytes, texts_of(token_bytes), Origin.TYPED), **scores.columns)

    @classmethod
    def concat(cls, runs: Sequence[TokenRun]) -> TokenRun:
        """The runs joined; narrower top-k tables are padded with `NO_TOKEN`."""
        runs = [r for r in runs if len(r)]
        if not runs:
            return cls.unscored([], [], [], Origin.TEMPLATE)
        if len(runs) == 1:
            return runs[0]
        k = max(r.top_k for r in runs)
        joined: dict[str, object] = {
            "token_bytes": tuple(b for r in runs for b in r.token_bytes),
            "texts": tuple(t for r in runs for t in r.texts),
            "top_ids": np.concatenate([_widen(r.top_ids, k, NO_TOKEN) for r in runs]),
            "top_logprobs": np.concatenate([_widen(r.top_logprobs, k, -np.inf) for r in runs]),
        }
        for name in _RUN_COLUMNS:
            if name not in joined:
                joined[name] = np.concatenate([getattr(r, name) for r in runs])
        if any(r.stages is not None for r in runs):
            joined["stages"] = StageTable.concat([StageTable.empty(len(r)) if r.stages is None else r.stages for r in runs])
        joined["vocabulary"] = next((r.vocabulary for r in runs if r.vocabulary), ())
        return TokenRun(**joined)  # type: ignore[arg-type]  # columns by name


class TokenRecords(list[TokenRecord], Tabular):
    """The result of `score`: a list of records, and a table. Slices and sums of it are plain lists.

    Attributes:
        run: The records as columns.
    """

    __slots__ = ("run",)
    run: TokenRun

    def __init__(self, run: TokenRun) -> None:
        super().__init__(run)
        self.run = run

    def __repr__(self) -> str:
        return f"TokenRecords({self.run.summary}: {shortened(self.run.text)!r})"

    def _repr_html_(self) -> str:
        return self.run._repr_html_()

    def table_columns(self) -> Columns:
        return self.run.table_columns()


@dataclass(frozen=True, slots=True)
class TopLogprobs(Tabular):
    """The likeliest next tokens, and the exact probability of all others together. In the table the chosen ids come last.

    Attributes:
        ids: ``(n,) int32``, likeliest first.
        logprobs: ``(n,) float32``, nats.
        tail_mass: Probability of all other tokens together; 0 without others.
        chosen: Log-probabilities, nats, of the ids that the caller chose.
        vocabulary: As for `TokenRun`.
    """

    ids: Int32
    logprobs: Float32
    tail_mass: float
    chosen: Mapping[int, float] = field(default_factory=dict)
    vocabulary: Sequence[bytes] = field(default=(), kw_only=True, compare=False, repr=False)

    def _repr_html_(self) -> str:
        listed = html.likeliest(self.ids.tolist(), self.logprobs.tolist(), self.vocabulary, most=len(self.ids))
        return html.page(html.outline(listed), caption=f"all others have {self.tail_mass:.2%} together")

    @classmethod
    def of(cls, ids: Int32, logprobs: Float32, vocab: int, chosen: Mapping[int, float] | None = None) -> Self:
        """Computes the tail mass; `vocab`: the size of the vocabulary."""
        mass = float(np.exp(logprobs.astype(np.float64)).sum())
        return cls(ids, logprobs, 0.0 if len(ids) >= vocab else max(1.0 - mass, 0.0), dict(chosen or {}))

    @property
    def tail_logprob(self) -> float:
        """Logarithm of `tail_mass`; -inf for 0."""
        return float(np.log(self.tail_mass)) if self.tail_mass > 0 else -np.inf

    def table_columns(self) -> Columns:
        """A row per token: the likeliest by rank, then the other chosen ids, whose rank is not known."""
        likeliest = set(self.ids.tolist())
        others = {token: logprob for token, logprob in self.chosen.items() if token not in likeliest}
        logprob = np.concatenate([self.logprobs, np.fromiter(others.values(), np.float32, len(others))])
        ids = np.concatenate([self.ids, np.fromiter(others, np.int32, len(others))])
        return {
            "token_id": ids,
            "text": [text_of(token, self.vocabulary) for token in ids.tolist()],
            "logprob": logprob,
            "rank": np.ma.masked_equal(np.concatenate([np.arange(1, len(self.ids) + 1), np.zeros(len(others), int)]), 0),
            "surprisal_bits": -logprob.astype(np.float64) / LN2,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Scores(Tabular):
    """The scores of n tokens without the tokens, as stored with the KV in the trie. A notebook shows token positions."""

    logprob: Float32  # (n,)
    rank: Int32  # (n,)
    entropy: Float32  # (n,)
    top_ids: Int32  # (n, k)
    top_logprobs: Float32  # (n, k)
    covered_mass: Float32  # (n,)

    def __len__(self) -> int:
        return len(self.logprob)

    def __getitem__(self, index: slice) -> Scores:
        return Scores(*(getattr(self, name)[index].copy() for name in _SCORE_COLUMNS))

    def __repr__(self) -> str:
        return f"Scores({_summary(self.surprisal_bits)})"

    def _repr_html_(self) -> str:
        places = [f"{place:,} " for place in range(len(self))]
        run = TokenRun.unscored(range(len(self)), [b""] * len(self), places, Origin.IMPORTED)
        run = replace(run, **self.columns)
        hovers = (_hover(f"token {place}", each) for place, each in enumerate(run))
        return html.page(html.tokens(places, self.surprisal_bits.tolist(), hovers), caption=_summary(self.surprisal_bits))

    @property
    def surprisal_bits(self) -> npt.NDArray[np.float64]:
        """``(n,)`` -log2 of each token's probability; NaN where it is not known."""
        return -self.logprob.astype(np.float64) / LN2

    @property
    def columns(self) -> dict[str, Any]:
        """The columns by their names in `TokenRun`."""
        return dict(zip(_SCORE_COLUMNS, _score_columns(self), strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        return sum(int(column.nbytes) for column in self.columns.values())

    def write(self, places: npt.NDArray[Any], other: Scores, rows: npt.NDArray[Any]) -> None:
        """Copies rows of another table of the same k into these places."""
        for name in _SCORE_COLUMNS:
            getattr(self, name)[places] = getattr(other, name)[rows]

    @classmethod
    def concat(cls, parts: Sequence[Scores]) -> Scores:
        """The parts joined; all must have the same k."""
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in _SCORE_COLUMNS))

    def table_columns(self) -> Columns:
        """The columns of `TokenRun`, except those for the tokens themselves."""
        return {
            "position": np.arange(len(self), dtype=np.int32),
            **token_numbers(self.logprob, self.rank, self.entropy),
            "covered_mass": self.covered_mass,
            **top_columns(self.top_ids, self.top_logprobs),
        }


_RUN_COLUMNS = tuple(column.name for column in fields(TokenRun) if column.name not in ("stages", "vocabulary"))
_TOP = frozenset({"top_ids", "top_logprobs"})
_NEEDED = frozenset({*_RUN_COLUMNS, "data", "lengths", "text_data", "text_lengths"}) - {"token_bytes", "texts"}
_SCORE_COLUMNS = tuple(column.name for column in fields(Scores))
_score_columns = attrgetter(*_SCORE_COLUMNS)


def _stage_fields(table: StageTable, i: int) -> dict[str, Any]:
    """The fields of a `TokenRecord` that row `i` of the stages sets."""
    if not table.names[i].any():
        return {}
    return {"stages": table.stages(i), "shift": float(table.shift[i]), "redrawn": table.as_drawn(i)}


def _pieces_of(columns: Mapping[str, npt.NDArray[np.generic]]) -> tuple[list[bytes], list[str]]:
    """Bytes and texts of tokens, from the column of bytes, else from that of texts; empty without both."""
    pieces = [b""] * len(columns["ids"])
    for name in ("text_", ""):
        if {f"{name}data", f"{name}lengths"} <= columns.keys():
            pieces = list(split_bytes(columns[f"{name}data"].tobytes(), columns[f"{name}lengths"]))
    return pieces, [piece.decode(errors="replace") for piece in pieces]


def text_of(token: int, vocabulary: Sequence[bytes]) -> str | None:
    """The text of one id; None where its bytes are not known."""
    return vocabulary[token].decode(errors="replace") if 0 <= token < len(vocabulary) else None


def _hover(name: str, record: TokenRecord, vocabulary: Sequence[bytes] = ()) -> str:
    """A token's numbers and the likeliest tokens at its place, a line each."""
    if record.logprob is None or record.surprisal_bits is None:
        return f"{name}\nnot scored"
    lines = [name, f"{html.chance(record.logprob)}, {record.surprisal_bits:.2f} bits"]
    if record.rank is not None:
        lines.append(f"rank {record.rank:,}")
    if record.entropy is not None:
        lines.append(f"entropy {record.entropy / LN2:.2f} bits")
    return "\n".join(lines + html.likeliest(record.top_ids, record.top_logprobs, vocabulary))


def _summary(bits: npt.NDArray[np.float64]) -> str:
    """The number of tokens, and bits and perplexity of the scored ones."""
    scored = bits[~np.isnan(bits)]
    tokens = f"{len(bits):,} token{'s' * (len(bits) != 1)}"
    if not len(scored):
        return tokens
    return f"{tokens}, {scored.sum():,.1f} bits, perplexity {np.exp2(min(scored.mean(), 1000.0)):,.2f}"


def shortened(text: str) -> str:
    """At most the first 60 characters of a text."""
    return text if len(text) <= 60 else f"{text[:60]}..."


def ends_of(pieces: Sequence[bytes]) -> Int64:
    """``(n,)``: the byte at which each piece ends."""
    return np.cumsum([len(piece) for piece in pieces], dtype=np.int64)


def split_bytes(data: bytes, lengths: npt.NDArray[Any]) -> tuple[bytes, ...]:
    """The pieces of these lengths, ``(n,)``, that `data` consists of.

    Raises:
        ValueError: The lengths are not integers.
    """
    if lengths.dtype.kind not in "iu":
        raise ValueError(f"lengths of pieces are integers, not {lengths.dtype}")
    sizes = lengths.astype(np.int64, copy=False)
    return tuple(data[end - size : end] for end, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True))


def _widen(table: npt.NDArray[Any], k: int, fill: float) -> npt.NDArray[Any]:
    if table.shape[1] == k:
        return table
    return np.pad(table, ((0, 0), (0, k - table.shape[1])), constant_values=fill)


class Completion(str, Tabular):
    """An answer's text, a `str` whose slices and joins are plain text.

    `run` has its tokens with their scores (`GenerationOptions.top_k` alternatives each), the end-of-text token included; the
    table, and the coloured text in a notebook, show them.

    `finish_reason` is "eos", "stop", "length", "context" or "grammar". `incomplete` is True where the answer was cut before its
    own end (by `max_tokens`, by the context, by a stop string inside a grammar's structure), and where it is unsound JSON, with
    a name twice in one object or a number that no float holds. A JSON answer that is not incomplete parses and validates.
    """

    __slots__ = ("run",)
    run: TokenRun

    def __new__(cls, run: TokenRun) -> Self:
        self = super().__new__(cls, run.answer)
        self.run = run
        return self

    @property
    def finish(self) -> Finish:
        """The finish reason as an enum."""
        return Finish(int(self.run.finish[-1])) if len(self.run) else Finish.NONE

    @property
    def finish_reason(self) -> str | None:
        """The finish reason."""
        return self.finish.label

    @property
    def incomplete(self) -> bool:
        """Whether the answer was cut, or is unsound JSON."""
        return self.finish.incomplete

    def __repr__(self) -> str:
        return f"Completion({str(self)!r}, {self.finish_reason!r})"

    def _repr_html_(self) -> str:
        return self.run._repr_html_()

    def table_columns(self) -> Columns:
        return self.run.table_columns()

    def __reduce__(self) -> tuple[type[Completion], tuple[TokenRun]]:
        return type(self), (replace(self.run, vocabulary=()),)  # a copy shows alternatives by their ids
