"""The path that is shown: its turns, their tokens and texts, as the panes need them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from ui.comparison.model_facts import Compared
from ui.port import QT_TRANSLATE_NOOP, Origin, SessionView, TokenRecord, TokenRun, TurnDepth, TurnStatus, TurnView, translate
from ui.transcript.measure import Measure, layer_steps
from ui.transcript.read_mode.markup import open_call
from ui.transcript.text.compose import is_hidden
from ui.transcript.tokens import Over, Tokens

ROLES = {
    "user": QT_TRANSLATE_NOOP("Transcript", "you"),
    "assistant": QT_TRANSLATE_NOOP("Transcript", "model"),
    "system": QT_TRANSLATE_NOOP("Transcript", "system"),
    "tool": QT_TRANSLATE_NOOP("Transcript", "tool"),
}

UNDERLINED = 5  # the step of a token that leads after no layer


def has_own_words(run: TokenRun) -> bool:
    """Whether a run holds anything but the template's tokens."""
    return bool((run.origin != int(Origin.TEMPLATE)).any())


class Turn:
    """A turn whose tokens grow. Appends aside, `version` counts changes of the tokens, `revision` those of their numbers."""

    def __init__(self, view: TurnView, measure: Measure = Measure.SURPRISAL) -> None:
        self.view = view
        self._measure = measure
        self._over: Over | None = None
        self._tokens: Tokens | None = None  # made when they are first used
        self._open_call: tuple[object, tuple[tuple[int, int], ...]] = None, ()  # of so many tokens of a version: `calls`
        self.version = 0
        self.revision = 0

    @property
    def tokens(self) -> Tokens:
        """What it says, token by token."""
        if self._tokens is None:
            self._tokens = Tokens(self.view.run, self._measure, self._over)
        return self._tokens

    @property
    def count(self) -> int:
        """How many tokens there are; none are made for it."""
        return len(self.view.run if self._tokens is None else self._tokens)

    @property
    def node_id(self) -> int:
        return self.view.node_id

    @property
    def role(self) -> str:
        """What the rail says."""
        return translate("Transcript", ROLES.get(self.view.role, self.view.role))

    @property
    def is_answer(self) -> bool:
        return self.view.role == "assistant"

    @property
    def is_waiting(self) -> bool:
        return self.view.status is TurnStatus.WAITING

    @property
    def is_open(self) -> bool:
        return self.view.status in (TurnStatus.WAITING, TurnStatus.STREAMING)

    def is_bare(self, *, template: bool) -> bool:
        """Whether an answer has nothing to show above its line: not begun, or ended before it said anything."""
        if not self.is_answer or self.view.status is TurnStatus.STREAMING:
            return False
        tokens = self.tokens
        return all(not t or is_hidden(m, template=template) for t, m in zip(tokens.texts, tokens.marks, strict=True))

    @property
    def text(self) -> str:
        """The text as it was meant to be read: without the template and the end token."""
        tokens = self.tokens
        return "".join(t for t, m in zip(tokens.texts, tokens.marks, strict=True) if not is_hidden(m, template=False))

    @property
    def calls(self) -> tuple[tuple[int, int], ...]:
        """The characters of `text` that are calls which stand as cards under it, in their order; one in the making is one."""
        if self.view.may_call and self.view.status is TurnStatus.STREAMING:
            if self._open_call[0] != (self.count, self.version):  # asked for several times a paint
                text = self.text
                start = open_call(text)
                self._open_call = (self.count, self.version), () if start is None else ((start, len(text)),)
            return self._open_call[1]
        spans = {card.span for card in (*self.view.calls, *self.view.called) if card.span[0] < card.span[1]}
        return tuple(sorted(spans))

    def append(self, run: TokenRun) -> None:
        """More tokens; a waiting turn streams from now on, and what it waited for is no news any more."""
        self.tokens.append(run)
        if self.view.status is TurnStatus.WAITING:
            self.view = replace(self.view, status=TurnStatus.STREAMING, note="")

    def take(self, view: TurnView) -> bool:
        """Another state of the same turn.

        Returns:
            Whether the tokens that were held are still the same (numbers may differ, more may follow).
        """
        self.view = view
        self.revision += 1
        if self._tokens is None or self._tokens.take_numbers(view.run):
            return True
        self._tokens = None
        self.version += 1
        return False

    def colour_by(self, measure: Measure, over: Over | None = None) -> None:
        """See `Tokens.colour_by`."""
        self._measure, self._over = measure, over
        if self._tokens is not None:
            self._tokens.colour_by(measure, over)


def is_same(turn: Turn, new: TurnView) -> bool:
    """Whether a turn need not be touched. Runs hold arrays, which `==` does not compare."""
    old = turn.view
    if turn.count != len(new.run):
        return False
    plain = replace(new, run=old.run) == old  # equal runs are compared by identity first
    return plain and (old.run is new.run or _same_run(old.run, new.run))


def _same_run(a: TokenRun, b: TokenRun) -> bool:
    return len(a) == len(b) and np.array_equal(a.ids, b.ids) and np.array_equal(a.logprob, b.logprob, equal_nan=True)


class Path:
    """Turns that stay on the path keep their objects, and with them their layout.

    Attributes:
        turns: In order; a system turn that only the template brought is left out unless the template is shown.
        view: What they were made of; None before a session is shown.
        measure: The number that colours tokens.
        template: Whether what the chat template added is shown.
        compared: The numbers of a second model; None where none are known.
        shows_difference: They colour tokens, in the place of `measure`.
        depths: Layers of the turns for which they were asked, by node id; they colour tokens where `measure` is LAYER.
    """

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.view: SessionView | None = None
        self.measure = Measure.SURPRISAL
        self.template = False
        self.compared: Compared | None = None
        self.shows_difference = False
        self.depths: dict[int, TurnDepth] = {}

    def take(self, view: SessionView) -> Sequence[int]:
        """Takes a session, or another path of it; the places of turns that were there and changed."""
        held = {turn.node_id: turn for turn in self.turns} if self.is_of(view) else {}
        turns: list[Turn] = []
        changed: list[int] = []
        for turn_view in view.turns:
            if turn_view.role == "system" and not self.template and not has_own_words(turn_view.run):
                continue
            turn = held.get(turn_view.node_id)
            if turn is None:
                turn = Turn(turn_view)
                self._colour(turn)
            elif not is_same(turn, turn_view):
                turn.take(turn_view)
                changed.append(len(turns))
            turns.append(turn)
        self.turns, self.view = turns, view
        return changed

    def is_of(self, view: SessionView) -> bool:
        """Whether the session is the one whose path this is."""
        return self.view is not None and self.view.session_id == view.session_id

    def parts_from(self, view: SessionView) -> bool:
        """Whether that is another branch: either has turns that the other lacks."""
        here = {turn.node_id for turn in self.view.turns} if self.view is not None else set[int]()
        there = {turn.node_id for turn in view.turns}
        return bool(here - there) and bool(there - here)

    def colour_by(self, measure: Measure) -> None:
        self.measure = measure
        for turn in self.turns:
            self._colour(turn)

    def take_depth(self, node_id: int, depth: TurnDepth) -> None:
        """The layers of a turn are known."""
        self.depths[node_id] = depth
        for turn in self.turns:
            self._colour(turn)

    def compare(self, compared: Compared | None, *, coloured: bool) -> None:
        """The numbers of a second model are known; None: not any more.

        Args:
            compared: They.
            coloured: Whether they colour the tokens.
        """
        self.compared, self.shows_difference = compared, coloured and compared is not None
        for turn in self.turns:
            self._colour(turn)

    def _colour(self, turn: Turn) -> None:
        over: Over | None = None
        if self.compared is not None and self.shows_difference:
            over = self.compared.marks(turn.node_id)
        elif self.measure is Measure.LAYER:
            depth = self.depths.get(turn.node_id)
            steps = layer_steps(depth) if depth is not None else np.empty(0, np.uint8)
            over = steps, steps == UNDERLINED
        turn.colour_by(self.measure, over)

    def index(self, node_id: int) -> int | None:
        """Which turn it is; None where it is not shown. The streaming one is the last."""
        return next((i for i in reversed(range(len(self.turns))) if self.turns[i].node_id == node_id), None)

    def record(self, node_id: int, index: int) -> TokenRecord | None:
        """The numbers of a token, streamed ones included; None where there is no such token."""
        turn = self.index(node_id)
        if turn is None or not 0 <= index < self.turns[turn].count:
            return None
        return self.turns[turn].tokens.record(index)
