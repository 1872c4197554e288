"""Read mode: the typeset turns, with selection, copying, and links, which are reported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from PySide6.QtCore import QPoint, QPointF, QRect, QRectF, QRegularExpression, Qt, QTimer, Signal
from PySide6.QtGui import QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QWheelEvent
from PySide6.QtWidgets import QApplication, QWidget

from ui.port import QT_TRANSLATE_NOOP, translate
from ui.transcript.pane.find import TextMatch
from ui.transcript.pane.meta import Action
from ui.transcript.pane.page import Box, TranscriptPage
from ui.transcript.pane.pane import Pane
from ui.transcript.path import TranscriptTurn
from ui.transcript.read_mode.formulas import Formulas
from ui.transcript.read_mode.read_body import ReadBody
from ui.transcript.read_mode.read_layout import ReadPlace
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.widgets.visible import safe_url

_STREAM_MS = 100  # the open stretch of a stream is rendered at most this often
_COPY = QT_TRANSLATE_NOOP("Transcript", "copy")
_COPIED = QT_TRANSLATE_NOOP("Transcript", "copied")
_COPIED_MS = 1500


class _Spot(Struct, frozen=True, order=True):
    turn: int
    place: ReadPlace


class ReadPane(Pane[ReadBody]):
    """The typeset view."""

    link_requested = Signal(str)  # a clicked web or mail address; nothing is opened, the receiver asks first

    def __init__(self, ink: Ink, faces: Faces, parent: QWidget) -> None:
        self._formulas = Formulas()
        super().__init__(TranscriptPage(partial(ReadBody, self._formulas), faces), ink, parent)
        self._formulas.setParent(self)
        self._formulas.made.connect(self._take_formulas)
        self._words: QRegularExpression | None = None  # of the search
        self._anchor_spot: _Spot | None = None
        self._head_spot: _Spot | None = None
        self._pressed: QPoint | None = None
        self._code: tuple[int, int] | None = None  # box and stretch of the code under the mouse
        self._copied = QTimer(self, singleShot=True, interval=_COPIED_MS)
        self._copied.timeout.connect(self.viewport().update)
        self._grown: set[int] = set()
        self._stream = QTimer(self, singleShot=True, interval=_STREAM_MS)
        self._stream.timeout.connect(self._take_grown)
        self._show_cursor(Qt.CursorShape.IBeamCursor)
        self.setAccessibleName(self.tr("Conversation, typeset"))

    def set_turns(self, turns: Sequence[TranscriptTurn], changed: Sequence[int], *, to_end: bool) -> None:
        self._grown.clear()
        self._code = None
        if not self._keeps_selection(turns):
            self._select(None, None)
        super().set_turns(turns, changed, to_end=to_end)

    def tokens_appended(self, index: int) -> None:
        if self._suspended:
            return
        self._grown.add(index)
        if not self._stream.isActive():
            self._stream.start()

    def turn_changed(self, index: int) -> None:
        self._grown.discard(index)
        super().turn_changed(index)

    def _take_grown(self) -> None:
        for index in self._grown:
            super().tokens_appended(index)
        self._grown.clear()

    def _take_formulas(self) -> None:
        """Shows pictures of formulas in place of their sources; the line at the top stays there."""
        anchor = self.anchor()
        changed = [i for i, box in enumerate(self.page.boxes) if box.made is not None and box.made.layout.take_formulas()]
        if changed:
            if self._anchor_spot is not None:  # places count characters
                self._select(None, None)
            self.page.place(changed[0])
            self._lay_out(anchor)

    # ---- selection ------------------------------------------------------------------------------------------------

    @property
    def selected_text(self) -> str:
        bodies = [box.made for box in self.page.boxes if box.made is not None]
        return "\n\n".join(body.text_between(*body.selection) for body in bodies if body.selection is not None)

    def select_all(self) -> None:
        boxes = self.page.boxes
        if boxes:
            self._select(_Spot(0, ReadPlace(0, 0)), _Spot(len(boxes) - 1, boxes[-1].body.end()))

    def show_match(self, match: TextMatch | None) -> None:
        """Scrolls to a match, and selects it if it can be found in the typeset text."""
        if match is None:
            self._select(None, None)
            return
        self.go_to(match.turn, match.first.token)
        found = self.page.boxes[match.turn].body.nearest(match.first.token, as_typeset(match.seen))
        first, last = (None, None) if found is None else (_Spot(match.turn, found[0]), _Spot(match.turn, found[1]))
        self._select(first, last)

    def show_hits(self, found: Sequence[TextMatch]) -> None:
        """Marks all matches that can be found in the typeset text."""
        self._words = as_typeset(found[0].seen) if found else None
        self.viewport().update()

    def _select(self, anchor: _Spot | None, head: _Spot | None) -> None:
        self._anchor_spot, self._head_spot = anchor, head
        first, last = sorted((anchor, head)) if anchor is not None and head is not None else (None, None)
        self._remember_selected(-1 if last is None else last.turn)
        for index, box in enumerate(self.page.boxes):
            if box.made is not None:
                box.made.selection = None
            if first is not None and last is not None and first != last and first.turn <= index <= last.turn:
                begin = first.place if index == first.turn else ReadPlace(0, 0)
                box.body.selection = (begin, last.place if index == last.turn else box.body.end())
        self.viewport().update()

    def _spot_at(self, point: QPoint) -> _Spot | None:
        if not self.page.boxes:
            return None
        y = point.y() + self.verticalScrollBar().value()
        index = self.page.index_at(y)
        box = self.page.boxes[index]
        return _Spot(index, box.body.place_at(point.x() - self._left, y - box.top))

    # ---- mouse and keyboard ---------------------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton:
            self._pressed = event.position().toPoint()
            spot = self._spot_at(self._pressed)
            extend = event.modifiers() & Qt.KeyboardModifier.ShiftModifier and self._anchor_spot is not None
            self._select(self._anchor_spot if extend else spot, spot)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        super().mouseMoveEvent(event)
        point = event.position().toPoint()
        if self._pressed is not None and event.buttons() & Qt.MouseButton.LeftButton:
            if (point - self._pressed).manhattanLength() >= QApplication.startDragDistance():
                self._select(self._anchor_spot or self._spot_at(self._pressed), self._spot_at(point))
            return
        self._point_at_code(point)
        clickable = self._pointed is not Action.NONE or self._on_copy(point) or bool(self._link_at(point))
        self._show_cursor(Qt.CursorShape.PointingHandCursor if clickable else Qt.CursorShape.IBeamCursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        self._pressed = None
        if event.button() is not Qt.MouseButton.LeftButton or self._anchor_spot != self._head_spot:
            return
        point = event.position().toPoint()
        link = self._link_at(point)
        if self._on_copy(point) and self._code is not None:
            self.copy_requested.emit(self.page.boxes[self._code[0]].body.code(self._code[1]))
            self._copied.start()
            self.viewport().update()
        elif link:
            self.link_requested.emit(link)
        else:
            super().mouseReleaseEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Home:
            self.verticalScrollBar().setValue(0)
        elif event.key() == Qt.Key.Key_End:
            self.scroll_to_end()
        else:
            super().keyPressEvent(event)

    def _link_at(self, point: QPoint) -> str:
        index = self._box_at(point)
        if index is None:
            return ""
        box = self.page.boxes[index]
        link = box.body.link_at(point.x() - self._left, point.y() + self.verticalScrollBar().value() - box.top)
        return link if safe_url(link) is not None else ""

    # ---- the copy button of a code --------------------------------------------------------------------------------

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        for index in self._in_sight():
            self.page.boxes[index].body.words = self._words
        super()._paint(painter, clip)
        if self._code is not None:
            painter.setFont(self.page.faces.meta)
            painter.setPen(self._ink.soft)
            painter.drawText(self._copy_rect(), Qt.AlignmentFlag.AlignCenter, self._copy_word())

    def _point_at_code(self, point: QPoint) -> None:
        index = self._box_at(point)
        found = None
        if index is not None:
            box: Box[ReadBody] = self.page.boxes[index]
            code = box.body.code_at(point.y() + self.verticalScrollBar().value() - box.top)
            found = None if code is None else (index, code[0])
        if found != self._code:
            self._code = found
            self._copied.stop()
            self.viewport().update()

    def _copy_word(self) -> str:
        return translate("Transcript", _COPIED if self._copied.isActive() else _COPY)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Scrolls the code under the pointer if the wheel moves sideways or with Shift."""
        moved = event.pixelDelta() if not event.pixelDelta().isNull() else event.angleDelta() / 2
        sideways = moved.x() or (moved.y() if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 0)
        self._point_at_code(event.position().toPoint())
        if not sideways or abs(moved.y()) > abs(sideways) or self._code is None:
            super().wheelEvent(event)
            return
        if self.page.boxes[self._code[0]].body.layout.scroll_code(self._code[1], -sideways):
            self.viewport().update()
        event.accept()

    def _copy_rect(self) -> QRectF:
        assert self._code is not None
        box = self.page.boxes[self._code[0]]
        code = box.body.code_at(box.body.top_of_stretch(self._code[1]))
        area = QRectF() if code is None else code[1]
        width = QFontMetricsF(self.page.faces.meta).horizontalAdvance(self._copy_word()) + 12
        top = box.top - self.verticalScrollBar().value() + area.top()
        return QRectF(self._left + area.right() - width - 4, top + 4, width, 20 * self.page.faces.scale)

    def _on_copy(self, point: QPoint) -> bool:
        return self._code is not None and self._copy_rect().contains(QPointF(point))


def as_typeset(pattern: str) -> QRegularExpression:
    """The pattern of a search as a Qt expression."""
    options = QRegularExpression.PatternOption
    return QRegularExpression(pattern, options.CaseInsensitiveOption | options.UseUnicodePropertiesOption)
