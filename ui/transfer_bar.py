"""How far an export or an import is, in the status bar, with a button to stop it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.theme.fonts import interface_font
from ui.widgets import IconButton, Label


class TransferBar(QWidget):
    """Hidden while nothing is under way."""

    stopped = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._words = ""
        self.label = Label("", "accent", interface_font(11.5))
        self.stop_button = IconButton("x", self.tr("Stop the transfer"))
        self.stop_button.setFixedSize(20, 20)
        self.stop_button.clicked.connect(self.stopped)
        row = QHBoxLayout(self)
        row.setContentsMargins(22, 0, 0, 0)
        row.setSpacing(2)
        row.addWidget(self.label)
        row.addWidget(self.stop_button)
        self.hide()

    def begin(self, words: str) -> None:
        """Something began: "exporting"."""
        self._words = words
        self.label.setText(f"{words}…")
        self.label.setAccessibleName(words)
        self.show()

    def show_progress(self, done: int, total: int) -> None:
        """How much of it is done."""
        self.label.setText(f"{self._words} {100 * done // max(total, 1)} %")

    def end(self) -> None:
        """Nothing is under way any more."""
        self.hide()
