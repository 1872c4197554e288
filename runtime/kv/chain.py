"""Names of blocks: a hash chain over namespaces and tokens, so that blocks of equal names have equal KV.

Blocks lie on a grid of 64 tokens that starts again where the adapters change; the last block before such a place, and the last
block of a path, may be shorter. The recurrent state after a token is stored in an additional block that ends there: such a
*checkpoint* has a name of its own, so that it is never taken for a block without state. The chain is that of vLLM's prefix
caching (a hash of the parent, the tokens and everything else that the KV depends on), with SHA-256.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.adapters.stacks import Route, Routing, stack_of
from runtime.adapters.uses import Uses
from runtime.kv.trie import Namespace, Span
from runtime.records import Int32

BLOCK_TOKENS = 64
_START = bytes(32)


@dataclass(frozen=True, slots=True)
class Link:
    """One block of a path: its name, and its tokens ``[start, stop)``."""

    key: bytes
    parent: bytes | None  # None at the start of a path
    namespace: Namespace
    start: int
    stop: int
    state: bool = False  # whether the block holds the recurrent state after its last token

    @property
    def tokens(self) -> int:
        """The number of its tokens."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class BlockCell:
    """A place of the grid: up to 64 tokens of one namespace, and the name of the block before them."""

    parent: bytes | None
    namespace: Namespace
    start: int
    ids: Int32

    def link(self, tokens: int | None = None, *, state: bool = False) -> Link:
        """The block of the cell's first `tokens` tokens; None: of all tokens."""
        ids = self.ids[:tokens]
        key = hashlib.sha256(b"".join((self.parent or _START, _named(self.namespace, state), ids.astype("<u4").tobytes())))
        return Link(key.digest(), self.parent, self.namespace, self.start, self.start + len(ids), state)


# by parent, namespace, start and length: a cell and its block's name
Known = dict[tuple[bytes | None, Namespace, int, int], tuple[BlockCell, bytes]]


def cells(spans: Sequence[Span], known: Known | None = None) -> list[BlockCell]:
    """The cells of a path, in order; all but the last cell of a span are full.

    Args:
        spans: The path.
        known: The cells of other paths through the same ids; those of this path are added.
    """
    known = {} if known is None else known
    found: list[BlockCell] = []
    parent: bytes | None = None
    at = 0
    for namespace, ids in spans:
        for start in range(0, len(ids), BLOCK_TOKENS):
            part = ids[start : start + BLOCK_TOKENS]
            place = (parent, namespace, at + start, len(part))
            if place not in known:
                cell = BlockCell(parent, namespace, at + start, part)
                known[place] = cell, cell.link().key
            cell, parent = known[place]
            found.append(cell)
        at += len(ids)
    return found


def block_keys(kv_fingerprint: str, ids: Sequence[int], ends: Iterable[int] = (), uses: Uses = ()) -> list[bytes]:
    """The names that the blocks of a path can have, parents first: the blocks of the grid, and their checkpoints.

    Args:
        kv_fingerprint: `ModelInfo.kv_fingerprint`.
        ids: The path.
        ends: Lengths, in tokens, that the path may have had when it was saved: the last block of a saved path may be shorter
            than the others, and then has a name of its own; so have blocks after an invocation that activates an adapter only
            in the shorter path.
        uses: The adapters that the path is computed under (`ModelInfo.uses_under`); () is the base. Blocks before an
            invocation have the same names as without that adapter.
    """
    path, routing = np.asarray(ids, np.int32), Routing(kv_fingerprint, uses)
    stops: dict[Route, list[int]] = {}
    for end in sorted({*(end for end in ends if 0 < end < len(path)), len(path)}):
        stops.setdefault(routing.route(path[:end]), []).append(end)
    known: Known = {}
    partial: list[bytes] = []  # names of blocks at earlier ends
    for same_route in stops.values():  # the shorter paths are prefixes of the longest
        grid = cells(routing.spans(path[: same_route[-1]]), known)
        starts = [cell.start for cell in grid]
        for end in same_route[:-1]:
            cell = grid[bisect_left(starts, end) - 1]
            if end < cell.start + len(cell.ids):
                partial += [cell.link(end - cell.start, state=state).key for state in (False, True)]
    whole = [name for cell, key in known.values() for name in (key, cell.link(state=True).key)]
    return list(dict.fromkeys([*whole, *partial]))


def _named(namespace: Hashable, state: bool) -> bytes:
    """The bytes of a namespace after their length: the fingerprint, and the adapters with exact scales."""
    fingerprint = namespace[0] if isinstance(namespace, tuple) else namespace
    stack = [[digest, float(scale).hex()] for digest, scale in stack_of(namespace)]
    text = json.dumps([str(fingerprint), stack, *["state"] * state]).encode()
    return len(text).to_bytes(4, "little") + text
