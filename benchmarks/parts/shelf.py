"""Saved sessions without a model: opening a long one, a long list, a search; reading KV blocks from their file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from benchmarks.clock import Told
from benchmarks.findings import Case, Findings
from benchmarks.sizes import Sizes
from runtime import Origin, TokenRun
from storage import NewChunk, NewNode, SessionStore, open_blocks
from ui import SessionView

ROW = "shelf"
OPEN_BAR_MS = 300.0
LIST_BAR_MS = 200.0
SEARCH_BAR_MS = 50.0
READ_BAR = 1.5  # CPU time over that of reading and hashing the same bytes from a plain file
SHARE_BAR = 1.05  # share of the path's tokens that is read over the share of its turns that is shown
OUT_OF_SIGHT_BAR = 0.02  # memory of a turn out of sight (its place in the tree, no text) over that of a shown turn
SHOWN = 100  # turns
TURN = 40  # tokens
TOP = 10
BLOCK_BYTES = 3_000_000  # 64 tokens of SmolLM2
MODEL = "bench"
SAID = "the quick brown fox jumps over a lazy dog while rain falls on Lisbon and trams climb past tiled walls"
WORDS = tuple(SAID.split())
MADE = {  # provenance of an answer, as large as in the window
    "made": {
        "options": {name: [1.0, 0.95, 0] for name in WORDS} | {"order": list(WORDS)},
        "sources": {"model": list(WORDS), "session": ["seed", "temperature"]},
        "model": "a model",
        "fingerprint": hashlib.sha256(b"weights").hexdigest(),
    },
    "prompt": 200_000,
    "generated": TURN,
    "reused": 199_960,
    "seconds": 1.5,
    "logprob": -60.0,
}


@dataclass(frozen=True, slots=True)
class _Block:
    """A block to store in the block file."""

    key: bytes
    parent: bytes | None
    tokens: int
    data: tuple[bytes, ...]


def shelf(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Sessions and KV blocks; times are CPU time of the process, medians of several laps."""
    with tempfile.TemporaryDirectory() as name:
        tell(f"{ROW}: saving sessions")
        short, long, many = (Path(name) / each / "sessions.sqlite3" for each in ("short", "long", "many"))
        asyncio.run(save_long(short, SHOWN))
        asyncio.run(save_long(long, sizes.shelf_turns))
        asyncio.run(_save_many(many, sizes.shelf_sessions, sizes.shelf_searched))
        tell(ROW)
        opened, share = asyncio.run(_opened(long, sizes))
        of_shown, of_all = (asyncio.run(_memory(path)) for path in (short, long))
        listed, searched = asyncio.run(_listed(many, sizes))
        read = _blocks(Path(name), sizes)
    tokens = sizes.shelf_turns * TURN
    limit = SHARE_BAR * min(SHOWN / sizes.shelf_turns, 1.0)
    unseen = (of_all - of_shown) / (sizes.shelf_turns - SHOWN) / (of_shown / SHOWN)
    verdict = partial(case.verdict, ROW)
    return Findings(
        verdicts=(
            verdict(f"cpu ms: {sizes.shelf_turns:,} turns / {tokens:,} tokens to the first screen", opened, OPEN_BAR_MS),
            verdict("share of its tokens that is shown and held then", share, limit, timed=False),
            verdict(f"bytes a turn out of sight takes / one of the {SHOWN} shown", unseen, OUT_OF_SIGHT_BAR, timed=False),
            verdict(f"cpu ms: list of {sizes.shelf_sessions:,} sessions", listed, LIST_BAR_MS),
            verdict(f"cpu ms: search over {sizes.shelf_searched:,} sessions", searched, SEARCH_BAR_MS),
            verdict(f"{sizes.shelf_blocks} KV blocks / (reading and hashing a plain file)", read, READ_BAR),
        )
    )


async def _opened(path: Path, sizes: Sizes) -> tuple[float, float]:
    """CPU milliseconds until the transcript is first painted, and the share of the path's tokens that was read."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    from PySide6.QtWidgets import QApplication  # here, as other parts need no window

    from ui.transcript import TranscriptView

    application = QApplication.instance() or QApplication([])
    pane = TranscriptView()
    pane.resize(900, 700)
    pane.show()
    views: list[SessionView] = []

    async def open_it() -> None:
        workbench = AppWorkbench(Services(SessionStore.open(path), Supervisor(MODEL)))
        try:
            [row] = await workbench.sessions.list()
            views.append(await workbench.sessions.open(row.session_id))
            pane.set_session(views[-1])
            application.processEvents()
            pane.grab()
        finally:
            await workbench.close()

    taken = await _cpu_ms(open_it, sizes.rounds)
    pane.close()
    return taken, sum(len(turn.run) for turn in views[-1].turns) / (sizes.shelf_turns * TURN)


async def _memory(path: Path) -> int:
    """Peak bytes that Python and numpy allocate while a session opens."""
    await _peak(path)  # warm-up: objects made once per process
    return await _peak(path)


async def _peak(path: Path) -> int:
    workbench = AppWorkbench(Services(SessionStore.open(path), Supervisor(MODEL)))
    try:
        [row] = await workbench.sessions.list()
        tracemalloc.start()
        try:
            await workbench.sessions.open(row.session_id)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    finally:
        await workbench.close()


async def _listed(path: Path, sizes: Sizes) -> tuple[float, float]:
    async with SessionStore.open(path) as store:
        return (
            await _cpu_ms(store.sessions, sizes.rounds),
            await _cpu_ms(lambda: store.sessions(f"lisb {WORDS[0]} searched"), sizes.rounds),
        )


def _blocks(folder: Path, sizes: Sizes) -> float:
    """CPU time of reading blocks over that of reading the same bytes from a plain file; both compute the SHA-256."""
    rng = np.random.default_rng(3)
    datas = [rng.bytes(BLOCK_BYTES) for _ in range(sizes.shelf_blocks)]
    keys = [hashlib.sha256(bytes([n])).digest() for n in range(len(datas))]
    plain = folder / "plain"
    plain.write_bytes(b"".join(datas))
    path = folder / "blocks.sqlite3"
    with open_blocks(path, 1 << 40) as blocks:
        blocks.put([_Block(key, keys[n - 1] if n else None, 64, (datas[n],)) for n, key in enumerate(keys)])
    ratios = []
    for _ in range(sizes.rounds):
        started = time.process_time()
        with plain.open("rb", buffering=0) as file:
            for part in [file.read(BLOCK_BYTES) for _ in datas]:
                hashlib.sha256(part).digest()
        middle = time.process_time()
        with open_blocks(path, 1 << 40) as blocks:
            found = blocks.get(keys)
        ratios.append((time.process_time() - middle) / (middle - started))
        if found != datas:
            raise ValueError("the blocks are not what was written")
    return median(ratios)


async def _cpu_ms(work: Callable[[], Awaitable[object]], rounds: int) -> float:
    laps = []
    for _ in range(rounds):
        started = time.process_time()
        await work()
        laps.append(time.process_time() - started)
    return median(laps) * 1000


async def save_long(path: Path, turns: int) -> None:
    """Saves one session of `turns` turns in a new file; every second turn is an answer with its provenance."""
    async with SessionStore.open(path) as store:
        session, parent = await store.create_session("long"), None
        for turn in range(turns):
            run = _scored(turn)
            stats = MADE if turn % 2 else {}
            new = NewNode(session, parent, "assistant" if turn % 2 else "user", run.text, stats=stats)
            parent = await store.add_node(new, NewChunk(MODEL, 0, TURN, run.to_columns()), current=True)


async def _save_many(path: Path, sessions: int, searched: int) -> None:
    async with SessionStore.open(path) as store:
        for number in range(sessions):
            session = await store.create_session(f"Session {number} about {WORDS[number % len(WORDS)]}")
            if number < searched:
                said = " ".join(WORDS[(number + place) % len(WORDS)] for place in range(100))
                await store.add_node(NewNode(session, None, "user", f"searched {said}"), current=True)


def _scored(turn: int) -> TokenRun:
    texts = [f" {WORDS[(turn + place) % len(WORDS)]}" for place in range(TURN)]
    plain = TokenRun.unscored(range(TURN), [text.encode() for text in texts], texts, Origin.SAMPLED)
    columns = plain.to_columns() | {
        "logprob": np.full(TURN, -1.5, np.float32),
        "rank": np.full(TURN, 2, np.int32),
        "entropy": np.full(TURN, 1.0, np.float32),
        "top_ids": np.tile(np.arange(TOP, dtype=np.int32), (TURN, 1)),
        "top_logprobs": np.full((TURN, TOP), -2.0, np.float32),
    }
    return TokenRun.from_columns(columns)
