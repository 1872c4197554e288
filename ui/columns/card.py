"""One continuation: its number, how likely it is, its text, and the button that keeps it."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QVBoxLayout, QWidget

from runtime import TokenRun
from ui.columns.text import ColumnText
from ui.port import Column
from ui.theme.fonts import interface_font
from ui.transcript.measure import Measure
from ui.widgets.labels import ElidedLabel, Label, plain_tooltip
from ui.widgets.numbers import UNKNOWN, nats, signed

LEAST_PX = 172  # narrower columns are hard to read: they scroll sideways instead


class ColumnCard(QFrame):
    """Shows a `Column`; asks to keep it."""

    kept = Signal(int)  # node id

    def __init__(self, place: int, column: Column, measure: Measure, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "column")
        self.setMinimumWidth(LEAST_PX)
        self.column = column
        self.number = Label(str(place), "faint", interface_font(11.5))
        self.likely = ElidedLabel("", "", interface_font(12, QFont.Weight.Medium))
        self.score = ElidedLabel("", "soft", interface_font(11.5))
        self.note = Label("", "soft", interface_font(11.5))
        self.note.setWordWrap(True)
        self.text = ColumnText(column, measure)
        self.keep = QPushButton(self.tr("Keep"))
        self.keep.setProperty("kind", "quiet")
        self.keep.setFont(interface_font(12))
        self.keep.setAccessibleName(self.tr("Keep continuation {0}").format(place))
        self.keep.clicked.connect(lambda _checked=False: self.kept.emit(self.column.node_id))
        head = QHBoxLayout()
        head.setSpacing(8)
        head.addWidget(self.number)
        head.addWidget(self.likely, 1)
        head.addWidget(self.score)
        foot = QHBoxLayout()
        foot.setSpacing(8)
        foot.addWidget(self.note, 1)
        foot.addWidget(self.keep, 0, Qt.AlignmentFlag.AlignBottom)
        inside = QVBoxLayout(self)
        inside.setContentsMargins(12, 8, 12, 10)
        inside.setSpacing(4)
        inside.addLayout(head)
        inside.addWidget(self.text)
        inside.addLayout(foot)
        inside.addStretch(1)
        self._describe()

    def show_column(self, column: Column) -> None:
        """Shows this from now on."""
        self.column = column
        self.text.show_column(column)
        self._describe()

    def append(self, run: TokenRun, logprob: float) -> None:
        """More tokens, and the sum of all log-probabilities."""
        self.text.append(run)
        self._say(logprob)

    def _describe(self) -> None:
        column = self.column
        self._say(column.logprob)
        self.score.setVisible(column.score is not None)
        if column.score is not None:
            self.score.setText(self.tr("score {0}").format(signed(column.score, 2)))
            self.score.setToolTip(plain_tooltip(self.tr("the joint log-probability divided by the number of tokens")))
        self.note.setText(column.note)
        self.keep.setVisible(column.node_id >= 0 and not column.running)

    def _say(self, logprob: float | None) -> None:
        words = UNKNOWN if logprob is None else f"{nats(logprob)} · p {joint(logprob)}"
        self.likely.setText(words)
        self.likely.setAccessibleName(self.tr("joint probability of continuation {0}: {1}").format(self.number.text(), words))


def joint(logprob: float) -> str:
    """A joint probability, which is most often tiny: ".021", "4e−11"."""
    p = math.exp(logprob)
    if p >= 0.001:
        return f"{p:.3f}".removeprefix("0")
    power = math.floor(logprob / math.log(10))
    digit = math.floor(math.exp(logprob - power * math.log(10)) + 1e-9)
    return f"{digit}e{signed(power, 0)}"
