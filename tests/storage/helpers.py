"""Values that the storage tests save, and ways to inspect a store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from storage import NewChunk, NewNode, SessionStore, StoredChunk

T = TypeVar("T")
MODEL = "model-a"


def chunk(first: int, count: int, *, model: str = MODEL, logprob: float | None = -1.25, words: str = "w") -> NewChunk:
    """Tokens `w0 w1 ...` as the runtime would save them; `logprob=None`: not scored."""
    pieces = [f"{words}{i} ".encode() for i in range(first, first + count)]
    data = np.frombuffer(b"".join(pieces), np.uint8)
    lengths = np.array([len(p) for p in pieces], np.int32)
    scored = logprob is not None
    columns: dict[str, npt.NDArray[Any]] = {
        "ids": np.arange(first, first + count, dtype=np.int32),
        "logprob": np.full(count, logprob if scored else np.nan, np.float32),
        "rank": np.full(count, int(scored), np.int32),
        "entropy": np.full(count, 0.5 if scored else np.nan, np.float32),
        "top_ids": np.arange(3 * count, dtype=np.int32).reshape(count, 3),
        "origin": np.full(count, 2, np.uint8),
        "data": data,
        "lengths": lengths,
        "text_data": data,
        "text_lengths": lengths,
    }
    return NewChunk(model, first, count, columns)


def with_store(path: Path, use: Callable[[SessionStore], Awaitable[T]], *, read_only: bool = False) -> T:
    """Opens a store, runs the function on an event loop of its own, and closes the store."""
    store = SessionStore.open(path, read_only=read_only)

    async def run() -> T:
        return await use(store)

    try:
        return asyncio.run(run())
    finally:
        store.close_sync()


async def chat(
    store: SessionStore, title: str = "Paris", *, tokens: int = 6, text: str = "Where should we go?"
) -> tuple[int, int, int]:
    """A session with a user's turn and a finished answer: (session, user's node, answer's node)."""
    session = await store.create_session(title)
    user = await store.add_node(NewNode(session, None, "user", text), chunk(0, 4), current=True)
    answer = await store.add_node(NewNode(session, user, "assistant", status="open"), current=True)
    await store.append_chunk(answer, chunk(0, tokens))
    await store.finish_node(answer, finish_reason="eos", stats={"seed": 7}, text=f"answer in {title}")
    return session, user, answer


def ids(tiles: list[StoredChunk]) -> list[int]:
    """The token ids of a run as read."""
    return [int(i) for tile in tiles for i in tile.columns["ids"]]


def sql(path: Path, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Runs SQL as another tool would, on a separate connection, with a checkpoint so that the file itself changes."""
    with closing(sqlite3.connect(path)) as conn:
        rows = conn.execute(statement, parameters).fetchall()
        conn.commit()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return rows
