"""The KV store: bytes held, tokens computed where memory is short, unrelated texts in one call and one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.clock import Told
from benchmarks.findings import Case, Findings, Verdict
from benchmarks.sizes import Sizes
from runtime import LanguageModel, load

ROW = "kv"
STEM, TURNS, MESSAGE, ANSWER = 2000, 20, 30, 30  # tokens of a chat
PROMPTS, LENGTH = 192, 100  # unrelated texts


def store(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """The rows of one backend."""
    rng = np.random.default_rng(0)

    def text(n: int) -> list[int]:
        return [int(token) for token in rng.integers(5, case.vocabulary - 5, n)]

    def verdict(what: str, figure: float, bar: float, *, at_least: bool = False, timed: bool = False) -> Verdict:
        return Verdict(ROW, case.backend, case.model, what, figure, bar, at_least=at_least, timed=timed)

    share = 1 if sizes.rounds > 1 else 4  # a quick run has a quarter of each
    tell("kv: one chat")
    with closing(_opened(case.folder, case.backend)) as model:
        ids, held = _chat(model, text, STEM // share, TURNS // share)
        row = model.info.kv_bytes_per_token
        # the allocator's own copies while a buffer grows are in the peak
        verdicts = [verdict("peak KV held / KV of the chat's tokens", held / (len(ids) * row), 1.10)]
        chat_bytes = len(ids) * row
    tell("kv: one chat at 1.2 x its bytes")
    with closing(_opened(case.folder, case.backend, int(1.2 * chat_bytes))) as model:
        _answered(model, ids[:-1], 1)
        before = model.metrics().tokens_computed
        _answered(model, [*ids, *text(MESSAGE)], ANSWER)
        computed = model.metrics().tokens_computed - before
        verdicts.append(verdict("tokens of a turn at 1.2 x / new ones", computed / (MESSAGE + ANSWER), 1.0))
    tell("kv: unrelated prompts")
    texts = [text(LENGTH) for _ in range(PROMPTS // share)]
    with closing(_opened(case.folder, case.backend)) as model:
        model.batch_next_token_logprobs_sync([text(LENGTH) for _ in range(8)])

        def one_by_one() -> None:
            for each in texts:
                model.next_token_logprobs_sync(each)

        laps = [(_seconds(model, one_by_one), _seconds(model, lambda: model.batch_next_token_logprobs_sync(texts)))]
        laps.append((_seconds(model, one_by_one), _seconds(model, lambda: model.batch_next_token_logprobs_sync(texts))))
        ratio = max(alone / together for alone, together in laps)
        verdicts.append(verdict("unrelated prompts, tokens/s: one call / one by one", ratio, 1.0, at_least=True, timed=True))
    return Findings(verdicts=tuple(verdicts))


def _opened(folder: Path, backend: str, budget: int | None = None) -> LanguageModel:
    return load(folder, backend=backend, kv_cache_bytes=budget, threads=1 if backend == "hf" else None)


def _answered(model: LanguageModel, ids: list[int], count: int) -> list[int]:
    return list(asyncio.run(model.sample(ids, count, [], temperature=0.0)))


def _chat(model: LanguageModel, text: Callable[[int], list[int]], stem: int, turns: int) -> tuple[list[int], int]:
    """A chat that grows; its tokens, and the most bytes that were held."""
    ids = text(stem)
    for _ in range(turns):
        ids += text(MESSAGE)
        ids += _answered(model, ids, ANSWER)
    return ids, model.metrics().kv_peak_bytes


def _seconds(model: LanguageModel, act: Callable[[], Any]) -> float:
    model.clear_cache()
    started = time.perf_counter()
    act()
    return time.perf_counter() - started
