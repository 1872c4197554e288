"""What both modes share: a scrolled page of turns with rail and meta lines, kept still while heights change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Generic

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from ui.port import Tier, TurnStatus
from ui.transcript.faces import COLUMN_PX, MARGIN_RIGHT_PX, TURN_GAP_PX, Faces
from ui.transcript.ink import Ink
from ui.transcript.meta import Action
from ui.transcript.page import BodyT, Box, Page
from ui.transcript.turn import Turn

_AT_ONCE_SECONDS = 0.012  # laid out before the first frame; the rest follows in slices
_SLICE_SECONDS = 0.006
_RAIL_LINE_PX = 3
_RAIL_GAP_PX = 18  # from the tier line to the text
_EMPTY_HINT = "Say something, and see what else might have been said."
READING = "reading the prompt…"


@dataclass(frozen=True, slots=True)
class Anchor:
    """What stands at the top of the viewport: a token of a turn, `offset` pixels below the viewport's top."""

    turn: int
    token: int
    offset: int
    at_end: bool


class Pane(QAbstractScrollArea, Generic[BodyT]):
    """A page of turns. Subclasses bring the bodies and what the mouse does to them."""

    variant_requested = Signal(int)
    regenerate_requested = Signal(int)
    continue_requested = Signal(int)
    copy_requested = Signal(str)
    column_changed = Signal(int, int)  # left edge and width of the text column, in this widget's pixels

    def __init__(self, page: Page[BodyT], ink: Ink, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._page = page
        self._ink = ink
        self._left = 0
        self._hovered: int | None = None  # the box whose actions show
        self._pointed = Action.NONE
        self._retired = False
        self._waiting: Sequence[Turn] | None = None  # the path that came while retired
        self._stale: set[int] = set()  # boxes that changed while retired
        self._slices = QTimer(self)
        self._slices.setInterval(0)
        self._slices.timeout.connect(self._slice)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)

    # ---- what is shown --------------------------------------------------------------------------------------------

    @property
    def page(self) -> Page[BodyT]:
        """The boxes."""
        return self._page

    @property
    def is_at_end(self) -> bool:
        """Whether the end of the page is in sight; then it stays so while tokens arrive."""
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 4

    def column(self) -> tuple[int, int]:
        """Left edge and width of the text, in this widget's pixels."""
        return self._left, int(self._page.width)

    def scroll_to_end(self) -> None:
        """Shows the end, and stays there."""
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def set_ink(self, ink: Ink) -> None:
        """Other colours."""
        self._ink = ink
        self.viewport().update()

    def set_faces(self, faces: Faces) -> None:
        """Another text size."""
        anchor = self.anchor()
        self._page.set_faces(faces)
        self._measure()
        self._lay_out(anchor)

    def set_turns(self, turns: Sequence[Turn], changed: Sequence[int], *, to_end: bool) -> None:
        """Shows other turns; shows the end, or what was at the top before.

        Args:
            turns: The path; turns that were shown before keep their layout.
            changed: Indices of those among them that have other numbers or another state.
            to_end: Whether to show the end.
        """
        self._hovered, self._pointed = None, Action.NONE
        if self._retired:
            self._waiting = turns
            self._stale = set()
            return
        anchor = self.anchor()
        self._page.set_turns(turns)
        for index in changed:
            self._page.refresh(self._page.boxes[index])
        self._stale.clear()
        self._lay_out(Anchor(0, 0, 0, at_end=True) if to_end else anchor)

    def tokens_appended(self, index: int) -> None:
        """Box `index` has more tokens at its end: costs what they cost."""
        if self._retired or self._page.width <= 0:
            return
        box = self._page.boxes[index]
        stick, before = self.is_at_end, box.height
        row = box.body.prepare(perf_counter() + _SLICE_SECONDS)
        self._after_growth(index, box, stick=stick, before=before, row=row)

    def turn_changed(self, index: int) -> None:
        """Box `index` has other numbers or another state."""
        if self._retired or self._page.width <= 0:
            self._stale.add(index)
            return
        box = self._page.boxes[index]
        stick, before = self.is_at_end, box.height
        self._page.refresh(box)
        box.body.prepare(perf_counter() + _SLICE_SECONDS)
        self._after_growth(index, box, stick=stick, before=before, row=0)

    def retire(self) -> None:
        """The other mode is shown: do no work until `come_to`."""
        self._retired = True
        self._slices.stop()

    def come_to(self, anchor: Anchor) -> None:
        """This mode is shown again, at a place of the other one."""
        self._retired = False
        if self._waiting is not None:
            self._page.set_turns(self._waiting)
            self._stale, self._waiting = set(range(len(self._waiting))), None
        self._measure()
        self._refresh_stale()
        self._lay_out(anchor)

    def _refresh_stale(self) -> None:
        for index in self._stale:
            self._page.refresh(self._page.boxes[index])
        self._stale.clear()

    def anchor(self) -> Anchor:
        """What stands at the top now."""
        if not self._page.boxes:
            return Anchor(0, 0, 0, at_end=True)
        value = self.verticalScrollBar().value()
        index = self._page.index_at(value)
        box = self._page.boxes[index]
        token = box.body.first_token(value - box.top)
        return Anchor(index, token, box.top + box.body.top_of(token) - value, at_end=self.is_at_end)

    def restore(self, anchor: Anchor) -> None:
        """Puts the same token to the same height (or the end to the bottom)."""
        self._update_bar()
        bar = self.verticalScrollBar()
        if anchor.at_end:
            bar.setValue(bar.maximum())
        elif anchor.turn < len(self._page.boxes):
            box = self._page.boxes[anchor.turn]
            bar.setValue(box.top + box.body.top_of(anchor.token) - anchor.offset)

    def show_span(self, top: int, bottom: int) -> None:
        """Scrolls as little as needed to have these rows of the page in sight, with some room around."""
        bar, height, room = self.verticalScrollBar(), self.viewport().height(), self._page.faces.pitch * 2
        if top - room < bar.value():
            bar.setValue(top - room)
        elif bottom + room > bar.value() + height:
            bar.setValue(bottom + room - height)

    # ---- layout ---------------------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        anchor = self.anchor()
        super().resizeEvent(event)
        self._measure()
        if not self._retired:
            self._refresh_stale()
        self._lay_out(anchor)

    def _measure(self) -> None:
        available = self.viewport().width()
        faces = self._page.faces
        right = MARGIN_RIGHT_PX if available > COLUMN_PX else MARGIN_RIGHT_PX // 2
        column = max(min(round(COLUMN_PX * faces.scale), available - faces.rail - right), 80)
        left = faces.rail + max(0, (available - faces.rail - right - column) // 2)
        if (left, column) != self.column():
            self._left = left
            self._page.set_width(column)
            self.column_changed.emit(left, column)

    def _lay_out(self, anchor: Anchor) -> None:
        if self._retired:
            return
        around = self._page.height if anchor.at_end else float(self.verticalScrollBar().value())
        done = self._page.prepare(around, _AT_ONCE_SECONDS)
        self.restore(anchor)
        if not done:
            self._slices.start()
        self.viewport().update()

    def _slice(self) -> None:
        anchor = self.anchor()
        around = self.verticalScrollBar().value() + self.viewport().height() / 2
        if self._page.prepare(around, _SLICE_SECONDS):
            self._slices.stop()
        self.restore(anchor)
        self.viewport().update()

    def _after_growth(self, index: int, box: Box[BodyT], *, stick: bool, before: int, row: int | None) -> None:
        if box.height != before or index == len(self._page.boxes) - 1:
            self._page.place(index)
        self._update_bar()
        if stick:
            self.scroll_to_end()
        if not box.body.done:
            self._slices.start()
        if row is not None:
            top = box.top + row - self.verticalScrollBar().value()
            self.viewport().update(QRect(0, top, self.viewport().width(), max(self.viewport().height() - top, 0)))

    def _update_bar(self) -> None:
        bar = self.verticalScrollBar()
        height = self.viewport().height()
        bar.setPageStep(height)
        bar.setSingleStep(self._page.faces.pitch)
        bar.setRange(0, max(self._page.height - height, 0))

    # ---- painting -------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self.viewport())
        try:
            self._paint(painter, event.rect())
        finally:
            painter.end()

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        painter.fillRect(clip, self._ink.window)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        boxes = self._page.boxes
        if not boxes:
            self._paint_hint(painter)
            return
        scrolled = self.verticalScrollBar().value()
        for index in range(self._page.index_at(scrolled + clip.top()), len(boxes)):
            box = boxes[index]
            top = box.top - scrolled
            if top > clip.bottom():
                break
            self._paint_rail(painter, box, top)
            painter.save()
            painter.translate(self._left, top)
            if box.turn.view.status is TurnStatus.WAITING and not len(box.turn.tokens):
                self._paint_waiting(painter, box)
            else:
                box.body.paint(painter, self._ink, (clip.top() - top, clip.bottom() + 1 - top))
            painter.translate(0, box.body.height)
            box.meta.paint(painter, self._ink, hovered=index == self._hovered, pointed=self._pointed)
            painter.restore()

    def _paint_rail(self, painter: QPainter, box: Box[BodyT], top: int) -> None:
        faces, x = self._page.faces, self._left - _RAIL_GAP_PX - _RAIL_LINE_PX
        colour = {Tier.WARM: self._ink.accent, Tier.DISK: self._ink.disk}.get(box.turn.view.tier)
        if colour is not None:
            painter.fillRect(QRectF(x, top, _RAIL_LINE_PX, box.height), colour)
        metrics = QFontMetricsF(faces.role)
        painter.setFont(faces.role)
        painter.setPen(self._ink.soft)
        right = x - 14
        painter.drawText(QPointF(right - metrics.horizontalAdvance(box.turn.role), top + round(17 * faces.scale)), box.turn.role)

    def _paint_waiting(self, painter: QPainter, box: Box[BodyT]) -> None:
        faces = self._page.faces
        painter.setFont(faces.role)
        painter.setPen(self._ink.faint)
        painter.drawText(QPointF(0, round(17 * faces.scale)), box.turn.view.note or READING)

    def _paint_hint(self, painter: QPainter) -> None:
        painter.setFont(self._page.faces.text)
        painter.setPen(self._ink.faint)
        area = self.viewport().rect().adjusted(40, 0, -40, 0)
        painter.drawText(area, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, _EMPTY_HINT)

    # ---- the meta line under the mouse ----------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._point_at(event.position().toPoint())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self._hovered is not None:
            self._act(self._page.boxes[self._hovered], self._action_at(event.position().toPoint()))

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Leave:
            self._hover(None, Action.NONE)
        return super().viewportEvent(event)

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        self.viewport().scroll(dx, dy)

    def _box_at(self, point: QPoint) -> int | None:
        """The box whose text, meta line or rail is at a point of the viewport."""
        y = point.y() + self.verticalScrollBar().value()
        if not self._page.boxes:
            return None
        index = self._page.index_at(y)
        box = self._page.boxes[index]
        return index if box.top <= y < box.top + box.height + TURN_GAP_PX // 2 else None

    def _action_at(self, point: QPoint) -> Action:
        index = self._box_at(point)
        if index is None:
            return Action.NONE
        box = self._page.boxes[index]
        top = box.top + box.body.height - self.verticalScrollBar().value()
        return box.meta.action_at(QPointF(point.x() - self._left, point.y() - top), hovered=index == self._hovered)

    def _point_at(self, point: QPoint) -> None:
        self._hover(self._box_at(point), Action.NONE)
        self._hover(self._hovered, self._action_at(point))

    def _hover(self, index: int | None, pointed: Action) -> None:
        if (index, pointed) == (self._hovered, self._pointed):
            return
        changed = {self._hovered, index}
        self._hovered, self._pointed = index, pointed
        for one in changed - {None}:
            if one is not None and one < len(self._page.boxes):
                self._update_meta(self._page.boxes[one])

    def _update_meta(self, box: Box[BodyT]) -> None:
        top = box.top + box.body.height - self.verticalScrollBar().value()
        self.viewport().update(QRect(0, top, self.viewport().width(), box.meta.height + 2))

    def _act(self, box: Box[BodyT], action: Action) -> None:
        view = box.turn.view
        if action is Action.PREVIOUS:
            self.variant_requested.emit(view.variants[view.variant - 1])
        elif action is Action.NEXT:
            self.variant_requested.emit(view.variants[view.variant + 1])
        elif action is Action.COPY:
            self.copy_requested.emit(box.turn.text)
        elif action is Action.REGENERATE:
            self.regenerate_requested.emit(view.node_id)
        elif action is Action.CONTINUE:
            self.continue_requested.emit(view.node_id)
