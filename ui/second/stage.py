"""What the window shows while a second model is beside the first: in the bar, the transcript, the legend, the inspector."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject

from ui.core.shown import Spot
from ui.frame.frame import Frame
from ui.port import PathComparison, SessionView
from ui.second.compared import Compared
from ui.transcript import Mode
from ui.window.actions import Actions


class SecondStage(QObject):
    """Keeps the parts in step; closing the comparison leaves them as they were.

    Args:
        parts: Of the window.
        acts: Of the window.
        set_mode: Read or Tokens.
        parent: Owns it.
    """

    def __init__(self, parts: Frame, acts: Actions, set_mode: Callable[[Mode], None], parent: QObject) -> None:
        super().__init__(parent)
        self._parts, self._acts, self._set_mode = parts, acts, set_mode
        self._compared: Compared | None = None
        self._session: int | None = None  # whose comparison is under way or shown
        acts.disagreement.setEnabled(False)

    def begin(self, label: str) -> None:
        """A comparison is under way; the one before goes."""
        self._forget()
        self._parts.second.begin(label)

    def show(self, comparison: PathComparison, keeps: bool) -> None:  # as the signal brings it
        """Shows what came of it, in Tokens mode."""
        self._compared = Compared(comparison)
        self._parts.second.show_comparison(comparison, keeps=keeps)
        self._set_mode(Mode.TOKENS)
        self.colour(difference=True)
        self.show_spot(self._parts.inspector.token.spot)

    def colour(self, *, difference: bool) -> None:
        """Tokens are coloured by the difference, or by their own numbers; while nothing is compared always by these."""
        compared = self._compared
        self._parts.transcript.colours.show_compared(compared, difference=difference)
        self._parts.status.legend.show_difference(compares=compared is not None, shown=difference)
        found = compared is not None and difference and compared.disagreements > 0
        self._acts.disagreement.setEnabled(found)
        if compared is not None:
            self._parts.second.next_button.setEnabled(found)

    def show_spot(self, spot: Spot | None) -> None:
        """The token that the inspector shows."""
        compared = self._compared
        facts = compared.facts(spot.node_id, spot.index) if compared is not None and spot is not None else None
        self._parts.inspector.token.compared.show_facts(facts)

    def next_disagreement(self) -> None:
        """Pins the next token that the two disagree on."""
        if self._parts.transcript.colours.shows_difference:
            self._parts.transcript.tokens.next_underlined()

    def close(self) -> None:
        """Everything is as it was."""
        self._forget()
        self._parts.second.dismiss()

    def leave(self, view: SessionView) -> None:
        """Another session is shown: the comparison was of that one."""
        other = view.session_id != self._session
        self._session = view.session_id
        if other:
            self.close()

    def _forget(self) -> None:
        if self._compared is not None:
            self._compared = None
            self.colour(difference=False)
            self.show_spot(None)
