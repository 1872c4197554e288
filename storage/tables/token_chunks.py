"""Token chunks: columns that are only ever appended, and read as one sequence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import sqlite_utils

from storage.database import fetch, scalar
from storage.errors import InvalidRowError, StoreDamagedError
from storage.rows import Columns, NewChunk, StoredChunk
from storage.tables import checksums, columns
from storage.tables.text import clean

_TEMPLATE: Final = 0  # value of the column `origin` for tokens that are not part of the text
_END_OF_TEXT: Final = (1, 10)  # values of the column `finish` for end tokens, which are not part of the text
MAX_TOKENS: Final = 1 << 24  # in one run; limits allocations from damaged or hostile numbers


def append(db: sqlite_utils.Database, node: dict[str, Any], chunk: NewChunk) -> None:
    """Saves the next tokens of an open run, or all tokens of a run that has none yet.

    A chunk that begins at the first token and covers all saved tokens of an open run replaces them; it has the same ids, and
    may have scores of another model.
    """
    own = node["kv_fingerprint"]
    end = saved_end(db, node["id"], own)
    if node["status"] != "open" and end:
        raise InvalidRowError(f"node {node['id']} is {node['status']}: its {end} tokens do not change any more")
    if end and chunk.first == 0 and chunk.count >= end:
        _refuse_other_ids(db, node["id"], own, chunk)
        db.table("token_chunks").delete_where("node_id = ?", [node["id"]])
        own, end = None, 0
    if own is not None and chunk.kv_fingerprint != own:
        raise InvalidRowError(f"node {node['id']} has tokens of model {own}, not {chunk.kv_fingerprint}; use rescore")
    if chunk.first != end:
        raise InvalidRowError(f"node {node['id']} has {end} tokens saved, a chunk that starts at {chunk.first} does not follow")
    _insert(db, node["id"], chunk)
    changes: dict[str, Any] = {}
    if chunk.kv_fingerprint != node["kv_fingerprint"]:
        changes["kv_fingerprint"] = chunk.kv_fingerprint
    if node["status"] != "open":
        changes["token_count"] = int(chunk.count)
    if changes:
        checksums.update(db, "nodes", node, changes)


def rescore(db: sqlite_utils.Database, node: dict[str, Any], chunk: NewChunk) -> None:
    """Saves another set of columns for the node's tokens, or for its bytes as another model tokenizes them."""
    fingerprint, stop = chunk.kv_fingerprint, chunk.first + chunk.count
    end = saved_end(db, node["id"], fingerprint)
    own = fingerprint == node["kv_fingerprint"]
    if node["kv_fingerprint"] is None or chunk.first > end or (own and stop > end):
        raise InvalidRowError(
            f"node {node['id']} has {end} tokens under {fingerprint}; scores for {chunk.first} to {stop} do not fit onto them"
        )
    if own and "ids" in chunk.columns:
        _refuse_other_ids(db, node["id"], fingerprint, chunk)
    _insert(db, node["id"], chunk)


def saved_end(db: sqlite_utils.Database, node_id: int, kv_fingerprint: str | None) -> int:
    """The number of tokens of a node that are saved under a fingerprint."""
    sql = "SELECT max(first + count) FROM token_chunks WHERE node_id = ? AND kv_fingerprint = ?"
    return int(scalar(db, sql, [node_id, kv_fingerprint]) or 0)


def saved_ends(db: sqlite_utils.Database, session_id: int) -> dict[tuple[int, str], int]:
    """The saved tokens of a whole session: (node, fingerprint) -> count."""
    sql = """SELECT node_id, kv_fingerprint, max(first + count) AS stop FROM token_chunks
             WHERE node_id IN (SELECT id FROM nodes WHERE session_id = ?) GROUP BY node_id, kv_fingerprint"""
    return {(row["node_id"], row["kv_fingerprint"]): int(row["stop"]) for row in fetch(db, sql, [session_id])}


def load(db: sqlite_utils.Database, node_ids: Sequence[int], kv_fingerprint: str | None) -> dict[int, list[StoredChunk]]:
    """The tokens of several nodes; see `SessionStore.load_tokens`."""
    wanted = json.dumps([int(n) for n in node_ids])
    found = fetch(db, "SELECT * FROM nodes WHERE id IN (SELECT value FROM json_each(?))", [wanted])
    chunks = fetch(
        db,
        """SELECT c.* FROM token_chunks c JOIN nodes n ON n.id = c.node_id
           WHERE n.id IN (SELECT value FROM json_each(?)) AND c.kv_fingerprint IN (n.kv_fingerprint, ?) ORDER BY c.id""",
        [wanted, kv_fingerprint],
    )
    by_node: dict[int, list[dict[str, Any]]] = {row["id"]: [] for row in found}
    for chunk in chunks:
        by_node[chunk["node_id"]].append(chunk)
    rows = {row["id"]: row for row in found}
    for node_id in [n for n, row in rows.items() if not checksums.intact("nodes", row)]:  # its fingerprint cannot be trusted
        by_node[node_id] = fetch(db, "SELECT * FROM token_chunks WHERE node_id = ? ORDER BY id", [node_id])
    return {int(n): _assemble(rows[n], by_node[n], kv_fingerprint) for n in node_ids if n in rows}


def read_chunk(row: dict[str, Any]) -> Columns | None:
    """The columns of a row after all checks; None if the row is damaged."""
    if not checksums.intact("token_chunks", row):
        return None
    try:
        found = columns.decode(row["columns"])
        columns.check(found, row["count"])
    except (StoreDamagedError, InvalidRowError):
        return None
    return found


def tiled(node_id: int, chunks: Sequence[dict[str, Any]], *, length: int | None) -> list[StoredChunk]:
    """The newest intact columns of one node and fingerprint, as ranges without overlap; `chunks` come oldest first.

    `length` is the number of tokens if known, else None. Missing tokens become damaged ranges.
    """
    held = [read_chunk(row) for row in chunks]
    spans = [_span(row) for row in chunks]
    if len(chunks) == 1 and held[0] is not None and spans[0].start == 0 and length in (None, spans[0].stop):
        return [StoredChunk(node_id, chunks[0]["kv_fingerprint"], 0, spans[0].stop, held[0])]  # the usual case
    ends = [span.stop for span, found in zip(spans, held, strict=True) if found is not None or length is None]
    total = max([length or 0, *ends])
    owner = np.full(total, -1, np.int32)  # (tokens,) index of the chunk of each token
    lost = np.zeros(total, np.bool_)  # (tokens,) whether a newer copy is damaged
    misplaced = False  # whether a damaged copy has an invalid range: it may belong anywhere
    for index, (span, found) in enumerate(zip(spans, held, strict=True)):
        lost[span] = found is None
        if found is not None:
            owner[span] = index
        elif not lost[span].size:
            misplaced = True
    lost |= misplaced | (owner < 0)
    fingerprint = chunks[0]["kv_fingerprint"] if chunks else ""
    tiles = []
    for first, stop in _runs(owner, lost):
        index = int(owner[first])
        found = held[index] if index >= 0 else None
        taken = {} if found is None else columns.cut(found, first - spans[index].start, stop - spans[index].start)
        tiles.append(StoredChunk(node_id, fingerprint, first, stop - first, taken, damaged=bool(lost[first])))
    if misplaced and not tiles:
        tiles.append(StoredChunk(node_id, fingerprint, 0, 0, {}, damaged=True))
    return tiles


def _assemble(node: dict[str, Any], chunks: list[dict[str, Any]], kv_fingerprint: str | None) -> list[StoredChunk]:
    whole = checksums.intact("nodes", node)
    own = node["kv_fingerprint"] if whole or not chunks else chunks[0]["kv_fingerprint"]
    asked = [chunk for chunk in chunks if chunk["kv_fingerprint"] == kv_fingerprint]
    if asked and kv_fingerprint != own:
        return tiled(node["id"], asked, length=None)
    count = node["token_count"]
    counted = node["status"] != "open" and isinstance(count, int) and 0 <= count <= MAX_TOKENS
    tiles = tiled(node["id"], [chunk for chunk in chunks if chunk["kv_fingerprint"] == own], length=count if counted else None)
    if not whole and not tiles:
        tiles.append(StoredChunk(node["id"], str(own), 0, 0, {}, damaged=True))
    return tiles


def _insert(db: sqlite_utils.Database, node_id: int, chunk: NewChunk) -> None:
    if chunk.count < 1 or chunk.first < 0 or chunk.first + chunk.count > MAX_TOKENS:
        raise InvalidRowError(
            f"a chunk of {chunk.count} tokens from {chunk.first} cannot be saved (1 to {MAX_TOKENS:,} in a run)"
        )
    columns.check(chunk.columns, chunk.count)
    values = {
        "node_id": node_id,
        "kv_fingerprint": clean(chunk.kv_fingerprint),
        "first": int(chunk.first),
        "count": int(chunk.count),
        "columns": columns.encode(chunk.columns),
        "summary": columns.summary(chunk.columns, chunk.count),
    }
    checksums.insert(db, "token_chunks", values)


def _refuse_other_ids(db: sqlite_utils.Database, node_id: int, own: str, chunk: NewChunk) -> None:
    """Refuses scores for ids other than those of the node under its own model, since ids never change."""
    sql = "SELECT * FROM token_chunks WHERE node_id = ? AND kv_fingerprint = ? ORDER BY id"
    for tile in tiled(node_id, fetch(db, sql, [node_id, own]), length=None):
        start, stop = max(tile.first, chunk.first), min(tile.first + tile.count, chunk.first + chunk.count)
        if start >= stop or "ids" not in tile.columns:
            continue
        saved = tile.columns["ids"][start - tile.first : stop - tile.first]
        if not np.array_equal(saved, chunk.columns["ids"][start - chunk.first : stop - chunk.first]):
            raise InvalidRowError(f"node {node_id}: the scores are for other token ids than the {stop - start} from {start}")


def _span(row: dict[str, Any]) -> slice:
    """The range of a row; empty if its values are invalid."""
    first, count = row["first"], row["count"]
    if not isinstance(first, int) or not isinstance(count, int) or first < 0 or not 0 < count <= MAX_TOKENS - first:
        return slice(0, 0)
    return slice(first, first + count)


def _runs(owner: npt.NDArray[np.int32], lost: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """The longest ranges with the same owner and state."""
    borders = np.flatnonzero((owner[1:] != owner[:-1]) | (lost[1:] != lost[:-1])) + 1
    edges = [0, *(int(b) for b in borders), len(owner)]
    return [(a, b) for a, b in pairwise(edges) if a < b]


def text_of(found: Columns) -> str:
    """The text of tokens, without those of the template and the end."""
    texts = columns.pieces(found, "text")
    if not texts:
        return ""
    none = np.full(len(texts), -1)
    own = (found.get("origin", none) != _TEMPLATE) & ~np.isin(found.get("finish", none), _END_OF_TEXT)
    return b"".join(text for text, keep in zip(texts, own.tolist(), strict=True) if keep).decode("utf-8", "replace")


def text_so_far(db: sqlite_utils.Database, node: dict[str, Any]) -> tuple[str, int]:
    """The saved text and number of tokens of an open run.

    The row may have the text with which the run began; its tokens include this text unless they are damaged.
    """
    sql = "SELECT * FROM token_chunks WHERE node_id = ? AND kv_fingerprint = ? ORDER BY id"
    tiles = tiled(node["id"], fetch(db, sql, [node["id"], node["kv_fingerprint"]]), length=None)
    text = clean("".join(text_of(tile.columns) for tile in tiles))
    return max(str(node["text"] or ""), text, key=len), sum(tile.count for tile in tiles)
