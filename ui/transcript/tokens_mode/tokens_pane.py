"""Tokens mode: every token a coloured span that can be pointed at, pinned, chosen from and copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence, QMouseEvent
from PySide6.QtWidgets import QApplication, QMenu, QWidget

from ui.transcript.overlay.ghost import next_alternative
from ui.transcript.pane.meta import Action
from ui.transcript.pane.selection import Selection, TextPosition
from ui.transcript.path import Turn
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode import walk
from ui.transcript.tokens_mode.marked_pane import MarkedPane
from ui.transcript.tokens_mode.walk import TokenAt
from ui.widgets.controls import allow

_HOVER_MS = 60
COUNTS = (2, 4, 8)  # of continuations that the menu offers


class TokensPane(MarkedPane):
    """The custom-painted view of tokens: what mouse and keys do to them."""

    token_clicked = Signal(int, int)
    card_wanted = Signal()  # of the pinned token
    words_begun = Signal(str)  # in its place: the first letter
    why_wanted = Signal()  # likewise
    columns_wanted = Signal(int, int, int, bool)  # node_id, index, how many continuations, whether by a beam search
    alternative_chosen = Signal(int, int, int)
    token_hovered = Signal(object)  # (node_id, index) or None
    preview_wanted = Signal(int, int, int)  # node_id, index, token_id: what would follow that alternative?

    def __init__(self, ink: Ink, faces: Faces, parent: QWidget | None = None) -> None:
        super().__init__(ink, faces, parent)
        self._under: TokenAt | None = None  # the token under the mouse
        self._rests: QPoint | None = None  # where the mouse was moved to last
        self._pressed: QPoint | None = None
        self._hover_timer = QTimer(self)
        self._hover_timer.setSingleShot(True)
        self._hover_timer.setInterval(_HOVER_MS)
        self._hover_timer.timeout.connect(self._announce_hover)
        self._show_cursor(Qt.CursorShape.IBeamCursor)
        self.setAccessibleName(self.tr("Conversation, as tokens"))

    def set_turns(self, turns: Sequence[Turn], changed: Sequence[int], *, to_end: bool) -> None:
        super().set_turns(turns, changed, to_end=to_end)
        self._announce_leave()

    def next_uncertain(self) -> None:
        """Pins the next of the tokens where the model hesitated most, and takes the keyboard: a number chooses there."""
        self._go_to(walk.next_uncertain(self._turns(), self._pin))

    def most_uncertain(self) -> None:
        """Pins the token where it hesitated most of all; the keyboard stays where it is."""
        found = walk.most_uncertain(self._turns())
        if found is not None:
            self._pin_and_tell(found)

    def _go_to(self, found: TokenAt | None) -> None:
        if found is not None:
            self._pin_and_tell(found)
            self.setFocus(Qt.FocusReason.ShortcutFocusReason)

    def next_underlined(self) -> None:
        found = walk.next_underlined(self._turns(), self._pin, template=self._template)
        if found is not None:
            self._pin_and_tell(found)

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
        if point == self._rests:
            return  # the text moved, as when more streams in, not the mouse
        self._rests = point
        under = self._token_in(index, point)
        over_action = under is None and self._pointed is not Action.NONE
        self._show_cursor(Qt.CursorShape.PointingHandCursor if over_action else Qt.CursorShape.IBeamCursor)
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
        box = self._page.boxes[index]
        token = box.body.token_at(point.x() - self._left, point.y() + self.verticalScrollBar().value() - box.top)
        return None if token is None else TokenAt(index, token)

    def _spot_at(self, point: QPoint) -> TextPosition:
        y = point.y() + self.verticalScrollBar().value()
        index = self._page.index_at(y)
        if index >= len(self._page.boxes):
            return TextPosition(0, walk.START)
        box = self._page.boxes[index]
        return TextPosition(index, box.body.place_at(point.x() - self._left, y - box.top))

    def _announce_hover(self) -> None:
        under = self._under
        known = under is not None and under.turn < len(self._page.boxes)
        known = known and self._rests is not None and self._token_at(self._rests) == under  # the text may have moved
        self.token_hovered.emit((self._page.boxes[under.turn].turn.node_id, under.token) if under and known else None)

    def _announce_leave(self) -> None:
        self._hover_timer.stop()
        if self._under is not None:
            self._under = None
            self.token_hovered.emit(None)

    # ---- the menu of a token --------------------------------------------------------------------------------------

    def _marked_text(self) -> str:
        return self.selected_text

    def _keyboard_at(self) -> QPoint:
        box = None if self._pinned is None else self.token_box(*self._pinned)
        return super()._keyboard_at() if box is None else box.center()

    def _fill_menu(self, menu: QMenu, index: int | None, at: QPoint) -> None:
        super()._fill_menu(menu, index, at)
        token = self._token_in(index, at)
        if token is None:
            return
        turn = self._page.boxes[token.turn].turn

        def pinned(then: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                self._pin_and_tell(token)
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
        if event.matches(QKeySequence.StandardKey.Copy):
            if self.selected_text:
                QGuiApplication.clipboard().setText(self.selected_text)
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier or not self._plain_key(event):
            self._begin_words(event)

    def _plain_key(self, event: QKeyEvent) -> bool:
        key = event.key()
        if key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self.step(-1 if key == Qt.Key.Key_Left else 1)
        elif Qt.Key.Key_1 <= key <= Qt.Key.Key_9 and self._pinned is not None:
            self._choose(key - Qt.Key.Key_1)
        elif key == Qt.Key.Key_Space and self._pinned is not None:
            self._preview_next()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._ghost is not None:
            self.alternative_chosen.emit(self._ghost.node_id, self._ghost.index, self._ghost.token_id)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self._pinned is not None:
            self.card_wanted.emit()
        elif key == Qt.Key.Key_Escape and self._ghost is not None:
            self.set_ghost(None)
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

    def _begin_words(self, event: QKeyEvent) -> None:
        """A letter or a sign at the pinned token begins the words that are to stand there."""
        key = Qt.KeyboardModifier
        held = event.modifiers() & (key.ControlModifier | key.AltModifier | key.MetaModifier)
        if self._pinned is None or held or not event.text().strip() or not event.text().isprintable() or event.text().isdigit():
            super().keyPressEvent(event)
        else:
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
