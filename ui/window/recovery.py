"""The window shown when the sessions cannot be opened: the problem, and the ways out."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent, QFont
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from ui.theme.fonts import interface_font
from ui.widgets.controls import column_of, fill, row
from ui.widgets.labels import Label

WIDTH = 560
MOST_LOST = 4  # lines about what could not be read


class RecoveryPage(QWidget):
    """A window with the problem and its ways out, none of which deletes anything.

    Args:
        problem: The text of the store's error; names the file.
        fresh: The folder that would be opened instead.
        damaged: Something can be recovered; else the file is of another version or cannot be read.
    """

    recover_wanted = Signal()
    stop_wanted = Signal()
    open_wanted = Signal()
    fresh_wanted = Signal()
    closed = Signal()

    def __init__(self, problem: str, fresh: str, *, damaged: bool = True) -> None:
        super().__init__()
        self.setWindowTitle("Elsewise")
        self.setObjectName("column")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.resize(760, 520)
        self.setMinimumSize(420, 360)
        self.title = Label(self.tr("Your sessions cannot be opened"), "", interface_font(20, QFont.Weight.DemiBold))
        self.problem = self._words(problem, "")
        recover = self.tr(
            "Recovering copies what can still be read, or else the latest backup, into a new file and keeps the damaged one "
            "under another name. A fresh folder leaves everything as it is; new sessions go to {0}"
        )
        again = self.tr("Try again when the cause is gone. A fresh folder leaves everything as it is; new sessions go to {0}")
        self.hint = self._words((recover if damaged else again).format(fresh), "soft")
        self.state = self._words("", "soft")
        self.recover_button = self._button(self.tr("Recover what can be read"), primary=True)
        self.recover_button.clicked.connect(self.recover_wanted)
        self.fresh_button = self._button(self.tr("Open a fresh folder"))
        self.fresh_button.clicked.connect(self.fresh_wanted)
        self.stop_button = self._button(self.tr("Stop"))
        self.stop_button.clicked.connect(self.stop_wanted)
        self.open_button = self._button(self.tr("Open") if damaged else self.tr("Try again"), primary=True)
        self.open_button.clicked.connect(self.open_wanted)
        self._first = self.recover_button if damaged else self.open_button
        self._lay_out()
        self.show_choice()

    def show_choice(self, words: str = "") -> None:
        """Shows the ways out; `words` tell how the last attempt ended."""
        self._show(self._first, self.fresh_button, words=words)

    def show_progress(self, what: str, done: int, of: int) -> None:
        self._show(self.stop_button, words=self.tr("reading {0}: {1:,} of {2:,} rows").format(what.replace("_", " "), done, of))

    def show_recovered(self, sessions: int, kept: str, lost: Sequence[str]) -> None:
        words = [
            self.tr("{0:,} sessions were recovered. The damaged file is kept as {1}").format(sessions, kept),
            *lost[:MOST_LOST],
        ]
        if len(lost) > MOST_LOST:
            words.append(self.tr("and {0} more").format(len(lost) - MOST_LOST))
        self.title.setText(self.tr("Recovered"))
        self.problem.hide()
        self.hint.hide()
        self._show(self.open_button, words="\n".join(words))
        self.open_button.setFocus()

    def closeEvent(self, event: QCloseEvent) -> None:
        super().closeEvent(event)
        self.closed.emit()

    def _show(self, *buttons: QPushButton, words: str) -> None:
        self.state.setText(words)
        self.state.setVisible(bool(words))
        for button in (self.recover_button, self.fresh_button, self.stop_button, self.open_button):
            button.setVisible(button in buttons)

    def _words(self, text: str, kind: str) -> Label:
        words = Label(text, kind, interface_font(13), wraps=True)
        words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        return words

    def _button(self, words: str, *, primary: bool = False) -> QPushButton:
        button = QPushButton(words)
        button.setFont(interface_font(12.5, QFont.Weight.DemiBold if primary else QFont.Weight.Normal))
        if primary:
            button.setObjectName("send")
        else:
            button.setProperty("kind", "quiet")
        return button

    def _lay_out(self) -> None:
        column = column_of(self.title, self.problem, self.hint, self.state, spacing=12)
        column.addSpacing(8)
        column.addLayout(row(self.open_button, self.recover_button, self.fresh_button, self.stop_button, 1))
        middle = QWidget()
        middle.setMaximumWidth(WIDTH)
        middle.setLayout(column)
        across = QHBoxLayout()
        fill(across, 1, (middle, 20), 1)
        page = QVBoxLayout(self)
        page.setContentsMargins(24, 24, 24, 24)
        fill(page, 2, across, 3)
