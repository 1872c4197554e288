"""Sessions for exports and imports, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from storage import (
    Imported,
    NewChunk,
    NewNode,
    SessionStore,
    export_json,
    export_portable,
    vocabulary_digest,
)
from tests.storage.helpers import chunk, sql, with_store

VOCABULARY = [b"a", b"\xff\x00"]
DIGEST = vocabulary_digest(VOCABULARY)
KNOWN = {"name": "A", "vocabulary": DIGEST}
FIELDS = ("at_token", "at_byte", "role", "turn_start", "text", "status", "finish_reason", "token_count", "seq",
          "kv_fingerprint", "damaged")  # fmt: skip
Export = Callable[[Path, int, Path], None]


def unheard(_done: int, _total: int) -> None:
    """A progress callback without effect."""


def as_json(store: Path, session_id: int, path: Path) -> None:
    export_json(store, session_id, path, unheard)


def as_portable(store: Path, session_id: int, path: Path) -> None:
    export_portable(store, session_id, path, unheard)


def awkward(first: int, count: int, *, model: str = "model-a") -> NewChunk:
    """Columns with every kind of number that is awkward in JSON."""
    made = chunk(first, count, model=model)
    columns = dict(made.columns)
    columns["logprob"] = np.array([np.nan, -0.0, 1e-45, -np.inf, 0.1, -3.4e38][:count] + [0.3] * (count - 6), np.float32)
    columns["half"] = np.array([65504.0] * count, np.float16)
    columns["wide"] = np.array([(1 << 63) - 1] * count, np.int64)
    columns["huge"] = np.array([(1 << 64) - 1] * count, np.uint64)
    columns["sure"] = np.array([i % 2 == 0 for i in range(count)])
    columns["table"] = np.linspace(-1, 1, count * 6, dtype=np.float64).reshape(count, 2, 3)
    return NewChunk(model, first, count, columns)


async def branching(store: SessionStore) -> int:
    """A session with branches inside and at ends, rescored ranges, a second model, an empty run and odd texts."""
    session = await store.create_session("Ünïcode 漢字 🌧\nלילה")
    root = await store.add_node(NewNode(session, None, "system", "Be brief.", stats={"deep": {"list": [1, None, "x"]}}))
    user = await store.add_node(NewNode(session, root, "user", "Where to? 🌧"), chunk(0, 4))
    answer = await store.add_node(NewNode(session, user, "assistant", status="open"))
    await store.append_chunk(answer, awkward(0, 8))
    await store.append_chunk(answer, chunk(8, 2))
    await store.finish_node(answer, finish_reason="length", stats={"seed": (1 << 62) + 1}, text="w0 w1 and so on")
    await store.rescore(answer, chunk(2, 3, logprob=-9.5))
    await store.rescore(answer, chunk(0, 5, model="model-b", words="other"))
    inside = NewNode(session, answer, "assistant", "rainy", at_token=3, at_byte=5, turn_start=False, finish_reason="eos")
    sibling = await store.add_node(inside, chunk(0, 2, logprob=None))
    await store.add_node(NewNode(session, sibling, "user", ""))
    await store.add_node(NewNode(session, user, "assistant", "another", status="partial"), chunk(0, 3))
    await store.set_current(session, sibling)
    await store.pin_session(session)
    await store.save_model("model-a", KNOWN)
    await store.save_vocabulary(DIGEST, VOCABULARY)
    return session


def fingerprint(path: Path, session_id: int) -> Any:
    """Everything in a session, without row numbers, columns bit by bit."""

    async def read(store: SessionStore) -> Any:
        tree = await store.load_session(session_id)
        place = {node.id: i for i, node in enumerate(tree.nodes)}
        found = []
        for node in tree.nodes:
            scores = []
            for model in dict.fromkeys((node.kv_fingerprint, "model-a", "model-b")):
                tiles = (await store.load_tokens([node.id], model))[node.id]
                scores.append(joined(tiles))
            plain = {name: getattr(node, name) for name in FIELDS}
            parent = None if node.parent_id is None else place[node.parent_id]
            found.append((plain, parent, json.dumps(node.stats, sort_keys=True), scores))
        s = tree.session
        current = None if s.current_node is None else place[s.current_node]
        return (s.title, s.created, s.updated, s.pinned, s.branches, s.damaged, current), found

    return with_store(path, read)


def joined(tiles: Any) -> list[Any]:
    """The numbers of each token in every column; ranges may be split anywhere."""
    rows: list[Any] = []
    for tile in tiles:
        plain = {n: c for n, c in tile.columns.items() if not n.endswith("data")}
        rows += [
            (tile.kv_fingerprint, tile.first + i, {n: (c.dtype.str, c[i].tobytes()) for n, c in plain.items()})
            for i in range(tile.count)
        ]
        raw = {n: c.tobytes() for n, c in tile.columns.items() if n.endswith("data")}
        if len(tiles) == 1:
            rows.append(raw)
    return rows


def taken(path: Path, file: Path) -> Imported:
    """Imports a file into the store at `path`."""
    return with_store(path, lambda store: store.import_file(file))


def leftovers(path: Path) -> list[int]:
    """Row counts by table, which a refused import must not change."""
    tables = ("sessions", "nodes", "token_chunks", "models", "vocabularies", "search", "settings")
    return [sql(path, f"SELECT count(*) FROM {table}")[0][0] for table in tables]  # our own names
