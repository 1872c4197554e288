"""The columns under the transcript, one for each continuation; they scroll sideways if they do not fit.

The panel is as high as its longest text, up to its share of the window; the transcript has the rest.
"""

from __future__ import annotations

import math

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QBoxLayout, QFrame, QPushButton, QScrollArea, QWidget

from ui.comparison.continuation_text import ColumnText
from ui.port import Column, ColumnKind, Columns, TokenRun
from ui.theme.fonts import interface_font
from ui.transcript.measure import Measure
from ui.widgets.controls import column_in, row
from ui.widgets.labels import ElidedLabel, Hairline, IconButton, Label, plain_tooltip
from ui.widgets.numbers import UNKNOWN, nats, signed

LEAST_PX = 172  # narrower columns are hard to read; the panel scrolls sideways instead


class ColumnCard(QFrame):
    """Shows a `Column`, with a button to keep it."""

    kept = Signal(int)  # node id

    def __init__(self, place: int, column: Column, measure: Measure) -> None:
        super().__init__()
        self.setProperty("kind", "column")
        self.setMinimumWidth(LEAST_PX)
        self.column = column
        self.number = Label(str(place), "faint", interface_font(11.5))
        self.likely = ElidedLabel("", "", interface_font(12, QFont.Weight.Medium))
        self.score = ElidedLabel("", "soft", interface_font(11.5))
        self.note = Label("", "soft", interface_font(11.5), wraps=True)
        self.text = ColumnText(column, measure)
        self.keep = QPushButton(self.tr("Keep"))
        self.keep.setProperty("kind", "quiet")
        self.keep.setFont(interface_font(12))
        self.keep.setAccessibleName(self.tr("Keep continuation {0}").format(place))
        self.keep.clicked.connect(lambda: self.kept.emit(self.column.node_id))
        head = row(self.number, (self.likely, 1))
        foot = row((self.note, 1))
        foot.addWidget(self.keep, 0, Qt.AlignmentFlag.AlignBottom)
        # a narrow column has no room for the score in the first line
        column_in(self, head, self.score, self.text, foot, 1, spacing=4, margins=(12, 8, 12, 10))
        self._describe()

    def show_column(self, column: Column) -> None:
        self.column = column
        self.text.show_column(column)
        self._describe()

    def append(self, run: TokenRun, logprob: float) -> None:
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

    def _say(self, logprob: float | None) -> None:
        words = UNKNOWN if logprob is None or math.isnan(logprob) else f"{nats(logprob)} · p {joint(logprob)}"
        self.likely.setText(words)
        self.likely.setAccessibleName(self.tr("joint probability of continuation {0}: {1}").format(self.number.text(), words))


def joint(logprob: float) -> str:
    """A joint probability, usually tiny: ".021", "4e−11"."""
    p = math.exp(logprob)
    if p >= 0.001:
        return f"{p:.3f}".removeprefix("0")
    power = math.floor(logprob / math.log(10))
    digit = math.floor(math.exp(logprob - power * math.log(10)) + 1e-9)
    return f"{digit}e{signed(power, 0)}"


STACKED_BELOW = 2 * LEAST_PX + 40  # narrower panels, pixels, stack their columns
LEAST_HEIGHT = 150


class ColumnsPanel(QWidget):
    """Shows `Columns`; hidden while there are none."""

    kept = Signal(int)  # node id
    closed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setMinimumHeight(LEAST_HEIGHT)
        self.setAccessibleName(self.tr("Continuations"))
        self.title = ElidedLabel("", "", interface_font(13, QFont.Weight.DemiBold))
        self.note = ElidedLabel("", "soft", interface_font(12))
        self.stop_button = QPushButton(self.tr("Stop all"))
        self.stop_button.setProperty("kind", "quiet")
        self.stop_button.setFont(interface_font(12))
        self.close_button = IconButton("x", self.tr("Close; the continuations stay as branches"))
        self.close_button.clicked.connect(self.closed)
        self.waiting = Label("", "soft")
        self.cards: list[ColumnCard] = []
        self._measure = Measure.SURPRISAL
        self._inside = QWidget()
        self._inside.setObjectName("columns")
        self._row = QBoxLayout(QBoxLayout.Direction.LeftToRight, self._inside)
        self._row.setContentsMargins(15, 0, 4, 12)
        self._row.setSpacing(0)
        self._row.addWidget(self.waiting)
        self.area = QScrollArea()
        self.area.setWidget(self._inside)
        self.area.setWidgetResizable(True)
        self.area.setFrameShape(QFrame.Shape.NoFrame)
        self.area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._inside.installEventFilter(self)
        self._head = row(self.title, (self.note, 1), self.stop_button, self.close_button, spacing=12)
        self._head.setContentsMargins(16, 8, 12, 6)
        self._column = column_in(self, Hairline(), self._head, (self.area, 1), spacing=0, margins=(0, 0, 0, 4))
        self.hide()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self._inside and event.type() == QEvent.Type.LayoutRequest:  # more text, or other columns
            self._fit()
        return super().eventFilter(watched, event)

    def show_columns(self, view: Columns | None) -> None:
        self.setVisible(view is not None)
        if view is None:
            self._keep_cards(0)
            return
        kind = self.tr("beams") if view.kind is ColumnKind.BEAMS else self.tr("continuations")
        after = self.tr(" after {0}").format(view.before) if view.before else ""
        self.title.setText(f"{view.wanted} {kind}{after}")
        self.note.setText(view.note)
        self.stop_button.setVisible(view.running)
        self.close_button.setVisible(not view.running)
        self.waiting.setVisible(not view.columns)
        self.waiting.setText(view.note or self.tr("reading…"))
        self._keep_cards(len(view.columns))
        for place, column in enumerate(view.columns):
            if place < len(self.cards):
                self.cards[place].show_column(column)
                continue
            card = ColumnCard(place + 1, column, self._measure)
            card.kept.connect(self.kept)
            self.cards.append(card)
            self._row.addWidget(card, 1)
        for card in self.cards:
            card.keep.setVisible(not view.running and card.column.node_id >= 0)  # the session is locked until all have ended
        self._turn()

    def append(self, node_id: int, run: TokenRun, logprob: float) -> None:
        """Adds tokens to a column; a column that is not shown is ignored."""
        for card in self.cards:
            if card.column.node_id == node_id:
                card.append(run, logprob)

    def colour_by(self, measure: Measure) -> None:
        self._measure = measure
        for card in self.cards:
            card.text.colour_by(measure)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.close_button.isVisible():
            self.closed.emit()
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._turn()
        self._fit()

    def _fit(self) -> None:
        """Limits the height of the panel to that of its content."""
        seen = self.area.viewport().width()
        least = self._row.minimumSize()
        wide = max(seen, least.width())
        inside = max(self._row.heightForWidth(wide), least.height())
        bar = self.area.horizontalScrollBar().sizeHint().height() if wide > seen else 0
        around = self._head.sizeHint().height() + 1 + self._column.contentsMargins().bottom()
        self.setMaximumHeight(max(LEAST_HEIGHT, around + inside + bar))

    def _keep_cards(self, count: int) -> None:
        for card in self.cards[count:]:
            self._row.removeWidget(card)
            card.hide()
            card.deleteLater()
        del self.cards[count:]

    def _turn(self) -> None:
        """Places the columns side by side, or one under the other in a narrow panel."""
        stacked = self.width() < STACKED_BELOW
        wanted = QBoxLayout.Direction.TopToBottom if stacked else QBoxLayout.Direction.LeftToRight
        if self._row.direction() != wanted:
            self._row.setDirection(wanted)
