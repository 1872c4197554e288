"""How far a path goes on among the stored blocks."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.blocks.chain import Cell, Link, cells
from runtime.blocks.store import BlockStore
from runtime.trie import Span


def reach(store: BlockStore, spans: Sequence[Span], *, recurrent: bool, beyond: int = 0) -> list[Link]:
    """The blocks of the longest run from the path's start that is stored; on the block thread.

    The last one may be shorter than 64 tokens: whoever saved the path ended there. With recurrent layers the run ends at a
    checkpoint, the deepest there is.

    Args:
        store: Where to look; what is found there is marked as just used.
        spans: The path.
        recurrent: Whether generation can go on only from a checkpoint.
        beyond: Tokens of the path that are of no interest: where the run would end within them, it is empty.
    """
    grid = cells(spans)
    links = [cell.link() for cell in grid]
    held = store.leading([link.key for link in links])
    if not recurrent:
        found = links[:held]
        if held < len(grid):
            found += _shorter(store, grid[held], beyond)
        return found if found and found[-1].stop > beyond else []
    for at in range(min(held, len(grid) - 1), -1, -1):
        cell = grid[at]
        if cell.start + len(cell.ids) <= beyond:
            break
        tip = _ended(store, cell, beyond, state=True, tokens=len(cell.ids))
        if tip is not None:
            return [*links[:at], tip]
    return []


def _shorter(store: BlockStore, cell: Cell, beyond: int) -> list[Link]:
    tip = _ended(store, cell, beyond, state=False, tokens=len(cell.ids) - 1)
    return [] if tip is None else [tip]


def _ended(store: BlockStore, cell: Cell, beyond: int, *, state: bool, tokens: int) -> Link | None:
    """The longest block of a cell, of at most `tokens`, that is stored."""
    for count in range(tokens, max(beyond - cell.start, 0), -1):
        link = cell.link(count, state=state)
        if store.leading([link.key]):
            return link
    return None
