"""200 sessions of chat, branch, cancel, close and reopen: nothing is held longer than somebody needs it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench
from app.workbench.session import OpenSession
from app.workbench.tree import Tree
from runtime import BlockOptions, GenerationOptions, LanguageModel, SamplingOptions, TokenRun
from runtime.model import LocalModel, load
from runtime.trie import Lease
from storage import BlockFile, SessionStore
from tests.app.workbench.scene import Engine, Scene, alternative, own_tokens
from tests.fakes import settled
from tests.tiny_models import tiny_path
from ui import Event, TokensArrived, TurnStatus

ROUNDS, TOGETHER = 100, 2  # rounds of so many sessions at once, a workbench and a store of their own each time
RELOAD = 10  # rounds with one loaded model; then it is closed, and the next one reads the block file: sessions reopen from it
EARLY = 25  # rounds after which everything that is loaded once is there
OPTIONS = GenerationOptions(max_tokens=4, sampling=SamplingOptions(temperature=0.9), seed=11)
LONG = 64  # tokens of an answer that is stopped at its first
KV_BYTES, BLOCK_BYTES = 4 << 20, 8 << 20
GROWTH = 16 << 20  # bytes of the process from then to the end, 140 sessions and seven models later
WATCHED = (AppWorkbench, OpenSession, Tree, SessionStore, Supervisor, LocalModel, BlockFile, Lease, TokenRun)

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="handles and memory are counted where Linux tells")


@dataclass
class Kept:
    """A model that outlives the workbenches that use it: what one of them leaves in it, the next one would inherit."""

    folder: Path
    model: LocalModel | None = None
    restored: int = 0
    saved: int = 0

    async def __call__(self, *_: Any, **__: Any) -> LanguageModel:
        if self.model is None:
            blocks = BlockOptions("storage:open_blocks", str(self.folder / "blocks.db"), BLOCK_BYTES)
            load_it = asyncio.to_thread(
                load, str(tiny_path("llama")), backend="hf", blocks=blocks, kv_cache_bytes=KV_BYTES, threads=1
            )
            self.model = await load_it
        return _Lent(self.model)

    def end(self) -> None:
        if self.model is not None:
            self.restored += self.model.metrics().tokens_restored
            self.saved += self.model.metrics().blocks_saved
            self.model.close()
            self.model = None


class _Lent:
    """The model, which its borrower does not close."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def close_async(self, *, within: float | None = None) -> None:
        """Given back."""


@dataclass
class Held:
    """What the process holds."""

    handles: int
    threads: int
    tasks: int
    alive: dict[str, int]  # objects of `WATCHED`
    bytes: int

    @classmethod
    def now(cls) -> Held:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what was freed does not count, wherever it lies
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        handles = len(list(Path("/proc/self/fd").iterdir()))
        alive = Counter(map(type, gc.get_objects()))
        watched = {kind.__name__: alive[kind] for kind in WATCHED}
        threads = [each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")]  # the loop's own pool
        return cls(handles, len(threads), len(asyncio.all_tasks()), watched, resident)


@dataclass
class Soak:
    folder: Path
    engine: Kept
    held: dict[int, Held] = field(default_factory=dict)
    leases: list[int] = field(default_factory=list)
    cancelled: int = 0
    before: Counter[str] = field(default_factory=Counter)  # objects that other tests of the process have left

    def scene(self) -> Scene:
        store = SessionStore.open(self.folder / "sessions.db")
        blocks = {"path": str(self.folder / "blocks.db")}
        scene = Scene(
            store.path, Engine(), store, AppWorkbench(store, Supervisor("x", start=self.engine, blocks=blocks), OPTIONS), []
        )
        scene.workbench.subscribe(scene.events.append)
        return scene

    async def play(self) -> None:
        self.before.update(Held.now().alive)
        for number in range(ROUNDS):
            scene = self.scene()
            ids = [await scene.new() for _ in range(TOGETHER)]
            await asyncio.gather(*(self.chat(scene, session_id, number) for session_id in ids))
            await scene.workbench.close()
            if number % RELOAD == RELOAD // 2:
                self.engine.end()  # what follows is read from the disk
            scene = self.scene()
            for session_id in ids:
                await self.reopen(scene, session_id)
            await scene.workbench.close()
            del scene
            assert self.engine.model is not None
            metrics, report = settled(self.engine.model)
            self.leases.append(report.leases + report.leased_bytes + report.pins + metrics.requests_active)
            if number % RELOAD == RELOAD - 1:
                self.held[number + 1] = Held.now()
        assert sum(self.leases) == 0, self.leases

    async def chat(self, scene: Scene, session_id: int, number: int) -> None:
        workbench = scene.workbench
        await workbench.send(session_id, f"message {number} of session {session_id}, which tells of this and of that")
        answer = await scene.last(session_id)
        if len(own_tokens(answer)) > 1:
            at = own_tokens(answer)[1]
            await workbench.branch(session_id, answer.node_id, at, alternative(answer, at))

        def stop(event: Event) -> None:
            if isinstance(event, TokensArrived) and event.session_id == session_id:
                workbench.stop(session_id)

        workbench.subscribe(stop)
        await workbench.set_option(session_id, "max_tokens", LONG)
        await workbench.send(session_id, "and then?")
        await workbench.set_option(session_id, "max_tokens", None)
        stopped = (await scene.last(session_id)).note == "stopped"  # others count meanwhile
        self.cancelled += stopped

    async def reopen(self, scene: Scene, session_id: int) -> None:
        view = await scene.view(session_id)
        assert len([turn for turn in view.turns if turn.role == "user"]) == 2
        assert TurnStatus.DAMAGED not in {turn.status for turn in view.turns}
        if session_id % TOGETHER:
            await scene.workbench.send(session_id, "go on")


@pytest.mark.slow
@pytest.mark.timeout(900)  # two hundred sessions
def test_200_sessions_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable[[str], None]
) -> None:
    """Real model, runtime, storage and use cases.

    It fails for a lease, pin or request that outlives its session (each round), a handle or thread for each store, block file
    or model that is opened (a round, or a reload), a task of the window that goes on, an open session, its tokens, a store, a
    model or a lease that somebody still holds when all are closed (each is counted), and for memory outside of those that grows
    with what was said.
    """
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # a thread for the bars of transformers, which is not ours
    engine = Kept(tmp_path)
    soak = Soak(tmp_path, engine)
    try:
        asyncio.run(soak.play())
    finally:
        engine.end()
    counted = sorted(soak.held)
    early = soak.held[next(number for number in counted if number >= EARLY)]
    last = soak.held[counted[-1]]
    counts = f"{ROUNDS * TOGETHER} sessions, {soak.cancelled} cancelled, {engine.restored} tokens restored"
    tell(f"soak: {counts}; {early} to {last}")
    assert soak.cancelled > ROUNDS // 2
    assert engine.restored > 0
    assert engine.saved > ROUNDS
    assert (last.handles, last.threads, last.tasks) == (early.handles, early.threads, early.tasks)
    assert last.alive == early.alive
    ours = {name: count - soak.before[name] for name, count in last.alive.items()}
    assert ours["OpenSession"] == ours["AppWorkbench"] == 0
    assert ours["LocalModel"] == ours["BlockFile"] == 1
    assert last.bytes - early.bytes < GROWTH
    with BlockFile(tmp_path / "blocks.db", BLOCK_BYTES) as blocks:
        assert blocks.stats().bytes <= BLOCK_BYTES
        assert blocks.stats().damaged == 0

    async def whole() -> None:
        store = SessionStore.open(tmp_path / "sessions.db")
        assert len(await store.sessions()) == ROUNDS * TOGETHER
        assert await store.verify() == []
        await store.close()

    asyncio.run(whole())
