"""Sessions of chat, branch, cancel, close and reopen, for minutes: no resource of the process grows.

Real model, runtime, storage and use cases. After each round (two sessions, opened and closed twice, each time by a workbench
and a store of their own) the process is measured. Of each resource the second half of the run is divided into
`BLOCKS` pieces; a line through their medians has a slope and a standard error. It fails when the slope is above `DEVIATIONS`
errors and the growth that it implies for that half is above the resource's own grain: one for counts; for bytes, which
malloc frees by the arena, one per cent, or 16 MiB in a short run, which is still warming up. Leases, pins and requests
must be zero after every round. Edges and memory rise with each model and end with it: of edges the largest of its rounds
counts, of memory the smallest, since MKL takes another 5 MB in some round of each model; a leak raises them all.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from app.workbench.tree.session import OpenSession
from app.workbench.tree.tree import Tree
from runtime import BlockOptions, GenerationOptions, LanguageModel, SamplingOptions, TokenRun, load
from runtime.kv.trie import Lease
from storage import BlockFile, SessionStore
from tests.app.workbench.scene import Engine, Scene, alternative, own_tokens
from tests.fakes import settled
from tests.reliability.cancels import resident
from tests.reliability.suite import Order, Tally
from tests.tiny_models import tiny_path
from ui import Event, TokensArrived, TurnStatus

TOGETHER = 2  # sessions at once
RELOAD = 10  # rounds with one loaded model; then it is closed, and the next one reads the block file: sessions reopen from it
OPTIONS = GenerationOptions(max_tokens=4, sampling=SamplingOptions(temperature=0.9), seed=11)
LONG = 64  # length limit of an answer that is stopped at its first token
KV_BYTES, BLOCK_BYTES = 4 << 20, 8 << 20
WATCHED = (AppWorkbench, OpenSession, Tree, SessionStore, Supervisor, LanguageModel, BlockFile, Lease, TokenRun)
WHICH: dict[str, Callable[[list[int]], int]] = {"edges": max, "memory": min}  # of a model's rounds is counted
BLOCKS, DEVIATIONS = 10, 5.0
WARM, WARMING_BYTES = 200, 16 << 20  # rounds of a run that is not short, and the growth that a short one may have
FEWEST = 4 * BLOCKS  # rounds that a verdict needs, however slow the machine is


@dataclass
class Kept:
    """A model that outlives the workbenches that use it, so that leaks of one workbench reach the next."""

    folder: Path
    model: LanguageModel | None = None
    restored: int = 0
    saved: int = 0

    async def __call__(self, *_: Any, **__: Any) -> LanguageModel:
        if self.model is None:
            blocks = BlockOptions("storage:open_blocks", str(self.folder / "blocks.db"), BLOCK_BYTES)
            load_it = asyncio.to_thread(
                load, str(tiny_path("llama")), backend="hf", blocks=blocks, kv_cache_bytes=KV_BYTES, threads=1
            )
            self.model = await load_it
        return cast("LanguageModel", _Lent(self.model))

    def end(self) -> None:
        if self.model is not None:
            self.restored += self.model.metrics().tokens_restored
            self.saved += self.model.metrics().blocks_saved
            self.model.close()
            self.model = None


class _Lent:
    """The model, which its borrower does not close."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def close_async(self, *, within: float | None = None) -> None:
        """Returned, not closed."""


@dataclass
class Soak:
    """One run. `held` has, for each resource, its amount after each round."""

    folder: Path
    engine: Kept
    held: dict[str, list[int]] = field(default_factory=dict)
    rounds: int = 0
    cancelled: int = 0
    wrong: list[str] = field(default_factory=list)

    def scene(self) -> Scene:
        store = SessionStore.open(self.folder / "sessions.db")
        blocks = {"path": str(self.folder / "blocks.db")}
        workbench = AppWorkbench(Services(store, Supervisor("x", start=self.engine, blocks=blocks), OPTIONS))
        scene = Scene(store.path, Engine(), store, workbench, [], {})
        scene.workbench.subscribe(scene.events.append)
        return scene

    async def play(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.rounds < FEWEST:
            scene = self.scene()
            ids = [await scene.new() for _ in range(TOGETHER)]
            await asyncio.gather(*(self.chat(scene, session_id) for session_id in ids))
            await scene.workbench.close()
            if self.rounds % RELOAD == RELOAD // 2:
                self.engine.end()  # later reads come from the disk
            scene = self.scene()
            for session_id in ids:
                await self.reopen(scene, session_id)
            await scene.workbench.close()
            del scene
            self.rounds += 1
            self.look()

    async def chat(self, scene: Scene, session_id: int) -> None:
        workbench = scene.workbench
        await workbench.answers.send(
            session_id, f"message {self.rounds} of session {session_id}, which tells of this and of that"
        )
        answer = await scene.last(session_id)
        if len(own_tokens(answer)) > 1:
            at = own_tokens(answer)[1]
            await workbench.answers.branch(session_id, answer.node_id, at, alternative(answer, at))

        def stop(event: Event) -> None:
            if isinstance(event, TokensArrived) and event.session_id == session_id:
                workbench.answers.stop(session_id)

        workbench.subscribe(stop)
        await workbench.setup.set_option(session_id, "max_tokens", LONG)
        await workbench.answers.send(session_id, "and then?")
        await workbench.setup.set_option(session_id, "max_tokens", None)
        stopped = (await scene.last(session_id)).note == "stopped"  # other sessions count meanwhile
        self.cancelled += stopped

    async def reopen(self, scene: Scene, session_id: int) -> None:
        view = await scene.view(session_id)
        assert len([turn for turn in view.turns if turn.role == "user"]) == 2
        assert TurnStatus.DAMAGED not in {turn.status for turn in view.turns}
        if session_id % TOGETHER:
            await scene.workbench.answers.send(session_id, "go on")

    def look(self) -> None:
        """The resources that the process holds now."""
        assert self.engine.model is not None
        metrics, report = settled(self.engine.model)
        kept = report.leases + report.leased_bytes + report.pins + metrics.requests_active
        if kept:
            self.wrong.append(
                f"round {self.rounds}: {report.leases} leases, {report.pins} pins, {metrics.requests_active} requests"
            )
        bytes_held = resident()  # collects garbage first
        alive = Counter(map(type, gc.get_objects()))
        threads = [each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")]  # the loop's own pool
        now = {
            "memory": bytes_held,
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(threads),
            "tasks": len(asyncio.all_tasks()),
            "edges": report.edges,
            **{kind.__name__: alive[kind] for kind in WATCHED},
        }
        for name, value in now.items():
            self.held.setdefault(name, []).append(value)


def of_a_model(values: list[int], which: Callable[[list[int]], int], rounds: int = RELOAD) -> list[int]:
    """`which` (min or max) of each round and those before it, as many as a model lives for."""
    return [which(values[max(0, at - rounds + 1) : at + 1]) for at in range(len(values))]


def fill_small_blocks() -> None:
    """NumPy keeps seven freed blocks of each size below 1 KiB, 3.9 MB in all; a soak alone reaches that after hours."""
    [np.empty(size, np.uint8) for size in range(1, 1024) for _ in range(7)]  # freed at once


def growth(values: list[int]) -> tuple[float, float]:
    """The growth over the second half of a series, and its standard error."""
    half = values[len(values) // 2 :]
    medians = np.array([statistics.median(part.tolist()) for part in np.array_split(np.array(half), BLOCKS)])
    at = np.arange(BLOCKS) - (BLOCKS - 1) / 2
    slope = float((at * medians).sum() / (at**2).sum())
    rest = medians - medians.mean() - slope * at
    error = float(np.sqrt((rest**2).sum() / (BLOCKS - 2) / (at**2).sum()))
    return slope * BLOCKS, error * BLOCKS


def soak(order: Order) -> Tally:
    """Runs for `order.count` seconds."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # a thread for the bars of transformers, which is not ours
    fill_small_blocks()
    engine = Kept(order.folder)
    run = Soak(order.folder, engine)
    try:
        asyncio.run(run.play(order.count))
    finally:
        engine.end()
    tally = Tally(tried=run.rounds, failures=run.wrong)
    for name, held in run.held.items():
        values = of_a_model(held, WHICH[name]) if name in WHICH else held
        grown, error = growth(values)
        grain = 1 if name != "memory" else values[-1] / 100 if run.rounds >= WARM else WARMING_BYTES
        if grown > grain and grown > DEVIATIONS * error:
            tally.failures.append(f"{name}: grown by {grown:,.0f} ± {error:,.0f} in the second half, to {values[-1]:,}")
        if name in ("memory", "threads", "descriptors", "edges"):
            shown = (
                f"{grown / values[-1]:+.2%} ± {error / values[-1]:.2%}" if name == "memory" else f"{grown:+.1f} ± {error:.1f}"
            )
            tally.seen[f"{name} {shown}"] = values[-1]
    tally.seen["sessions"] = run.rounds * TOGETHER
    tally.seen["tokens restored"] = engine.restored
    if not (run.cancelled > run.rounds // 2 and engine.restored and engine.saved > run.rounds):
        tally.failures.append(
            f"it tried too little: {run.cancelled} cancelled, {engine.restored} restored, {engine.saved} saved"
        )
    with BlockFile(order.folder / "blocks.db", BLOCK_BYTES) as blocks:
        if blocks.stats().bytes > BLOCK_BYTES or blocks.stats().damaged:
            tally.failures.append(f"the block file: {blocks.stats()}")

    async def whole() -> None:
        store = SessionStore.open(order.folder / "sessions.db")
        if len(await store.sessions()) != run.rounds * TOGETHER or await store.verify() != []:
            tally.failures.append("the sessions file is not whole")
        await store.close()

    asyncio.run(whole())
    return tally
