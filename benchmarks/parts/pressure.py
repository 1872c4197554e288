"""Unrelated requests side by side: chats, streams, texts, edges; KV read by branches, bytes copied to the host."""

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

from benchmarks.children.child import measure_in_child
from benchmarks.children.edges import FEW, PAUSE_SECONDS
from benchmarks.clock import Lap, Stopwatch, Told, cpu, share, take_turns, wall
from benchmarks.findings import Case, Findings, Limit, timings
from benchmarks.forwards import FORWARDS, forwards_alone
from benchmarks.forwards import LIMIT as FORWARDS_LIMIT
from benchmarks.measure import Ids
from benchmarks.ours import Ours, open_model
from benchmarks.parts.decode import embedded
from benchmarks.parts.gpu import crossing
from benchmarks.sizes import Sizes
from benchmarks.tiny import make_tiny
from runtime import GenerationOptions, LanguageModel, SamplingOptions, register_backend, unregister_backend

OURS = Ours.name
CHATS_ROW, STREAMS_ROW, TEXTS_ROW, EDGES_ROW = "two chats", "streams", "texts", "edges"
READ_ROW, CROSSED_ROW = "branches read", "host bytes"
LAYERS = 24  # of the chats' model; with a token per byte, it holds mostly KV, few bytes of logits
QUERY = 8  # tokens
ROOM = 1.5  # KV budget over the KV of one chat: two do not fit
STREAMS, PROMPT, NEW = 8, 256, 64
BARE, BARE_LIMIT = (
    "transformers, bare loop",
    "a bare loop of the library's forwards with its own cache, no records and nothing around",
)
LENGTH, PADDED_ROWS, TOP = 30, 20, 10
STEM, BRANCHES = 1500, 8
SCORED = ((1, 1000), (8, LENGTH))  # number of texts, tokens of each
STAYING = "bench-staying"
AT_ONCE, CHUNK = 1e6, 2048  # speed given to the scheduler in tokens per second; tokens of one forward

Text = Callable[[int], list[int]]  # makes a random text of that many tokens


def pressure(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """All rows of one backend."""
    text = partial(_text, np.random.default_rng(12), case.vocabulary)
    found = _two_chats(case, sizes, tell)
    found += _streams(case, text, sizes.rounds, tell)
    found += _branches_read(case, text, tell)
    found += _edges(case, sizes, tell)
    found += _host_bytes(case, sizes.words, tell)
    if case.backend == "hf":
        found += _texts(embedded(case) if sizes.reopen_embedded else case, text, sizes.texts, tell)
    return found


def _text(rng: np.random.Generator, vocabulary: int, n: int) -> list[int]:
    ids: list[int] = rng.integers(5, vocabulary - 5, n).tolist()
    return ids


@contextmanager
def _tiny(case: Case, **sizes: Any) -> Iterator[tuple[Path, int]]:
    """Makes a tiny model of the case's architecture with a token per byte; its folder and the size of its vocabulary."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "tiny"
        yield folder, make_tiny(case.model.removeprefix("tiny-") if case.tiny else "llama", folder, **sizes)


# ---- more chats than fit ------------------------------------------------------------------------------------------------


def _two_chats(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """One chat is answered while the other waits for memory; meanwhile a small query arrives."""
    verdict = partial(case.verdict, CHATS_ROW)
    with _tiny(case, layers=LAYERS) as (folder, vocabulary):
        text = partial(_text, np.random.default_rng(13), vocabulary)
        chats, new = [text(sizes.pressed_chat) for _ in range(2)], sizes.pressed_answer
        tell(f"{CHATS_ROW}: loading")
        with closing(open_model(folder, case.backend)) as model:
            model.set_kv_budget(int(ROOM * (sizes.pressed_chat + new) * model.info.kv_bytes_per_token))
            asyncio.run(_answered(model, chats[0], new))  # warm-up: the first answer is slow
            alone, slow, waits = [], [], []
            before = 0
            for lap in range(sizes.pressed_laps):
                tell(f"{CHATS_ROW}, lap {lap + 1}")
                model.clear_cache()
                alone.append(asyncio.run(_answered(model, chats[0], new)))
                model.clear_cache()
                before = model.metrics().tokens_computed
                seconds, waited = asyncio.run(_beside(model, chats, new, text(QUERY)))
                slow.append(seconds)
                waits.append(waited)
            computed = model.metrics().tokens_computed - before
        needed = 2 * (sizes.pressed_chat + new - 1) + QUERY
    return Findings(
        verdicts=(
            verdict(f"tokens computed / needed, room for {ROOM} of them", computed / needed, 1.5, timed=False),
            verdict("seconds of the running one / alone", median(a / b for a, b in zip(slow, alone, strict=True)), 1.3),
            verdict(f"s that a query of {QUERY} tokens takes while the other one waits", median(waits), 0.1),
        )
    )


async def _answered(model: LanguageModel, prompt: Ids, n: int, begun: asyncio.Event | None = None) -> float:
    """Seconds from the first token to the last."""
    options = GenerationOptions(max_tokens=n, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)
    started = 0.0
    async with aclosing(model.generate(prompt, options)) as records:
        async for _ in records:
            if not started:
                started = time.perf_counter()
                if begun is not None:
                    begun.set()
    return time.perf_counter() - started


async def _beside(model: LanguageModel, chats: Sequence[Ids], n: int, query: Ids) -> tuple[float, float]:
    """Seconds of the first chat's answer, and of a query that arrives while the second chat waits."""
    begun, second = asyncio.Event(), asyncio.Event()
    first = asyncio.create_task(_answered(model, chats[0], n, begun))
    await begun.wait()
    other = asyncio.create_task(_answered(model, chats[1], n, second))
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


def _streams(case: Case, text: Text, rounds: int, tell: Told) -> Findings:
    """Eight streams; the peer has all cores, Elsewise one: two OpenMP pools would have more threads than there are cores."""
    prompts = [text(PROMPT) for _ in range(STREAMS)]
    tell(f"{STREAMS_ROW}: loading")
    peer: Any
    if case.backend == "hf":
        from benchmarks.peers.torch_peers import TorchStreams

        peer, name, bar = TorchStreams(case.folder), "transformers.generate, one batch", 0.6
        theirs = {name: partial(peer.together, prompts, NEW), BARE: partial(peer.together, prompts, NEW, bare=True)}
        least, why = BARE, BARE_LIMIT
    else:
        from benchmarks.peers.mlx_peers import MlxPromptCache

        peer, name, bar = MlxPromptCache(case.folder), "mlx_lm's BatchGenerator", 1.0
        theirs = {name: partial(_lap, peer, prompts)}
        least, why = FORWARDS, FORWARDS_LIMIT
    with closing(Ours(case.folder, case.backend)) as ours, closing(peer):
        run = partial(_lap, ours, prompts)
        contenders: dict[str, Callable[[], Lap]] = {OURS: run, **theirs}
        if least == FORWARDS:
            contenders[FORWARDS] = partial(forwards_alone, ours.model, run)
        laps = take_turns(contenders, rounds, tell, row=STREAMS_ROW)
    limit = Limit(share(laps[least], laps[name], wall), why)
    what = f"wall / {name}: {STREAMS} x ({PROMPT} + {NEW}) tokens"
    verdict = case.verdict(STREAMS_ROW, what, share(laps[OURS], laps[name], wall), bar, limit=limit)
    return Findings(timings=timings(STREAMS_ROW, case, laps), verdicts=(verdict,))


def _lap(subject: Any, prompts: Sequence[Ids]) -> Lap:
    subject.forget()
    watch = Stopwatch().start()
    return watch.lap(STREAMS * NEW, subject.answers(prompts, NEW))


def _texts(case: Case, text: Text, count: int, tell: Told) -> Findings:
    """CPU seconds of unrelated texts in one call, compared with batches of transformers."""
    from benchmarks.peers.torch_peers import TorchStreams

    rows = [text(LENGTH) for _ in range(count)]
    tell(f"{TEXTS_ROW}: loading")
    found = Findings()
    with closing(open_model(case.folder, case.backend)) as model, closing(TorchStreams(case.folder)) as peer:
        name = f"transformers, batches of {PADDED_ROWS}"

        def query() -> Any:
            return model.batch_next_token_logprobs_sync(rows)

        def score() -> Any:
            return list(model.score_many_sync(rows, TOP))

        def theirs(*, scores: bool) -> None:
            for at in range(0, count, PADDED_ROWS):
                peer.batch(rows[at : at + PADDED_ROWS], scores=scores)

        def lap(act: Callable[[], Any]) -> Lap:
            model.clear_cache()
            watch = Stopwatch().start()
            act()
            return watch.lap(count * LENGTH)

        for what, own, scores in (("queries", query, False), ("scores", score, True)):
            contenders = {OURS: partial(lap, own), name: partial(lap, partial(theirs, scores=scores))}
            contenders[FORWARDS] = partial(forwards_alone, model, contenders[OURS])
            laps = take_turns(contenders, 2, tell, row=f"{TEXTS_ROW}, {what}")
            figure, least = (share(laps[who], laps[name], cpu) for who in (OURS, FORWARDS))
            verdict = case.verdict(TEXTS_ROW, f"{what}: cpu / {name}", figure, 1.0, limit=Limit(least, FORWARDS_LIMIT))
            found += Findings(timings=timings(f"{TEXTS_ROW}, {what}", case, laps), verdicts=(verdict,))
    return found


# ---- many edges, KV read by attention, bytes copied to the host ----------------------------------------------------------


def _edges(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Time of a query with many edges in the KV store, and in a large batch; bytes per edge that the budget does not count."""
    tell(EDGES_ROW)
    with _tiny(case) as (folder, vocabulary):
        given = folder, case.backend, vocabulary, sizes.edges, sizes.edge_queries
        found = measure_in_child("benchmarks.children.edges", *given, what="what edges take was")
    if not found:
        return Findings()
    verdict, edges, held, counted = partial(case.verdict, EDGES_ROW), found["edges"], found["held"], found["counted"]
    what = f"query after {PAUSE_SECONDS * 1000:.0f} ms: {edges:,} edges / none"
    verdicts = [
        verdict(what, found["full"] / found["empty"], 1.5),
        verdict(f"a query of a batch: {sizes.edge_queries:,} / {FEW}", found["many"] / found["few"], 1.3),
    ]
    if held:
        verdicts.append(verdict("bytes an edge takes beyond what the budget counts", (held - counted) / edges, 300.0))
        verdicts.append(verdict("bytes that the process holds / that the budget counts", held / counted, 1.1))
    return Findings(verdicts=tuple(verdicts))


def _host_bytes(case: Case, words: int, tell: Told) -> Findings:
    """Bytes copied to the host per scored token, as on a GPU: logits stay on the device, forwards are as large as allowed."""
    load = import_module(f"runtime.backends.{case.backend}.backend").load

    def staying(*given: Any) -> Any:
        backend = load(*given)
        backend.on_device, backend.unified, backend.speed = True, case.backend == "mlx", AT_ONCE
        return backend

    verdicts = []
    tell(f"{CROSSED_ROW}: loading")
    register_backend(STAYING, staying)
    with _tiny(case, words=words) as (folder, vocabulary):
        try:
            model = open_model(folder, STAYING, prefill_chunk_tokens=CHUNK)
        finally:
            unregister_backend(STAYING)
        with closing(model):
            text = partial(_text, np.random.default_rng(14), vocabulary)
            for count, length in SCORED:
                tell(f"{CROSSED_ROW}: {length} tokens")
                texts = [text(length) for _ in range(count)]
                with crossing(case.backend) as crossed:
                    list(model.score_many_sync(texts, TOP))
                what = f"host bytes a scored token at a vocabulary of {vocabulary:,}, texts of {length:,}"
                verdicts.append(case.verdict(CROSSED_ROW, what, sum(crossed) / (count * length), 2048.0, timed=False))
    return Findings(verdicts=tuple(verdicts))


def _branches_read(case: Case, text: Text, tell: Told) -> Findings:
    """Bytes of keys and values passed to attention per step of eight branches, over the KV bytes of stem and branches."""
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
    """Collects the bytes of keys and values passed to each call of the library's attention, with all repetitions."""
    where = "runtime.backends.hf.forward" if backend == "hf" else "mlx.core.fast"
    name = "scaled_dot_product_attention"
    plain, handed = getattr(import_module(where), name), list[int]()

    def attend(query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any:
        handed.append(key.nbytes + value.nbytes)
        return plain(query, key, value, *args, **named)

    with mock.patch(f"{where}.{name}", attend):
        yield handed
