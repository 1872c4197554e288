"""Several continuations of a place: how many, and the rules of a beam search."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QDoubleSpinBox, QHBoxLayout, QPushButton, QSizePolicy, QVBoxLayout, QWidget

from ui.port import BeamRules
from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_width
from ui.widgets.controls import Combo, button, row
from ui.widgets.labels import ElidedLabel, Label, plain_tooltip

COUNTS = (2, 4, 8)


class Ways(QWidget):
    """Three buttons and what they give."""

    wanted = Signal(int)  # how many

    def __init__(self, words: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(7)
        self.buttons: dict[int, QPushButton] = {}
        for count in COUNTS:
            button = QPushButton(str(count))
            button.setProperty("kind", "quiet")
            button.setFont(interface_font(12.5))
            fix_width(button, 32)
            button.setAccessibleName(f"{count} {words}")
            button.clicked.connect(lambda _checked=False, count=count: self.wanted.emit(count))
            self.buttons[count] = button
            row.addWidget(button)
        row.addWidget(ElidedLabel(words, "soft", interface_font(12.5)), 1)


STEEPEST = 50.0  # of the length penalty, either way; the runtime's own bound
FONT_PX = 12.5


class BeamRows(QWidget):
    """The buttons that look for beams, a link, and the rules that it folds out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.ways = Ways(self.tr("beams from here"))
        self.more = button(self.tr("rules"), "link")
        self.more.setFont(interface_font(FONT_PX))
        self.more.setCheckable(True)
        self.more.setAccessibleName(self.tr("Rules of the beam search"))
        self.penalty = QDoubleSpinBox()
        self.penalty.setRange(-STEEPEST, STEEPEST)
        self.penalty.setSingleStep(0.1)
        self.penalty.setValue(BeamRules().length_penalty)
        self.penalty.setFont(interface_font(FONT_PX))
        self.penalty.setAccessibleName(self.tr("Length penalty"))
        hint = self.tr(
            "Log-probabilities are divided by the length to this power: above 0 longer ones gain, below 0 shorter ones."
        )
        fix_width(self.penalty, 64)
        self.penalty.lineEdit().setTextMargins(5, 0, 0, 0)
        self.ends = Combo(self.tr("The search ends"))
        for words, rule in (
            (self.tr("when none running is better now"), False),
            (self.tr("when as many are complete"), True),
            (self.tr("when none could ever be better"), "never"),
        ):
            self.ends.addItem(words, rule)
        self.ends.setMinimumContentsLength(12)
        self.ends.setSizeAdjustPolicy(Combo.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self._rules = QWidget()
        length, ends = (Label(words, "soft", interface_font(FONT_PX)) for words in (self.tr("length penalty"), self.tr("ends")))
        for part in (length, self.penalty):
            part.setToolTip(plain_tooltip(hint))
        self.penalty.setAccessibleDescription(hint)
        rules = QVBoxLayout(self._rules)
        rules.setContentsMargins(0, 0, 0, 0)
        rules.setSpacing(4)
        rules.addLayout(row(length, 1, self.penalty))
        ending = row(ends, self.ends)
        ending.setStretchFactor(self.ends, 1)
        rules.addLayout(ending)
        self._rules.hide()
        self.more.toggled.connect(self._rules.setVisible)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(6)
        first = row(self.ways, self.more)
        first.setStretchFactor(self.ways, 1)
        column.addLayout(first)
        column.addWidget(self._rules)

    @property
    def rules(self) -> BeamRules:
        """As they stand, for the buttons and for the menu."""
        return BeamRules(self.penalty.value(), self.ends.currentData())
