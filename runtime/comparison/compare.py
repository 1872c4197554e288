"""`compare_models`: one text scored by two models, the tokens of both aligned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.adapters.uses import Adapters
from runtime.comparison.result import ComparedSide, ModelComparison, OnComparison
from runtime.comparison.spans import Int64, common_borders, ends_of, kl_rows
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress, PromptProgress
from runtime.language_model import LanguageModel
from runtime.priority import Priority
from runtime.records import NO_TOKEN, TokenRun
from runtime.text.utf8 import clean_text

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
    on_progress: OnComparison | None = None,
) -> ModelComparison:
    """Scores one text under two models, or under one with other adapters or options, and puts the numbers side by side.

    In the field's terms: the per-token log-likelihood ratio of two language models, and their KL divergence.

    Where the two vocabularies are the same, both read the same ids. Else `right` reads the bytes with its own tokenizer,
    control tokens that both have (``<|im_start|>``) as such, and spans are what lies between borders that both have.

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
        on_progress: Hears how many tokens are done.

    Raises:
        InvalidRequestError: There is nothing to compare, the text is not UTF-8, or a tokenizer reads it as other bytes.
        RuntimeFault: Of `score_run`, of either model.
    """
    ids = await left.tokenize_async(text) if isinstance(text, str) else list(text)
    if not ids:
        raise InvalidRequestError(NOTHING)
    pieces = [left.decode_token(token) for token in ids]
    if isinstance(text, str):
        _check_same(b"".join(pieces), clean_text(text).encode(), left.info.name)
    same = left is right or _used(left) == _used(right)
    others = ids if same else await _read_again(left, right, ids, pieces)
    with_rows = same and kl_start is not None and left.info.vocab_size == right.info.vocab_size
    rows = max(len(ids) - max(kl_start or 0, 1), 0) if with_rows else 0
    tell = _Progress(len(ids) + len(others) + 2 * rows, on_progress)
    runs: list[TokenRun] = []
    for model, own, adapters in ((left, ids, left_adapters), (right, others, right_adapters)):
        runs.append(
            await model.score_run(own, max(top_k, 1), adapters=adapters, priority=priority, on_progress=tell.reader(len(own)))
        )
        tell.add(len(own))
    borders = _whole(len(ids)) if same else common_borders(*(ends_of(run.token_bytes) for run in runs))
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
            tell.add(2 * len(at))
    return ModelComparison(sides[0], sides[1], "tokens" if same else "bytes", kl)


async def _read_again(left: LanguageModel, right: LanguageModel, ids: Sequence[int], pieces: Sequence[bytes]) -> list[int]:
    """The ids of the same bytes in the second model's vocabulary; the beginning of a character at the end is left out."""
    controls = await _controls(left, right, dict(zip(ids, pieces, strict=True)))
    found: list[int] = []
    held: list[bytes] = []
    data = b"".join(pieces)
    for token, piece in zip([*ids, None], [*pieces, b""], strict=True):
        if token is not None and token not in controls:
            held.append(piece)
            continue
        found += await _tokens(right, b"".join(held), last=token is None)
        held.clear()
        if token is not None:
            found.append(controls[token])
    if not found:
        raise InvalidRequestError(NOTHING)
    spelled = b"".join(right.decode_token(token) for token in found)
    _check_same(spelled, data[: len(spelled)] if _unfinished(data[len(spelled) :]) else data, right.info.name)
    return found


async def _tokens(model: LanguageModel, data: bytes, *, last: bool) -> list[int]:
    try:
        text = data.decode()
    except UnicodeDecodeError as fault:
        if not (last and _unfinished(data[fault.start :])):
            raise InvalidRequestError(
                f"the tokens' bytes are not UTF-8 (byte {fault.start:,}): another tokenizer cannot read them"
            ) from fault
        text = data[: fault.start].decode()
    return await model.tokenize_async(text) if text else []


async def _controls(left: LanguageModel, right: LanguageModel, pieces: dict[int, bytes]) -> dict[int, int]:
    """Tokens of `left` that no text is cut into, and the tokens of `right` that spell them."""
    alike = {token: data for token, data in pieces.items() if data.startswith(b"<") and data.endswith(b">")}
    if not alike:
        return {}
    wanted = set(alike.values())
    theirs = {data: token for token, data in enumerate(right.byte_vocab) if data in wanted}
    found: dict[int, int] = {}
    for token, data in alike.items():
        text, other = data.decode(errors="replace"), theirs.get(data)
        if other is not None and await left.tokenize_async(text) != [token]:
            found[token] = other
    return found


def _unfinished(data: bytes) -> bool:
    """Whether this is the beginning of one character, or nothing."""
    try:
        data.decode()
    except UnicodeDecodeError as fault:
        return fault.start == 0 and fault.reason == "unexpected end of data"
    return not data


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
    """With the engine, where that is what tells it from the other."""
    mine, theirs = model.info, other.info
    return f"{mine.name} on {mine.backend}" if mine.name == theirs.name and mine.backend != theirs.backend else mine.name


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
