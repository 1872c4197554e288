"""Tokens mode: every token is a coloured span that can be pointed at, pinned, replaced and copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QPoint, QRect, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent, QPainter
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from ui.port import TurnStatus
from ui.transcript.overlay.ghost import TYPED, Ghost, next_alternative, paint_ghost
from ui.transcript.pane.find import TextMatch
from ui.transcript.pane.meta import Action
from ui.transcript.pane.page import Box, TranscriptPage
from ui.transcript.pane.pane import Anchor, Pane, begins_words
from ui.transcript.pane.selection import Selection, TextPosition
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import TurnPlace
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode import walk
from ui.transcript.tokens_mode.tokens_body import TokensBody
from ui.transcript.tokens_mode.walk import TokenAt
from ui.widgets.controls import allow
from ui.widgets.visible import is_right_to_left

_CARET_PX = 2
_PIN_GAP_PX = 2.0  # from the span to the middle of the outline: one free pixel, two drawn
_PIN_RADIUS = 5.0
_HOVER_MS = 60
COUNTS = (2, 4, 8)  # of continuations that the menu offers


class TokensPane(Pane[TokensBody]):
    """Paints the tokens with their marks, and handles mouse and keys."""

    token_clicked = Signal(int, int)
    card_wanted = Signal()  # show the card of the pinned token, which was clicked, or Return was pressed
    words_begun = Signal(str)  # first letter of a text to replace the pinned token
    why_wanted = Signal()  # show how the pinned token was drawn
    columns_wanted = Signal(int, int, int, bool)  # node_id, index, how many continuations, whether by a beam search
    alternative_chosen = Signal(int, int, int)  # node_id, index, token_id
    token_hovered = Signal(object)  # (node_id, index) or None
    preview_wanted = Signal(int, int, int)  # node_id, index, token_id: request the text that would follow
    token_pinned = Signal(object)  # (node_id, index) or None
    range_selected = Signal(object)  # ((node id, first token, behind the last one), ...) of the touched turns; (): none
    ghost_left = Signal()  # the preview was removed, or the answer to `preview_wanted` is no longer needed

    def __init__(self, ink: Ink, faces: Faces, parent: QWidget) -> None:
        self._template = False
        super().__init__(TranscriptPage(self._make_body, faces), ink, parent)
        self.pinned: tuple[int, int] | None = None  # node and index into the turn's run; `set_pin` changes it
        self.ghost: Ghost | None = None  # `set_ghost` changes it
        self._selection: Selection | None = None
        self._caret = False
        self._hits: dict[int, list[tuple[TurnPlace, TurnPlace]]] = {}  # by turn
        self._pointed_token: TokenAt | None = None  # under the mouse
        self._mouse: QPoint | None = None  # its last position
        self._pressed: QPoint | None = None
        self._hover_timer = QTimer(self, singleShot=True, interval=_HOVER_MS)
        self._hover_timer.timeout.connect(self._announce_hover)
        self._show_cursor(Qt.CursorShape.IBeamCursor)
        self.setAccessibleName(self.tr("Conversation, as tokens"))

    # ---- the pin and the preview ------------------------------------------------------------------------------------

    @property
    def _pin(self) -> TokenAt | None:
        """The place of the pinned token on the page; None while it is not there."""
        turn = None if self.pinned is None else self.page.index_of(self.pinned[0])
        if turn is None or self.pinned is None or self.pinned[1] >= self.page.boxes[turn].turn.count:
            return None
        return TokenAt(turn, self.pinned[1])

    def set_turns(self, turns: Sequence[TranscriptTurn], changed: Sequence[int], *, to_end: bool) -> None:
        if not self._keeps_selection(turns):
            self._select(None)
        self.set_ghost(None)
        super().set_turns(turns, changed, to_end=to_end)
        if self._selection is not None:
            self.range_selected.emit(tuple(self._selected_tokens()))  # their numbers may have changed
        if self.pinned is not None:
            node_id, index = self.pinned
            if not any(turn.node_id == node_id and index < turn.count for turn in turns):
                self.pinned = None
                self.token_pinned.emit(None)
        self._announce_leave()

    def resume(self, anchor: Anchor) -> None:
        super().resume(anchor)
        self._select(None)

    def set_pin(self, node_id: int, index: int) -> None:
        """Outlines a token and scrolls to it."""
        self.set_ghost(None)
        self.pinned = (node_id, index)
        at = self._pin
        if at is not None:
            box = self.page.boxes[at.turn]
            if box.done:
                top = box.top + box.body.top_of(at.token)
                self.show_span(top, top + self.page.faces.pitch)
            else:  # its place is known after the layout around it
                self.go_to(at.turn, at.token)
        self.viewport().update()

    def clear_pin(self) -> None:
        self.set_ghost(None)
        self.pinned = None
        self.viewport().update()

    def set_ghost(self, ghost: Ghost | None) -> None:
        """Shows the preview of an alternative; None: removes it."""
        if ghost is None and self.ghost is not None:
            self.ghost_left.emit()
        if ghost != self.ghost:
            self.ghost = ghost
            self.viewport().update()

    def show_caret(self, shown: bool) -> None:  # a state, not an option
        """Shows or hides a caret before the pinned token, which typed text would replace."""
        self._caret = shown
        self.viewport().update()

    def set_template_visible(self, visible: bool) -> None:
        anchor = self.anchor()
        self._template = visible
        for body in self._made():
            body.set_template_visible(visible)
        self._lay_out(anchor)

    def show_match(self, match: TextMatch | None) -> None:
        """Selects a match and scrolls to it."""
        self._select(
            None if match is None else Selection(TextPosition(match.turn, match.first), TextPosition(match.turn, match.last))
        )
        if match is not None:
            self.go_to(match.turn, match.first.token)

    def show_hits(self, found: Sequence[TextMatch]) -> None:
        """Marks all matches."""
        self._hits = {}
        for match in found:
            self._hits.setdefault(match.turn, []).append((match.first, match.last))
        self.viewport().update()

    def repaint_numbers(self) -> None:
        """Repaints the tokens in other colours."""
        for body in self._made():
            body.refresh()
        self.viewport().update()

    def token_box(self, node_id: int, index: int) -> QRect | None:
        """The rectangle of a token's first span, in the viewport's pixels."""
        turn = self.page.index_of(node_id)
        if turn is None:
            return None
        rects = self.page.boxes[turn].body.rects_of(index)
        return None if not rects else self._to_viewport(turn, rects[0]).toAlignedRect()

    def line_box(self, node_id: int) -> QRect | None:
        """The rectangle of the line under a turn with its actions, in the viewport's pixels."""
        turn = self.page.index_of(node_id)
        if turn is None:
            return None
        box = self.page.boxes[turn]
        top = box.top + box.meta_top - self.verticalScrollBar().value()
        return QRect(self._left, top, int(self.page.width), box.meta.reach)

    def _make_body(self, turn: TranscriptTurn, faces: Faces, width: float) -> TokensBody:
        return TokensBody(turn, faces, width, template=self._template)

    def _made(self) -> list[TokensBody]:
        """The bodies that exist; others take the current state when they are made."""
        return [box.made for box in self.page.boxes if box.made is not None]

    def _turns(self) -> list[TranscriptTurn]:
        return [box.turn for box in self.page.boxes]

    # ---- selection ------------------------------------------------------------------------------------------------

    @property
    def selected_text(self) -> str:
        return "" if self._selection is None else self._selection.text(self._turns(), template=self._template)

    def select_all(self) -> None:
        boxes = self.page.boxes
        if boxes:
            end = TextPosition(len(boxes) - 1, TurnPlace(boxes[-1].turn.count))
            self._select(Selection(TextPosition(0, TurnPlace(0)), end))

    def _select(self, selection: Selection | None) -> None:
        if selection == self._selection:
            return
        self._selection = selection
        self._remember_selected(-1 if selection is None else max(selection.anchor, selection.head).turn)
        for index, box in enumerate(self.page.boxes):
            within = None if selection is None else selection.within(index, box.turn.count)
            if within is not None or box.made is not None:
                box.body.selection = within
        self.range_selected.emit(tuple(self._selected_tokens()))
        self.viewport().update()

    def _selected_tokens(self) -> Iterator[tuple[int, int, int]]:
        for box in self.page.boxes:
            part = None if box.made is None else box.made.selection
            if part is not None:
                yield box.turn.node_id, part[0].token, part[1].token + (part[1].offset > 0)

    # ---- painting -------------------------------------------------------------------------------------------------

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        for index in self._in_sight():
            self.page.boxes[index].body.hits = self._hits.get(index, ())
        super()._paint(painter, clip)
        if self.page.boxes:
            self._paint_caret(painter, self.page.boxes[-1])
        pin = self._pin
        if pin is not None and self.ghost is not None:
            self._paint_ghost(painter, self.ghost, pin)
        elif pin is not None:
            self._paint_pin(painter, pin)
            if self._caret:
                self._paint_typing(painter, pin)

    def _paint_caret(self, painter: QPainter, box: Box[TokensBody]) -> None:
        if box.turn.view.status is not TurnStatus.STREAMING or not self._is_in_sight(box):
            return
        at, faces = box.body.end_of_text(), self.page.faces
        top = box.top - self.verticalScrollBar().value() + at.y()
        painter.fillRect(QRectF(self._left + at.x() + 2, top, _CARET_PX, faces.glyphs), self._ink.accent)

    def _paint_typing(self, painter: QPainter, pin: TokenAt) -> None:
        box, faces = self.page.boxes[pin.turn], self.page.faces
        if box.body.rects_of(pin.token) and self._is_in_sight(box):
            at = box.body.before(pin.token)
            top = box.top - self.verticalScrollBar().value() + at.y()
            painter.fillRect(QRectF(self._left + at.x() - _CARET_PX / 2, top, _CARET_PX, faces.glyphs), self._ink.accent)

    def _paint_pin(self, painter: QPainter, pin: TokenAt) -> None:
        if not self._is_in_sight(self.page.boxes[pin.turn]):
            return
        painter.setPen(self._ink.pin)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for rect in self.page.boxes[pin.turn].body.rects_of(pin.token):
            around = self._to_viewport(pin.turn, rect).adjusted(-_PIN_GAP_PX, -_PIN_GAP_PX, _PIN_GAP_PX, _PIN_GAP_PX)
            painter.drawRoundedRect(around, _PIN_RADIUS, _PIN_RADIUS)

    def _paint_ghost(self, painter: QPainter, ghost: Ghost, pin: TokenAt) -> None:
        box = self.page.boxes[pin.turn]
        rects = box.body.rects_of(pin.token)
        if not rects or not self._is_in_sight(box) or (box.turn.node_id, pin.token) != (ghost.node_id, ghost.index):
            return
        column = self._to_viewport(pin.turn, QRectF(0, 0, self.page.width, box.body.height))
        before = "".join(box.turn.tokens.texts[max(pin.token - 4, 0) : pin.token])
        span = self._to_viewport(pin.turn, rects[0])
        paint_ghost(painter, self._ink, self.page.faces, ghost, span, column, right_to_left=is_right_to_left(before))

    def _is_in_sight(self, box: Box[TokensBody]) -> bool:
        top = box.top - self.verticalScrollBar().value()
        return top < self.viewport().height() and top + box.height > 0

    def _to_viewport(self, turn: int, rect: QRectF) -> QRectF:
        return rect.translated(self._left, self.page.boxes[turn].top - self.verticalScrollBar().value())

    def next_uncertain(self) -> None:
        """Pins the next of the most uncertain tokens and takes the focus, so that a digit chooses an alternative."""
        found = walk.next_uncertain(self._turns(), self._pin)
        if found is not None:
            self._pin_and_emit(found)
            self.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def most_uncertain(self) -> None:
        """Pins the most uncertain token; the focus stays where it is."""
        found = walk.most_uncertain(self._turns())
        if found is not None:
            self._pin_and_emit(found)

    def next_underlined(self) -> None:
        found = walk.next_underlined(self._turns(), self._pin, template=self._template)
        if found is not None:
            self._pin_and_emit(found)

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
        point = event.position().toPoint()
        index = self._point_at(point)
        if self._pressed is not None and event.buttons() & Qt.MouseButton.LeftButton:
            self._drag(point)
            return
        if point == self._mouse:
            return  # the text moved, as while tokens stream, not the mouse
        self._mouse = point
        under = self._token_in(index, point)
        over_action = under is None and self._pointed is not Action.NONE
        self._show_cursor(Qt.CursorShape.PointingHandCursor if over_action else Qt.CursorShape.IBeamCursor)
        if under != self._pointed_token:
            self._pointed_token = under
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
        self._pin_and_emit(found)
        self.token_clicked.emit(self.page.boxes[found.turn].turn.node_id, found.token)
        self.card_wanted.emit()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Leave:
            self._announce_leave()
        return super().viewportEvent(event)

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        super().scrollContentsBy(dx, dy)
        self._announce_leave()

    def _drag(self, point: QPoint) -> None:
        assert self._pressed is not None
        if self._selection is None:  # the selected text was removed during the drag
            pressed = self._spot_at(self._pressed)
            self._select(Selection(pressed, pressed))
        assert self._selection is not None
        if self._selection.is_empty and (point - self._pressed).manhattanLength() < QApplication.startDragDistance():
            return
        self._select(Selection(self._selection.anchor, self._spot_at(point)))
        height = self.viewport().height()
        if not 0 <= point.y() < height:
            bar = self.verticalScrollBar()
            bar.setValue(bar.value() + (point.y() if point.y() < 0 else point.y() - height))

    def _token_at(self, point: QPoint) -> TokenAt | None:
        return self._token_in(self._box_at(point), point)

    def _token_in(self, index: int | None, point: QPoint) -> TokenAt | None:
        if index is None:
            return None
        box = self.page.boxes[index]
        token = box.body.token_at(point.x() - self._left, point.y() + self.verticalScrollBar().value() - box.top)
        return None if token is None else TokenAt(index, token)

    def _spot_at(self, point: QPoint) -> TextPosition:
        y = point.y() + self.verticalScrollBar().value()
        index = self.page.index_at(y)
        if index >= len(self.page.boxes):
            return TextPosition(0, TurnPlace(0))
        box = self.page.boxes[index]
        return TextPosition(index, box.body.place_at(point.x() - self._left, y - box.top))

    def _announce_hover(self) -> None:
        under = self._pointed_token
        known = under is not None and under.turn < len(self.page.boxes)
        known = known and self._mouse is not None and self._token_at(self._mouse) == under  # the text may have moved
        self.token_hovered.emit((self.page.boxes[under.turn].turn.node_id, under.token) if under and known else None)

    def _announce_leave(self) -> None:
        self._hover_timer.stop()
        if self._pointed_token is not None:
            self._pointed_token = None
            self.token_hovered.emit(None)

    # ---- the menu of a token --------------------------------------------------------------------------------------

    def _keyboard_at(self) -> QPoint:
        box = None if self.pinned is None else self.token_box(*self.pinned)
        return super()._keyboard_at() if box is None else box.center()

    def _fill_menu(self, menu: QMenu, index: int | None, at: QPoint) -> None:
        super()._fill_menu(menu, index, at)
        token = self._token_in(index, at)
        if token is None:
            return
        turn = self.page.boxes[token.turn].turn

        def pinned(then: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                self._pin_and_emit(token)
                then()

            return run

        menu.addSeparator()
        menu.addAction(self.tr("Alternatives…"), pinned(self.card_wanted.emit))
        menu.addAction(self.tr("Why This One"), pinned(self.why_wanted.emit))
        text = turn.tokens.texts[token.token]
        menu.addAction(self.tr("Copy Token"), lambda: self.copy_requested.emit(text))
        if turn.is_answer and not turn.is_open:
            for count in COUNTS:
                words = self.tr("{0} Continuations from Here").format(count)
                entry = menu.addAction(words, partial(self.columns_wanted.emit, turn.node_id, token.token, count, False))
                allow(entry, True, self.lacking("branch"))

    # ---- the keyboard ---------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier or not self._plain_key(event):
            self._begin_words(event)

    def _plain_key(self, event: QKeyEvent) -> bool:
        key = event.key()
        if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self.step(-1 if key == Qt.Key.Key_Left else 1)
        elif Qt.Key.Key_1 <= key <= Qt.Key.Key_9 and self.pinned is not None:
            self._choose(key - Qt.Key.Key_1)
        elif key == Qt.Key.Key_Space and self.pinned is not None:
            self._preview_next()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.ghost is not None and self.ghost.token_id != TYPED:
            self.alternative_chosen.emit(self.ghost.node_id, self.ghost.index, self.ghost.token_id)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.pinned is not None:
            self.card_wanted.emit()
        elif key == Qt.Key.Key_Escape and self.ghost is not None:
            self.set_ghost(None)
        elif key == Qt.Key.Key_Home:
            self.verticalScrollBar().setValue(0)
        elif key == Qt.Key.Key_End:
            self.scroll_to_end()
        elif key == Qt.Key.Key_Escape and self._selection is not None and not self._selection.is_empty:
            self._select(None)
        elif key == Qt.Key.Key_Escape and self.pinned is not None:
            self.clear_pin()
            self.token_pinned.emit(None)
        else:
            return False
        return True

    def _begin_words(self, event: QKeyEvent) -> None:
        """Emits the first character of a text to replace the pinned token."""
        if self.pinned is None or not begins_words(event):
            super().keyPressEvent(event)
        elif not event.text().isdigit():
            self.words_begun.emit(event.text())

    def step(self, by: int) -> None:
        """Pins the token before (-1) or after (+1) the pinned one."""
        pin = self._pin
        if pin is not None:
            found = walk.neighbour(self._turns(), pin, by, template=self._template)
        elif by < 0:
            found = walk.last(self._turns(), template=self._template)
        else:
            found = self._first_in_sight()
        if found is not None:
            self._pin_and_emit(found)

    def _first_in_sight(self) -> TokenAt | None:
        if not self.page.boxes:
            return None
        top = self.verticalScrollBar().value()
        index = self.page.index_at(top)
        box = self.page.boxes[index]
        before = TokenAt(index, box.body.first_token(top - box.top + self.page.faces.pitch - 1) - 1)
        return walk.neighbour(self._turns(), before, 1, template=self._template)

    def _choose(self, place: int) -> None:
        pin = self._pin
        if pin is None:
            return
        turn = self.page.boxes[pin.turn].turn
        record = turn.tokens.record(pin.token)
        if place < len(record.top_ids) and record.top_ids[place] != record.token_id:
            self.alternative_chosen.emit(turn.node_id, pin.token, record.top_ids[place])

    def _preview_next(self) -> None:
        pin = self._pin
        if pin is None:
            return
        turn = self.page.boxes[pin.turn].turn
        record = turn.tokens.record(pin.token)
        token = next_alternative(record.top_ids, record.token_id, self.ghost.token_id if self.ghost else None)
        if token is not None and turn.is_answer:
            self.preview_wanted.emit(turn.node_id, pin.token, token)

    def _pin_and_emit(self, at: TokenAt) -> None:
        self.set_pin(self.page.boxes[at.turn].turn.node_id, at.token)
        self.token_pinned.emit(self.pinned)
