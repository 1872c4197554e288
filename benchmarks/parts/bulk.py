"""Many texts at once: `score_many` compared with padded batches of the library, for unrelated texts and a shared prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing
from functools import partial
from typing import Any

import numpy as np

from benchmarks.clock import Lap, Stopwatch, Told, cpu, speed, take_turns
from benchmarks.findings import Case, Findings, timings
from benchmarks.measure import Ids
from benchmarks.ours import open_model
from benchmarks.sizes import Sizes
from runtime import LanguageModel

UNRELATED, SHARED = "bulk unrelated", "bulk shared"
OURS = "elsewise, score_many"
PADDED = {"hf": "transformers, padded batches by length", "mlx": "mlx_lm, padded batches by length"}
SHORTEST, LONGEST = 20, 80  # tokens of an unrelated text
PREFIX, SUFFIX = 256, 16  # tokens of texts with a shared prefix
PADDED_ROWS = 16
TOP = 10
UNRELATED_BAR, SHARED_BAR = 1.0, 3.0  # least throughput relative to the peer's


def bulk(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Throughput per CPU second of Elsewise and the peer; both return each token's log-probability and the ten largest."""
    rng = np.random.default_rng(11)
    n = sizes.bulk_texts if case.tiny else max(sizes.bulk_texts // 4, 4)
    unrelated = [_ids(rng, case, length) for length in rng.integers(SHORTEST, LONGEST, n).tolist()]
    prefix = _ids(rng, case, PREFIX)
    shared = [[*prefix, *_ids(rng, case, SUFFIX)] for _ in range(n)]
    found = Findings()
    tell("bulk: loading")
    with closing(open_model(case.folder, case.backend)) as model, asyncio.Runner() as runner:
        peer = (_torch if case.backend == "hf" else _mlx)(case)

        def lap(texts: Sequence[Ids]) -> Lap:
            return runner.run(_lap(model, texts))

        for row, texts, bar in ((UNRELATED, unrelated, UNRELATED_BAR), (SHARED, shared, SHARED_BAR)):
            before = model.metrics().tokens_computed
            lap(texts)
            pushed = model.metrics().tokens_computed - before
            needed = sum(map(len, texts)) if row == UNRELATED else PREFIX + n * SUFFIX
            contenders: dict[str, Callable[[], Lap]] = {
                OURS: partial(lap, texts),
                PADDED[case.backend]: partial(peer, texts),
            }
            laps = take_turns(contenders, sizes.rounds, tell, row=row)
            ratio = speed(laps[OURS], laps[PADDED[case.backend]], cpu)
            verdicts = (
                case.verdict(row, f"throughput / {PADDED[case.backend]}", ratio, bar, at_least=True),
                case.verdict(row, "tokens computed / needed", pushed / needed, 1.0, timed=False),
            )
            found += Findings(timings=timings(row, case, laps), verdicts=verdicts)
    return found


def _ids(rng: np.random.Generator, case: Case, n: int) -> list[int]:
    ids: list[int] = rng.integers(case.vocabulary, size=n).tolist()
    return ids


async def _lap(model: LanguageModel, texts: Sequence[Ids]) -> Lap:
    await model.clear_cache_async()
    watch = Stopwatch().start()
    tokens = 0
    async with aclosing(model.score_many(texts, TOP)) as runs:
        async for _, run in runs:
            tokens += len(run)
    return watch.lap(tokens)


def _batches(texts: Sequence[Ids]) -> Iterator[tuple[np.ndarray[Any, Any], list[int]]]:
    """Yields batches of texts of similar length: ids ``(rows, longest) int64``, padded at the end, and the lengths."""
    ordered = sorted(texts, key=len)
    for at in range(0, len(ordered), PADDED_ROWS):
        rows = ordered[at : at + PADDED_ROWS]
        ids = np.zeros((len(rows), len(rows[-1])), np.int64)
        for row, text in zip(ids, rows, strict=True):
            row[: len(text)] = text
        yield ids, [len(text) for text in rows]


def _torch(case: Case) -> Callable[[Sequence[Ids]], Lap]:
    import torch

    from benchmarks.peers.torch_peers import TransformersModel

    peer = case.loaded.get("bulk", lambda: TransformersModel(case.folder))

    def run(texts: Sequence[Ids]) -> Lap:
        watch = Stopwatch().start()
        with torch.inference_mode():
            for ids, lengths in _batches(texts):
                tokens = peer.tensor(ids.tolist())
                mask = torch.tensor([[int(at < length) for at in range(ids.shape[1])] for length in lengths])
                logits = peer.model(input_ids=tokens, attention_mask=mask.to(tokens.device), use_cache=False).logits
                for row, length in enumerate(lengths):
                    logprobs = torch.log_softmax(logits[row, : length - 1].float(), -1)
                    values, found = logprobs.topk(TOP)
                    for column in (logprobs.gather(1, tokens[row, 1:length, None]), values, found):
                        column.cpu().numpy()
        return watch.lap(sum(map(len, texts)))

    return run


def _mlx(case: Case) -> Callable[[Sequence[Ids]], Lap]:
    import mlx.core as mx
    from mlx_lm.utils import load_model

    from benchmarks.peers.bare import log_softmax, top

    model, _ = load_model(case.folder)

    def run(texts: Sequence[Ids]) -> Lap:
        watch = Stopwatch().start()
        for ids, lengths in _batches(texts):  # causal attention: no token sees the padding after its text
            logits = model(mx.array(ids.astype(np.int32)))
            mx.eval(logits)
            for row, length in enumerate(lengths):
                logprobs = log_softmax(np.array(logits[row, : length - 1].astype(mx.float32)))
                np.take_along_axis(logprobs, ids[row, 1:length, None], -1)
                top(logprobs)
        return watch.lap(sum(map(len, texts)))

    return run
