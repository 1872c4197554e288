"""An open session: its tree, the tokens read so far, its running answers, and its view."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from app.workbench.answers.provenance import made_of
from app.workbench.answers.provenance_text import refusal
from app.workbench.setup.beginning import Beginning, cards, tools_at
from app.workbench.tree.node_index import Bool, Int64, PathColumns
from app.workbench.tree.outline import branch_name, logprob_of, outline, unread_names
from app.workbench.tree.runs import EMPTY, Runs, began, content_of, healed, run_of, text_run, with_text
from app.workbench.tree.tree import PathSegment, Tree, TreeTurn, is_hidden
from app.workbench.tree.turn_notes import note_of, stored_stats
from runtime import Origin, TokenRun
from storage import NodeRow, SessionShape, SessionTree, StoredChunk
from ui import QT_TRANSLATE_NOOP, Refusal, RowText, SessionView, Tier, ToolCard, TurnStats, TurnStatus, TurnView, translate

if TYPE_CHECKING:
    from app.workbench.answers.columns import Endings
    from app.workbench.answers.completion import Ending
    from app.workbench.setup.values import SessionValues

UNTITLED = QT_TRANSLATE_NOOP("Workbench", "New session")  # as it is stored
AT_ONCE = 100  # turns shown at first, and added with each step back
WHOLE = 4 * AT_ONCE  # longer paths are not shown whole
MOST_TOKENS = 160  # most tokens shown of a row of the tree
OVERFLOW = "overflow"  # key in the stats of a stored answer: its prompt did not fit into the context
FOREIGN = "foreign"  # likewise: another tokenizer made the tokens before it
UNLOADED = "unloaded"  # likewise: its model could not be loaded
HOPELESS = "hopeless"  # likewise: a retry under the same model can only fail


def shown_title(title: str) -> str:
    """A stored title as the window shows it."""
    return translate("Workbench", UNTITLED) if title == UNTITLED else title


class OpenSession:
    """The parts of a session that the window shows, kept in step with the store.

    Args:
        stored: The whole session, or only the shape of its tree; then `missing` lists the nodes to be read.
    """

    def __init__(self, stored: SessionTree | SessionShape) -> None:
        self.tree = Tree(stored.nodes)
        self._runs = Runs()
        self.states: dict[int, TurnStatus] = {}  # running turns, whose tokens are here before they are on the disk
        self.damaged: set[int] = set()  # nodes that were not read in full; missing tokens are shown as text
        self.lost: set[int] = set()  # the damaged nodes whose tokens are missing or unreliable
        self.id = stored.session.id
        self.title = stored.session.title
        self.is_sample = stored.session.is_sample
        self.tip = stored.session.current_node
        self._removed: dict[int, int] = {}  # parents by removed node; undo and redo may still name such a node
        self.notes: dict[int, str] = {}
        self.stats: dict[int, TurnStats] = {}
        self.unsaved: Ending | Endings | None = None  # the last write of an answer, if it failed
        self.model_changed = False  # whether the model has changed since an answer failed for good
        self.warm = 0  # tokens of the path in the engine's memory
        self.on_server = False  # whether the engine is a server, which has the KV
        self.stored = 0  # tokens of the path in the engine's memory or its block file
        self.values: SessionValues | None = None  # its settings; None until they were read
        turns = self.tree.turn_count(self.tip)
        self._hidden = turns - AT_ONCE if turns > WHOLE else 0  # hidden turns of the path it was opened with

    @property
    def is_unused(self) -> bool:
        """Whether it has no message and no setting, so that it can be deleted or reused."""
        said = any(n.role != "system" or not n.whole or n.text or n.stats for n in self.tree.nodes.values())
        return not self.is_sample and self.title == UNTITLED and not said and not (self.values and self.values.is_set)

    @property
    def pruned(self) -> Collection[tuple[int, int]]:
        """Hidden branches, see `SessionValues`."""
        return self.values.pruned if self.values is not None else ()

    def beginning(self) -> Beginning:
        """System prompt, tools and files of the path shown."""
        root = self.tree.root(self.tip)
        return Beginning.of(root) if root is not None and root.role == "system" else Beginning()

    def tools(self, tip: int | None = None) -> list[dict[str, Any]]:
        """The tools of a path, by default of the one shown."""
        root = self.tree.root(self.tip if tip is None else tip)
        return [] if root is None else tools_at(root)

    def missing(self) -> list[int]:
        """Nodes of the shown part of the path that were not read yet."""
        turns = self.tree.turns(self.tip, self.earlier)
        return self.unread(segment for turn in turns for segment in turn.segments)

    @property
    def is_read(self) -> bool:
        return bool(self.is_read_along(self.tree.path_columns(self.tip)).all())

    def unnamed(self) -> list[int]:
        """Unread nodes whose texts are needed as names: roots, and rows of the outline."""
        roots = [root.id for root in self.tree.children(None) if not root.whole]
        return list(dict.fromkeys([*roots, *unread_names(self.tree)]))

    @property
    def earlier(self) -> int:
        """Number of turns at the beginning of the path that are not shown; they may be unread."""
        turns = self.tree.turn_count(self.tip) if self._hidden else 0
        return min(self._hidden, turns - AT_ONCE) if turns > WHOLE else 0  # the path may be shorter by now

    def step_back(self) -> None:
        """Shows `AT_ONCE` more turns of the beginning."""
        self._hidden = max(self.earlier - AT_ONCE, 0)

    def step_back_to(self, node_id: int) -> None:
        """Shows the path from at least `AT_ONCE` / 2 turns before a node's turn on."""
        ends = self.tree.ends(self.tip)
        if node_id in ends:
            self._hidden = min(self.earlier, max(ends.index(node_id) - AT_ONCE // 2, 0))

    def path_length(self) -> int:
        """Tokens of the path shown."""
        return int(self.lengths(self.tip).sum())

    def length_before(self, replaces: int | None = None) -> int:
        """Tokens before the next user turn (see `place`)."""
        parent, at = self.place(replaces)
        lengths = self.lengths(parent)
        if not len(lengths):
            return 0
        last = int(lengths[-1])
        return int(lengths[:-1].sum()) + (last if at is None else min(last, at))

    def failed_to_begin(self, node_id: int) -> bool:
        """Whether a node is an ended answer without a token of its own and without children."""
        node = self.tree.nodes.get(node_id)
        if node is None or node.role != "assistant" or node.status != "partial" or node.damaged or not node.turn_start:
            return False
        idle = node_id not in self.states and (self.unsaved is None or self.unsaved.node_id != node_id)
        return idle and not node.text and not began(self._runs.get(node_id, EMPTY)) and not self.tree.children(node_id)

    def _failed_for(self, node: NodeRow, why: str) -> bool:
        """Whether an answer never began for the reason `why`, and the model has not changed since."""
        return not self.model_changed and bool(node.stats.get(why)) and self.failed_to_begin(node.id)

    def _lacks_model(self, node: NodeRow) -> bool:
        """Whether an answer found no model that could be loaded, and none was chosen since."""
        made = bool(node.stats.get("generated"))
        return bool(node.stats.get(UNLOADED)) and not (made or self.model_changed or node.id in self.states)

    def overflowed(self, node_id: int | None) -> bool:
        """Whether a node is an answer that never began because its prompt did not fit into the context."""
        node = self.tree.nodes.get(node_id) if node_id is not None else None
        return node is not None and OVERFLOW in node.stats and self.failed_to_begin(node.id)

    def place(self, replaces: int | None = None) -> tuple[int | None, int | None]:
        """The parent of the next user turn, and the token at which the turn leaves it; (None, None) in an empty tree.

        The turn continues the path. With `replaces` it is another version of that turn. After a question that did not fit
        into the context it is another version of the question, since nothing would fit after it.
        """
        node = self.tree.nodes.get(self.tip) if self.tip is not None else None
        if replaces is None and node is not None and self.overflowed(node.id):
            replaces = node.parent_id
        if replaces is not None and replaces in self.tree.nodes:
            opening = self.tree.opening(self.tree.nodes[replaces])
            return opening.parent_id, opening.at_token
        if node is None:
            return None, None
        empty = not node.text and not began(self._runs.get(node.id, EMPTY))
        if node.role == "assistant" and node.turn_start and empty:
            return node.parent_id, node.at_token  # an answer that never began is skipped
        return node.id, None

    def role_of(self, node_id: int) -> str:
        """The role of a node's turn; "" if there is no such node."""
        node = self.tree.nodes.get(node_id)
        return "" if node is None else self.tree.opening(node).role

    def forget(self, node_id: int) -> None:
        """Removes a node; its parent becomes the tip if it was the tip."""
        node = self.tree.nodes[node_id]
        self.tree.remove(node_id)
        if node.parent_id is not None:
            self._removed[node_id] = node.parent_id
        for known in (self._runs, self.notes, self.stats):
            known.pop(node_id, None)
        if self.tip == node_id:
            self.tip = node.parent_id

    def in_place_of(self, node_id: int) -> int:
        """The node itself; for a removed one its next sibling, else its parent if that is not on the path shown."""
        parent = self._removed.get(node_id)
        if parent is None:
            return node_id
        after = next((child.id for child in self.tree.children(parent) if child.id > node_id), None)
        return after or (node_id if self.tree.goes_through(self.tip, parent) else parent)

    # ---- tokens of the nodes that were read -----------------------------------------------------------------------------

    def unread(self, segments: Iterable[PathSegment]) -> list[int]:
        """Nodes whose tokens were not read yet, in order, except running ones, which are not on the disk."""
        ids = dict.fromkeys(segment.node.id for segment in segments)
        return [i for i in ids if i not in self._runs and i not in self.states]

    def unread_along(self, tip: int | None) -> list[int]:
        """`unread` for the path to `tip`, without creating a `NodeRow` for each of its nodes."""
        columns = self.tree.path_columns(tip)
        return list(map(int, columns.ids[~self.is_read_along(columns)]))

    def without_tokens(self, node_ids: Iterable[int]) -> list[int]:
        """Nodes whose tokens were not read, running ones included."""
        return [i for i in node_ids if i not in self._runs]

    def add_tokens(self, chunks: Mapping[int, Sequence[StoredChunk]]) -> None:
        """Takes the chunks that the store read."""
        for node_id, stored in chunks.items():
            if node_id in self._runs or node_id in self.states:  # read already, or an answer began meanwhile
                continue
            held = list(takewhile(lambda c: c.columns, stored))  # tokens after a gap have no known place
            read = [run_of(c.columns) for c in held]
            run = healed(TokenRun.concat([run for run, _ in read]))
            node = self.tree.nodes.get(node_id)
            if len(held) < len(stored) or (node is not None and node.damaged):
                self.lost.add(node_id)
                run = with_text(run, "" if node is None else node.text)
            self._runs[node_id] = run
            if node_id in self.lost or any(c.damaged for c in stored) or not all(sound for _, sound in read):
                self.damaged.add(node_id)

    def _segment_run(self, segment: PathSegment) -> TokenRun:
        """The tokens of a segment; the text of a node without tokens becomes one token."""
        run = self._runs.get(segment.node.id, EMPTY)
        if not len(run) and segment.node.text:
            run = text_run(segment.node.text)
        return run if segment.stop is None else run[: segment.stop]

    def _turn_run(self, turn: TreeTurn) -> TokenRun:
        """The tokens of a turn along the path."""
        return healed(TokenRun.concat([self._segment_run(segment) for segment in turn.segments]))

    def row_text(self, segments: Sequence[PathSegment], start: int, common: int) -> RowText:
        """The first tokens of segments, from `start` of the first one on, without the first `common` bytes."""
        runs = [self._segment_run(segment)[: start + MOST_TOKENS] for segment in segments]
        run = healed(TokenRun.concat(runs[:1]))[start:]
        run = healed(TokenRun.concat([run, *runs[1:]]))[:MOST_TOKENS]
        own = np.flatnonzero((run.origin != int(Origin.TEMPLATE)) & ~run.by_eos)
        run = run[int(own[0]) : int(own[-1]) + 1] if len(own) else EMPTY
        behind = np.cumsum([len(each) for each in run.token_bytes]) > common
        run = run[int(np.argmax(behind)) :] if behind.any() else EMPTY
        return RowText(run, logprob_of(segments[-1].node) if segments else None)

    def has_unread_text(self, tip: int | None) -> bool:
        """Whether a node along a path is text without tokens, which `lengths` counts as one token."""
        columns, (ids, counts) = self.tree.path_columns(tip), self._runs.lengths()
        rows, tokens = columns.rows(ids), columns.tokens.copy()
        tokens[rows[rows >= 0]] += counts[rows >= 0]
        return bool((columns.has_text & (tokens == 0)).any())

    def turn_length(self, turn: TreeTurn) -> int:
        """Number of tokens of a turn along the path."""
        return sum(self.segment_length(segment) for segment in turn.segments)

    def segment_length(self, segment: PathSegment) -> int:
        """Number of tokens of a segment, read or not."""
        node, stop = segment.node, segment.stop
        length = self._runs.length(node.id) if node.id in self._runs else node.token_count
        length = length if length > 0 else int(node.has_text)  # see `_segment_run`
        return length if stop is None else min(length, stop)

    def lengths(self, tip: int | None) -> Int64:
        """Number of tokens of each node along a path, read or not, ``(n,)``."""
        return self.tree.path_columns(tip).lengths(self._runs.lengths())

    def is_read_along(self, columns: PathColumns) -> Bool:
        """Whether each node of a path was read or is running, ``(n,)``."""
        found = np.zeros(len(columns), np.bool_)
        for ids in (self._runs.lengths()[0], np.fromiter(self.states, np.int64, len(self.states))):
            rows = columns.rows(ids)
            found[rows[rows >= 0]] = True
        return found

    def _content(self, turn: TreeTurn) -> str:
        """The text of a turn without template tokens; of a message, the text as it was typed."""
        if turn.role == "system":
            return Beginning.of(turn.tip).content
        run = self._turn_run(turn)
        return content_of(run) if len(run) and turn.role == "assistant" else turn.tip.text

    def check_sound(self, segments: Iterable[PathSegment], *, after: int = 0) -> None:
        """Refuses a path with damaged or lost tokens: the model would continue a text that was never written.

        Raises:
            Refusal: Tokens are damaged; gives the number of the turn and what to do.
        """
        turn = after
        for segment in segments:
            turn += bool(segment.node.turn_start or turn == after)
            if segment.node.damaged or segment.node.id in self.lost:
                if segment.node.role == "user":
                    way = translate("Workbench", "edit that message")
                else:
                    way = translate("Workbench", "regenerate that answer, or choose another version")
                words = translate("Workbench", "turn {0} is damaged: its text is shown, but no model can continue from it; {1}")
                raise Refusal(words.format(turn, way))

    # ---- what is shown ----------------------------------------------------------------------------------------------

    def view(self) -> SessionView:
        names = self.values.names if self.values is not None else {}
        rows = outline(self.tree, self.tip, self.pruned)
        if names:
            rows = tuple(replace(row, given=names.get((row.node_id, row.start), "")) for row in rows)
        lengths = self.turn_lengths()
        turns = self.turn_views(lengths)
        return SessionView(
            session_id=self.id,
            title=shown_title(self.title),
            turns=turns,
            branches=rows,
            branch_name=branch_name(rows),
            is_sample=self.is_sample,
            context_used=sum(lengths),
            earlier=self.earlier,
        )

    def turn_views(self, lengths: Sequence[int] | None = None) -> tuple[TurnView, ...]:
        """The shown turns of the path; `lengths` is the result of `turn_lengths`, if the caller has it."""
        views: list[TurnView] = []
        earlier = self.earlier
        shown = self.tree.turns(self.tip, earlier)
        start = sum((self.turn_lengths() if lengths is None else lengths)[:earlier])
        for place, turn in enumerate(shown, 1):
            view = self.turn_view(turn, start)
            if place < len(shown) and shown[place].role == "tool":
                view = replace(view, called=cards(self._content(turn), self.tools()))
            start += len(view.run)
            views.append(view)
        return tuple(views)

    def last_turn(self) -> TurnView:
        """The turn at the end of the path."""
        last = self.tree.turns(self.tip, self.earlier)[-1]
        return self.turn_view(last, sum(self.turn_lengths()[:-1]))

    def turn_lengths(self) -> list[int]:
        """Number of tokens of each turn of the path, read or not."""
        turns = self.tree.path_columns(self.tip).turns
        return np.add.reduceat(self.lengths(self.tip), turns).tolist() if len(turns) else []

    def turn_view(self, turn: TreeTurn, start: int) -> TurnView:
        """The view of a turn that begins after `start` tokens of the path."""
        node, run = turn.tip, self._turn_run(turn)
        return TurnView(
            node_id=node.id,
            role=turn.role,
            run=run,
            status=self._status(node),
            variants=self._variants(node),
            note=self.notes.get(node.id, note_of(self.tree, node, damaged=self._is_damaged(node), recorded=self.is_sample)),
            tier=self._tier(start, len(run)),
            stats=self.stats_of(node),
            can_retry=self.model_changed or not node.stats.get(HOPELESS, False),
            overflowed=self.overflowed(node.id),
            is_foreign=self._failed_for(node, FOREIGN),
            needs_model=self._lacks_model(node),
            calls=self._calls(turn),
            may_call=node.role == "assistant" and node.id in self.states and bool(self.tools()),
            can_repeat=node.role == "assistant" and node.id not in self.states and not refusal(node),
        )

    def _variants(self, node: NodeRow) -> tuple[int, ...]:
        """The visible versions of a turn, always with `node` itself, oldest first."""
        in_sight = {i for i in self.tree.variants(node) if not is_hidden(self.tree, self.pruned, i)}
        return tuple(sorted({*in_sight, node.id}, key=lambda i: self.tree.nodes[i].seq))

    def tiers(self) -> dict[Tier, int]:
        """The number of turns of the path in each tier."""
        lengths = np.array(self.turn_lengths(), np.int64)
        held, said = np.cumsum(lengths), lengths > 0
        warm = said & (held <= self.warm + 1) if self.warm else np.zeros_like(said)
        disk = said & ~warm & (held <= self.stored + 1) if self.stored else np.zeros_like(said)
        counts = {Tier.WARM: int(warm.sum()), Tier.DISK: int(disk.sum())}
        return {**counts, self._rest: len(lengths) - sum(counts.values())}

    def last_stats(self) -> TurnStats | None:
        """Counters of the last answer shown."""
        known = (self.stats_of(turn.tip) for turn in reversed(self.tree.turns(self.tip, self.earlier)))
        return next((stats for stats in known if stats is not None), None)

    def last_writer(self) -> str:
        """The name of the model that made the last answer shown; "" if it was not stored."""
        for turn in reversed(self.tree.turns(self.tip, self.earlier)):
            name = made_of(turn.tip).get("model")
            if isinstance(name, str):
                return name
        return ""

    def stats_of(self, node: NodeRow) -> TurnStats | None:
        """Counters of an answer, running or stored."""
        return self.stats.get(node.id) or stored_stats(node)

    def _calls(self, turn: TreeTurn) -> tuple[ToolCard, ...]:
        """The tool calls in the answer at the tip, which wait for results; none for other turns."""
        node = turn.tip
        if node.id != self.tip or node.role != "assistant" or node.id in self.states or not node.text:
            return ()
        return cards(self._content(turn), self.tools())

    @property
    def _rest(self) -> Tier:
        """The tier of turns whose KV is neither in memory nor on this disk."""
        return Tier.SERVER if self.on_server else Tier.COLD

    def _tier(self, start: int, length: int) -> Tier:
        """The tier of `length` tokens after `start`. The last token needs no KV: that is computed with the next turn."""
        if not length:
            return self._rest
        if self.warm and start + length <= self.warm + 1:
            return Tier.WARM
        return Tier.DISK if self.stored and start + length <= self.stored + 1 else self._rest

    def _status(self, node: NodeRow) -> TurnStatus:
        if node.id in self.states:
            return self.states[node.id]
        if self._is_damaged(node):
            return TurnStatus.DAMAGED
        return TurnStatus.PARTIAL if node.status == "partial" and node.role == "assistant" else TurnStatus.COMPLETE

    def _is_damaged(self, node: NodeRow) -> bool:
        return node.damaged or node.id in self.damaged


class WholeSession(OpenSession):
    """A session with all tokens of a path read, as a model needs them.

    Only `tree.reading.read_whole` returns one. An `OpenSession` may be partly unread, so it lacks these methods.
    """

    @property
    def runs(self) -> Runs:
        return self._runs

    def segment_run(self, segment: PathSegment) -> TokenRun:
        return self._segment_run(segment)

    def turn_run(self, turn: TreeTurn) -> TokenRun:
        return self._turn_run(turn)

    def content(self, turn: TreeTurn) -> str:
        return self._content(turn)

    def path_ids(self, segments: Sequence[PathSegment]) -> list[int]:
        """The ids along segments, as they entered the model.

        Raises:
            Refusal: Some are damaged.
        """
        self.check_sound(segments)
        ids: list[int] = []
        for segment in segments:
            known = segment.node.id in self.runs or segment.node.id in self.states
            assert known or not segment.node.token_count, segment.node.id  # otherwise the node is off the path that was read
            ids.extend(self.runs.get(segment.node.id, EMPTY).ids.tolist()[: segment.stop])
        return ids

    def messages(self, turns: Sequence[TreeTurn]) -> list[dict[str, str]]:
        """Role and content of turns for a template; empty ones are left out, except answers."""
        found = [{"role": turn.role, "content": self.content(turn)} for turn in turns]
        return [m for m in found if m["content"] or m["role"] == "assistant"]

    def locate(self, node_id: int, index: int) -> tuple[NodeRow, int] | None:
        """The node and the offset in it of token `index` of the turn that `node_id` ends; None if there is none."""
        turns = self.tree.turns(node_id)
        for segment in turns[-1].segments if turns and index >= 0 else ():
            length = len(self.segment_run(segment))
            if index < length:
                return segment.node, index
            index -= length
        return None
