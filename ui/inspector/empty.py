"""What a tab says while it has nothing to show, and the one thing that can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.parts import button, row, words


class Empty(QWidget):
    """Words and a button: to a token where there are some, else to the message field."""

    token_wanted = Signal()
    message_wanted = Signal()

    def __init__(self, text: str) -> None:
        super().__init__()
        self._has_tokens = False
        self.button = button("")
        self.button.clicked.connect(self._act)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(10)
        column.addWidget(words(text))
        column.addLayout(row(self.button, 1))
        self.set_has_tokens(False)

    def set_has_tokens(self, has: bool) -> None:  # a state, not an option
        """Whether there is a token to go to."""
        self._has_tokens = has
        self.button.setText(self.tr("Show an uncertain token") if has else self.tr("Write a message"))

    def _act(self) -> None:
        (self.token_wanted if self._has_tokens else self.message_wanted).emit()
