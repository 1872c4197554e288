"""`compare_models`: one text scored by two models, the tokens of both aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.api.checks import check_fits
from runtime.api.progress import ShowProgress, reporting
from runtime.comparison.reading import read_again, unfinished
from runtime.comparison.result import ComparedSide, ModelComparison, OnComparison, common_borders, ends_of, kl_rows
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.options.priority import Priority
from runtime.records import NO_TOKEN, TokenRun
from runtime.text.utf8 import clean_text

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

NUMERIC_OPTIONS = ("weights", "dtype", "kv_dtype", "attention", "device", "cache")  # load options that change numbers
ROWS = 16  # full vectors of either model per batch: other requests run between two batches
ROW_BYTES = 32 << 20  # most bytes of such a batch
NO_TOKENS = "there is nothing to compare: the text has no tokens"


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
