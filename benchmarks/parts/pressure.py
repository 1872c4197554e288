"""Requests beside others that are nothing to them: too many chats, streams, texts, edges; what eight branches read."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.children.view import resident_bytes
from benchmarks.clock import Lap, Stopwatch, Told, cpu, take_turns, wall
from benchmarks.findings import Case, Findings, timings
from benchmarks.measure import Ids
from benchmarks.ours import Ours, open_model
from benchmarks.parts.decode import embedded
from benchmarks.sizes import Sizes
from benchmarks.tiny import make_tiny
from runtime import GenerationOptions, LanguageModel, SamplingOptions

OURS = Ours.name
CHATS_ROW, STREAMS_ROW, TEXTS_ROW, EDGES_ROW, READ_ROW = "two chats", "streams", "texts", "edges", "branches read"
LAYERS = 24  # of the chats' model: with a token per byte its KV, not its logits, is what is held
CHAT, ANSWER, QUERY = 1000, 200, 8  # tokens
ROOM = 1.5  # times the KV of one chat: there is none for two
STREAMS, PROMPT, NEW = 8, 256, 64
TEXTS, LENGTH, PADDED_ROWS, TOP = 100, 30, 20, 10
FEW, MANY = 256, 16_384  # queries of one batch
EDGES = 120_000
PAUSE_SECONDS, PAUSES = 0.013, 15
STEM, BRANCHES = 1500, 8


def pressure(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """The rows of one backend."""
    share = 1 if sizes.reopen_embedded else 8  # a quick run has fewer edges
    rng = np.random.default_rng(12)

    def text(n: int, vocabulary: int = case.vocabulary) -> list[int]:
        ids: list[int] = rng.integers(5, vocabulary - 5, n).tolist()
        return ids

    found = _two_chats(case, text, tell)
    found += _streams(case, text, sizes.rounds, tell)
    found += _branches_read(case, text, tell)
    found += _edges(case, text, share, tell)
    if case.backend == "hf" and sizes.reopen_embedded:
        found += _texts(embedded(case), text, tell)
    return found


# ---- more chats than fit ------------------------------------------------------------------------------------------------


def _two_chats(case: Case, text: Callable[..., list[int]], tell: Told) -> Findings:
    """One answers, the other waits for its room, and a small query comes meanwhile."""
    verdict = partial(case.verdict, CHATS_ROW)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / case.model
        byte_text = partial(text, vocabulary=make_tiny(case.model.removeprefix("tiny-"), folder, layers=LAYERS))
        chats = [byte_text(CHAT) for _ in range(2)]
        tell(f"{CHATS_ROW}: loading")
        with closing(open_model(folder, case.backend)) as model:
            one = (CHAT + ANSWER) * model.info.kv_bytes_per_token
        with closing(open_model(folder, case.backend, kv_cache_bytes=int(ROOM * one))) as model:
            asyncio.run(_answered(model, chats[0]))  # the first answer is slow
            alone, slow, waits = [], [], []
            before = 0
            for lap in range(3):
                tell(f"{CHATS_ROW}, lap {lap + 1}")
                model.clear_cache()
                alone.append(asyncio.run(_answered(model, chats[0])))
                model.clear_cache()
                before = model.metrics().tokens_computed
                seconds, waited = asyncio.run(_beside(model, chats, byte_text(QUERY)))
                slow.append(seconds)
                waits.append(waited)
            computed = model.metrics().tokens_computed - before
        needed = 2 * (CHAT + ANSWER - 1) + QUERY
    return Findings(
        verdicts=(
            verdict(f"tokens computed / needed, room for {ROOM} of them", computed / needed, 1.5, timed=False),
            verdict("seconds of the running one / alone", median(a / b for a, b in zip(slow, alone, strict=True)), 1.3),
            verdict(f"s that a query of {QUERY} tokens takes while the other one waits", median(waits), 0.1),
        )
    )


async def _answered(model: LanguageModel, prompt: Ids, begun: asyncio.Event | None = None) -> float:
    """Seconds from the first token to the last."""
    options = GenerationOptions(max_tokens=ANSWER, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)
    started = 0.0
    async with aclosing(model.generate(prompt, options)) as records:
        async for _ in records:
            if not started:
                started = time.perf_counter()
                if begun is not None:
                    begun.set()
    return time.perf_counter() - started


async def _beside(model: LanguageModel, chats: Sequence[Ids], query: Ids) -> tuple[float, float]:
    """Seconds of the first chat's answer, and of the query that comes while the second one waits."""
    begun, second = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(_answered(model, chats[0], begun))
    await begun.wait()
    other = asyncio.create_task(_answered(model, chats[1], second))
    await asyncio.sleep(0.05)
    started = time.perf_counter()
    await model.next_token_logprobs(query)
    waited = time.perf_counter() - started
    if second.is_set():
        raise RuntimeError("both chats had room")
    seconds = await first
    await other
    return seconds, waited


# ---- streams and texts beside a library's own batches -----------------------------------------------------------------


def _streams(case: Case, text: Callable[..., list[int]], rounds: int, tell: Told) -> Findings:
    """Each on the threads that it takes where nothing is said."""
    prompts = [text(PROMPT) for _ in range(STREAMS)]
    tell(f"{STREAMS_ROW}: loading")
    peer: Any
    if case.backend == "hf":
        from benchmarks.peers.torch_peers import Stateless

        peer, name, bar = Stateless(case.folder), "transformers.generate, one batch", 0.6
    else:
        from benchmarks.peers.mlx_peers import MlxPromptCache

        peer, name, bar = MlxPromptCache(case.folder), "mlx_lm's BatchGenerator", 1.0
    own = {"threads": None} if case.backend == "hf" else {}
    with closing(Ours(case.folder, case.backend, **own)) as ours, closing(peer):
        answer = peer.together if case.backend == "hf" else peer.answers
        contenders = {OURS: partial(_lap, ours, ours.answers, prompts), name: partial(_lap, peer, answer, prompts)}
        laps = take_turns(contenders, rounds, tell, row=STREAMS_ROW)
    what = f"wall / {name}: {STREAMS} x ({PROMPT} + {NEW}) tokens"
    return Findings(
        timings=timings(STREAMS_ROW, case, laps), verdicts=(case.verdict(STREAMS_ROW, what, _share(laps, name, wall), bar),)
    )


def _lap(subject: Any, answers: Callable[[Sequence[Ids], int], list[list[int]]], prompts: Sequence[Ids]) -> Lap:
    subject.forget()
    watch = Stopwatch().start()
    return watch.lap(STREAMS * NEW, answers(prompts, NEW))


def _share(laps: dict[str, list[Lap]], peer: str, seconds: Callable[[Lap], float]) -> float:
    """Of the peer's seconds, the median of the rounds."""
    return median(seconds(a) / seconds(b) for a, b in zip(laps[OURS], laps[peer], strict=True))


def _texts(case: Case, text: Callable[..., list[int]], tell: Told) -> Findings:
    """The cpu-seconds of unrelated texts in one call, beside padded batches of transformers."""
    from benchmarks.peers.torch_peers import TorchStreams

    rows = [text(LENGTH, 40_000) for _ in range(TEXTS)]
    tell(f"{TEXTS_ROW}: loading")
    found = Findings()
    with closing(open_model(case.folder, case.backend)) as model, closing(TorchStreams(case.folder)) as peer:
        name = f"transformers, batches of {PADDED_ROWS}"

        def query() -> Any:
            return model.batch_next_token_logprobs_sync(rows)

        def score() -> Any:
            return list(model.score_many_sync(rows, TOP))

        def theirs(*, scores: bool) -> None:
            for at in range(0, TEXTS, PADDED_ROWS):
                peer.batch(rows[at : at + PADDED_ROWS], scores=scores)

        for what, own, scores in (("queries", query, False), ("scores", score, True)):
            contenders = {OURS: partial(_worked, model, own), name: partial(_worked, None, partial(theirs, scores=scores))}
            laps = take_turns(contenders, 2, tell, row=f"{TEXTS_ROW}, {what}", warm_up=False)
            verdict = case.verdict(TEXTS_ROW, f"{what}: cpu / {name}", _share(laps, name, cpu), 1.0)
            found += Findings(timings=timings(f"{TEXTS_ROW}, {what}", case, laps), verdicts=(verdict,))
    return found


def _worked(model: LanguageModel | None, act: Callable[[], Any]) -> Lap:
    if model is not None:
        model.clear_cache()
    watch = Stopwatch().start()
    act()
    return watch.lap(TEXTS * LENGTH)


# ---- many edges, many queries -------------------------------------------------------------------------------------------


def _edges(case: Case, text: Callable[..., list[int]], share: int, tell: Told) -> Findings:
    """What a query costs beside many edges, and in a large batch; what an edge takes beside what the budget counts."""
    edges, many = EDGES // share, MANY // share
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / case.model
        byte_text = partial(text, vocabulary=make_tiny(case.model.removeprefix("tiny-"), folder))
        tell(f"{EDGES_ROW}: none")
        with closing(open_model(folder, case.backend, kv_cache_bytes=4 << 30)) as model:

            def seconds(n: int) -> float:
                """Of one query in a batch of `n`, none of which was asked before."""
                contexts = [byte_text(4) for _ in range(n)]
                started = time.perf_counter()
                model.batch_top_logprobs_sync(contexts, 1)
                return (time.perf_counter() - started) / n

            def paused() -> float:
                """A query after a pause, the median of several."""
                found = []
                for _ in range(PAUSES):
                    time.sleep(PAUSE_SECONDS)
                    found.append(seconds(1))
                return median(found)

            seconds(many), model.clear_cache()  # what a first batch allocates
            before = resident_bytes() - model.metrics().kv_bytes
            empty = paused()
            small, large = [], []
            while model.cache_report().edges < edges:
                tell(f"{EDGES_ROW}: {model.cache_report().edges:,}")
                small.append(median(seconds(FEW) for _ in range(5)))
                large.append(seconds(many))
            full, held = paused(), model.cache_report().edges
            beyond = resident_bytes() - model.metrics().kv_bytes - before
    verdict = partial(case.verdict, EDGES_ROW)
    return Findings(
        verdicts=(
            verdict(f"query after {PAUSE_SECONDS * 1000:.0f} ms: {held:,} edges / none", full / empty, 1.5),
            verdict(f"a query of a batch: {many:,} / {FEW}", median(large) / median(small), 1.3),
            verdict("bytes an edge takes beyond what the budget counts", beyond / held, 300.0),
        )
    )


def _branches_read(case: Case, text: Callable[..., list[int]], tell: Told) -> Findings:
    """What attention is handed of keys and values in one step of eight branches, against what the family holds."""
    tell(READ_ROW)
    stem = text(STEM)
    with closing(Ours(case.folder, case.backend)) as ours:
        ours.logprobs([stem])
        before = ours.metrics.forward_calls
        with _attention(case.backend) as handed:
            ours.answers([[*stem, *text(1)] for _ in range(BRANCHES)], NEW)
        steps = ours.metrics.forward_calls - before
        family = (STEM + BRANCHES * NEW // 2) * ours.kv_bytes_per_token
    what = f"bytes of keys and values a step / the family's, {BRANCHES} branches of {STEM:,} tokens"
    return Findings(verdicts=(case.verdict(READ_ROW, what, sum(handed) / steps / family, 1.2, timed=False),))


@contextmanager
def _attention(backend: str) -> Iterator[list[int]]:
    """The bytes of keys and values that each call of the library's attention is handed, those that it repeats as often."""
    where = "runtime.backends.hf.forward" if backend == "hf" else "mlx.core.fast"
    name = "scaled_dot_product_attention"
    plain, handed = getattr(import_module(where), name), list[int]()

    def attend(query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any:
        handed.append(key.nbytes + value.nbytes)
        return plain(query, key, value, *args, **named)

    with mock.patch(f"{where}.{name}", attend):
        yield handed
