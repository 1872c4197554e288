"""The tab of the logit lens: at which layer of the model a token takes the lead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QFont,
    QFontMetrics,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
)
from PySide6.QtWidgets import QScrollArea, QSizePolicy, QWidget

from resources.ramp import step_of
from ui.controller import Controller
from ui.core.shown import Spot
from ui.inspector import words
from ui.inspector.tab import BytesOf, Empty, InspectorTab
from ui.port import QT_TRANSLATE_NOOP, EngineState, StatusView, TurnDepthCost
from ui.theme.fonts import caption_font, interface_font, mono_font, scaled
from ui.theme.scheme import current_theme
from ui.theme.text_size import panel_width
from ui.transcript.spoken import speak
from ui.widgets.controls import button, column_in
from ui.widgets.labels import ElidedLabel, Label
from ui.widgets.numbers import count, to_bits

if TYPE_CHECKING:  # a type alone: the window opens without its module
    from ui.port.drawing import LensRun

ROW_HEIGHT, HEAD_HEIGHT = 21, 20
LAYER_PX, RANK_PX, CURVE_PX = 22, 50, 52
CELLS = 3  # tokens of a layer
_CENTRE = int(Qt.AlignmentFlag.AlignCenter)
_STEPS = {  # by key, the step in layers and in places
    Qt.Key.Key_Up: (-1, 0),
    Qt.Key.Key_Down: (1, 0),
    Qt.Key.Key_Left: (0, -1),
    Qt.Key.Key_Right: (0, 1),
    Qt.Key.Key_Home: (-1000, 0),
    Qt.Key.Key_End: (1000, 0),
}
_RIGHT = int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight)


class DepthTab(InspectorTab):
    """Shows the likeliest tokens of each layer at a `Spot`; asks the model for them once the tab is visible."""

    title = QT_TRANSLATE_NOOP("Inspector", "Depth")

    def __init__(self) -> None:
        super().__init__()
        self._spot: Spot | None = None
        self._engine: EngineState | None = None  # as of the last status
        self._model: tuple[EngineState, str] | None = None  # likewise, with BUSY as READY, and the model's name
        self._lacking = ""  # why the running model shows no layers
        self._asked = False
        self.empty = Empty(self.tr("Click a token to see at which layer of the model it took the lead."))
        self.large = ElidedLabel("", "", mono_font(17, QFont.Weight.DemiBold))
        self.verdict = Label("", "", interface_font(13, QFont.Weight.Medium), wraps=True)
        self.note = Label("", "soft", interface_font(11.5), wraps=True)
        self.layers = Layers()
        self.turn = TurnRow()
        self.layers.pointed.connect(self._follow)
        self.layers.stepped.connect(self._bring_into_sight)
        column = column_in(self, spacing=0, margins=(16, 14, 16, 16))
        for part, after in (
            (self.empty, 0),
            (self.large, 2),
            (self.verdict, 4),
            (self.note, 8),
            (self.turn, 8),
            (self.layers, 0),
        ):
            column.addWidget(part)
            column.addSpacing(after)
        column.addStretch(1)
        self._show()

    def bind(self, controller: Controller) -> None:
        super().bind(controller)
        self.turn.bind(controller)

    def show_status(self, status: StatusView) -> None:
        """Asks for the layers again if another model runs.

        After an answer the turn may be longer: asks again for its cost, or for layers that were refused before.
        """
        answered = self._engine is EngineState.BUSY and status.engine is EngineState.READY
        self._engine = status.engine
        model = EngineState.READY if status.engine is EngineState.BUSY else status.engine, status.model
        lacking = status.lacking("depth")
        if (model, lacking) != (self._model, self._lacking):
            self._model, self._lacking, self._asked = model, lacking, False
            self.refresh()
        elif answered and self._spot is not None:
            if self.layers.run is not None:
                self._ask_cost(self._spot.node_id)
            elif self._asked:
                self._asked = False
                self.refresh()

    def show_spot(
        self, spot: Spot | None, vocabulary: BytesOf, *, can_choose: bool = False, can_continue: bool = False
    ) -> None:
        """Shows a token; nothing changes if it is the same token as before."""
        del can_choose, can_continue  # for other tabs
        self.layers.vocabulary = vocabulary
        held, self._spot = self._spot, spot
        if held is not None and spot is not None and _same(held, spot):
            return
        self._asked = False
        self.layers.show_run(None)
        if spot is None or held is None or spot.node_id != held.node_id:
            self.turn.show_turn(None if spot is None else spot.node_id)
        self._show()
        self.refresh()

    def show_depth(self, node_id: int, index: int, run: LensRun) -> None:
        """Shows the result for a token, if that token is still shown."""
        if self._spot is None or (self._spot.node_id, self._spot.index) != (node_id, index):
            return
        self.layers.show_run(run)
        lead = int(run.leads_from()[0])
        if lead >= 0:
            self.verdict.setText(self.tr("leads from layer {0} of {1}").format(lead, run.layers))
        else:
            rank = count(int(run.ranks[0, -1, 0]))
            self.verdict.setText(self.tr("does not lead: rank {0} after layer {1}").format(rank, run.layers))
        self._say_pointed(self.layers.token)
        self._show()
        self._ask_cost(node_id)

    def say(self, refusal: str) -> None:
        """Shows why there is no result."""
        self.layers.show_run(None)
        self.turn.show_turn(None if self._spot is None else self._spot.node_id)
        self.verdict.setText("")
        self.note.setText(refusal)
        self._show()

    def refresh(self) -> None:
        if self._spot is None or self._asked or not self.isVisible():
            return
        self._asked = True
        if self._lacking:
            self.say(self._lacking)
            return
        self.verdict.setText("")
        self.note.setText(self.tr("Reading the layers…"))
        self._show()
        self._ask_depth(self._spot)

    def _ask_depth(self, spot: Spot, also: Sequence[int] = ()) -> None:
        """Asks for the layers; follows the ids of `also` beside the stored alternatives."""
        node_id, index = spot.node_id, spot.index
        self.request(
            "depth",
            lambda workbench, session: workbench.drawings.depth(session, node_id, index, also),
            partial(self.show_depth, node_id, index),
            self.say,
        )

    def _ask_cost(self, node_id: int) -> None:
        """Asks for the cost of a whole turn; a refusal is not shown."""
        self.request(
            "cost",
            lambda workbench, session: workbench.drawings.turn_depth_cost(session, node_id),
            partial(self.turn.show_cost, node_id),
        )

    def _follow(self, token: int) -> None:
        """Shows the ranks of the token under the pointer or the keyboard; asks for them if the result has none."""
        run, spot = self.layers.run, self._spot
        self._say_pointed(token)
        if run is not None and spot is not None and token >= 0 and self.layers.column_of(token) is None:
            self._ask_depth(spot, (token, *run.token_ids[0, 1:].tolist()))

    def _bring_into_sight(self, row: QRect) -> None:
        viewport = self.parentWidget()
        area = None if viewport is None else viewport.parentWidget()
        if isinstance(area, QScrollArea):
            middle = self.layers.mapTo(self, row.center())
            area.ensureVisible(middle.x(), middle.y(), 0, row.height())

    def _say_pointed(self, token: int) -> None:
        """Describes the thin line of a token; for -1, how to read the table."""
        run = self.layers.run
        if run is None:
            return
        if token < 0:
            self.note.setText(
                self.tr("A layer’s likeliest tokens in each row; the line: this token’s rank, likeliest at the right.")
            )
            return
        column, name = self.layers.column_of(token), self.layers.name_of(token)
        if column is None:
            self.note.setText(self.tr("{0}: reading its ranks…").format(name))
            return
        lead = int(run.leads_from(column)[0])
        if lead >= 0:
            self.note.setText(self.tr("{0}: leads from layer {1}").format(name, lead))
        else:
            self.note.setText(self.tr("{0}: rank {1} after the last layer").format(name, count(int(run.ranks[0, -1, column]))))

    def _show(self) -> None:
        spot = self._spot
        self.empty.setVisible(spot is None)
        for part in (self.large, self.verdict, self.note, self.layers):
            part.setVisible(spot is not None)
        self.verdict.setVisible(spot is not None and bool(self.verdict.text()))
        if spot is not None:
            self.large.setText(words.token(spot.record.token_bytes))


class TurnRow(QWidget):
    """Offers to colour a whole turn by layer, with its cost, progress and Stop. Hidden until the cost is known."""

    begun = Signal(int)  # node id
    stopped = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._node: int | None = None  # the turn shown
        self._cost: TurnDepthCost | None = None  # of the turn shown
        self._running: int | None = None
        self._asked = 0  # tokens of the running turn
        self._coloured: dict[int, int] = {}  # by turn, the tokens whose layer is known
        self.words = Label("", "soft", interface_font(11.5), wraps=True)
        self.button = button("", "plain")
        self.button.clicked.connect(self._clicked)
        row = column_in(self, self.words, spacing=4)
        row.addWidget(self.button, 0, Qt.AlignmentFlag.AlignLeft)
        self.hide()

    def bind(self, controller: Controller) -> None:
        self.begun.connect(controller.draws.ask_turn_depth)
        self.stopped.connect(controller.draws.stop_turn_depth)
        controller.draws.turn_depth_progress.connect(self.show_progress)
        controller.draws.turn_depth_found.connect(self._take)
        controller.draws.turn_depth_refused.connect(self._refuse)
        controller.draws.turn_depth_stopped.connect(lambda: self._end(None))

    def show_turn(self, node_id: int | None) -> None:
        """Shows another turn, whose cost is not known yet, or (None) no turn."""
        self._node, self._cost = node_id, None
        self.hide()

    def show_cost(self, node_id: int, cost: TurnDepthCost) -> None:
        """Shows the cost of a turn, if that turn is still shown."""
        if node_id == self._node:
            self._cost = cost
            self._show()

    def show_progress(self, node_id: int, done: int, total: int) -> None:
        if node_id == self._node == self._running:
            self.words.setText(self.tr("Reading the layers: {0} of {1} tokens").format(count(done), count(total)))

    def _clicked(self) -> None:
        if self._running is not None and self._running == self._node:
            self.stopped.emit()
        elif self._node is not None and self._cost is not None:
            self._running, self._asked = self._node, self._cost.tokens
            self._show()
            self.begun.emit(self._node)

    def _take(self, node_id: int, _depth: object) -> None:
        self._coloured[node_id] = self._asked
        self._end(node_id)

    def _refuse(self, node_id: int, why: str) -> None:
        self._end(node_id)
        if node_id == self._node:
            self.words.setText(why)

    def _end(self, node_id: int | None) -> None:
        """Ends the computation for a turn, or (None) for any turn."""
        if node_id is None or node_id == self._running:
            self._running = None
        self._show()

    def _show(self) -> None:
        cost = self._cost
        self.setVisible(cost is not None)
        if cost is None:
            return
        runs = self._running == self._node
        coloured = self._node is not None and self._coloured.get(self._node, 0) >= cost.tokens  # less if the answer has grown
        self.button.setText(self.tr("Stop") if runs else self.tr("Colour the turn by layer"))
        self.button.setVisible(runs or not coloured)
        if runs:
            self.words.setText(self.tr("Reading the layers: {0} of {1} tokens").format(count(0), count(cost.tokens)))
        elif coloured:
            self.words.setText(self.tr("This turn can be coloured by layer: View > Colour By, or the legend."))
        else:
            words = self.tr("The whole turn is {0} tokens: as much work as reading {1}.")
            self.words.setText(words.format(count(cost.tokens), count(cost.like_tokens)))


class Layers(QWidget):
    """A painted table: a row per layer with its likeliest tokens in the surprise ramp, and a curve of ranks.

    The arrow keys, Home and End move between cells.

    Attributes:
        run: The result shown.
        token: The token of the cell under the pointer, else of the focused cell; -1 for none.
    """

    pointed = Signal(int)  # another `token`
    stepped = Signal(QRect)  # the row of the focused cell, to be scrolled into view

    def __init__(self) -> None:
        super().__init__()
        self._theme = current_theme()
        self._theme.scaled.connect(self._take_fonts)
        self.vocabulary: BytesOf = lambda _ids: []
        self.run: LensRun | None = None
        self.token = -1
        self._cell = 0, 0  # layer and place of the focused cell
        speak(self, self.accessibleDescription)  # a painted widget has no role of its own
        self._take_fonts()
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        rows = 0 if self.run is None else self.run.layers + 1
        return QSize(300, (scaled(HEAD_HEIGHT) if rows else 0) + scaled(ROW_HEIGHT) * rows)

    def _take_fonts(self) -> None:
        self._number, self._head, self._mono = interface_font(11.5), caption_font(), mono_font(12)
        self._layer_px, self._rank_px, self._curve_px = (panel_width(px) for px in (LAYER_PX, RANK_PX, CURVE_PX))
        self.updateGeometry()
        self.update()

    def show_run(self, run: LensRun | None) -> None:
        """Shows the first position of a run; None clears the table."""
        if run is None:
            self.token = -1
        elif self.run is None:
            lead = int(run.leads_from()[0])
            self._cell = lead if lead >= 0 else run.layers, 0
        self.run = run
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus if run is None else Qt.FocusPolicy.StrongFocus)
        self._say_cell()
        self.setAccessibleDescription("" if run is None else "; ".join(self._spoken(layer) for layer in range(run.layers + 1)))
        self.updateGeometry()
        self.update()
        if self.token < 0:
            self._point(self._focused_token)

    def column_of(self, token: int) -> int | None:
        """The index of a token among the followed ones of the run; None if it is not followed."""
        if self.run is None:
            return None
        found = np.flatnonzero(self.run.token_ids[0] == token)
        return int(found[0]) if len(found) else None

    def name_of(self, token: int) -> str:
        """A token as it is written in a cell: its text, or its id if its bytes are unknown."""
        return words.token(b"".join(self.vocabulary([token])), 20) or f"#{token}"

    def cell_at(self, x: float, y: float) -> tuple[int, int] | None:
        """Layer and place of the cell at a point; None outside."""
        layer = int((y - scaled(HEAD_HEIGHT)) // scaled(ROW_HEIGHT))
        place = int((x - self._layer_px) // self._cell_px)
        return (layer, place) if self.token_at(layer, place) >= 0 else None

    def token_at(self, layer: int, place: int) -> int:
        """The token of a cell; -1 if it has none."""
        if self.run is None or not (0 <= layer <= self.run.layers and 0 <= place < self._cells):
            return -1
        return int(self.run.top_ids[0, layer, place])

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        cell = self.cell_at(event.position().x(), event.position().y())
        self._point(self._focused_token if cell is None else self.token_at(*cell))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        cell = self.cell_at(event.position().x(), event.position().y())
        if cell is not None:
            self._step_to(cell)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._point(self._focused_token)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if event.reason() is not Qt.FocusReason.MouseFocusReason:  # a press chooses its own cell
            self._step_to(self._cell)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self._say_cell()
        self._point(-1)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = _STEPS.get(Qt.Key(event.key()))
        if self.run is None or step is None:
            super().keyPressEvent(event)
            return
        layer, place = (was + by for was, by in zip(self._cell, step, strict=True))
        self._step_to((min(max(layer, 0), self.run.layers), min(max(place, 0), self._cells - 1)))

    @property
    def _focused_token(self) -> int:
        """The token of the focused cell; -1 without focus."""
        return self.token_at(*self._cell) if self.hasFocus() else -1

    def _step_to(self, cell: tuple[int, int]) -> None:
        self._cell = cell
        self._say_cell()
        self._point(self.token_at(*cell))
        self.stepped.emit(QRect(0, scaled(HEAD_HEIGHT) + cell[0] * scaled(ROW_HEIGHT), self.width(), scaled(ROW_HEIGHT)))
        self.update()

    def _say_cell(self) -> None:
        """Names the focused cell, which a screen reader then reads."""
        token = self._focused_token
        self.setAccessibleName(
            self.tr("Layers") if token < 0 else self.tr("layer {0}: {1}").format(self._cell[0], self.name_of(token))
        )

    def _point(self, token: int) -> None:
        if token != self.token:
            self.token = token
            self.pointed.emit(token)
            self.update()

    @property
    def _cells(self) -> int:
        return 0 if self.run is None else min(CELLS, self.run.top_ids.shape[2])

    @property
    def _cell_px(self) -> float:
        return max((self.width() - self._layer_px - self._rank_px - self._curve_px) / max(self._cells, 1), 1.0)

    def _spoken(self, layer: int) -> str:
        run = self.run
        assert run is not None
        likeliest = self.name_of(int(run.top_ids[0, layer, 0]))
        return self.tr("layer {0}: {1}, rank {2}").format(layer, likeliest, count(int(run.ranks[0, layer, 0])))

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        run = self.run
        if run is None:
            return
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        palette, lead = self._theme.palette, int(run.leads_from()[0])
        painter.setFont(self._head)
        painter.setPen(QColor(palette.faint))
        painter.drawText(QRectF(0, 0, self.width(), scaled(HEAD_HEIGHT) - 4), _RIGHT, self.tr("RANK"))
        for layer in range(run.layers + 1):
            self._paint_row(painter, layer, leading=0 <= lead <= layer)
        if lead >= 0:
            y = scaled(HEAD_HEIGHT) + lead * scaled(ROW_HEIGHT)
            painter.setPen(QPen(QColor(palette.accent), 1.5))
            painter.drawLine(QPointF(0, y), QPointF(self.width(), y))
        column = self.column_of(self.token)
        if column:
            self._paint_ranks(painter, column, palette.soft, 1.0)
        self._paint_ranks(painter, 0, palette.accent, 1.6)
        if self.hasFocus():
            painter.setPen(QPen(QColor(palette.text), 1.6))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(self._box(*self._cell), 3, 3)
        painter.end()

    def _box(self, layer: int, place: int) -> QRectF:
        top, height = scaled(HEAD_HEIGHT) + layer * scaled(ROW_HEIGHT), scaled(ROW_HEIGHT)
        return QRectF(self._layer_px + place * self._cell_px + 1, top + 1, self._cell_px - 2, height - 2)

    def _paint_row(self, painter: QPainter, layer: int, *, leading: bool) -> None:
        run, palette, height = self.run, self._theme.palette, scaled(ROW_HEIGHT)
        assert run is not None
        y = scaled(HEAD_HEIGHT) + layer * height
        painter.setFont(self._number)
        painter.setPen(QColor(palette.accent if leading else palette.faint))
        painter.drawText(QRectF(0, y, self._layer_px - 5, height), _RIGHT, str(layer))
        painter.setPen(QColor(palette.text if leading else palette.soft))
        painter.drawText(QRectF(0, y, self.width(), height), _RIGHT, count(int(run.ranks[0, layer, 0])))
        painter.setFont(self._mono)
        metrics = QFontMetrics(self._mono)
        for place in range(self._cells):
            token = int(run.top_ids[0, layer, place])
            if token < 0:
                continue
            box = self._box(layer, place)
            step = step_of(to_bits(-float(run.top_logprobs[0, layer, place])))
            ground = palette.surprise[step]
            painter.setPen(Qt.PenStyle.NoPen)
            if ground is not None:
                painter.setBrush(QColor(ground))
                painter.drawRoundedRect(box, 3, 3)
            if token == int(run.token_ids[0, 0]) or token == self.token:
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.setPen(QPen(QColor(palette.accent if token == int(run.token_ids[0, 0]) else palette.soft), 1.2))
                painter.drawRoundedRect(box, 3, 3)
            painter.setPen(QColor(palette.on_strongest if step == 5 else palette.text))
            text = self.name_of(token)
            painter.drawText(box, _CENTRE, metrics.elidedText(text, Qt.TextElideMode.ElideRight, round(box.width()) - 4))

    def _paint_ranks(self, painter: QPainter, column: int, colour: str, width: float) -> None:
        """Paints the ranks of a followed token by layer, on a logarithmic scale with rank 1 at the right."""
        run = self.run
        assert run is not None
        ranks = np.maximum(run.ranks[0, :, column], 1)
        deepest = math.log(max(int(run.ranks.max()), 2))
        left = self.width() - self._rank_px - self._curve_px + 4
        room = self._curve_px - 10
        points = [
            QPointF(left + room * (1 - math.log(rank) / deepest), scaled(HEAD_HEIGHT) + (layer + 0.5) * scaled(ROW_HEIGHT))
            for layer, rank in enumerate(ranks.tolist())
        ]
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(QColor(colour), width))
        painter.drawPolyline(points)


def _same(held: Spot, spot: Spot) -> bool:
    return (held.node_id, held.index, held.record.token_id) == (spot.node_id, spot.index, spot.record.token_id)
