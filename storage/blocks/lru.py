"""Which blocks go first: the least recently used of those that nothing hangs on, never what is pinned."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from storage.blocks.rows import BlockRow


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


def endless(blocks: Iterable[BlockRow]) -> list[BlockRow]:
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
