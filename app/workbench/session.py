"""An open session: its tree, the tokens of the path that is shown, and what is going on at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.faults import STOPPED
from app.workbench.growing import BROKEN, EMPTY, Runs
from app.workbench.making import refusal, repeat_note
from app.workbench.outline import branch_name, outline
from app.workbench.pick import began
from app.workbench.setup.beginning import Beginning, left_out
from app.workbench.setup.tools import cards, tools_at
from app.workbench.tree import Segment, Tree, Turn, is_hidden
from runtime import Finish, Origin, TokenRun, texts_of
from storage import NodeRow, SessionTree, StoredChunk
from ui import Refusal, SessionView, Tier, ToolCard, TurnStats, TurnStatus, TurnView

if TYPE_CHECKING:
    from app.workbench.ending import Ending
    from app.workbench.fan import Endings
    from app.workbench.setup.values import SessionValues

UNTITLED = "New session"
AT_ONCE = 100  # turns of a path that are shown at first, and with each step back
WHOLE = 4 * AT_ONCE  # turns of a path that is shown whole
OVERFLOW = "overflow"  # in a stored answer's stats: its prompt did not fit into the context
HOPELESS = "hopeless"  # there too: the same again can only fail again
NOTES = {
    "cancelled": "stopped",
    "length": "reached the length limit",
    "context": "the context is full",
    "engine_died": STOPPED,
    "app_ended": "cut off when Elsewise ended",
    "error": "failed",
}
CUT = "a stop text cut it before it had the form asked for"


class OpenSession:
    """What the window shows of a session, kept in step with the store."""

    def __init__(self, stored: SessionTree) -> None:
        self.id = stored.session.id
        self.title = stored.session.title
        self.is_sample = stored.session.is_sample
        self.tree = Tree(stored.nodes)
        self.tip = stored.session.current_node
        self.runs = Runs()
        self.damaged: set[int] = set()
        self.notes: dict[int, str] = {}
        self.states: dict[int, TurnStatus] = {}  # of turns in work
        self.stats: dict[int, TurnStats] = {}
        self.unsaved: Ending | Endings | None = None  # of an answer that is on the screen and could not be written
        self.pruned: set[tuple[int, int]] = set()  # branches out of sight, see `pruning`
        self.has_hope = False  # the model is another one since an answer failed for good
        self.warm = 0  # tokens of the path the engine holds
        self.stored = 0  # those that it holds or can read from the block file
        self.values: SessionValues | None = None  # what it is set to; None until that was read
        turns = len(self.tree.turns(self.tip))
        self._hidden = turns - AT_ONCE if turns > WHOLE else 0  # turns of the path that was opened, see `earlier`

    @property
    def is_unused(self) -> bool:
        """Whether nothing was ever said here; it may be cleared away, or used for something new."""
        said = any(n.role != "system" or n.text or n.stats for n in self.tree.nodes.values())
        return not self.is_sample and self.title == UNTITLED and not said and not (self.values and self.values.is_set)

    def beginning(self) -> Beginning:
        """What stands before the turns of the path shown."""
        path = self.tree.path(self.tip)
        return Beginning.of(path[0].node) if path and path[0].node.role == "system" else Beginning()

    def tools(self, tip: int | None = None) -> list[dict[str, Any]]:
        """The tools that a path offers; the one shown, where no other is named."""
        path = self.tree.path(self.tip if tip is None else tip)
        return tools_at(path[0].node) if path else []

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def missing(self, *, earlier: bool = False) -> list[int]:
        """Nodes of the shown part of the path, or of all of it, whose tokens were not read yet.

        One that is being written has them here, not on the disk.
        """
        turns = self.tree.turns(self.tip)[0 if earlier else self.earlier :]
        ids = (segment.node.id for turn in turns for segment in turn.segments)
        return [i for i in ids if i not in self.runs and i not in self.states]

    @property
    def earlier(self) -> int:
        """Turns at the beginning of the path that are not shown, and whose tokens need not have been read."""
        turns = len(self.tree.turns(self.tip)) if self._hidden else 0
        return min(self._hidden, turns - AT_ONCE) if turns > WHOLE else 0  # another path may be a shorter one

    def step_back(self) -> None:
        """Shows some more of the beginning."""
        self._hidden = max(self.earlier - AT_ONCE, 0)

    def add_tokens(self, chunks: Mapping[int, Sequence[StoredChunk]]) -> None:
        """Takes in what the store read."""
        for node_id, stored in chunks.items():
            if node_id in self.runs or node_id in self.states:  # an answer began while the store was reading
                continue
            read = [run_of(c.columns) for c in stored if c.columns]
            self.runs[node_id] = healed(TokenRun.concat([run for run, _ in read]))
            if any(c.damaged for c in stored) or not all(sound for _, sound in read):
                self.damaged.add(node_id)

    def segment_run(self, segment: Segment) -> TokenRun:
        """The tokens of a segment; a node without tokens shows its text as one."""
        run = self.runs.get(segment.node.id, EMPTY)
        if not len(run) and segment.node.text:
            run = text_run(segment.node.text)
        return run if segment.stop is None else run[: segment.stop]

    def turn_run(self, turn: Turn) -> TokenRun:
        """The tokens of a turn along the path."""
        return healed(TokenRun.concat([self.segment_run(segment) for segment in turn.segments]))

    def turn_length(self, turn: Turn) -> int:
        """Tokens of a turn along the path, without putting them together."""
        return sum(self._segment_length(segment) for segment in turn.segments)

    def _segment_length(self, segment: Segment) -> int:
        node = segment.node
        unread = 0 if node.id in self.runs else node.token_count
        length = self.runs.length(node.id) or unread or int(bool(node.text))  # see `segment_run`
        return length if segment.stop is None else min(length, segment.stop)

    def path_length(self) -> int:
        """Tokens of the path that is shown: what the context holds of it."""
        return sum(self._segment_length(segment) for segment in self.tree.path(self.tip))

    def length_before(self, replaces: int | None = None) -> int:
        """Tokens before the next user turn, wherever it hangs (see `place`)."""
        parent, at = self.place(replaces)
        path = self.tree.path(parent)
        if path and at is not None:
            path[-1] = replace(path[-1], stop=at)
        return sum(self._segment_length(segment) for segment in path)

    def path_ids(self, segments: Sequence[Segment]) -> list[int]:
        """The ids along segments: what entered the model.

        Raises:
            Refusal: Some of them were not read yet (see `Sessions.read_whole`).
        """
        ids: list[int] = []
        for segment in segments:
            if segment.node.id not in self.runs and segment.node.token_count and segment.node.id not in self.states:
                raise Refusal("the beginning of this session is still being read; try again in a moment")
            ids.extend(self.runs.get(segment.node.id, EMPTY).ids.tolist()[: segment.stop])
        return ids

    def messages(self, turns: Sequence[Turn]) -> list[dict[str, str]]:
        """Role and content of turns, as templates take them; a system prompt that the template brought is left out."""
        found = [{"role": turn.role, "content": self.content(turn)} for turn in turns]
        return [m for m in found if m["content"] or m["role"] == "assistant"]

    def content(self, turn: Turn) -> str:
        """What was said, without the template's own tokens; a message word for word, as it was typed."""
        if turn.role == "system":
            return Beginning.of(turn.tip).content
        run = self.turn_run(turn)
        return content_of(run) if len(run) and turn.role == "assistant" else turn.tip.text

    def locate(self, node_id: int, index: int) -> tuple[NodeRow, int] | None:
        """The node and the offset in it of token `index` of the turn that `node_id` ends; None when there is none."""
        turns = self.tree.turns(node_id)
        for segment in turns[-1].segments if turns and index >= 0 else ():
            length = len(self.segment_run(segment))
            if index < length:
                return segment.node, index
            index -= length
        return None

    def failed_to_begin(self, node_id: int) -> bool:
        """Whether a node is an answer that ended before it said anything, and that nothing goes on from."""
        node = self.tree.nodes.get(node_id)
        if node is None or node.role != "assistant" or node.status != "partial" or node.damaged or not node.turn_start:
            return False
        idle = node_id not in self.states and (self.unsaved is None or self.unsaved.node_id != node_id)
        return idle and not node.text and not began(self.runs.get(node_id, EMPTY)) and not self.tree.children(node_id)

    def overflowed(self, node_id: int | None) -> bool:
        """Whether a node is an answer that never began since its prompt did not fit into the context."""
        node = self.tree.nodes.get(node_id) if node_id is not None else None
        return node is not None and OVERFLOW in node.stats and self.failed_to_begin(node.id)

    def place(self, replaces: int | None = None) -> tuple[int | None, int | None]:
        """Where the next user turn hangs: its parent and the token at which it leaves it; (None, None) in an empty tree.

        It goes on from the end of the path; beside `replaces`, another version of it; and beside a question that did not
        fit into the context, for nothing that follows that one would fit.
        """
        node = self.tree.nodes.get(self.tip) if self.tip is not None else None
        if replaces is None and node is not None and self.overflowed(node.id):
            replaces = node.parent_id
        if replaces in self.tree.nodes:
            opening = self.tree.opening(self.tree.nodes[replaces])
            return opening.parent_id, opening.at_token
        if node is None:
            return None, None
        empty = not node.text and not began(self.runs.get(node.id, EMPTY))
        if node.role == "assistant" and node.turn_start and empty:
            return node.parent_id, node.at_token  # an answer that never began is passed over
        return node.id, None

    def forget(self, node_id: int) -> None:
        """A node is gone; its question ends the path where it did."""
        node = self.tree.nodes[node_id]
        self.tree.remove(node_id)
        for known in (self.runs, self.notes, self.stats):
            known.pop(node_id, None)
        if self.tip == node_id:
            self.tip = node.parent_id

    # ---- what is shown ----------------------------------------------------------------------------------------------

    def view(self) -> SessionView:
        """The path and the outline."""
        rows = outline(self.tree, self.tip, self.pruned)
        turns = self.turn_views()
        return SessionView(
            session_id=self.id,
            title=self.title,
            turns=turns,
            branches=rows,
            branch_name=branch_name(rows),
            is_sample=self.is_sample,
            context_used=self.path_length(),
            earlier=self.earlier,
        )

    def turn_views(self) -> tuple[TurnView, ...]:
        """The turns of the path that are shown."""
        views: list[TurnView] = []
        turns = self.tree.turns(self.tip)
        start = sum(self.turn_length(turn) for turn in turns[: self.earlier])
        for turn in turns[self.earlier :]:
            view = self.turn_view(turn, start)
            start += len(view.run)
            views.append(view)
        return tuple(views)

    def last_turn(self) -> TurnView:
        """The turn at the end of the path."""
        *before, last = self.tree.turns(self.tip)
        return self.turn_view(last, sum(self.turn_length(turn) for turn in before))

    def turn_view(self, turn: Turn, start: int) -> TurnView:
        """One turn; `start` is the path's tokens before it."""
        node, run = turn.tip, self.turn_run(turn)
        return TurnView(
            node_id=node.id,
            role=turn.role,
            run=run,
            status=self._status(node),
            variants=self._variants(node),
            note=self.notes.get(node.id, self._note(node)),
            tier=self._tier(start, len(run)),
            stats=self.stats_of(node),
            can_retry=self.has_hope or not node.stats.get(HOPELESS, False),
            calls=self._calls(turn),
            can_repeat=node.role == "assistant" and node.id not in self.states and not refusal(node),
        )

    def _variants(self, node: NodeRow) -> tuple[int, ...]:
        """The versions of a turn that are in sight; one that ends in `node` and is shown is among them, whatever goes on."""
        in_sight = {i for i in self.tree.variants(node) if not is_hidden(self.tree, self.pruned, i)}
        return tuple(sorted({*in_sight, node.id}, key=lambda i: self.tree.nodes[i].seq))

    def tiers(self) -> dict[Tier, int]:
        """How many turns of the path are in which tier."""
        counts = dict.fromkeys(Tier, 0)
        start = 0
        for turn in self.tree.turns(self.tip):
            length = self.turn_length(turn)
            counts[self._tier(start, length)] += 1
            start += length
        return counts

    def last_stats(self) -> TurnStats | None:
        """How the last answer of the path was made."""
        known = (self.stats_of(turn.tip) for turn in reversed(self.tree.turns(self.tip)))
        return next((stats for stats in known if stats is not None), None)

    def stats_of(self, node: NodeRow) -> TurnStats | None:
        """How an answer was made, or is doing."""
        return self.stats.get(node.id) or stored_stats(node)

    def _calls(self, turn: Turn) -> tuple[ToolCard, ...]:
        """The calls in the answer that ends the path: whoever answers them goes on from there."""
        node = turn.tip
        if node.id != self.tip or node.role != "assistant" or node.id in self.states or not node.text:
            return ()
        return cards(self.content(turn), self.tools())

    def _tier(self, start: int, length: int) -> Tier:
        """Of `length` tokens after `start`; the last token's KV follows with the next turn."""
        if not length:
            return Tier.COLD
        if self.warm and start + length <= self.warm + 1:
            return Tier.WARM
        return Tier.DISK if self.stored and start + length <= self.stored + 1 else Tier.COLD

    def _status(self, node: NodeRow) -> TurnStatus:
        if node.id in self.states:
            return self.states[node.id]
        if node.damaged or node.id in self.damaged:
            return TurnStatus.DAMAGED
        return TurnStatus.PARTIAL if node.status == "partial" and node.role == "assistant" else TurnStatus.COMPLETE

    def _not_seen(self, node: NodeRow) -> str:
        """What is said where a path goes on without the turns before."""
        root = self.tree.nodes.get(node.parent_id) if node.parent_id is not None else None
        count = left_out(root.stats) if root is not None and root.role == "system" else 0
        return f"{_turns(count)} not seen by the model; the whole conversation stands beside this" if count else ""

    def _note(self, node: NodeRow) -> str:
        if node.damaged or node.id in self.damaged:
            return "some of this turn's stored rows are damaged; what could be read is shown"
        if node.role != "assistant":
            return self._not_seen(node)
        message = node.stats.get("message")
        if isinstance(message, str):
            return message
        cut = (node.status, node.finish_reason) == ("partial", "stop")
        ended = CUT if cut else NOTES.get(node.finish_reason or "", "")
        return " · ".join(note for note in (repeat_note(node.stats), ended) if note)


def _turns(count: int) -> str:
    return "1 earlier turn is" if count == 1 else f"{count:,} earlier turns are"


def text_run(text: str) -> TokenRun:
    """Text that has no tokens yet (no model has seen it), as a run of one."""
    return TokenRun.unscored([0], [text.encode()], [text], Origin.TYPED)


def content_of(run: TokenRun) -> str:
    """The text of a run without the template's tokens and the closing eos."""
    kept = (run.origin != int(Origin.TEMPLATE)) & (run.finish != int(Finish.EOS))
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


def stored_stats(node: NodeRow) -> TurnStats | None:
    """How a stored answer was made."""
    stats = node.stats
    if "generated" not in stats and "reused" not in stats:
        return None
    return TurnStats(
        reused=stats.get("reused"),  # neither where nothing was read
        computed=stats.get("computed"),
        first_token_seconds=stats.get("first_token_seconds"),
        tokens_per_second=stats.get("tokens_per_second"),
        logprob=stats.get("logprob"),
    )
