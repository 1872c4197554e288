"""The tree as rows of turns: the main branch at one level, each other branch under the turn that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.workbench.tree.outline import OutlineLine, lines, logprob_of, name_of, stem_of
from app.workbench.tree.tree import PathSegment, Tree
from storage import NodeRow
from ui import TreeRow

Branch = tuple[int, int]  # a node, and the token of it with which the branch begins


@dataclass(slots=True)
class _Branch:
    line: OutlineLine
    turns: list[tuple[int, int, str]]  # first node, last node, role
    name: tuple[str, str]
    leaving: list[_Branch] = field(default_factory=list)
    size: int = 0  # turns of the branch and of all branches below it
    on_path: bool = False


def turn_rows(
    tree: Tree,
    tip: int | None,
    *,
    pruned: Collection[Branch] = (),
    names: Mapping[Branch, str] | None = None,
    bookmarks: Collection[Branch] = (),
) -> tuple[TreeRow, ...]:
    """Rows in reading order; a parent precedes its children.

    Where a branch splits, the side branches come first, one level deeper; then the main one continues at the same level.
    The main one is the branch shown, else the longest.
    """
    names = names or {}
    columns = tree.path_columns(tip)
    stops: dict[int, int] = dict(zip(columns.ids.tolist(), columns.ends().tolist(), strict=True))

    logprobs = {node.id: logprob_of(node) for node in tree.held()}

    def on_path(key: Branch) -> bool:
        return stops.get(key[0], 0) > key[1]

    rows: list[TreeRow] = []
    # a branch, its depth, its parent row, and whether it is a side branch
    waiting = [(branch, 0, -1, beside) for branch, beside in _in_order(_branches(tree, pruned, on_path))]
    waiting.reverse()
    while waiting:
        branch, depth, parent, beside = waiting.pop()
        line, head = branch.line, len(rows)
        for place, (first, end, role) in enumerate(branch.turns):
            start = 0 if place else line.start
            row = TreeRow(  # positional arguments: thousands of rows take half the time
                first, start, end, parent, head, depth, role,
                False, "", "", "", "", 0, None, 0,  # set below for the first row of a branch
                logprobs.get(end), stops.get(first, 0) > start, False, line.pruned, (first, start) in bookmarks,
            )  # fmt: skip
            if not place:
                before, name = branch.name
                name = name if line.number == 1 else f"{name} ({line.number})"
                row = row._replace(
                    before=before,
                    stem=stem_of(line),
                    name=name,
                    given=names.get(row.key, ""),
                    common=line.common,
                    beside=beside,
                )
                if beside:
                    depth, parent = depth + 1, head
            rows.append(row)
        rest = (each.line.start for each in branch.leaving if each.line.node.id == rows[-1].end)
        ways = sum(line.pruned or not each.line.pruned for each in branch.leaving)
        rows[-1] = rows[-1]._replace(stop=next(rest, None), ways=ways)
        at = len(rows) - 1
        below = ((each, *((depth + 1, at) if aside else (depth, parent)), aside) for each, aside in _in_order(branch.leaving))
        waiting.extend(reversed([*below]))
    last = next((i for i in reversed(range(len(rows))) if rows[i].on_path), None)
    if last is not None:
        rows[last] = rows[last]._replace(current=True)
    return tuple(rows)


def _branches(tree: Tree, pruned: Collection[Branch], on_path: Callable[[Branch], bool]) -> list[_Branch]:
    """The branches without a parent; the others are in their `leaving`."""
    found: list[_Branch] = []
    above: list[_Branch] = []  # the last branch of each depth
    for line, end in lines(tree, pruned):
        turns = tree.spans(line.node.id, end.id)
        made = _Branch(line, turns, name_of(tree, line, end), size=len(turns), on_path=on_path((line.node.id, line.start)))
        del above[line.depth :]
        (above[-1].leaving if above else found).append(made)
        above.append(made)
    every = list(found)
    for each in every:
        every.extend(each.leaving)
    for each in reversed(every):
        each.size += sum(below.size for below in each.leaving)
    return found


def _in_order(branches: Sequence[_Branch]) -> Iterator[tuple[_Branch, bool]]:
    """Branches, and whether each is a side branch. The main one comes last, but first among the beginnings of a session."""
    main = max(branches, key=lambda each: (each.on_path, not each.line.pruned, each.size), default=None)
    first = main is not None and main.line.depth == 0
    if main is not None and first:
        yield main, False
    yield from ((each, True) for each in branches if each is not main)
    if main is not None and not first:
        yield main, False


def segments_of(tree: Tree, row: TreeRow) -> list[PathSegment]:
    """The segments of a row, with the tokens before its `start`; none if the row no longer exists."""
    nodes: list[PathSegment] = []
    node, stop = tree.nodes.get(row.end), row.stop
    while node is not None:
        nodes.append(PathSegment(node, stop))
        if node.id == row.node_id:
            return nodes[::-1]
        stop = node.at_token
        node = tree.nodes.get(node.parent_id) if node.parent_id is not None else None
    return []


def found_in(tree: Tree, rows: Sequence[TreeRow], texts: Mapping[int, str], words: str) -> Iterator[Branch]:
    """Rows whose text or name contains `words`, in any case.

    Args:
        tree: The tree of the session.
        rows: Rows of that tree.
        texts: The text of each node.
        words: The words to find; white space matches any white space.
    """
    wanted = _plain(words)
    for row in rows if wanted else ():
        text = text_of(tree, segments_of(tree, row), texts, row.start)
        if wanted in _plain(row.given) or wanted in _plain(row.stem + text):
            yield row.key


def text_of(tree: Tree, segments: Sequence[PathSegment], texts: Mapping[int, str], start: int = 0) -> str:
    """The text of segments from token `start` of the first on; `texts` has the text of each node."""
    joined = bytearray()
    for place, segment in enumerate(segments):
        text = texts.get(segment.node.id, "").encode()
        begins = _byte(tree, segment.node, start) if place == 0 else 0
        ends = len(text) if segment.stop is None else _byte(tree, segment.node, segment.stop)
        joined += text[begins:ends]
    return joined.decode(errors="ignore")


def _byte(tree: Tree, node: NodeRow, token: int) -> int:
    """The byte at which a token of a node begins, if a child leaves the node there."""
    leaving = (child.at_byte for child in tree.children(node.id) if child.at_token == token) if token else ()
    return next((at for at in leaving if at is not None), 0)


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
