"""The tree as an outline: one row per branch, named after its first own words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from app.workbench.tree.node_index import PathColumns
from app.workbench.tree.tree import Tree, is_hidden
from storage import NodeRow
from ui import QT_TRANSLATE_NOOP, BranchRow, translate

NAME_WORDS = 6
BEFORE_WORDS = 2
NAME_MOST = 48  # characters
WORD_MOST = 20  # words up to this length are never cut; in scripts without spaces, so much stays together
TEXT_MOST = 400  # characters of a branch for a tooltip
_WORD = re.compile(rf"\S{{0,{WORD_MOST}}}\Z")  # the end of a text up to the last space, at most WORD_MOST characters
NO_ANSWER = QT_TRANSLATE_NOOP("Workbench", "no answer")  # name of an answer that failed before its first token


class OutlineLine(Struct, frozen=True):
    """A branch: the part of `node` from token `start` on, named after its text from `byte` on."""

    node: NodeRow
    start: int
    byte: int
    depth: int
    shared: str  # text of the node before the branch
    pruned: bool = False  # whether it or an ancestor is pruned
    number: int = 1  # among branches of one place with the same name
    common: int = 0  # bytes before `byte` that are shared with other branches of the place


def outline(tree: Tree, tip: int | None, pruned: Collection[tuple[int, int]] = ()) -> tuple[BranchRow, ...]:
    """Rows from the first question on, in reading order.

    Args:
        tree: The tree of the session.
        tip: The end of the path shown.
        pruned: Hidden branches, each by its node and its first token.
    """
    columns = tree.path_columns(tip)
    rows: list[BranchRow] = []
    for line, end in lines(tree, pruned):
        before, name = name_of(tree, line, end)
        name = name if line.number == 1 else f"{name} ({line.number})"
        rows.append(
            BranchRow(
                node_id=line.node.id,
                depth=line.depth,
                before=before,
                name=name,
                logprob=logprob_of(line.node),
                on_path=_on_path(line, columns),
                current=False,
                likely=_likely(line.node),
                start=line.start,
                pruned=line.pruned,
                text=own_text(line)[:TEXT_MOST].strip(),
            )
        )
    return _mark_current(rows)


def unread_names(tree: Tree) -> Iterator[int]:
    """Nodes whose text names a row of the outline and was not read yet."""
    for line, end in lines(tree, ()):
        for node in (line.node, end, *_answers(tree, line, end)):
            if not node.whole:
                yield node.id


def lines(tree: Tree, pruned: Collection[tuple[int, int]]) -> Iterator[tuple[OutlineLine, NodeRow]]:
    """Branches in reading order, each with the last node before it splits."""
    stack = [OutlineLine(node, 0, 0, 0, "") for node in reversed(_first_turns(tree))]
    while stack:
        line = stack.pop()
        if (line.node.id, line.start) in pruned:
            line = replace(line, pruned=True)
        end, branches = _follow(tree, line)
        branches = _apart(branches)
        yield line, end
        stack.extend(replace(branch, pruned=line.pruned) for branch in reversed(branches))


def branch_name(rows: tuple[BranchRow, ...]) -> str:
    """The name of the branch shown; "" if it is the only one."""
    return next((row.given or row.name for row in rows if row.current), "") if len(rows) > 1 else ""


def _first_turns(tree: Tree) -> list[NodeRow]:
    """The first questions: children of a system prompt, and other roots."""
    first: list[NodeRow] = []
    for root in tree.children(None):
        first.extend(tree.children(root.id) if root.role == "system" else [root])
    return first


def _follow(tree: Tree, line: OutlineLine) -> tuple[NodeRow, list[OutlineLine]]:
    """Follows a branch until it splits; returns the last node before the split, and the branches there."""
    node, start, byte = line.node, line.start, line.byte
    while True:
        if start == 0 and (last := tree.chain_end(node.id)).id != node.id:
            node, byte = last, 0
        inner = [c for c in tree.children(node.id) if c.at_token is not None and not tree.leaves_at_end(c)]
        inner = [c for c in inner if (c.at_token or 0) > start]
        if inner:
            at = min(c.at_token or 0 for c in inner)
            leaving = [c for c in inner if c.at_token == at]
            at_byte = leaving[0].at_byte or 0
            shared = _text(node).encode()[byte:at_byte].decode(errors="ignore")
            rest = OutlineLine(node, at, at_byte, line.depth + 1, shared)
            return node, [rest, *(OutlineLine(c, 0, 0, line.depth + 1, shared) for c in leaving)]
        after = [c for c in tree.children(node.id) if tree.leaves_at_end(c)]
        if len(after) > 1:
            return node, [OutlineLine(c, 0, 0, line.depth + 1, "") for c in after]
        if not after:
            return node, []
        node, start, byte = after[0], 0, 0


def _on_path(line: OutlineLine, columns: PathColumns) -> bool:
    row = columns.row(line.node.id)
    if row is None:
        return False
    stop = columns.stop(row)
    return stop is None or stop > line.start


def _mark_current(rows: list[BranchRow]) -> tuple[BranchRow, ...]:
    deepest = max((i for i, row in enumerate(rows) if row.on_path), key=lambda i: (rows[i].depth, i), default=-1)
    return tuple(replace(row, current=i == deepest) for i, row in enumerate(rows))


def name_of(tree: Tree, line: OutlineLine, end: NodeRow) -> tuple[str, str]:
    """The last words before a branch, and its first own words, from the beginning of the word in which it leaves."""
    stem = stem_of(line)
    shared, own = line.shared.removesuffix(stem), stem + own_text(line)
    nothing = translate("Workbench", NO_ANSWER) if line.node.status == "partial" and not line.node.has_text else "…"
    before, name = _last_words(shared), _first_words(own) or nothing
    answers = _answers(tree, line, end)
    if len(answers) == 1 and _text(answers[0]):
        return before, f"{name} → {_first_words(_text(answers[0]), 4)}"
    return before, name


def stem_of(line: OutlineLine) -> str:
    """The first part of the word in which a branch begins, before the branch."""
    found = _WORD.search(line.shared) if own_text(line)[:1].strip() else None
    return found.group() if found else ""


def own_text(line: OutlineLine) -> str:
    """The text of a branch from its beginning on."""
    return _text(line.node).encode()[line.byte :].decode(errors="ignore")


def _apart(found: list[OutlineLine]) -> list[OutlineLine]:
    """Renames branches of one place with equal names from their first differing word on."""
    owns = [own_text(line) for line in found]
    alike: dict[str, set[str]] = {}
    for own in owns:
        alike.setdefault(_first_words(own), set()).add(own)
    common: dict[str, int] = {}  # longest beginning that a text shares with another of the same name
    for texts in alike.values():
        for one, other in pairwise(sorted(texts)):  # sorted: a neighbour shares the longest beginning
            length = _common(one, other)
            common[one], common[other] = max(common.get(one, 0), length), length
    apart, seen = list[OutlineLine](), Counter[tuple[str, str]]()
    for line, own in zip(found, owns, strict=True):
        said = _WORD.sub("", own[: common.get(own, 0)]).rstrip()  # keeps the first differing word whole
        size = len(said.encode())
        line = replace(line, byte=line.byte + size, shared=line.shared + said, common=size)
        label = (_last_words(line.shared), _first_words(stem_of(line) + own_text(line)))
        seen[label] += 1
        apart.append(replace(line, number=seen[label]) if line.node.whole else line)
    return apart


def _common(one: str, other: str) -> int:
    """The length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _answers(tree: Tree, line: OutlineLine, end: NodeRow) -> list[NodeRow]:
    """The answers to a question that begins a branch; a single one is part of its name."""
    if line.node.role != "user" or line.depth == 0 or end.id == line.node.id:
        return []
    return [c for c in tree.children(line.node.id) if tree.leaves_at_end(c)]


def _text(node: NodeRow) -> str:
    """A node's text; "" until it was read (see `unread_names`)."""
    return node.text if node.whole else ""


def logprob_of(node: NodeRow) -> float | None:
    """Log-probability in nats of a node's generated tokens; None if there are none or it was not read."""
    value = node.stats.get("logprob") if node.whole else None
    return float(value) if isinstance(value, int | float) else None


def _likely(node: NodeRow) -> float | None:
    """The geometric mean of a node's token probabilities, which does not depend on its length."""
    logprob, count = logprob_of(node), node.stats.get("generated") if node.whole else None
    return math.exp(min(logprob / count, 0.0)) if logprob is not None and isinstance(count, int) and count > 0 else None


def _first_words(text: str, count: int = NAME_WORDS) -> str:
    return " ".join(text.split(None, count)[:count])[:NAME_MOST]


def _last_words(text: str) -> str:
    words = text.rsplit(None, BEFORE_WORDS)
    return "… " + " ".join(words[-BEFORE_WORDS:])[-NAME_MOST:] if words else ""


def hidden_nodes(tree: Tree, pruned: Collection[tuple[int, int]]) -> set[int]:
    """The nodes to whose end the path goes through a pruned branch."""
    hidden: set[int] = set()
    for node_id, start in pruned:
        leaving = [child.id for child in tree.children(node_id) if child.at_token is None or child.at_token > start]
        hidden.add(node_id)
        while leaving:
            each = leaving.pop()
            hidden.add(each)
            leaving += [child.id for child in tree.children(each)]
    return hidden


def latest_visible(tree: Tree, pruned: Collection[tuple[int, int]]) -> int | None:
    """The newest tip whose path goes through no pruned branch."""
    ends = [n for n in tree.nodes.values() if n.role != "system" and not any(map(tree.leaves_at_end, tree.children(n.id)))]
    return next((n.id for n in sorted(ends, key=lambda n: -n.seq) if not is_hidden(tree, pruned, n.id)), None)
