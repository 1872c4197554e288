"""The path beside what a second model says of it, and the turns that are like one of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing
from ui.core.shown import typed_text
from ui.port import ModelRefusal, NoRoomRefusal, SecondChoice, SessionView

if TYPE_CHECKING:
    from ui.port import Pooling


SECOND = "second"


class SecondController(QObject):
    """Part of `Controller`. One comparison at a time; the next one ends it.

    Args:
        showing: The session that is shown.
    """

    menu_ready = Signal(object)  # Sequence[SecondChoice]
    began = Signal(str)  # the second model's label
    progressed = Signal(str, int, int)  # what is done, how much of how much
    compared = Signal(object, bool)  # PathComparison of the session that is shown; whether the second model is kept
    failed = Signal(str, bool)  # why; whether only memory was short

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench
        self._last: SecondChoice | None = None
        self._kl_of_all = False

    def ask_menu(self) -> None:
        self._showing.ask_latest("second menu", self._list)

    def compare(self, choice: SecondChoice, *, anyway: bool = False, kl_of_all: bool = False) -> None:
        self._last, self._kl_of_all = choice, kl_of_all
        self.began.emit(choice.label)
        ask = partial(self._compare, choice=choice, anyway=anyway, kl_of_all=kl_of_all)
        self._showing.ask_latest(SECOND, ask, self._fail)

    def compare_again(self, anyway: bool) -> None:  # as the signal brings it
        if self._last is not None:
            self.compare(self._last, anyway=anyway, kl_of_all=self._kl_of_all)

    def compare_all(self) -> None:
        """The last one once more, with the KL of every token."""
        if self._last is not None:
            self.compare(self._last, anyway=True, kl_of_all=True)  # it was loaded before

    def stop(self) -> None:
        self._showing.tasks.drop(SECOND)

    def keep(self, keep: bool) -> None:  # a state, as the signal brings it
        """Whether the second model stays loaded."""
        self._showing.tasks.run(self._workbench.comparison.keep_second(keep))

    async def _list(self, session_id: int) -> None:
        choices = await self._workbench.comparison.choices(session_id)
        if self._showing.is_shown(session_id):
            self.menu_ready.emit(choices)

    async def _compare(self, session_id: int, *, choice: SecondChoice, anyway: bool, kl_of_all: bool) -> None:
        compare = self._workbench.comparison.compare
        try:
            found = await compare(session_id, choice, self.progressed.emit, anyway=anyway, kl_of_all=kl_of_all)
        except NoRoomRefusal as refusal:
            self.failed.emit(str(refusal), True)
            return
        if self._showing.is_shown(session_id):
            self.compared.emit(found, self._workbench.comparison.keeps_second)

    def _fail(self, words: str) -> None:
        self.failed.emit(words, False)


SIMILAR = "similar"


class _Look(NamedTuple):
    """What was looked at last."""

    session_id: int
    node_id: int
    words: str


class SimilarController(QObject):
    """Part of `Controller`. One look at a time; the next one ends it, and what it has made is remembered.

    Args:
        showing: The session that is shown.
    """

    began = Signal(str, str, bool)  # the turn's words, the pooling; whether it is another turn than before
    progressed = Signal(str, int, int)  # what is done, how many turns of how many
    found = Signal(object)  # SimilarTurns of the session that is shown
    failed = Signal(str, bool)  # why; whether another model may be chosen
    left = Signal()  # another session is shown

    def __init__(self, showing: Showing) -> None:
        super().__init__(showing)
        self._showing = showing
        self._workbench = showing.workbench
        self._asked: _Look | None = None
        self._pooling: Pooling = "mean"
        self._follows = False  # as the session changes: not after a look that failed
        self._lacks_model = False  # which is why the last one failed
        self._seen: object = None  # what of the session the last look depends on
        showing.session_shown.connect(self._follow)

    def look(self, node_id: int) -> None:
        """Compares a turn of the path that is shown with all others."""
        shown = self._showing.shown
        turn = shown.turn(node_id) if shown is not None else None
        if shown is None or turn is None:
            return
        before = self._asked
        self._asked = _Look(shown.session_id, node_id, typed_text(turn.run))
        self._begin(other=before is None or before[:2] != self._asked[:2])

    def choose_pooling(self, pooling: Pooling) -> None:
        """The same with vectors that are made another way."""
        self._pooling = pooling
        self.look_again()

    def look_again(self) -> None:
        if self._asked is not None:
            self._begin(other=False)

    def look_with_model(self) -> None:
        """A model came: what failed for want of one is done now."""
        if self._lacks_model:
            self.look_again()

    def stop(self) -> None:
        """Ends the look that is under way; the session is no longer followed."""
        self._asked, self._follows, self._lacks_model = None, False, False
        self._showing.tasks.drop(SIMILAR)

    def _begin(self, *, other: bool) -> None:
        assert self._asked is not None
        self.began.emit(self._asked.words, self._pooling, other)
        self._ask(self._asked)

    def _ask(self, asked: _Look) -> None:
        shown = self._showing.shown
        self._follows, self._lacks_model = True, False
        self._seen = None if shown is None else _standing(shown.view)
        self._showing.ask_latest(SIMILAR, lambda _session: self._look(asked), self._fail)

    async def _look(self, asked: _Look) -> None:
        try:
            found = await self._workbench.similar.find(*asked[:2], self._pooling, self.progressed.emit)
        except ModelRefusal as refusal:
            self._fail(str(refusal), needs_model=True)
            return
        if self._showing.is_shown(asked.session_id):
            self.found.emit(found)

    def _fail(self, words: str, *, needs_model: bool = False) -> None:
        self._follows, self._lacks_model = False, needs_model
        self.failed.emit(words, needs_model)

    def _follow(self, view: SessionView) -> None:
        """Turns have come or gone, or another path is shown: what is remembered of the others need not be made again."""
        if self._asked is None:
            return
        if view.session_id != self._asked.session_id:
            self.stop()
            self.left.emit()
        elif self._follows and _standing(view) != self._seen:
            self._ask(self._asked)


def _standing(view: SessionView) -> object:
    """What rows are made of, as far as the window knows it."""
    return [(turn.node_id, turn.status) for turn in view.turns], [(row.node_id, row.pruned) for row in view.branches]
