"""`compare_models`: one text scored by two models, the tokens of both aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.api.checks import check_fits
from runtime.api.progress import ShowProgress, reporting
from runtime.comparison.reading import read_again, unfinished
from runtime.comparison.result import ComparedSide, Int64, ModelComparison, OnComparison, common_borders, ends_of, kl_rows
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.options.priority import Priority
from runtime.records import NO_TOKEN, TokenRun
from runtime.text.utf8 import clean_text

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

TOLD = ("weights", "dtype", "kv_dtype", "attention", "device", "cache")  # options that change numbers
ROWS = 16  # full vectors of either model at once: between two such batches others get their turn
ROW_BYTES = 32 << 20  # and what they may take
NOTHING = "there is nothing to compare: the text has no tokens"


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

    Where the two vocabularies are the same, both read the same ids. Else `right` reads the bytes with its own tokenizer,
    control tokens that both have (``<|im_start|>``) as such, bytes that are no UTF-8 as tokens of one byte each, and spans are
    what lies between borders that both have.

    Args:
        left: The first model; ids are its own.
        right: The second; may be the first.
        text: A text, or ids from a path's first token on. Bytes of an unfinished character at the end are left's alone.
        left_adapters: As of `LanguageModel.score`.
        right_adapters: Likewise, of the second.
        top_k: Alternatives recorded per token, at least 1.
        kl_start: The position from which on full next-token vectors are compared too (0: all, at the cost of a query for
            each); None: nowhere. Passed over where the vocabularies differ. No more than `ROW_BYTES` of rows are held.
        priority: Before whom the text is read; queries for full vectors have their own.
        progress: True draws a tqdm bar; a callable gets the tokens done and in all.
        on_progress: Hears how many tokens are done.

    Raises:
        InvalidRequestError: There is nothing to compare, or a tokenizer reads the text as other bytes, or cannot at all.
        RuntimeFault: Of `score_run`, of either model.
    """
    with reporting(progress, "token") as say:

        def hear(done: int, total: int) -> None:
            say(done, total)
            if on_progress is not None:
                on_progress(done, total)

        return await _compared(
            left,
            right,
            text,
            adapters=(left_adapters, right_adapters),
            top_k=top_k,
            kl_start=kl_start,
            priority=priority,
            on_progress=hear if progress else on_progress,
        )


async def _compared(
    left: LanguageModel,
    right: LanguageModel,
    text: str | Sequence[int],
    *,
    adapters: tuple[Adapters, Adapters],
    top_k: int,
    kl_start: int | None,
    priority: Priority,
    on_progress: OnComparison | None,
) -> ModelComparison:
    if isinstance(text, str):
        check_fits(left, text)
        check_fits(right, text)
    ids = await left.tokenize_async(text) if isinstance(text, str) else list(text)
    if not ids or (isinstance(text, str) and not text):
        raise InvalidRequestError(NOTHING)
    pieces = await _pieces(left, ids)
    if isinstance(text, str):
        _check_same(b"".join(pieces), clean_text(text).encode(), left.info.name)
    same = left is right or _used(left) == _used(right)
    others = ids if same else await read_again(left, right, ids, pieces)
    if not others:
        raise InvalidRequestError(NOTHING)
    if not same:
        spelled, data = b"".join(await _pieces(right, others)), b"".join(pieces)
        _check_same(spelled, data[: len(spelled)] if unfinished(data[len(spelled) :]) else data, right.info.name)
    with_rows = same and kl_start is not None and left.info.vocab_size == right.info.vocab_size
    rows = max(len(ids) - max(kl_start or 0, 1), 0) if with_rows else 0
    tell = _Progress(len(ids) + len(others) + 2 * rows, on_progress)
    runs: list[TokenRun] = []
    for model, own, under in ((left, ids, adapters[0]), (right, others, adapters[1])):
        runs.append(
            await model.score_run(own, max(top_k, 1), adapters=under, priority=priority, on_progress=tell.reader(len(own)))
        )
        tell.add(len(own))
    if same:
        borders = _whole(len(ids))
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
            p = await left.batch_next_token_logprobs(prefixes, adapters=adapters[0])
            q = await right.batch_next_token_logprobs(prefixes, adapters=adapters[1])
            kl[at.start : at.stop] = kl_rows(p, q)
            tell.add(2 * len(at))
    return ModelComparison(sides[0], sides[1], "tokens" if same else "bytes", kl)


async def _pieces(model: LanguageModel, ids: list[int]) -> list[bytes]:
    """The bytes of each token; none of what the tokenizer puts before every text (BOS)."""
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
    """The vocabulary without the padding of the logits' width."""
    found = model.byte_vocab
    while found and not found[-1]:
        found.pop()
    return found


def _name(model: LanguageModel, other: LanguageModel) -> str:
    """With the engine, or with what it was loaded with, where that is what tells it from the other."""
    mine, theirs = model.info, other.info
    alike = mine.name == theirs.name
    if alike and mine.backend == theirs.backend:
        told = [name for name in TOLD if mine.options.get(name) != theirs.options.get(name)]
    else:
        told = ["weights"] if mine.computed_with != mine.dtype else []  # which stand beside every number
    engine = f" on {mine.backend}" if alike and mine.backend != theirs.backend else ""
    options = ", ".join(f"{name}={mine.options[name]}" for name in told)
    return f"{mine.name}{engine}{f' with {options}' if options else ''}"


def _tops(model: LanguageModel, run: TokenRun) -> tuple[bytes, ...]:
    return tuple(b"" if token == NO_TOKEN else model.decode_token(token) for token in run.top_ids[:, 0].tolist())


def _whole(n: int) -> tuple[Int64, Int64]:
    """Every token a span."""
    borders = np.arange(n + 1, dtype=np.int64)
    return borders, borders


def _chunks(start: int, stop: int, vocab: int) -> list[range]:
    size = max(min(ROWS, ROW_BYTES // (2 * 4 * max(vocab, 1))), 1)
    return [range(at, min(at + size, stop)) for at in range(start, stop, size)]


class _Progress:
    """Tokens of all parts of the work together."""

    def __init__(self, total: int, listener: OnComparison | None) -> None:
        self._total, self._listener = total, listener
        self._done = 0

    def add(self, count: int) -> None:
        self._done += count
        if self._listener is not None:
            self._listener(self._done, self._total)

    def reader(self, tokens: int) -> OnProgress | None:
        """For a model that reads so many of them."""
        listener = self._listener
        if listener is None:
            return None
        before = self._done

        def read(progress: PromptProgress) -> None:
            listener(before + min(int(progress.done), tokens), self._total)

        return read
