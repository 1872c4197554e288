"""The tab of the whole path: its joint log-probability, and its entropy as a timeline."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPointF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from ui.inspector import words
from ui.inspector.provenance import Provenance
from ui.inspector.tab import Empty, FactGrid, HowMade, InspectorTab
from ui.port import QT_TRANSLATE_NOOP, TurnView
from ui.theme.scheme import current_theme
from ui.widgets.controls import column_in
from ui.widgets.labels import Caption
from ui.widgets.numbers import count
from ui.widgets.numbers import nats as joint_nats

Float32 = npt.NDArray[np.float32]


class PathNumbers(Struct, frozen=True):
    """Sums over the scored tokens of a path, in nats."""

    tokens: int
    scored: int
    answered: int  # scored tokens of the model's turns
    logprob: float  # joint, of the `answered` tokens
    entropies: Float32  # (scored,)
    places: tuple[tuple[int, int], ...]  # (scored,) node id and index of each

    @property
    def perplexity(self) -> float:
        """Exp of the mean surprisal of the model's tokens."""
        return math.exp(-self.logprob / self.answered) if self.answered else math.nan


def numbers_of(turns: tuple[TurnView, ...]) -> PathNumbers:
    """Sums over the scored tokens of turns."""
    tokens = scored = answered = 0
    logprob = 0.0
    entropies: list[Float32] = []
    places: list[tuple[int, int]] = []
    for turn in turns:
        held = np.flatnonzero(~np.isnan(turn.run.logprob))
        tokens += len(turn.run)
        scored += len(held)
        entropies.append(turn.run.entropy[held])
        places += [(turn.node_id, int(i)) for i in held]
        if turn.role == "assistant":
            answered += len(held)
            logprob += float(turn.run.logprob[held].sum(dtype=np.float64))
    joined = np.concatenate(entropies) if entropies else np.empty(0, np.float32)
    return PathNumbers(tokens, scored, answered, logprob, joined, tuple(places))


class PathTab(InspectorTab):
    """Sums over the path, and a timeline on which a click chooses a token."""

    title = QT_TRANSLATE_NOOP("Inspector", "Path")

    def __init__(self) -> None:
        super().__init__()
        self.facts, self.range = FactGrid(columns=1), FactGrid(columns=1)
        self._range = QWidget()  # with the space above it
        column_in(self._range, Caption(self.tr("Selected range")), self.range, spacing=6, margins=(0, 16, 0, 0))
        self.timeline = Timeline()
        self.timeline.chosen.connect(self._choose)
        self._places: tuple[tuple[int, int], ...] = ()
        self.empty = Empty(self.tr("No scored tokens on this path yet."))
        self._caption = Caption(self.tr("Entropy along the path"))
        column = column_in(self, self.empty, self.facts, spacing=0, margins=(16, 14, 16, 16))
        column.addSpacing(16)
        column.addWidget(self._caption)
        column.addSpacing(6)
        column.addWidget(self.timeline)
        column.addWidget(self._range)
        self.provenance = Provenance()
        column.addWidget(self.provenance)
        column.addStretch(1)
        self.show_path((), lambda _node: None)
        self.show_range(())

    def show_path(self, turns: tuple[TurnView, ...], how_made: HowMade) -> None:
        """Shows the sums over these turns, and the provenance of the last answer."""
        numbers = numbers_of(turns)
        self._places = numbers.places
        for part in (self.timeline, self._caption):
            part.setVisible(not np.isnan(numbers.entropies).all())  # servers report no entropy
        self.empty.setVisible(numbers.scored == 0)
        self.facts.setVisible(numbers.scored > 0)
        self.facts.show_facts(self._words(numbers))
        self.timeline.show_values(numbers.entropies)
        answer = next((turn.node_id for turn in reversed(turns) if turn.role == "assistant"), None)
        self.provenance.show_made(None if answer is None else how_made(answer))

    def show_range(self, turns: tuple[TurnView, ...]) -> None:
        """Shows the sums over the selected parts of turns; scored tokens of every role count."""
        numbers = numbers_of(tuple(replace(turn, role="assistant") for turn in turns))
        self._range.setVisible(numbers.tokens > 0)
        self.range.show_facts(self._words(numbers, of_range=True) if numbers.tokens else {})

    def _words(self, numbers: PathNumbers, *, of_range: bool = False) -> dict[str, str]:
        facts = {self.tr("tokens"): count(numbers.tokens), self.tr("scored"): count(numbers.scored)}
        if numbers.answered:
            facts |= {} if of_range else {self.tr("model’s tokens"): count(numbers.answered)}
            facts |= {
                self.tr("joint log-probability"): joint_nats(numbers.logprob),
                self.tr("mean surprise"): words.in_bits(-numbers.logprob / numbers.answered),
                self.tr("perplexity"): f"{numbers.perplexity:,.2f}",
            }
        known = numbers.entropies[~np.isnan(numbers.entropies)]
        if len(known):
            facts[self.tr("mean entropy")] = words.in_bits(float(known.mean()))
        return facts

    def _choose(self, place: int) -> None:
        if place < len(self._places):
            self.token_chosen.emit(*self._places[place])


class Timeline(QWidget):
    """A curve over all tokens; of tokens that share a pixel, the highest value is drawn."""

    chosen = Signal(int)  # index of the clicked token among the scored ones

    def __init__(self) -> None:
        super().__init__()
        self._values: Float32 = np.empty(0, np.float32)
        self._theme = current_theme()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(self.tr("Entropy of each token of the path"))

    def sizeHint(self) -> QSize:
        return QSize(200, 64)

    def show_values(self, values: Float32) -> None:
        self._values = values
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if len(self._values) and event.button() is Qt.MouseButton.LeftButton:
            place = round(event.position().x() / max(1, self.width()) * (len(self._values) - 1))
            self.chosen.emit(min(max(place, 0), len(self._values) - 1))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        n = len(self._values)
        if n == 0:
            return
        palette = self._theme.palette
        pixels = min(n, max(2, self.width()))
        starts = np.linspace(0, n, pixels, endpoint=False).astype(int)
        peaks = np.fmax.reduceat(self._values, starts)
        known = ~np.isnan(peaks)
        xs, peaks = np.linspace(4, self.width() - 4, pixels)[known], peaks[known]
        if not len(peaks):
            return
        top = max(float(peaks.max()), 0.1)
        ys = self.height() - 4 - peaks / top * (self.height() - 10)
        points = [QPointF(float(x), float(y)) for x, y in zip(xs, ys, strict=True)]
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(palette.accent), 1.4))
        painter.drawPolyline(points)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.surprise[5]))
        painter.drawEllipse(points[int(peaks.argmax())], 3.2, 3.2)
        painter.end()
