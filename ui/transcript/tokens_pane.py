"""Tokens mode: every token a coloured span that can be pointed at, pinned, chosen from and copied."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence, QMouseEvent, QPainter
from PySide6.QtWidgets import QApplication, QWidget

from ui.port import TurnStatus
from ui.transcript import walk
from ui.transcript.faces import Faces
from ui.transcript.find import Match
from ui.transcript.ghost import Ghost, next_alternative, paint_ghost
from ui.transcript.ink import Ink
from ui.transcript.page import Box, Page
from ui.transcript.pane import Pane
from ui.transcript.scroller import Anchor
from ui.transcript.selection import Selection, Spot
from ui.transcript.tokens_body import TokensBody
from ui.transcript.turn import Turn
from ui.transcript.visible import is_right_to_left
from ui.transcript.walk import TokenAt

_HOVER_MS = 60
_CARET_PX = 2
_PIN_GAP_PX = 2.0  # from the span to the middle of the outline: one free pixel, two drawn
_PIN_RADIUS = 5.0


class TokensPane(Pane[TokensBody]):
    """The custom-painted view of tokens."""

    token_clicked = Signal(int, int)
    token_pinned = Signal(object)  # (node_id, index) or None
    alternative_chosen = Signal(int, int, int)
    token_hovered = Signal(object)  # (node_id, index) or None
    preview_wanted = Signal(int, int, int)  # node_id, index, token_id: what would follow that alternative?
    ghost_left = Signal()  # nobody looks at the preview any more

    def __init__(self, ink: Ink, faces: Faces, parent: QWidget | None = None) -> None:
        self._template = False
        super().__init__(Page(self._make_body, faces), ink, parent)
        self._pinned: tuple[int, int] | None = None
        self._under: TokenAt | None = None  # the token under the mouse
        self._pressed: QPoint | None = None
        self._ghost: Ghost | None = None
        self._selection: Selection | None = None
        self._hover_timer = QTimer(self)
        self._hover_timer.setSingleShot(True)
        self._hover_timer.setInterval(_HOVER_MS)
        self._hover_timer.timeout.connect(self._announce_hover)
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self.setAccessibleName(self.tr("Conversation, as tokens"))

    # ---- state ----------------------------------------------------------------------------------------------------

    @property
    def pin(self) -> tuple[int, int] | None:
        """The pinned token: node and index into the turn's run."""
        return self._pinned

    @property
    def _pin(self) -> TokenAt | None:
        """Where on the page the pinned token is; None while it is not there."""
        turn = None if self._pinned is None else self._page.index_of(self._pinned[0])
        if turn is None or self._pinned is None or self._pinned[1] >= len(self._page.boxes[turn].turn.tokens):
            return None
        return TokenAt(turn, self._pinned[1])

    def set_turns(self, turns: Sequence[Turn], changed: Sequence[int], *, to_end: bool) -> None:
        self._select(None)
        self.set_ghost(None)
        super().set_turns(turns, changed, to_end=to_end)
        self._announce_leave()
        if self._pinned is not None:
            node_id, index = self._pinned
            if not any(turn.node_id == node_id and index < len(turn.tokens) for turn in turns):
                self._pinned = None
                self.token_pinned.emit(None)

    def come_to(self, anchor: Anchor) -> None:
        super().come_to(anchor)
        self._select(None)

    def set_pin(self, node_id: int, index: int) -> None:
        """Outlines a token and scrolls to it."""
        self.set_ghost(None)
        self._pinned = (node_id, index)
        at = self._pin
        if at is not None:
            box = self._page.boxes[at.turn]
            top = box.top + box.body.top_of(at.token)
            self.show_span(top, top + self._page.faces.pitch)
        self.viewport().update()

    def clear_pin(self) -> None:
        """No token is outlined."""
        self.set_ghost(None)
        self._pinned = None
        self.viewport().update()

    @property
    def ghost(self) -> Ghost | None:
        """The preview that is shown."""
        return self._ghost

    def set_ghost(self, ghost: Ghost | None) -> None:
        """Shows what an alternative would lead to; None: the text as it is."""
        if ghost is None and self._ghost is not None:
            self.ghost_left.emit()
        if ghost != self._ghost:
            self._ghost = ghost
            self.viewport().update()

    def set_template_visible(self, visible: bool) -> None:
        """Shows or hides what the chat template added."""
        anchor = self.anchor()
        self._template = visible
        for box in self._page.boxes:
            box.body.set_template_visible(visible)
        self._lay_out(anchor)

    def show_match(self, match: Match | None) -> None:
        """Selects words that were found and scrolls to them."""
        self._select(None if match is None else Selection(Spot(match.turn, match.first), Spot(match.turn, match.last)))
        if match is not None:
            self.go_to(match.turn, match.first.token)

    def repaint_numbers(self) -> None:
        """The same tokens have other colours."""
        for box in self._page.boxes:
            box.body.refresh()
        self.viewport().update()

    def next_uncertain(self) -> None:
        """Pins the next of the tokens where the model hesitated most."""
        found = walk.next_uncertain(self._turns(), self._pin)
        if found is not None:
            self._pin_and_tell(found)

    def token_box(self, node_id: int, index: int) -> QRect | None:
        """Where a token is drawn, in the viewport's pixels; its first line."""
        turn = self._page.index_of(node_id)
        if turn is None:
            return None
        rects = self._page.boxes[turn].body.rects_of(index)
        return None if not rects else self._to_viewport(turn, rects[0]).toAlignedRect()

    def _make_body(self, turn: Turn, faces: Faces, width: float) -> TokensBody:
        return TokensBody(turn, faces, width, template=self._template)

    def _turns(self) -> list[Turn]:
        return [box.turn for box in self._page.boxes]

    # ---- painting -------------------------------------------------------------------------------------------------

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        super()._paint(painter, clip)
        if self._page.boxes:
            self._paint_caret(painter, self._page.boxes[-1])
        pin = self._pin
        if pin is not None and self._ghost is not None:
            self._paint_ghost(painter, self._ghost, pin)
        elif pin is not None:
            self._paint_pin(painter, pin)

    def _paint_caret(self, painter: QPainter, box: Box[TokensBody]) -> None:
        if box.turn.view.status is not TurnStatus.STREAMING or not self._is_in_sight(box):
            return
        at, faces = box.body.end_of_text(), self._page.faces
        top = box.top - self.verticalScrollBar().value() + at.y()
        painter.fillRect(QRectF(self._left + at.x() + 2, top, _CARET_PX, faces.glyphs), self._ink.accent)

    def _paint_pin(self, painter: QPainter, pin: TokenAt) -> None:
        if not self._is_in_sight(self._page.boxes[pin.turn]):
            return
        painter.setPen(self._ink.pin)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for rect in self._page.boxes[pin.turn].body.rects_of(pin.token):
            around = self._to_viewport(pin.turn, rect).adjusted(-_PIN_GAP_PX, -_PIN_GAP_PX, _PIN_GAP_PX, _PIN_GAP_PX)
            painter.drawRoundedRect(around, _PIN_RADIUS, _PIN_RADIUS)

    def _paint_ghost(self, painter: QPainter, ghost: Ghost, pin: TokenAt) -> None:
        box = self._page.boxes[pin.turn]
        rects = box.body.rects_of(pin.token)
        if not rects or not self._is_in_sight(box) or (box.turn.node_id, pin.token) != (ghost.node_id, ghost.index):
            return
        column = self._to_viewport(pin.turn, QRectF(0, 0, self._page.width, box.body.height))
        before = "".join(box.turn.tokens.texts[max(pin.token - 4, 0) : pin.token])
        span = self._to_viewport(pin.turn, rects[0])
        paint_ghost(painter, self._ink, self._page.faces, ghost, span, column, right_to_left=is_right_to_left(before))

    def _is_in_sight(self, box: Box[TokensBody]) -> bool:
        top = box.top - self.verticalScrollBar().value()
        return top < self.viewport().height() and top + box.height > 0

    def _to_viewport(self, turn: int, rect: QRectF) -> QRectF:
        return rect.translated(self._left, self._page.boxes[turn].top - self.verticalScrollBar().value())

    # ---- the mouse ------------------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is not Qt.MouseButton.LeftButton:
            return
        point = event.position().toPoint()
        self._pressed = point
        self._announce_leave()
        spot = self._spot_at(point)
        if event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self._selection is not None:
            self._select(Selection(self._selection.anchor, spot))
        else:
            self._select(Selection(spot, spot))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        point = event.position().toPoint()
        if self._pressed is not None and event.buttons() & Qt.MouseButton.LeftButton:
            self._drag(point)
            return
        under = self._token_at(point)
        over_action = under is None and self._action_at(point) is not self._action_at(QPoint(-1, -1))
        self.viewport().setCursor(Qt.CursorShape.PointingHandCursor if over_action else Qt.CursorShape.IBeamCursor)
        if under != self._under:
            self._under = under
            self._hover_timer.start()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is not Qt.MouseButton.LeftButton:
            return
        dragged, self._pressed = self._selection is not None and not self._selection.is_empty, None
        if dragged:
            return
        found = self._token_at(event.position().toPoint())
        if found is None:
            super().mouseReleaseEvent(event)
            return
        self._pin_and_tell(found)
        self.token_clicked.emit(self._page.boxes[found.turn].turn.node_id, found.token)

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Leave:
            self._announce_leave()
        return super().viewportEvent(event)

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        super().scrollContentsBy(dx, dy)
        self._announce_leave()

    def _drag(self, point: QPoint) -> None:
        assert self._pressed is not None
        assert self._selection is not None
        if self._selection.is_empty and (point - self._pressed).manhattanLength() < QApplication.startDragDistance():
            return
        self._select(Selection(self._selection.anchor, self._spot_at(point)))
        height = self.viewport().height()
        if not 0 <= point.y() < height:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + (point.y() if point.y() < 0 else point.y() - height))

    def _token_at(self, point: QPoint) -> TokenAt | None:
        index = self._box_at(point)
        if index is None:
            return None
        box = self._page.boxes[index]
        token = box.body.token_at(point.x() - self._left, point.y() + self.verticalScrollBar().value() - box.top)
        return None if token is None else TokenAt(index, token)

    def _spot_at(self, point: QPoint) -> Spot:
        y = point.y() + self.verticalScrollBar().value()
        index = self._page.index_at(y)
        if index >= len(self._page.boxes):
            return Spot(0, walk.START)
        box = self._page.boxes[index]
        return Spot(index, box.body.place_at(point.x() - self._left, y - box.top))

    def _announce_hover(self) -> None:
        under = self._under
        known = under is not None and under.turn < len(self._page.boxes)
        self.token_hovered.emit((self._page.boxes[under.turn].turn.node_id, under.token) if under and known else None)

    def _announce_leave(self) -> None:
        self._hover_timer.stop()
        if self._under is not None:
            self._under = None
            self.token_hovered.emit(None)

    # ---- selection ------------------------------------------------------------------------------------------------

    @property
    def selected_text(self) -> str:
        """The exact text that is selected."""
        return "" if self._selection is None else self._selection.text(self._turns(), template=self._template)

    def select_all(self) -> None:
        """Selects the whole conversation."""
        boxes = self._page.boxes
        if boxes:
            end = Spot(len(boxes) - 1, walk.end_of(boxes[-1].turn))
            self._select(Selection(Spot(0, walk.START), end))

    def _select(self, selection: Selection | None) -> None:
        if selection == self._selection:
            return
        self._selection = selection
        for index, box in enumerate(self._page.boxes):
            box.body.selection = None if selection is None else selection.within(index, len(box.turn.tokens))
        self.viewport().update()

    # ---- the keyboard ---------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            if self.selected_text:
                QGuiApplication.clipboard().setText(self.selected_text)
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier or not self._plain_key(event):
            super().keyPressEvent(event)

    def _plain_key(self, event: QKeyEvent) -> bool:
        key = event.key()
        if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._step(-1 if key == Qt.Key.Key_Left else 1)
        elif Qt.Key.Key_1 <= key <= Qt.Key.Key_9 and self._pinned is not None:
            self._choose(key - Qt.Key.Key_1)
        elif key == Qt.Key.Key_Space and self._pinned is not None:
            self._preview_next()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._ghost is not None:
            self.alternative_chosen.emit(self._ghost.node_id, self._ghost.index, self._ghost.token_id)
        elif key == Qt.Key.Key_Escape and self._ghost is not None:
            self.set_ghost(None)
        elif key == Qt.Key.Key_N:
            self.next_uncertain()
        elif key == Qt.Key.Key_Home:
            self.verticalScrollBar().setValue(0)
        elif key == Qt.Key.Key_End:
            self.scroll_to_end()
        elif key == Qt.Key.Key_Escape and self._selection is not None and not self._selection.is_empty:
            self._select(None)
        elif key == Qt.Key.Key_Escape and self._pinned is not None:
            self.clear_pin()
            self.token_pinned.emit(None)
        else:
            return False
        return True

    def _step(self, by: int) -> None:
        pin = self._pin
        if pin is not None:
            found = walk.neighbour(self._turns(), pin, by, template=self._template)
        elif by < 0:
            found = walk.last(self._turns(), template=self._template)
        else:
            found = self._first_in_sight()
        if found is not None:
            self._pin_and_tell(found)

    def _first_in_sight(self) -> TokenAt | None:
        if not self._page.boxes:
            return None
        top = self.verticalScrollBar().value()
        index = self._page.index_at(top)
        box = self._page.boxes[index]
        before = TokenAt(index, box.body.first_token(top - box.top + self._page.faces.pitch - 1) - 1)
        return walk.neighbour(self._turns(), before, 1, template=self._template)

    def _choose(self, place: int) -> None:
        pin = self._pin
        if pin is None:
            return
        turn = self._page.boxes[pin.turn].turn
        record = turn.tokens.record(pin.token)
        if place < len(record.top_ids) and record.top_ids[place] != record.token_id:
            self.alternative_chosen.emit(turn.node_id, pin.token, record.top_ids[place])

    def _preview_next(self) -> None:
        pin = self._pin
        if pin is None:
            return
        turn = self._page.boxes[pin.turn].turn
        record = turn.tokens.record(pin.token)
        token = next_alternative(record.top_ids, record.token_id, self._ghost.token_id if self._ghost else None)
        if token is not None and turn.is_answer:
            self.preview_wanted.emit(turn.node_id, pin.token, token)

    def _pin_and_tell(self, at: TokenAt) -> None:
        self.set_pin(self._page.boxes[at.turn].turn.node_id, at.token)
        self.token_pinned.emit(self._pinned)
