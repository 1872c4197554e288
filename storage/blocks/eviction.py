"""Which blocks stay and which are evicted (least recently used first, from the tips); inside a transaction of the caller's."""

from __future__ import annotations

import heapq
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from storage.blocks import rows
from storage.blocks.rows import BlockRow, NewBlock

PINNED: Final = ""  # the pin of what was put with `pinned`
_LATEST: Final = 1 << 60  # a sequence number beyond it is a flipped bit


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction did."""

    written: int = 0  # blocks
    evicted: int = 0  # blocks
    freed: int = 0  # bytes
    damaged: int = 0  # blocks that were not what their key says, and were written anew


def held(conn: sqlite3.Connection, keys: Sequence[bytes]) -> Iterator[BlockRow]:
    """The rows of the first `keys`, ending before the first that is missing or does not follow the one before it."""
    before: bytes | None = None
    for place, key in enumerate(keys):
        row = rows.find(conn, key)
        if row is None or (place and row.parent != before):
            return
        before = key
        yield row


def drop_cycles(conn: sqlite3.Connection) -> Change:
    """Deletes blocks that no path leads to since damage made a circle of their parents, pinned or not."""
    gone = cyclic(rows.everything(conn))
    return Change(freed=rows.delete(conn, gone), damaged=len(gone))


def repair_use_sequence(conn: sqlite3.Connection) -> int:
    """The last use of any block; flipped bits in it become "long ago"."""
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
) -> Change:
    """Keeps what fits of `blocks`; see `BlockFile.put`."""
    sizes = {block.key: rows.size_of(block) for block in blocks}
    there, bent = _held_already(conn, blocks)
    rows.delete(conn, bent)
    mark(conn, there, tick)
    new = _with_parents(conn, blocks, {row.key for row in there})
    if pinned:
        conn.executemany("INSERT OR IGNORE INTO kv_pins VALUES (?, ?)", [(PINNED, key) for key in sizes])
    needed = {key for block in blocks for key in (block.key, block.parent) if key is not None}
    freed = rows.delete(conn, _replaced(conn, [key for key in superseded if key not in needed]))
    evicted: list[BlockRow] = []
    over = total(conn) + sum(sizes[block.key] for block in new) - budget
    if over > 0:
        loose = list(eviction_order(rows.everything(conn), needed | pins(conn)))
        loose_bytes = sum(row.nbytes for row in loose)
        while new and over > loose_bytes:  # not even with all of it gone
            over -= sizes[new.pop().key]
        evicted = _first(loose, over)
        freed += rows.delete(conn, evicted)
    for block in new:
        rows.insert(conn, block, tick)
    return Change(len(new), len(evicted), freed, len(bent))


def pin(conn: sqlite3.Connection, name: str, keys: Sequence[bytes]) -> None:
    """Replaces the pin `name`."""
    conn.execute("DELETE FROM kv_pins WHERE name = ?", [name])
    conn.executemany("INSERT OR IGNORE INTO kv_pins VALUES (?, ?)", [(name, key) for key in keys])


def pins(conn: sqlite3.Connection) -> set[bytes]:
    """The keys of all pins."""
    return {row[0] for row in conn.execute("SELECT key FROM kv_pins")}


def evict(conn: sqlite3.Connection, nbytes: int) -> Change:
    """Frees at least `nbytes` where there is so much that is not pinned."""
    gone = _first(eviction_order(rows.everything(conn), pins(conn)), nbytes) if nbytes > 0 else []
    return Change(evicted=len(gone), freed=rows.delete(conn, gone))


def drop(conn: sqlite3.Connection, row: BlockRow, key: bytes) -> None:
    """Deletes the row that was found for `key` and all that hang under it, pinned or not."""
    rows.delete(conn, {found.id: found for found in (row, *below(rows.everything(conn), key))}.values())


def total(conn: sqlite3.Connection) -> int:
    """Bytes of all blocks."""
    return int(conn.execute("SELECT total(bytes) FROM kv_blocks").fetchone()[0])


def _held_already(conn: sqlite3.Connection, blocks: Sequence[NewBlock]) -> tuple[list[BlockRow], list[BlockRow]]:
    """What is held of these, and what claims to be one of them but is another block."""
    there: list[BlockRow] = []
    bent: list[BlockRow] = []
    for block in {block.key: block for block in blocks}.values():
        row = rows.find(conn, block.key)
        if row is not None:
            same = (row.key, row.parent, row.tokens, row.nbytes) == (block.key, block.parent, block.tokens, rows.size_of(block))
            (there if same else bent).append(row)
    return there, bent


def _with_parents(conn: sqlite3.Connection, blocks: Sequence[NewBlock], known: set[bytes]) -> list[NewBlock]:
    """The blocks that are not held yet and that some path leads to."""
    new: list[NewBlock] = []
    for block in blocks:
        if block.key in known:
            continue
        if block.parent is None or block.parent in known or rows.find(conn, block.parent) is not None:
            known.add(block.key)
            new.append(block)
    return new


def _replaced(conn: sqlite3.Connection, superseded: Sequence[bytes]) -> list[BlockRow]:
    """Those on which no block and no pin hangs."""
    sql = "SELECT EXISTS (SELECT 1 FROM kv_blocks WHERE parent = ?) OR EXISTS (SELECT 1 FROM kv_pins WHERE key = ?)"
    found = [row for key in dict.fromkeys(superseded) if (row := rows.find(conn, key)) is not None]
    return [row for row in found if not conn.execute(sql, [row.key, row.key]).fetchone()[0]]


def _first(order: Iterable[BlockRow], nbytes: int) -> list[BlockRow]:
    """As many of the first as have `nbytes` together, or all."""
    taken: list[BlockRow] = []
    for row in order:
        if nbytes <= 0:
            break
        taken.append(row)
        nbytes -= row.nbytes
    return taken


def eviction_order(blocks: Iterable[BlockRow], kept: Collection[bytes]) -> Iterator[BlockRow]:
    """Blocks in the order in which they are to be given up, each after all that hang under it.

    A block counts as used whenever one under it was: a path that was read yesterday goes, from its tip, before one that was
    read today, however old the start of either is.

    Args:
        blocks: Everything that is held.
        kept: Keys that stay, and with them whatever they hang on.
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
    """Blocks whose parents make a circle, and all that hang under them: damage has done it, and no path leads there."""
    held = {block.key: block for block in blocks}
    ends: dict[bytes, bool] = {}  # whether a path leads from a root, or from what is not held, to a block
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
    """The block `key` and all that hang under it, each once, also where damage has made a circle of parents."""
    children: dict[bytes | None, list[BlockRow]] = {}
    found: list[BlockRow] = []
    for block in blocks:
        children.setdefault(block.parent, []).append(block)
        if block.key == key:
            found.append(block)
    seen = {block.id for block in found}
    for block in found:  # grows while it is walked
        for child in children.get(block.key, ()):
            if child.id not in seen:
                seen.add(child.id)
                found.append(child)
    return found
