"""`compare_models`: one text scored by two models, the tokens of both aligned; and its result.

The result is in columns, by spans between the token borders that both sides have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from runtime import html
from runtime.adapters.uses import Adapters
from runtime.api.checks import check_fits
from runtime.api.progress import ShowProgress, reporting
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.options.priority import Priority
from runtime.records import NO_TOKEN, Float64, Int32, Int64, TokenRun, ends_of
from runtime.tables import Columns, Tabular
from runtime.text.utf8 import clean_text, texts_of

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

OnComparison = Callable[[int, int], None]  # tokens done and in all; on the caller's loop
NUMERIC_OPTIONS = ("weights", "dtype", "kv_dtype", "attention", "device", "cache")  # load options that change numbers
ROWS = 16  # full vectors of either model per batch: other requests run between two batches
ROW_BYTES = 32 << 20  # most bytes of such a batch
NO_TOKENS = "there is nothing to compare: the text has no tokens"


@dataclass(frozen=True, slots=True)
class ComparedTotal:
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

    def totals(self) -> tuple[ComparedTotal, ComparedTotal]:
        """Totals of left and right over the same bytes."""
        both = self.scored
        lengths = np.diff(np.concatenate(([0], ends_of(self.left.run.token_bytes)))[self.left.borders])
        size = int(lengths[both].sum())
        left, right = (
            ComparedTotal(float(side.logprob[both].sum()), int(np.diff(side.borders)[both].sum()), size) for side in self.sides
        )
        return left, right


def _perplexity(logprob: float, count: int) -> float | None:
    if not count:
        return None
    mean = -logprob / count
    return math.exp(mean) if mean < 700 else math.inf


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


async def compare_models(
    left: LanguageModel,
    right: LanguageModel,
    text: str | Sequence[int],
    *,
    left_adapters: Adapters = None,
    right_adapters: Adapters = None,
    top_k: int = 1,
    kl_start: int | None = None,
    priority: Priority = Priority.BACKGROUND,
    progress: ShowProgress = False,
    on_progress: OnComparison | None = None,
) -> ModelComparison:
    """Scores one text under two models, or under one with other adapters or options, and puts the numbers side by side.

    In the field's terms: the per-token log-likelihood ratio of two language models, and their KL divergence.

    Models with the same vocabulary read the same ids. Otherwise `right` reads the bytes with its own tokenizer, shared control
    tokens (``<|im_start|>``) as such, bytes that are not UTF-8 as tokens of one byte each, and spans lie between the token
    borders that both sides have.

    Args:
        left: The first model; ids are its own.
        right: The second; may be the first.
        text: A text, or ids from a path's first token on. `right` does not read an unfinished character at the end.
        left_adapters: As of `LanguageModel.score`.
        right_adapters: The same for the second model.
        top_k: Alternatives recorded per token, at least 1.
        kl_start: The first position whose full next-token vectors are also compared (0: all, at the cost of a query for
            each); None: none. Ignored where the vocabularies differ. At most `ROW_BYTES` of rows are in memory.
        priority: Of reading the text; queries for full vectors have their own.
        progress: True draws a tqdm bar; a callable gets the tokens done and in all.
        on_progress: Called with the tokens done and in all.

    Raises:
        InvalidRequestError: The text has no tokens, or a tokenizer reads it as other bytes, or cannot read it.
        RuntimeFault: Of `score_run`, of either model.
    """
    with reporting(progress, "token") as say:

        def report(done: int, total: int) -> None:
            say(done, total)
            if on_progress is not None:
                on_progress(done, total)

        if isinstance(text, str):
            check_fits(left, text)
            check_fits(right, text)
        ids = await left.tokenize_async(text) if isinstance(text, str) else list(text)
        if not ids or (isinstance(text, str) and not text):
            raise InvalidRequestError(NO_TOKENS)
        pieces = await _pieces(left, ids)
        if isinstance(text, str):
            _check_same(b"".join(pieces), clean_text(text).encode(), left.info.name)
        same = left is right or _used(left) == _used(right)
        others = ids if same else await read_again(left, right, ids, pieces)
        if not others:
            raise InvalidRequestError(NO_TOKENS)
        if not same:
            spelled, data = b"".join(await _pieces(right, others)), b"".join(pieces)
            _check_same(spelled, data[: len(spelled)] if unfinished(data[len(spelled) :]) else data, right.info.name)
        with_rows = same and kl_start is not None and left.info.vocab_size == right.info.vocab_size
        rows = max(len(ids) - max(kl_start or 0, 1), 0) if with_rows else 0
        done = _Progress(len(ids) + len(others) + 2 * rows, report if progress else on_progress)
        runs: list[TokenRun] = []
        for model, own, under in ((left, ids, left_adapters), (right, others, right_adapters)):
            runs.append(
                await model.score_run(own, max(top_k, 1), adapters=under, priority=priority, on_progress=done.reader(len(own)))
            )
            done.add(len(own))
        if same:
            borders = (np.arange(len(ids) + 1, dtype=np.int64),) * 2  # every token is a span
        else:
            borders = common_borders(ends_of(await _pieces(left, ids)), ends_of(await _pieces(right, others)))
        sides = [
            ComparedSide(_name(model, other), run, own, _tops(model, run))
            for model, other, run, own in zip((left, right), (right, left), runs, borders, strict=True)
        ]
        kl = None
        if with_rows:
            kl = np.full(len(ids), np.nan)
            for at in _chunks(len(ids) - rows, len(ids), left.info.vocab_size):
                prefixes = [ids[:i] for i in at]
                p = await left.batch_next_token_logprobs(prefixes, adapters=left_adapters)
                q = await right.batch_next_token_logprobs(prefixes, adapters=right_adapters)
                kl[at.start : at.stop] = kl_rows(p, q)
                done.add(2 * len(at))
        return ModelComparison(sides[0], sides[1], "tokens" if same else "bytes", kl)


async def _pieces(model: LanguageModel, ids: list[int]) -> list[bytes]:
    """The bytes of each token; b"" for the tokens that the tokenizer puts before every text (BOS)."""
    before = await model.tokenize_async("")
    count = len(before) if ids[: len(before)] == before else 0
    return [b""] * count + [model.decode_token(token) for token in ids[count:]]


def _check_same(spelled: bytes, data: bytes, name: str) -> None:
    if spelled == data:
        return
    at = next((i for i, (a, b) in enumerate(zip(spelled, data, strict=False)) if a != b), min(len(spelled), len(data)))
    raise InvalidRequestError(
        f"the tokenizer of {name} reads the text as other bytes (from byte {at:,} on): nothing can be aligned with it"
    )


def _used(model: LanguageModel) -> list[bytes]:
    """The vocabulary without the padding at its end."""
    found = model.byte_vocab
    while found and not found[-1]:
        found.pop()
    return found


def _name(model: LanguageModel, other: LanguageModel) -> str:
    """The model's name, with the engine or load options where these distinguish it from the other model."""
    mine, theirs = model.info, other.info
    alike = mine.name == theirs.name
    if alike and mine.backend == theirs.backend:
        shown = [name for name in NUMERIC_OPTIONS if mine.options.get(name) != theirs.options.get(name)]
    else:
        shown = ["weights"] if mine.computed_with != mine.dtype else []  # quantised weights are always named
    engine = f" on {mine.backend}" if alike and mine.backend != theirs.backend else ""
    options = ", ".join(f"{name}={mine.options[name]}" for name in shown)
    return f"{mine.name}{engine}{f' with {options}' if options else ''}"


def _tops(model: LanguageModel, run: TokenRun) -> tuple[bytes, ...]:
    return tuple(b"" if token == NO_TOKEN else model.decode_token(token) for token in run.top_ids[:, 0].tolist())


def _chunks(start: int, stop: int, vocab: int) -> list[range]:
    size = max(min(ROWS, ROW_BYTES // (2 * 4 * max(vocab, 1))), 1)
    return [range(at, min(at + size, stop)) for at in range(start, stop, size)]


class _Progress:
    """Adds up the tokens done of all parts of a comparison."""

    def __init__(self, total: int, listener: OnComparison | None) -> None:
        self._total, self._listener = total, listener
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        if self._listener is not None:
            self._listener(self._done, self._total)

    def reader(self, tokens: int) -> OnProgress | None:
        """The listener of a model that reads `tokens` tokens."""
        listener = self._listener
        if listener is None:
            return None
        before = self._done

        def read(progress: PromptProgress) -> None:
            listener(before + min(int(progress.done), tokens), self._total)

        return read


async def read_again(left: LanguageModel, right: LanguageModel, ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """The ids of the same bytes in the second model's vocabulary, after the tokens that its tokenizer puts first (BOS).

    Its tokenizer splits the text. Bytes that are not UTF-8, which a model may generate, become tokens of one byte each; an
    unfinished character at the end is left out.

    Raises:
        InvalidRequestError: The second vocabulary has no token for a byte.
    """
    controls = await _controls(left, right, dict(zip(ids, pieces, strict=True)))
    found: list[int] = []
    held: list[bytes] = []
    for token, piece in zip([*ids, None], [*pieces, b""], strict=True):
        if token is not None and (token not in controls or not piece):
            held.append(piece)
            continue
        found += await _tokens(right, b"".join(held), last=token is None)
        held.clear()
        if token is not None:
            found.append(controls[token])
    before = await right.tokenize_async("")
    return found if not found or found[: len(before)] == before else before + found


def unfinished(data: bytes) -> bool:
    """Whether `data` is the beginning of one character, or empty."""
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        return fault.start == 0 and fault.reason == "unexpected end of data"
    return not data


async def _tokens(model: LanguageModel, data: bytes, *, last: bool) -> list[int]:
    found: list[int] = []
    for text, others in _stretches(data, last=last):
        if text:
            found += await model.tokenize_async(text, add_special_tokens=False)
        if others:
            found += _single(model, others)
    return found


def _stretches(data: bytes, *, last: bool) -> Iterator[tuple[str, bytes]]:
    """Pairs of a text and the invalid bytes after it; at the end, an unfinished character is left out."""
    while data:
        try:
            yield data.decode(), b""
            return
        except UnicodeDecodeError as fault:
            text, rest = data[: fault.start].decode(), data[fault.start :]
            if last and unfinished(rest):
                yield text, b""
                return
            broken = fault.end - fault.start
            yield text, rest[:broken]
            data = rest[broken:]


def _single(model: LanguageModel, data: bytes) -> list[int]:
    """`data` as tokens of one byte each."""
    wanted = {data[i : i + 1] for i in range(len(data))}
    known: dict[bytes, int] = {}
    for token, spelled in enumerate(model.byte_vocab):
        if spelled in wanted:
            known.setdefault(spelled, token)
    missing = sorted(wanted - known.keys())
    if missing:
        raise InvalidRequestError(
            f"the tokens' bytes are not UTF-8, and {model.info.name}, which is to read them, has no token for byte "
            f"{missing[0][0]:#04x}"
        )
    return [known[data[i : i + 1]] for i in range(len(data))]


async def _controls(left: LanguageModel, right: LanguageModel, pieces: dict[int, bytes]) -> dict[int, int]:
    """Control tokens of `left`, which no text is tokenized to, and the tokens of `right` with the same bytes."""
    alike = {token: data for token, data in pieces.items() if data.startswith(b"<") and data.endswith(b">")}
    if not alike:
        return {}
    wanted = set(alike.values())
    theirs = {data: token for token, data in enumerate(right.byte_vocab) if data in wanted}
    found: dict[int, int] = {}
    for token, data in alike.items():
        text, other = data.decode(errors="replace"), theirs.get(data)
        if other is not None and await left.tokenize_async(text, add_special_tokens=False) != [token]:
            found[token] = other
    return found
