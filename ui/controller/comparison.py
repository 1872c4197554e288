"""The path compared with a second model, and the turns that are similar to one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal

from ui.core.shown import typed_text
from ui.port import ComparisonChoice, ModelRefusal, NoRoomRefusal, SessionView

if TYPE_CHECKING:
    from ui.controller.controller import Controller
    from ui.port import Pooling


COMPARISON = "comparison"


class ComparisonController(QObject):
    """Part of `Controller`. One comparison at a time; the next one cancels it."""

    menu_ready = Signal(object)  # Sequence[ComparisonChoice]
    began = Signal(str)  # the second model's label
    progressed = Signal(str, int, int)  # what is being done, how much of how much
    compared = Signal(object, bool)  # PathComparison of the session that is shown; whether the second model is kept
    failed = Signal(str, bool)  # why; whether only memory was short

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench
        self._last: ComparisonChoice | None = None
        self._kl_of_all = False

    def ask_menu(self) -> None:
        self._controller.ask_shown("comparison menu", self._workbench.comparison.choices, self.menu_ready.emit)

    def compare(self, choice: ComparisonChoice, *, anyway: bool = False, kl_of_all: bool = False) -> None:
        self._last, self._kl_of_all = choice, kl_of_all
        self.began.emit(choice.label)
        ask = partial(self._compare, choice=choice, anyway=anyway, kl_of_all=kl_of_all)
        self._controller.ask_latest(COMPARISON, ask, self._fail)

    def compare_again(self, anyway: bool) -> None:  # as the signal brings it
        if self._last is not None:
            self.compare(self._last, anyway=anyway, kl_of_all=self._kl_of_all)

    def compare_all(self) -> None:
        """Repeats the last comparison, with the KL of every token."""
        if self._last is not None:
            self.compare(self._last, anyway=True, kl_of_all=True)  # the model was loaded before

    def stop(self) -> None:
        self._controller.tasks.drop(COMPARISON)

    def keep(self, keep: bool) -> None:  # a state, as the signal brings it
        """Whether the second model stays loaded."""
        self._controller.tasks.run(self._workbench.comparison.keep_model(keep))

    async def _compare(self, session_id: int, *, choice: ComparisonChoice, anyway: bool, kl_of_all: bool) -> None:
        compare = self._workbench.comparison.compare
        try:
            found = await compare(session_id, choice, self.progressed.emit, anyway=anyway, kl_of_all=kl_of_all)
        except NoRoomRefusal as refusal:
            self.failed.emit(str(refusal), True)
            return
        if self._controller.is_shown(session_id):
            self.compared.emit(found, self._workbench.comparison.keeps_model)

    def _fail(self, words: str) -> None:
        self.failed.emit(words, False)


SIMILAR = "similar"


class _Query(NamedTuple):
    """The turn that the others are compared with, and its words."""

    session_id: int
    node_id: int
    words: str


class SimilarController(QObject):
    """Part of `Controller`. One query at a time; the next one cancels it, and keeps the vectors made by then."""

    began = Signal(str, str, bool)  # the turn's words, the pooling; whether the turn is another one than before
    progressed = Signal(str, int, int)  # what is being done, how many turns of how many
    found = Signal(object)  # SimilarTurns of the session that is shown
    failed = Signal(str, bool)  # why; whether another model may be chosen
    left = Signal()  # another session is shown

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._controller = controller
        self._workbench = controller.workbench
        self._query: _Query | None = None
        self._pooling: Pooling = "mean"
        self._follows = False  # repeats the query when the session changes; not after a failure
        self._lacks_model = False  # the last query failed for want of a model
        self._state: object = None  # `_state_of` the session, at the last query
        controller.session_shown.connect(self._follow)

    def look(self, node_id: int) -> None:
        """Compares a turn of the path that is shown with all others."""
        shown = self._controller.shown
        turn = shown.turn(node_id) if shown is not None else None
        if shown is None or turn is None:
            return
        before = self._query
        self._query = _Query(shown.session_id, node_id, typed_text(turn.run))
        self._begin(other=before is None or before[:2] != self._query[:2])

    def choose_pooling(self, pooling: Pooling) -> None:
        """Repeats the query with another pooling."""
        self._pooling = pooling
        self.look_again()

    def look_again(self) -> None:
        if self._query is not None:
            self._begin(other=False)

    def look_with_model(self) -> None:
        """Repeats a query that failed for want of a model."""
        if self._lacks_model:
            self.look_again()

    def stop(self) -> None:
        """Cancels the query; the session is no longer followed."""
        self._query, self._follows, self._lacks_model = None, False, False
        self._controller.tasks.drop(SIMILAR)

    def _begin(self, *, other: bool) -> None:
        assert self._query is not None
        self.began.emit(self._query.words, self._pooling, other)
        self._ask(self._query)

    def _ask(self, query: _Query) -> None:
        shown = self._controller.shown
        self._follows, self._lacks_model = True, False
        self._state = None if shown is None else _state_of(shown.view)
        self._controller.ask_latest(SIMILAR, lambda _session: self._find(query), self._fail)

    async def _find(self, query: _Query) -> None:
        try:
            found = await self._workbench.similar.find(*query[:2], self._pooling, self.progressed.emit)
        except ModelRefusal as refusal:
            self._fail(str(refusal), needs_model=True)
            return
        if self._controller.is_shown(query.session_id):
            self.found.emit(found)

    def _fail(self, words: str, *, needs_model: bool = False) -> None:
        self._follows, self._lacks_model = False, needs_model
        self.failed.emit(words, needs_model)

    def _follow(self, view: SessionView) -> None:
        """Repeats the query when turns or the path have changed; vectors of unchanged turns are not computed again."""
        if self._query is None:
            return
        if view.session_id != self._query.session_id:
            self.stop()
            self.left.emit()
        elif self._follows and _state_of(view) != self._state:
            self._ask(self._query)


def _state_of(view: SessionView) -> object:
    """The part of a session that the result depends on."""
    return [(turn.node_id, turn.status) for turn in view.turns], [(row.node_id, row.pruned) for row in view.branches]
