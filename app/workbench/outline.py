"""The tree as an outline: one row per branch, named by the words with which it diverges."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, replace

from app.workbench.tree import Tree
from storage import NodeRow
from ui import BranchRow

NAME_WORDS = 6
BEFORE_WORDS = 2
NO_ANSWER = "no answer"  # it failed before it said anything


@dataclass(frozen=True, slots=True)
class _Line:
    """A branch: the part of `node` from token `start` (byte `byte` of its text) on."""

    node: NodeRow
    start: int
    byte: int
    depth: int
    shared: str  # what was said in this run before it diverged
    pruned: bool = False  # as what it leaves is


def outline(tree: Tree, tip: int | None, pruned: Collection[tuple[int, int]] = ()) -> tuple[BranchRow, ...]:
    """Rows from the first question down, in reading order.

    Args:
        tree: Of the session.
        tip: The end of the path that is shown.
        pruned: Branches out of sight, each by its node and the token of it where it begins.
    """
    path = {segment.node.id: segment.stop for segment in tree.path(tip)}
    rows: list[BranchRow] = []
    stack = [_Line(node, 0, 0, 0, "") for node in reversed(_first_turns(tree))]
    while stack:
        line = stack.pop()
        if (line.node.id, line.start) in pruned:
            line = replace(line, pruned=True)
        end, branches = _follow(tree, line)
        on_path = _on_path(line, path)
        before, name = _name(tree, line, end)
        rows.append(
            BranchRow(
                node_id=line.node.id,
                depth=line.depth,
                before=before,
                name=name,
                logprob=_logprob(line.node),
                on_path=on_path,
                current=False,
                likely=_likely(line.node),
                start=line.start,
                pruned=line.pruned,
            )
        )
        stack.extend(replace(branch, pruned=line.pruned) for branch in reversed(branches))
    return _mark_current(rows)


def branch_name(rows: tuple[BranchRow, ...]) -> str:
    """The name of the branch that is shown; empty when there is one only."""
    return next((row.name for row in rows if row.current), "") if len(rows) > 1 else ""


def _first_turns(tree: Tree) -> list[NodeRow]:
    """The first questions: what hangs under the system prompt (or stands at the root)."""
    first: list[NodeRow] = []
    for root in tree.children(None):
        first.extend(tree.children(root.id) if root.role == "system" else [root])
    return first


def _follow(tree: Tree, line: _Line) -> tuple[NodeRow, list[_Line]]:
    """Along a branch to where it splits: the last node before the split, and the branches there."""
    node, start, byte = line.node, line.start, line.byte
    while True:
        while start == 0 and (following := tree.next_alone(node.id)) is not None:
            node, byte = following, 0
        inner = [c for c in tree.children(node.id) if c.at_token is not None and not tree.leaves_at_end(c)]
        inner = [c for c in inner if (c.at_token or 0) > start]
        if inner:
            at = min(c.at_token or 0 for c in inner)
            leaving = [c for c in inner if c.at_token == at]
            at_byte = leaving[0].at_byte or 0
            shared = node.text.encode()[byte:at_byte].decode(errors="ignore")
            rest = _Line(node, at, at_byte, line.depth + 1, shared)
            return node, [rest, *(_Line(c, 0, 0, line.depth + 1, shared) for c in leaving)]
        after = [c for c in tree.children(node.id) if tree.leaves_at_end(c)]
        if len(after) > 1:
            return node, [_Line(c, 0, 0, line.depth + 1, "") for c in after]
        if not after:
            return node, []
        node, start, byte = after[0], 0, 0


def _on_path(line: _Line, path: dict[int, int | None]) -> bool:
    if line.node.id not in path:
        return False
    stop = path[line.node.id]
    return stop is None or stop > line.start


def _mark_current(rows: list[BranchRow]) -> tuple[BranchRow, ...]:
    deepest = max((i for i, row in enumerate(rows) if row.on_path), key=lambda i: (rows[i].depth, i), default=-1)
    return tuple(replace(row, current=i == deepest) for i, row in enumerate(rows))


def _name(tree: Tree, line: _Line, end: NodeRow) -> tuple[str, str]:
    """The last words before a branch, and its own first words; a word that was cut in the middle belongs to the name."""
    shared, own = line.shared, line.node.text.encode()[line.byte :].decode(errors="ignore")
    if own[:1].strip():
        stem = re.search(r"\S*$", shared)
        cut = stem.start() if stem else len(shared)
        shared, own = shared[:cut], shared[cut:] + own
    nothing = NO_ANSWER if line.node.status == "partial" and not line.node.text else "…"
    before, name = _last_words(shared), _first_words(own) or nothing
    if line.node.role != "user" or line.depth == 0 or end.id == line.node.id:
        return before, name
    answers = [c for c in tree.children(line.node.id) if tree.leaves_at_end(c)]
    if len(answers) == 1 and answers[0].text:
        return before, f"{name} → {_first_words(answers[0].text, 4)}"
    return before, name


def _logprob(node: NodeRow) -> float | None:
    value = node.stats.get("logprob")
    return float(value) if isinstance(value, int | float) else None


def _likely(node: NodeRow) -> float | None:
    """The geometric mean of its tokens' probabilities: a long branch is not thinner for being long."""
    logprob, count = _logprob(node), node.stats.get("generated")
    return math.exp(logprob / count) if logprob is not None and isinstance(count, int) and count > 0 else None


def _first_words(text: str, count: int = NAME_WORDS) -> str:
    return " ".join(text.split()[:count])[:48]


def _last_words(text: str) -> str:
    words = text.split()
    return "… " + " ".join(words[-BEFORE_WORDS:]) if words else ""
