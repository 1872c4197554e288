"""Presenters of the comparison with a second model, and of similar turns."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from ui.commands.actions import Actions
from ui.comparison.model_facts import Compared
from ui.controller import Controller
from ui.core.shown import Spot
from ui.port import EngineState, PathComparison, SessionView, StatusView
from ui.transcript import Mode
from ui.transcript.path import has_own_words
from ui.window.frame import Frame


class ComparisonPresenter(QObject):
    """Shows the comparison in the bar, the transcript, the legend and the inspector; closing it restores them.

    Args:
        parts: Widgets of the window.
        acts: Actions of the window.
        set_mode: Switches to Read or Tokens mode.
        parent: Qt parent.
    """

    def __init__(self, parts: Frame, acts: Actions, set_mode: Callable[[Mode], None], parent: QObject) -> None:
        super().__init__(parent)
        self._parts, self._acts, self._set_mode = parts, acts, set_mode
        self._compared: Compared | None = None
        self._session: int | None = None  # the session whose comparison is running or shown
        acts.disagreement.setEnabled(False)

    def begin(self, label: str) -> None:
        self._forget()
        self._parts.comparison.begin(label)

    def show(self, comparison: PathComparison, keeps: bool) -> None:  # as the signal brings it
        self._compared = Compared(comparison)
        self._parts.comparison.show_comparison(comparison, keeps=keeps)
        self._set_mode(Mode.TOKENS)
        self.colour(difference=True)
        self.show_spot(self._parts.inspector.token.spot)

    def colour(self, *, difference: bool) -> None:
        """Colours tokens by the difference, or by their own numbers; without a comparison always by the latter."""
        compared = self._compared
        self._parts.transcript.colours.show_compared(compared, difference=difference)
        self._parts.status.legend.show_difference(compares=compared is not None, shown=difference)
        found = compared is not None and difference and compared.disagreements > 0
        self._acts.disagreement.setEnabled(found)
        if compared is not None:
            self._parts.comparison.next_button.setEnabled(found)

    def show_spot(self, spot: Spot | None) -> None:
        compared = self._compared
        facts = compared.facts(spot.node_id, spot.index) if compared is not None and spot is not None else None
        self._parts.inspector.token.compared.show_facts(facts)

    def next_disagreement(self) -> None:
        """Pins the next token on which the models disagree."""
        if self._parts.transcript.colours.shows_difference:
            self._parts.transcript.tokens.next_underlined()

    def close(self) -> None:
        self._forget()
        self._parts.comparison.dismiss()

    def leave(self, view: SessionView) -> None:
        """Closes the comparison if another session is shown now."""
        other = view.session_id != self._session
        self._session = view.session_id
        if other:
            self.close()

    def _forget(self) -> None:
        if self._compared is not None:
            self._compared = None
            self.colour(difference=False)
            self.show_spot(None)


class SimilarPresenter(QObject):
    """Starts and stops the comparison of turns.

    Args:
        controller: Compares the turns.
        parts: Widgets of the window.
        parent: Qt parent.
    """

    def __init__(self, controller: Controller, parts: Frame, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._parts = controller, parts
        self._runs = False  # whether a model is loaded
        controller.status_changed.connect(self._take_status)

    def look(self) -> None:
        """Compares the turn of the pinned token, else the last turn that has text."""
        chosen = self._chosen()
        if chosen is not None:
            self._controller.similar.look(chosen)

    def close(self) -> None:
        """Stops a running comparison and removes the mark in the transcript."""
        self._controller.similar.stop()
        self._parts.transcript.go_to(None)

    def _chosen(self) -> int | None:
        shown, pinned = self._controller.shown, self._parts.transcript.pinned
        if shown is None:
            return None
        if pinned is not None and shown.turn(pinned[0]) is not None:
            return pinned[0]
        return next((turn.node_id for turn in reversed(shown.view.turns) if has_own_words(turn.run)), None)

    def _take_status(self, status: StatusView) -> None:
        ran, self._runs = self._runs, status.engine in (EngineState.READY, EngineState.BUSY)
        if self._runs and not ran:
            self._controller.similar.look_with_model()
