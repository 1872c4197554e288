"""One turn as the panes share it: what the workbench said, and its tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from runtime import Origin, TokenRun
from ui.port import QT_TRANSLATE_NOOP, TurnStatus, TurnView, translate
from ui.transcript.calling import open_call
from ui.transcript.compose import is_hidden
from ui.transcript.measure import Measure
from ui.transcript.tokens import Over, Tokens

ROLES = {
    "user": QT_TRANSLATE_NOOP("Transcript", "you"),
    "assistant": QT_TRANSLATE_NOOP("Transcript", "model"),
    "system": QT_TRANSLATE_NOOP("Transcript", "system"),
    "tool": QT_TRANSLATE_NOOP("Transcript", "tool"),
}


def has_own_words(run: TokenRun) -> bool:
    """Whether a run holds anything but the template's tokens."""
    return bool((run.origin != int(Origin.TEMPLATE)).any())


class Turn:
    """A turn whose tokens grow. Appends aside, `version` counts changes of the tokens, `revision` those of their numbers."""

    def __init__(self, view: TurnView, measure: Measure = Measure.SURPRISAL) -> None:
        self.view = view
        self._measure = measure
        self._over: Over | None = None
        self._tokens: Tokens | None = None  # made when somebody asks for them
        self.version = 0
        self.revision = 0

    @property
    def tokens(self) -> Tokens:
        """What it says, token by token."""
        if self._tokens is None:
            self._tokens = Tokens(self.view.run, self._measure)
            self._tokens.lay_over(self._over)
        return self._tokens

    @property
    def count(self) -> int:
        """How many tokens there are; none are made for it."""
        return len(self.view.run if self._tokens is None else self._tokens)

    @property
    def node_id(self) -> int:
        """The turn's last node on this path."""
        return self.view.node_id

    @property
    def role(self) -> str:
        """What the rail says."""
        return translate("Transcript", ROLES.get(self.view.role, self.view.role))

    @property
    def is_answer(self) -> bool:
        """Whether a model wrote it."""
        return self.view.role == "assistant"

    @property
    def is_waiting(self) -> bool:
        """Whether the engine has not answered yet."""
        return self.view.status is TurnStatus.WAITING

    @property
    def is_open(self) -> bool:
        """Whether more tokens are expected."""
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
            text = self.text
            start = open_call(text)
            return () if start is None else ((start, len(text)),)
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

    def colour_by(self, measure: Measure) -> None:
        """Its tokens show another number as their colour."""
        self._measure = measure
        if self._tokens is not None:
            self._tokens.colour_by(measure)

    def lay_over(self, over: Over | None) -> None:
        """Its tokens show numbers of somebody else's as their colour; None: their own again."""
        self._over = over
        if self._tokens is not None:
            self._tokens.lay_over(over)


def is_same(turn: Turn, new: TurnView) -> bool:
    """Whether a turn need not be touched. Runs hold arrays, which `==` does not compare."""
    old = turn.view
    if turn.count != len(new.run):
        return False
    plain = replace(new, run=old.run) == old  # equal runs are compared by identity first
    return plain and (old.run is new.run or _same_run(old.run, new.run))


def _same_run(a: TokenRun, b: TokenRun) -> bool:
    return len(a) == len(b) and np.array_equal(a.ids, b.ids) and np.array_equal(a.logprob, b.logprob, equal_nan=True)
