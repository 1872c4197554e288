"""The turns that are like one of them, in the session that is shown: asked for, followed as the session changes, gone to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtCore import QObject, Signal

from ui.controller.showing import Showing
from ui.core.shown import typed_text
from ui.port import ModelRefusal, SessionView

if TYPE_CHECKING:
    from runtime import Pooling

_KEY = "similar"


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
        self._showing.tasks.drop(_KEY)

    def _begin(self, *, other: bool) -> None:
        assert self._asked is not None
        self.began.emit(self._asked.words, self._pooling, other)
        self._ask(self._asked)

    def _ask(self, asked: _Look) -> None:
        shown = self._showing.shown
        self._follows, self._lacks_model = True, False
        self._seen = None if shown is None else _standing(shown.view)
        self._showing.ask_latest(_KEY, lambda _session: self._look(asked), self._fail)

    async def _look(self, asked: _Look) -> None:
        try:
            found = await self._workbench.similar_turns(*asked[:2], self._pooling, self.progressed.emit)
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
