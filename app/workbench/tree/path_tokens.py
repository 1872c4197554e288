"""The tokens of an open session's paths: read from the store, put together along a path, cut where it leaves a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from app.workbench.setup.beginning import Beginning
from app.workbench.tree.node_index import Bool, Course, Int64
from app.workbench.tree.runs import BROKEN, EMPTY, Runs
from app.workbench.tree.tree import Segment, Tree, Turn
from runtime import Origin, TokenRun, texts_of
from storage import NodeColumns, NodeRow, StoredChunk
from ui import Refusal, TurnStatus, translate


class PathTokens:
    """Tokens of the nodes that were read.

    Args:
        nodes: All of them, or where they stand.

    Attributes:
        tree: The nodes.
        states: Of turns in work: their tokens are here, not on the disk.
        damaged: Nodes of which not everything could be read; of those that miss tokens the rest is text.
    """

    def __init__(self, nodes: Sequence[NodeRow] | NodeColumns) -> None:
        self.tree = Tree(nodes)
        self._runs = Runs()
        self.states: dict[int, TurnStatus] = {}
        self.damaged: set[int] = set()
        self.lost: set[int] = set()  # those of them whose tokens are not all there, or not to be trusted

    def unread(self, segments: Iterable[Segment]) -> list[int]:
        """Nodes of which not everything was read yet, in order; one that is being written is here, not on the disk."""
        ids = dict.fromkeys(segment.node.id for segment in segments)
        return [i for i in ids if i not in self._runs and i not in self.states]

    def without_tokens(self, node_ids: Iterable[int]) -> list[int]:
        """Those whose tokens were not read, whether they are being written or not."""
        return [i for i in node_ids if i not in self._runs]

    def add_tokens(self, chunks: Mapping[int, Sequence[StoredChunk]]) -> None:
        """Takes in what the store read."""
        for node_id, stored in chunks.items():
            if node_id in self._runs or node_id in self.states:  # an answer began while the store was reading
                continue
            held = list(takewhile(lambda c: c.columns, stored))  # behind a gap nothing stands where it stood
            read = [run_of(c.columns) for c in held]
            run = healed(TokenRun.concat([run for run, _ in read]))
            node = self.tree.nodes.get(node_id)
            if len(held) < len(stored) or (node is not None and node.damaged):
                self.lost.add(node_id)
                run = with_text(run, "" if node is None else node.text)
            self._runs[node_id] = run
            if node_id in self.lost or any(c.damaged for c in stored) or not all(sound for _, sound in read):
                self.damaged.add(node_id)

    def _segment_run(self, segment: Segment) -> TokenRun:
        """The tokens of a segment; a node without tokens shows its text as one."""
        run = self._runs.get(segment.node.id, EMPTY)
        if not len(run) and segment.node.text:
            run = text_run(segment.node.text)
        return run if segment.stop is None else run[: segment.stop]

    def _turn_run(self, turn: Turn) -> TokenRun:
        """The tokens of a turn along the path."""
        return healed(TokenRun.concat([self._segment_run(segment) for segment in turn.segments]))

    def turn_length(self, turn: Turn) -> int:
        """Tokens of a turn along the path, without putting them together."""
        return sum(self.segment_length(segment) for segment in turn.segments)

    def segment_length(self, segment: Segment) -> int:
        """Tokens of a segment, read or not."""
        node, stop = segment.node, segment.stop
        length = self._runs.length(node.id) if node.id in self._runs else node.token_count
        length = length if length > 0 else int(node.has_text)  # see `_segment_run`
        return length if stop is None else min(length, stop)

    def lengths(self, tip: int | None) -> Int64:
        """Tokens of each node along a path, read or not, ``(n,)``."""
        return self.tree.course(tip).lengths(self._runs.lengths())

    def is_read_along(self, course: Course) -> Bool:
        """Whether the tokens of each node of a path are here, ``(n,)``: they were read, or are being written."""
        found = np.zeros(len(course), np.bool_)
        for ids in (self._runs.lengths()[0], np.fromiter(self.states, np.int64, len(self.states))):
            rows = course.rows(ids)
            found[rows[rows >= 0]] = True
        return found

    def _content(self, turn: Turn) -> str:
        """What was said, without the template's own tokens; a message word for word, as it was typed."""
        if turn.role == "system":
            return Beginning.of(turn.tip).content
        run = self._turn_run(turn)
        return content_of(run) if len(run) and turn.role == "assistant" else turn.tip.text

    def check_sound(self, segments: Iterable[Segment], *, after: int = 0) -> None:
        """Refuses a path on which tokens are damaged or lost: the model would go on from what was never said.

        Args:
            segments: Of a path, or of the end of one.
            after: Turns of the path before those.

        Raises:
            Refusal: Names the turn, and the ways on.
        """
        turn = after
        for segment in segments:
            turn += bool(segment.node.turn_start or turn == after)
            if segment.node.damaged or segment.node.id in self.lost:
                if segment.node.role == "user":
                    way = translate("Workbench", "edit that message")
                else:
                    way = translate("Workbench", "make that answer again, or choose another version")
                words = translate("Workbench", "turn {0} is damaged: its text stands there, but no model goes on from it; {1}")
                raise Refusal(words.format(turn, way))


def text_run(text: str) -> TokenRun:
    """Text that has no tokens yet (no model has seen it), as a run of one."""
    return TokenRun.unscored([0], [text.encode()], [text], Origin.TYPED)


def with_text(run: TokenRun, text: str) -> TokenRun:
    """The tokens that are left of a turn, and what is known of its text behind them as one more."""
    said = content_of(run)
    rest = text.removeprefix(said) if text.startswith(said) else ""
    return TokenRun.concat([run, text_run(rest)]) if rest else run


def content_of(run: TokenRun) -> str:
    """The text of a run without the template's tokens and the closing eos."""
    kept = (run.origin != int(Origin.TEMPLATE)) & ~run.by_eos
    return "".join(text for text, keep in zip(run.texts, kept.tolist(), strict=True) if keep)


def run_of(columns: Mapping[str, Any]) -> tuple[TokenRun, bool]:
    """Stored columns as a run, and whether all made sense: what a draw was made of may be another program's writing."""
    try:
        return TokenRun.from_columns(columns), True
    except (KeyError, ValueError, TypeError, IndexError):  # an InvalidRequestError is a ValueError
        return TokenRun.from_columns({n: c for n, c in columns.items() if not n.startswith("stage_")}), False


def healed(run: TokenRun) -> TokenRun:
    """The run with texts decoded as a whole, where a character was split over two pieces."""
    return replace(run, texts=texts_of(run.token_bytes)) if BROKEN in run.text else run
