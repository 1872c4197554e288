"""The base class of the inspector's tabs, and widgets that they share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont, QShowEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.controller import Controller
from ui.core.shown import Spot
from ui.core.tasks import ignore_refusal
from ui.port import Made, StatusView, TurnView, Workbench
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_height
from ui.widgets.controls import button, column_in, grid, row, row_in, words
from ui.widgets.labels import ElidedLabel, Label, plain_tooltip

BytesOf = Callable[[Sequence[int]], Sequence[bytes]]  # the bytes of token ids; empty if unknown
HowMade = Callable[[int], Made | None]  # the provenance of an answer, by its node id
T = TypeVar("T")


class InspectorTab(QWidget):
    """A tab overrides the methods that concern it, and is listed in `ui.inspector.panel.TABS`.

    Attributes:
        title: Marked with `QT_TRANSLATE_NOOP("Inspector", ...)`.
        for_developers: The tab is shown in the developer view only.
    """

    title = ""
    for_developers = False
    alternative_chosen = Signal(int, int, int)  # node id, index, token id
    token_chosen = Signal(int, int)  # node id, index
    reported = Signal(str)  # the result of a command, while the tab is hidden
    _controller: Controller | None = None

    def bind(self, controller: Controller) -> None:
        """Connects the tab with the controller."""
        self._controller = controller

    def request(
        self,
        key: str,
        find: Callable[[Workbench, int], Awaitable[T]],
        found: Callable[[T], object],
        refused: Callable[[str], None] = ignore_refusal,
    ) -> None:
        """Asks for data, and cancels the tab's earlier request with the same key.

        Args:
            key: Names the data.
            find: Gets the workbench and the id of the session shown.
            found: Called with the result, unless another session is shown by then.
            refused: Called with the text of a refusal.
        """
        if self._controller is not None:
            command = partial(find, self._controller.workbench)
            self._controller.ask_shown(f"{type(self).__name__}: {key}", command, found, refused)

    def refresh(self) -> None:
        """Asks for data that is not there yet; called when the tab becomes visible."""

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.refresh()

    def show_spot(
        self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool = False, can_continue: bool = False
    ) -> None:
        """Shows the pinned token; None: no token is pinned."""

    def show_path(self, turns: tuple[TurnView, ...], how_made: HowMade) -> None:
        """Shows the path; called only for the current tab."""

    def show_status(self, status: StatusView) -> None:
        """Takes the status of the engine."""


ROW_HEIGHT = 17


class FactGrid(QWidget):
    """A grid of names and values, `columns` pairs per row."""

    def __init__(self, columns: int = 2) -> None:
        super().__init__()
        self._columns = columns
        self._cells: list[FactCell] = []
        self._shown: tuple[list[tuple[str, str]], Mapping[str, str] | None] = [], None
        self._grid = grid(14, 3, self)
        for column in range(columns):
            self._grid.setColumnStretch(column, 1)

    @property
    def texts(self) -> dict[str, str]:
        return {cell.name.text(): cell.value.text() for cell in self._cells if not cell.isHidden()}

    def show_facts(self, facts: Mapping[str, str], meanings: Mapping[str, str] | None = None) -> None:
        """Replaces all facts, in this order; cells are reused, so that numbers change in place.

        Args:
            facts: Values by name.
            meanings: Explanations by name, for tooltips.
        """
        shown = list(facts.items()), meanings
        if shown == self._shown:
            return
        self._shown = shown
        while len(self._cells) < len(facts):
            cell = FactCell()
            self._grid.addWidget(cell, *divmod(len(self._cells), self._columns))
            self._cells.append(cell)
        for cell in self._cells[len(facts) :]:
            cell.hide()
        for cell, (name, value) in zip(self._cells, facts.items(), strict=False):
            cell.name.setText(name)
            cell.value.setText(value)
            cell.value.setAccessibleName(f"{name} {value}")
            meaning = "" if meanings is None else meanings.get(name, "")
            cell.setToolTip(plain_tooltip(meaning))
            cell.value.setAccessibleDescription(meaning)
            cell.show()


class FactCell(QWidget):
    """A name at the left, its value at the right."""

    def __init__(self) -> None:
        super().__init__()
        self.name = Label("", "soft", interface_font(12))
        self.value = ElidedLabel("", "", interface_font(12, QFont.Weight.Medium))
        self.value.setAlignment(Qt.AlignmentFlag.AlignRight)
        self.value.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        fix_height(self, ROW_HEIGHT)
        row_in(self, self.name, (self.value, 1), spacing=6)


class Empty(QWidget):
    """Shown in place of a token: words, and a button to an uncertain token, else to the message field."""

    token_wanted = Signal()
    message_wanted = Signal()

    def __init__(self, text: str) -> None:
        super().__init__()
        self._has_tokens = False
        self.button = button("")
        self.button.clicked.connect(self._act)
        column_in(self, words(text), row(self.button, 1), spacing=10)
        self.set_has_tokens(False)

    def set_has_tokens(self, has: bool) -> None:  # a state, not an option
        self._has_tokens = has
        self.button.setText(self.tr("Show an uncertain token") if has else self.tr("Write a message"))

    def _act(self) -> None:
        (self.token_wanted if self._has_tokens else self.message_wanted).emit()
