"""The shown path: its turns with their tokens and texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from ui.comparison.model_facts import Compared
from ui.port import QT_TRANSLATE_NOOP, Origin, SessionView, TokenRecord, TokenRun, TurnDepth, TurnStatus, TurnView, translate
from ui.transcript.measure import Measure, layer_steps
from ui.transcript.read_mode.markup import open_call
from ui.transcript.text.compose import is_hidden
from ui.transcript.tokens import ColourOverride, Tokens

ROLES = {
    "user": QT_TRANSLATE_NOOP("Transcript", "you"),
    "assistant": QT_TRANSLATE_NOOP("Transcript", "model"),
    "system": QT_TRANSLATE_NOOP("Transcript", "system"),
    "tool": QT_TRANSLATE_NOOP("Transcript", "tool"),
}

UNDERLINED = 5  # the step of a token that does not lead after any layer


def has_own_words(run: TokenRun) -> bool:
    """Whether a run holds anything but the template's tokens."""
    return bool((run.origin != int(Origin.TEMPLATE)).any())


class TranscriptTurn:
    """A turn whose tokens grow. `version` counts changes of the tokens other than appends, `revision` those of the numbers."""

    def __init__(self, view: TurnView, measure: Measure = Measure.SURPRISAL) -> None:
        self.view = view
        self._measure = measure
        self._over: ColourOverride | None = None
        self._tokens: Tokens | None = None  # made on first use
        self._open_call: tuple[object, tuple[tuple[int, int], ...]] = None, ()  # cache of `calls`: (count, version), spans
        self.version = 0
        self.revision = 0

    @property
    def tokens(self) -> Tokens:
        """The tokens with their texts and numbers."""
        if self._tokens is None:
            self._tokens = Tokens(self.view.run, self._measure, self._over)
        return self._tokens

    @property
    def count(self) -> int:
        """The number of tokens; does not make `tokens`."""
        return len(self.view.run if self._tokens is None else self._tokens)

    @property
    def node_id(self) -> int:
        return self.view.node_id

    @property
    def role(self) -> str:
        """The translated role, as the rail shows it."""
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
        """Whether an answer has no visible text: it has not begun, or ended before its first word."""
        if not self.is_answer or self.view.status is TurnStatus.STREAMING:
            return False
        tokens = self.tokens
        return all(not t or is_hidden(m, template=template) for t, m in zip(tokens.texts, tokens.marks, strict=True))

    @property
    def text(self) -> str:
        """The text without the template's tokens and the end token."""
        tokens = self.tokens
        return "".join(t for t, m in zip(tokens.texts, tokens.marks, strict=True) if not is_hidden(m, template=False))

    @property
    def calls(self) -> tuple[tuple[int, int], ...]:
        """The spans of `text`, in order, that are shown as cards instead: tool calls, also an unfinished one."""
        if self.view.may_call and self.view.status is TurnStatus.STREAMING:
            if self._open_call[0] != (self.count, self.version):  # read several times per paint
                text = self.text
                start = open_call(text)
                self._open_call = (self.count, self.version), () if start is None else ((start, len(text)),)
            return self._open_call[1]
        spans = {card.span for card in (*self.view.calls, *self.view.called) if card.span[0] < card.span[1]}
        return tuple(sorted(spans))

    def append(self, run: TokenRun) -> None:
        """Appends tokens; a waiting turn becomes a streaming one, without its note."""
        self.tokens.append(run)
        if self.view.status is TurnStatus.WAITING:
            self.view = replace(self.view, status=TurnStatus.STREAMING, note="")

    def take(self, view: TurnView) -> bool:
        """Takes another state of the same turn.

        Returns:
            Whether the previous tokens are unchanged (numbers may differ, and more tokens may follow).
        """
        self.view = view
        self.revision += 1
        if self._tokens is None or self._tokens.take_numbers(view.run):
            return True
        self._tokens = None
        self.version += 1
        return False

    def colour_by(self, measure: Measure, over: ColourOverride | None = None) -> None:
        self._measure, self._over = measure, over
        if self._tokens is not None:
            self._tokens.colour_by(measure, over)


def is_same(turn: TranscriptTurn, new: TurnView) -> bool:
    """Whether a turn already shows `new`. Runs hold arrays, which `==` does not compare."""
    old = turn.view
    if turn.count != len(new.run):
        return False
    plain = replace(new, run=old.run) == old  # identical runs are equal without a comparison of arrays
    return plain and (old.run is new.run or _same_run(old.run, new.run))


def _same_run(a: TokenRun, b: TokenRun) -> bool:
    return len(a) == len(b) and np.array_equal(a.ids, b.ids) and np.array_equal(a.logprob, b.logprob, equal_nan=True)


class TranscriptPath:
    """The turns of the shown path; those that stay on it keep their objects, and so their layout.

    Attributes:
        turns: In order; a system turn that has only template tokens is left out unless the template is shown.
        view: The source of `turns`; None before a session is shown.
        measure: The number that colours tokens.
        template: Whether the chat template's tokens are shown.
        compared: The numbers of a second model; None without a comparison.
        shows_difference: Whether `compared` colours tokens instead of `measure`.
        depths: Layers of turns by node id, where they were requested; they colour tokens if `measure` is LAYER.
    """

    def __init__(self) -> None:
        self.turns: list[TranscriptTurn] = []
        self.view: SessionView | None = None
        self.measure = Measure.SURPRISAL
        self.template = False
        self.compared: Compared | None = None
        self.shows_difference = False
        self.depths: dict[int, TurnDepth] = {}

    def take(self, view: SessionView) -> Sequence[int]:
        """Takes a session, or another path of it; returns the places of known turns that changed."""
        held = {turn.node_id: turn for turn in self.turns} if self.is_of(view) else {}
        turns: list[TranscriptTurn] = []
        changed: list[int] = []
        for turn_view in view.turns:
            if turn_view.role == "system" and not self.template and not has_own_words(turn_view.run):
                continue
            turn = held.get(turn_view.node_id)
            if turn is None:
                turn = TranscriptTurn(turn_view)
                self._colour(turn)
            elif not is_same(turn, turn_view):
                turn.take(turn_view)
                changed.append(len(turns))
            turns.append(turn)
        self.turns, self.view = turns, view
        return changed

    def is_of(self, view: SessionView) -> bool:
        """Whether this is a path of that session."""
        return self.view is not None and self.view.session_id == view.session_id

    def parts_from(self, view: SessionView) -> bool:
        """Whether `view` is another branch: each path has turns that the other lacks."""
        here = {turn.node_id for turn in self.view.turns} if self.view is not None else set[int]()
        there = {turn.node_id for turn in view.turns}
        return bool(here - there) and bool(there - here)

    def colour_by(self, measure: Measure) -> None:
        self.measure = measure
        for turn in self.turns:
            self._colour(turn)

    def take_depth(self, node_id: int, depth: TurnDepth) -> None:
        """Takes the layers of a turn."""
        self.depths[node_id] = depth
        for turn in self.turns:
            self._colour(turn)

    def compare(self, compared: Compared | None, *, coloured: bool) -> None:
        """Takes the numbers of a second model, or None to remove them; `coloured`: they colour the tokens."""
        self.compared, self.shows_difference = compared, coloured and compared is not None
        for turn in self.turns:
            self._colour(turn)

    def _colour(self, turn: TranscriptTurn) -> None:
        over: ColourOverride | None = None
        if self.compared is not None and self.shows_difference:
            over = self.compared.marks(turn.node_id)
        elif self.measure is Measure.LAYER:
            depth = self.depths.get(turn.node_id)
            steps = layer_steps(depth) if depth is not None else np.empty(0, np.uint8)
            over = steps, steps == UNDERLINED
        turn.colour_by(self.measure, over)

    def index(self, node_id: int) -> int | None:
        """The place of a turn; None if it is not shown. Searched from the end, where the streaming turn is."""
        return next((i for i in reversed(range(len(self.turns))) if self.turns[i].node_id == node_id), None)

    def record(self, node_id: int, index: int) -> TokenRecord | None:
        """The numbers of a token, also of a streamed one; None if there is no such token."""
        turn = self.index(node_id)
        if turn is None or not 0 <= index < self.turns[turn].count:
            return None
        return self.turns[turn].tokens.record(index)
