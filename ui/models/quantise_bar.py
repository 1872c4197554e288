"""The question in how many bits a model is to be quantised."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.models.aside import Aside
from ui.parts import Choice, button, row, words

BITS = (4, 8)


class QuantiseBar(Aside):
    """Hidden until it is asked; the keyboard goes back to `home`."""

    wanted = Signal(int)  # bits

    def __init__(self, home: QWidget) -> None:
        super().__init__(home, "undo")
        question = words(
            self.tr("A second model for mlx beside this one, smaller and faster: 8 bit is more exact, 4 bit smaller."), ""
        )
        self.bits = Choice(self.tr("Bits of a weight"), [self.tr("{0} bit").format(bits) for bits in BITS])
        self.bits.show_choice(0)
        self.do_button = button(self.tr("Quantise"), "link")
        self.keep_button = button(self.tr("Not now"), "plain")
        self.do_button.clicked.connect(self._agree)
        self.keep_button.clicked.connect(self.leave)
        column = QVBoxLayout(self)
        column.setContentsMargins(10, 6, 10, 6)
        column.setSpacing(6)
        column.addWidget(question)
        column.addLayout(row(self.bits, self.do_button, self.keep_button, 1, spacing=14))

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        """In the order of the keyboard."""
        return *self.bits.buttons, self.do_button, self.keep_button

    def ask(self) -> None:
        """Asks."""
        self.open_at(self.do_button)

    def _agree(self) -> None:
        self.leave()
        self.wanted.emit(BITS[self.bits.place])
