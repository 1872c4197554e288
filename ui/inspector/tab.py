"""What a tab of the inspector is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtWidgets import QWidget

from ui.controller import Controller
from ui.core.shown import Spot
from ui.port import Made, StatusView, TurnView

BytesOf = Callable[[Sequence[int]], Sequence[bytes]]  # bytes of any token ids; empty where not known
HowMade = Callable[[int], Made | None]  # of an answer's node


class InspectorTab(QWidget):
    """A tab overrides what concerns it; what it shows of its own, and asks for, it connects in `bind`.

    Attributes:
        title: Marked with `QT_TRANSLATE_NOOP("Inspector", ...)`.
    """

    title = ""

    def bind(self, controller: Controller) -> None:
        """Connects the tab with what it asks and shows."""

    def show_spot(
        self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool = False, can_continue: bool = False
    ) -> None:
        """Shows the token that is pinned; None: none is."""

    def show_path(self, turns: tuple[TurnView, ...], how_made: HowMade) -> None:
        """Shows the path; called only while the tab is in front."""

    def show_status(self, status: StatusView) -> None:
        """Shows what the engine does."""

    def set_has_tokens(self, has: bool) -> None:  # a state, not an option
        """Whether the path has a token with a score."""
