"""What the window shows while turns are compared: in the panel, the menu, the conversation."""

from __future__ import annotations

from PySide6.QtCore import QObject

from ui.desk import Desk
from ui.frame.frame import Frame
from ui.port import EngineState
from ui.transcript.path import has_own_words
from ui.window.actions import Actions


class SimilarStage(QObject):
    """Keeps the parts in step.

    Args:
        desk: Compares.
        parts: Of the window.
        acts: Of the window.
        parent: Owns it.
    """

    def __init__(self, desk: Desk, parts: Frame, acts: Actions, parent: QObject) -> None:
        super().__init__(parent)
        self._desk, self._parts, self._act = desk, parts, acts.similar
        self._runs = False  # a model
        for news in (desk.session_shown, desk.status_changed, desk.activity_changed):
            news.connect(self._refresh)
        self._refresh()

    def look(self) -> None:
        """At the turn of the token that is pinned, else at the last one that has words."""
        chosen = self._chosen()
        if chosen is not None:
            self._desk.similar.look(chosen)

    def close(self) -> None:
        """Nothing is marked, and nothing under way."""
        self._desk.similar.stop()
        self._parts.transcript.go_to(None)

    def _chosen(self) -> int | None:
        shown, pinned = self._desk.shown, self._parts.transcript.pinned
        if shown is None:
            return None
        if pinned is not None and shown.turn(pinned[0]) is not None:
            return pinned[0]
        said = (turn.node_id for turn in reversed(shown.view.turns) if has_own_words(turn.run))
        return next(said, None)

    def _refresh(self) -> None:
        """Without a turn there is nothing to ask; without a model the status bar has the reason, and the way to another."""
        status = self._desk.workbench.status
        problem = status.reason if status.engine is EngineState.NONE else ""
        self._act.setEnabled(self._chosen() is not None and not problem)
        self._act.setStatusTip(problem)
        self._act.setToolTip(problem or self._act.text())
        ran, self._runs = self._runs, status.engine in (EngineState.READY, EngineState.BUSY)
        if self._runs and not ran:
            self._desk.similar.look_with_model()
