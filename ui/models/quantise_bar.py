"""The question in how many bits a model is to be quantised."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from ui.models.choice_bar import ChoiceBar
from ui.port import translate

BITS = (4, 8)


class QuantiseBar(ChoiceBar):
    """Hidden until it is asked; the keyboard goes back to `home`."""

    wanted = Signal(int)  # bits

    def __init__(self, home: QWidget) -> None:
        labels = [translate("QuantiseBar", "{0} bit").format(bits) for bits in BITS]
        super().__init__(home, translate("QuantiseBar", "Bits of a weight"), labels, translate("QuantiseBar", "Quantise"))
        self.agreed.connect(lambda place: self.wanted.emit(BITS[place]))

    def ask(self) -> None:
        """Asks."""
        question = self.tr("A second model for mlx beside this one, smaller and faster: 8 bit is more exact, 4 bit smaller.")
        self.ask_about(question, max(self.choice.place, 0))
