"""The question in how many bits a model is to be quantised."""

from __future__ import annotations

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtWidgets import QWidget

from ui.models.choice_bar import ChoiceBar

BITS = (4, 8)


class QuantiseBar(ChoiceBar):
    """Hidden until it is asked; the keyboard goes back to `home`."""

    wanted = Signal(int)  # bits

    def __init__(self, home: QWidget) -> None:
        labels = [_tr("{0} bit").format(bits) for bits in BITS]
        super().__init__(home, _tr("Bits of a weight"), labels, _tr("Quantise"))
        self.agreed.connect(lambda place: self.wanted.emit(BITS[place]))

    def ask_bits(self) -> None:
        """Asks."""
        question = _tr("A second model for mlx beside this one, smaller and faster: 8 bit is more exact, 4 bit smaller.")
        self.ask(question, max(self.choice.place, 0))


def _tr(text: str) -> str:
    return QCoreApplication.translate("QuantiseBar", text)
