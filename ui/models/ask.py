"""A question in the row that it is about, with a way to do it and a way to leave it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.models.aside import Aside
from ui.parts import button, words


class AskBar(Aside):
    """Hidden until something is asked. The keyboard is on the way that changes nothing, and goes back to `home`.

    Args:
        home: What was pressed to get here.
        leave: What the way is called that changes nothing.
    """

    agreed = Signal()

    def __init__(self, home: QWidget, leave: str) -> None:
        super().__init__(home, "undo")
        self._words = words("", "")
        self.do_button = button("", "link")
        self.keep_button = button(leave, "plain")
        self.do_button.clicked.connect(self._agree)
        self.keep_button.clicked.connect(self.leave)
        line = QHBoxLayout(self)
        line.setContentsMargins(10, 5, 10, 5)
        line.setSpacing(14)
        line.addWidget(self._words, 1)
        line.addWidget(self.do_button)
        line.addWidget(self.keep_button)

    @property
    def words(self) -> str:
        """What it asks; "" while it does not."""
        return "" if self.isHidden() else self._words.text()

    def ask(self, question: str, action: str) -> None:
        """Asks."""
        self._words.setText(question)
        self.setAccessibleName(question)
        self.do_button.setText(action)
        self.open_at(self.keep_button)

    def _agree(self) -> None:
        self.leave()
        self.agreed.emit()
