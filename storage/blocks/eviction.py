"""Stores, pins and evicts blocks (least recently used first, from the tips) in a transaction of the caller."""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.blocks import rows
from storage.blocks.rows import BlockRow, NewBlock

PINNED: Final = ""  # the pin of blocks that were put with `pinned`
_LATEST: Final = 1 << 60  # a larger sequence number is the result of a flipped bit


@dataclass(frozen=True, slots=True)
class ChangeCounts:
    """Counts of the changes in a transaction."""

    written: int = 0  # blocks
    evicted: int = 0  # blocks
    freed: int = 0  # bytes
    damaged: int = 0  # blocks that did not match their key, or whose parents form a cycle


def held(conn: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[BlockRow]:
    """The rows of the first `keys`, ending before the first that is missing or not a child of the row before it."""
    before: bytes | None = None
    for place, key in enumerate(keys):
        row = rows.find(conn, key)
        if row is None or (place and row.parent != before):
            return
        before = key
        yield row


def drop_cycles(conn: sqlite3.Connection) -> ChangeCounts:
    """Deletes blocks, pinned or not, that no path reaches because damage has made a cycle of their parents."""
    dropped = cyclic(rows.everything(conn))
    return ChangeCounts(freed=rows.delete(conn, dropped), damaged=len(dropped))


def repair_use_sequence(conn: sqlite3.Connection) -> int:
    """Resets damaged values of `used` to 0; returns the latest use of any block."""
    conn.execute("UPDATE kv_blocks SET used = 0 WHERE typeof(used) <> 'integer' OR used NOT BETWEEN 0 AND ?", [_LATEST])
    return int(conn.execute("SELECT ifnull(max(used), 0) FROM kv_blocks").fetchone()[0])


def mark(conn: sqlite3.Connection, used: Iterable[BlockRow], tick: int) -> None:
    """Marks blocks as used at `tick`."""
    conn.executemany("UPDATE kv_blocks SET used = ? WHERE id = ?", [(tick, row.id) for row in used])


def put(
    conn: sqlite3.Connection,
    blocks: Sequence[NewBlock],
    superseded: Sequence[bytes],
    *,
    pinned: bool,
    budget: int,
    tick: int,
) -> ChangeCounts:
    """Stores the blocks that fit; see `BlockFile.put`."""
    sizes = {block.key: rows.size_of(block) for block in blocks}
    stored, damaged = _stored(conn, blocks)
    rows.delete(conn, damaged)
    mark(conn, stored, tick)
    new = _with_parents(conn, blocks, {row.key for row in stored})
    if pinned:
        conn.executemany("INSERT OR IGNORE INTO kv_pins VALUES (?, ?)", [(PINNED, key) for key in sizes])
    needed = {key for block in blocks for key in (block.key, block.parent) if key is not None}
    freed = rows.delete(conn, _replaced(conn, [key for key in superseded if key not in needed]))
    evicted: list[BlockRow] = []
    over = total(conn) + sum(sizes[block.key] for block in new) - budget
    if over > 0:
        evictable = list(eviction_order(rows.everything(conn), needed | pins(conn)))
        evictable_bytes = sum(row.nbytes for row in evictable)
        while new and over > evictable_bytes:  # evicting all of them is not enough
            over -= sizes[new.pop().key]
        evicted = _first(evictable, over)
        freed += rows.delete(conn, evicted)
    for block in new:
        rows.insert(conn, block, tick)
    return ChangeCounts(len(new), len(evicted), freed, len(damaged))


def pin(conn: sqlite3.Connection, name: str, keys: Sequence[bytes]) -> None:
    """Replaces the pin `name`."""
    conn.execute("DELETE FROM kv_pins WHERE name = ?", [name])
    conn.executemany("INSERT OR IGNORE INTO kv_pins VALUES (?, ?)", [(name, key) for key in keys])


def pins(conn: sqlite3.Connection) -> set[bytes]:
    """The keys of all pins."""
    return {row[0] for row in conn.execute("SELECT key FROM kv_pins")}


def evict(conn: sqlite3.Connection, nbytes: int) -> ChangeCounts:
    """Evicts blocks that are not pinned until at least `nbytes` are freed, or all of them."""
    evicted = _first(eviction_order(rows.everything(conn), pins(conn)), nbytes) if nbytes > 0 else []
    return ChangeCounts(evicted=len(evicted), freed=rows.delete(conn, evicted))


def drop(conn: sqlite3.Connection, row: BlockRow, key: bytes) -> None:
    """Deletes the row that was found for `key`, and all descendants of `key`, pinned or not."""
    rows.delete(conn, {found.id: found for found in (row, *below(rows.everything(conn), key))}.values())


def total(conn: sqlite3.Connection) -> int:
    """Bytes of all blocks."""
    return int(conn.execute("SELECT total(bytes) FROM kv_blocks").fetchone()[0])


def _stored(conn: sqlite3.Connection, blocks: Sequence[NewBlock]) -> tuple[list[BlockRow], list[BlockRow]]:
    """The stored rows of these blocks, and damaged rows, which have the same keys but other values."""
    stored: list[BlockRow] = []
    damaged: list[BlockRow] = []
    for block in {block.key: block for block in blocks}.values():
        row = rows.find(conn, block.key)
        if row is not None:
            same = (row.key, row.parent, row.tokens, row.nbytes) == (block.key, block.parent, block.tokens, rows.size_of(block))
            (stored if same else damaged).append(row)
    return stored, damaged


def _with_parents(conn: sqlite3.Connection, blocks: Sequence[NewBlock], known: set[bytes]) -> list[NewBlock]:
    """The blocks that are not stored yet and whose parents are stored, or are among the blocks to store."""
    new: list[NewBlock] = []
    for block in blocks:
        if block.key in known:
            continue
        if block.parent is None or block.parent in known or rows.find(conn, block.parent) is not None:
            known.add(block.key)
            new.append(block)
    return new


def _replaced(conn: sqlite3.Connection, superseded: Sequence[bytes]) -> list[BlockRow]:
    """The rows of superseded blocks without children and pins."""
    sql = "SELECT EXISTS (SELECT 1 FROM kv_blocks WHERE parent = ?) OR EXISTS (SELECT 1 FROM kv_pins WHERE key = ?)"
    found = [row for key in dict.fromkeys(superseded) if (row := rows.find(conn, key)) is not None]
    return [row for row in found if not conn.execute(sql, [row.key, row.key]).fetchone()[0]]


def _first(order: Iterable[BlockRow], nbytes: int) -> list[BlockRow]:
    """The first rows that together have at least `nbytes`; all rows if they have less."""
    taken: list[BlockRow] = []
    for row in order:
        if nbytes <= 0:
            break
        taken.append(row)
        nbytes -= row.nbytes
    return taken


def eviction_order(blocks: Iterable[BlockRow], kept: Collection[bytes]) -> Iterator[BlockRow]:
    """Blocks in the order of eviction, each after all its descendants.

    A use of a block also counts for its ancestors: a path read yesterday is evicted, from its tip, before a path read today,
    whatever the age of their first blocks.

    Args:
        blocks: All stored blocks.
        kept: Keys of blocks that stay, together with their ancestors.
    """
    held = {block.key: block for block in blocks}
    children = Counter(block.parent for block in held.values() if block.parent is not None)
    leaves = [(block.used, block.id, block) for block in held.values() if not children[block.key] and block.key not in kept]
    heapq.heapify(leaves)
    while leaves:
        used, _, block = heapq.heappop(leaves)
        yield block
        parent = held.get(block.parent) if block.parent is not None else None
        if parent is None:
            continue
        children[parent.key] -= 1
        if not children[parent.key] and parent.key not in kept:
            heapq.heappush(leaves, (max(used, parent.used), parent.id, parent))


def cyclic(blocks: Iterable[BlockRow]) -> list[BlockRow]:
    """Blocks whose parents form a cycle after damage, and the descendants of such blocks."""
    held = {block.key: block for block in blocks}
    ends: dict[bytes, bool] = {}  # whether a block's chain of ancestors ends, at a root or a missing block
    for block in held.values():
        way: list[bytes] = []
        on_way: set[bytes] = set()
        each: BlockRow | None = block
        while each is not None and each.key not in ends and each.key not in on_way:
            way.append(each.key)
            on_way.add(each.key)
            each = held.get(each.parent) if each.parent is not None else None
        leads = each is None or ends.get(each.key, False)
        ends.update(dict.fromkeys(way, leads))
    return [block for block in held.values() if not ends[block.key]]


def below(blocks: Iterable[BlockRow], key: bytes) -> list[BlockRow]:
    """The block `key` and its descendants, each once, even if damage has made a cycle of parents."""
    children: dict[bytes | None, list[BlockRow]] = {}
    found: list[BlockRow] = []
    for block in blocks:
        children.setdefault(block.parent, []).append(block)
        if block.key == key:
            found.append(block)
    seen = {block.id for block in found}
    for block in found:  # grows during the loop
        for child in children.get(block.key, ()):
            if child.id not in seen:
                seen.add(child.id)
                found.append(child)
    return found
