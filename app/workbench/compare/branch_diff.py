"""Compares two branches token by token: common stem, differences after it, and the probability of each side."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from difflib import Match
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from app.workbench.compare.alignment import matches
from app.workbench.refusals import GONE
from app.workbench.tree.outline import outline
from app.workbench.tree.reading import read_whole
from app.workbench.tree.session import OpenSession, WholeSession
from runtime import Origin, TokenRun, texts_of
from storage import SessionStore
from ui import BranchDiff, DiffPart, DiffSide, Refusal, translate

_WORD = re.compile(r"\s*\S+|\s+")


@dataclass(frozen=True, slots=True)
class BranchTokens:
    """A branch from the root to its end as columns, one row per token (per word in text without tokens)."""

    name: str
    pieces: tuple[bytes, ...]
    template: npt.NDArray[np.bool_]  # ``(n,)`` whether it is a template token or eos, which are not shown
    logprob: npt.NDArray[np.float32]  # ``(n,)`` nats; NaN if not scored
    turns: npt.NDArray[np.bool_]  # ``(n,)`` whether a turn begins

    def side(self, start: int, stop: int) -> DiffSide:
        """A range of tokens; each turn begins on a new line."""
        texts = texts_of(self.pieces[start:stop])
        shown: list[str] = []
        for at, text in enumerate(texts, start):
            if self.turns[at] and any(shown):
                shown.append("\n")
            shown.append("" if self.template[at] else text)
        scored = self.logprob[start:stop]
        known = bool(np.isfinite(scored).any())
        return DiffSide("".join(shown), stop - start, float(np.nansum(scored, dtype=np.float64)) if known else None)


async def compare(store: SessionStore, session: OpenSession, left: int, right: int) -> BranchDiff:
    """Compares the branches through two nodes, each down to its leaf.

    Raises:
        Refusal: One of them is not in the session, or its tokens cannot be read.
    """
    tree = session.tree
    if left not in tree.nodes or right not in tree.nodes:
        raise Refusal(translate("Workbench", GONE))
    shown = [segment.node.id for segment in tree.path(session.tip)]
    tips = [tree.leaf(node, shown) for node in (left, right)]
    whole = await read_whole(store, session, *tips)
    rows = outline(tree, session.tip)
    names = {row.node_id: row.name for row in rows}
    current = next((row.name for row in rows if row.current), "")
    named = [current if tip == session.tip else names.get(node, "") for node, tip in zip((left, right), tips, strict=True)]
    a, b = (branch_tokens(whole, tip, name) for tip, name in zip(tips, named, strict=True))
    return await asyncio.to_thread(difference, a, b)


def branch_tokens(session: WholeSession, tip: int, name: str) -> BranchTokens:
    """The branch that ends at `tip`."""
    runs, starts = [], []
    for segment in session.tree.path(tip):
        run = session.segment_run(segment)
        if not session.runs.length(segment.node.id) and segment.node.text:
            run = _words(segment.node.text)
        runs.append(run)
        starts += [segment.node.turn_start and at == 0 for at in range(len(run))]
    whole = TokenRun.concat(runs)
    template = (whole.origin == int(Origin.TEMPLATE)) | whole.by_eos
    return BranchTokens(name, whole.token_bytes, template, whole.logprob, np.array(starts, np.bool_))


def difference(left: BranchTokens, right: BranchTokens) -> BranchDiff:
    """Compares two branches; blocking, any thread."""
    keys: dict[tuple[bytes, bool], int] = {}
    a, b = (
        np.array([keys.setdefault(key, len(keys)) for key in zip(each.pieces, each.template.tolist(), strict=True)], np.int64)
        for each in (left, right)
    )
    found = matches(a, b)
    stem = found[0].size if found and (found[0].a, found[0].b) == (0, 0) else 0
    found = [Match(stem, stem, 0), *found[bool(stem) :], Match(len(a), len(b), 0)]
    parts: list[DiffPart] = []
    for match, after in pairwise(found):
        if match.size:
            ends = match.a + match.size, match.b + match.size
            parts.append(DiffPart(True, left.side(match.a, ends[0]), right.side(match.b, ends[1])))
        gap = (match.a + match.size, after.a), (match.b + match.size, after.b)
        if any(start < stop for start, stop in gap):
            parts.append(DiffPart(False, left.side(*gap[0]), right.side(*gap[1])))
    return BranchDiff(
        left_name=left.name,
        right_name=right.name,
        stem=left.side(0, stem),
        parts=tuple(parts),
        left=left.side(stem, len(a)),
        right=right.side(stem, len(b)),
    )


def _words(text: str) -> TokenRun:
    """Text without tokens, as one token per word."""
    words = _WORD.findall(text)
    return TokenRun.unscored(range(len(words)), [word.encode() for word in words], words, Origin.TYPED)
