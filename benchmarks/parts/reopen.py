"""W4: saves a long session and reopens it in another process; blocks written, bytes on the disk, times and stalls."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.clock import Told
from benchmarks.findings import EMBEDDED, BarVerdict, Case, Findings
from benchmarks.ours import one_thread
from benchmarks.sizes import Sizes
from runtime import GenerationOptions, LanguageModel, SamplingOptions, load
from storage import open_blocks

REOPEN, SAVE, DISK = "W4 reopen", "W4 save", "W4 disk"
LIMIT_BAR, COLD_BAR, LLAMA = 1.5, 0.08, 0.027
BLOCKS_BAR, ENGINE_BAR_MS, STALL_BAR_MS, DISK_BAR = 5, 100.0, 50.0, 1.3
TURN = 200  # tokens
TAIL, BRANCHES = 100, 10  # tokens of each branch of the stem on the disk; number of branches
NEW = 1  # tokens after the reopened session
PATIENCE_SECONDS = 900.0
BESIDE = 48  # tokens of the stream during a save
BUDGET = 8 << 30  # bytes of the block file


@dataclass(frozen=True, slots=True)
class ReopenSeconds:
    """Seconds of a process that reopened a saved session, see `benchmarks.children.reopen`."""

    reopen: float  # restoring the session and computing one token
    read: float  # reading the same bytes from the same file, with their SHA-256
    copy: float  # copying them in memory
    forward: float  # of one token after the session
    cold: float  # prefill of an unsaved session of the same length; 0: not measured
    computed: int  # tokens computed by `reopen`

    @property
    def limit(self) -> float:
        """Lower bound of `reopen`: reading, checking and copying the bytes, and computing a token."""
        return self.read + self.copy + self.forward


def reopen(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Uses the embedded model in a full run. A quick one uses the case's, without times: they would be mostly Python's.

    Bytes on the disk, relative to the KV, do not depend on the model: they are counted on the case's.
    """
    own, where = case, str(case.folder)
    if sizes.reopen_embedded:
        case = replace(case, model=EMBEDDED)
    source = EMBEDDED if sizes.reopen_embedded else where
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as made:
        file = Path(made) / "blocks.db"
        tell(f"{REOPEN}: loading")
        saved = _save(case, source, file, sizes, tell)
        opened: list[ReopenSeconds] = []
        for lap in range(min(sizes.rounds, sizes.reopen_processes)):
            tell(f"{REOPEN}: process {lap + 1}")
            opened.append(_in_another_process(case, source, file, sizes, cold=lap == 0 and sizes.reopen_embedded))
        tell(DISK)
        disk = _disk(own, where, Path(made) / "disk.db", sizes.disk_stem)
    return Findings(verdicts=(*_reopened(case, opened, timed=sizes.reopen_embedded), *saved, disk))


def ids_of(seed: int, n: int, vocabulary: int) -> list[int]:
    """Random token ids of a session."""
    ids: list[int] = np.random.default_rng(seed).integers(vocabulary, size=n).tolist()
    return ids


def session(tokens: int, turn: int, vocabulary: int) -> list[int]:
    """The session with its last turn, one of several alternatives by number."""
    return [*ids_of(1, tokens, vocabulary), *ids_of(10 + turn, TURN, vocabulary)]


def loading(backend: str, file: Path) -> dict[str, Any]:
    """Load options of both processes."""
    return {"blocks": {"factory": "storage:open_blocks", "path": str(file), "budget": BUDGET}, **one_thread(backend)}


def _reopened(case: Case, opened: list[ReopenSeconds], *, timed: bool) -> tuple[BarVerdict, ...]:
    verdict = partial(case.verdict, REOPEN)
    exact = verdict("tokens computed beyond the new ones", max(each.computed for each in opened) - NEW, 1, timed=False)
    if not timed:
        return (exact,)
    ratio = median(each.reopen / each.limit for each in opened)
    cold = opened[0].cold
    parts = ", ".join(f"{name} {median(getattr(each, name) for each in opened):.2f}" for name in ("read", "copy", "forward"))
    seconds = median(each.reopen for each in opened)
    return (
        verdict(f"{seconds:.2f} s / (read + hash, memcpy, one forward: {parts})", ratio, LIMIT_BAR),
        verdict(f"of cold prefill + first token, {cold:.1f} s (llama.cpp's slot file: {LLAMA})", seconds / cold, COLD_BAR),
        exact,
    )


def _in_another_process(case: Case, source: str, file: Path, sizes: Sizes, *, cold: bool) -> ReopenSeconds:
    """Runs `benchmarks.children.reopen`.

    Raises:
        RuntimeError: It failed; the message has the end of its stderr.
    """
    asked = json.dumps(
        {
            "source": source,
            "backend": case.backend,
            "file": str(file),
            "tokens": sizes.reopen_tokens,
            "turn": sizes.rounds - 1,
            "vocabulary": case.vocabulary,
            "cold": cold,
        }
    )
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.children.reopen", asked], capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    if done.returncode:
        raise RuntimeError(f"the process that opens the session again failed: {done.stderr[-2000:]}")
    return ReopenSeconds(**json.loads(done.stdout.splitlines()[-1]))


def _save(case: Case, source: str, file: Path, sizes: Sizes, tell: Told) -> tuple[BarVerdict, ...]:
    """Saves a session of the usual length; then, in each lap, adds a turn and saves it while a stream runs."""
    ids = ids_of(1, sizes.reopen_tokens, case.vocabulary)
    written, engine_ms, stalls = 0, 0.0, list[float]()  # longest stall of each lap in ms
    with closing(load(source, case.backend, **loading(case.backend, file))) as model:
        tell(f"{SAVE}: the session")
        model.cache_kv(ids)
        model.save_blocks(ids)
        for lap in range(sizes.rounds):
            tell(f"{SAVE}: turn {lap + 1}")
            turn = session(sizes.reopen_tokens, lap, case.vocabulary)
            model.cache_kv(turn)
            saved, stall = asyncio.run(_beside_a_stream(model, turn, case.vocabulary))
            written, engine_ms = max(written, saved.written), max(engine_ms, saved.engine_seconds * 1000)
            stalls.append(stall * 1000)
    stalled = f"ms a stream beside it waits longer for a token, the longest of a lap, median (the most: {max(stalls):.1f})"
    verdict = partial(case.verdict, SAVE)
    return (
        verdict(f"blocks written after a turn of {TURN} tokens", written, BLOCKS_BAR, timed=False),
        verdict("ms of engine time, the most of a lap", engine_ms, ENGINE_BAR_MS),
        verdict(stalled, median(stalls), STALL_BAR_MS),
    )


async def _beside_a_stream(model: LanguageModel, ids: list[int], vocabulary: int) -> tuple[Any, float]:
    """Saves `ids` during a stream.

    Returns the answer of `save_blocks_async`, and the seconds by which the longest gap between tokens during the save exceeds
    the median gap before it.
    """
    options = GenerationOptions(max_tokens=BESIDE, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)
    prompt = ids_of(99, 16, vocabulary)
    times: list[float] = []
    saving: asyncio.Task[Any] | None = None
    began = ended = 0.0

    async def save() -> Any:
        nonlocal ended
        saved = await model.save_blocks_async(ids)
        ended = time.perf_counter()
        return saved

    async for _ in model.generate(prompt, options):
        times.append(time.perf_counter())
        if len(times) == BESIDE // 3:
            began = time.perf_counter()
            saving = asyncio.create_task(save())
    assert saving is not None
    saved = await saving
    pairs = list(itertools.pairwise(times))
    beside = [b - a for a, b in pairs if b >= began and a <= ended]
    usual = median(b - a for a, b in pairs if b < began)
    return saved, max(max(beside, default=0.0) - usual, 0.0)


def _disk(case: Case, source: str, file: Path, length: int) -> BarVerdict:
    """Bytes on the disk of branches of one stem, over the KV bytes of each token once."""
    stem = ids_of(2, length, case.vocabulary)
    with closing(load(source, case.backend, **loading(case.backend, file))) as model:
        model.cache_kv(stem)
        model.save_blocks(stem)
        for branch in range(BRANCHES):
            path = [*stem, *ids_of(100 + branch, TAIL, case.vocabulary)]
            model.cache_kv(path)
            model.save_blocks(path)
        per_token = model.info.kv_bytes_per_token
    with closing(open_blocks(file, BUDGET, read_only=True)) as store:
        held = store.stats().bytes
    what = f"x the KV of {BRANCHES} tails of {TAIL} tokens and their stem of {length:,}, on disk"
    figure = held / (per_token * (length + BRANCHES * TAIL))
    return case.verdict(DISK, what, figure, DISK_BAR, timed=False)
