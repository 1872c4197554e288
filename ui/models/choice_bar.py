"""A question with a few answers, in the place that it is about."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.models.aside import Aside
from ui.parts import Choice, button, row, words


class ChoiceBar(Aside):
    """Hidden until something is asked; the keyboard goes back to `home`.

    Args:
        home: What was pressed to get here.
        name: Of what is chosen.
        labels: Of the answers.
        action: What the way is called that goes on.
    """

    agreed = Signal(int)  # the place of the answer

    def __init__(self, home: QWidget, name: str, labels: Sequence[str], action: str) -> None:
        super().__init__(home, "undo")
        self.question = words("", "")
        self.choice = Choice(name, labels)
        self.do_button = button(action, "link")
        self.keep_button = button(self.tr("Not now"), "plain")
        self.do_button.clicked.connect(self._agree)
        self.keep_button.clicked.connect(self.leave)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 6, 10, 6)
        column.setSpacing(6)
        column.addWidget(self.question)
        column.addLayout(row(self.choice, self.do_button, self.keep_button, 1, spacing=14))

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        """In the order of the keyboard."""
        return *self.choice.buttons, self.do_button, self.keep_button

    def ask_about(self, question: str, place: int) -> None:
        """Asks; one of the answers is marked."""
        self.question.setText(question)
        self.setAccessibleName(question)
        self.choice.show_choice(place)
        self.open_at(self.do_button)

    def _agree(self) -> None:
        self.leave()
        self.agreed.emit(self.choice.place)
