"""The common part of both modes: a page laid out in slices, the rail, the line under each turn, and its actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Generic

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QObject, QPoint, QPointF, QRect, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QFocusEvent,
    QFontMetricsF,
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QMenu, QWidget

from ui.port import QT_TRANSLATE_NOOP, Tier, translate
from ui.theme.scheme import current_theme
from ui.transcript.pane.meta import NEEDS, Action, actions_of
from ui.transcript.pane.page import BodyT, Box, Laid, TranscriptPage
from ui.transcript.path import TranscriptTurn
from ui.transcript.spoken import speak
from ui.transcript.text.faces import COLUMN_PX, MARGIN_RIGHT_PX, TURN_GAP_PX, Faces
from ui.transcript.text.ink import Ink
from ui.widgets.controls import allow
from ui.widgets.labels import plain_tooltip

AT_ONCE_SECONDS = 0.005  # for laying out the visible part before the first frame; the rest follows in slices
SLICE_SECONDS = 0.003
SLICE_MS = 4  # between slices, for other events
_RAIL_LINE_PX = 3
_UNDER_GAP_PX = 8  # from the text to the widget under it
_ROLE_GAP_PX = 14  # from the role to the tier line
_ROLE_BASELINE_PX = 17
_FOCUS_PX = 2  # width of the left edge that shows a focus by Tab
_TAB = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
_RAIL_GAP_PX = 18  # from the tier line to the text
_EMPTY_HINT = QT_TRANSLATE_NOOP("Transcript", "Say something, and see what else might have been said.")

Lacking = Callable[[str], str]  # why the model does not support a control of `ui.port.engine.NEEDS`; "" if it does


def nothing_lacking(_control: str) -> str:
    """The default of `Lacking`: nothing is lacking."""
    return ""


def begins_words(event: QKeyEvent) -> bool:
    """Whether a key types a visible character and is no command."""
    key, text = Qt.KeyboardModifier, event.text()
    held = event.modifiers() & (key.ControlModifier | key.AltModifier | key.MetaModifier)
    return not held and bool(text.strip()) and text.isprintable()


class Anchor(Struct, frozen=True):
    """A scroll position: a token of a turn, `offset` pixels below the top of the viewport."""

    turn: int
    token: int
    offset: int
    at_end: bool


OF_TURNS = (  # signals of the actions of a turn, and of typing
    "variant_requested", "edit_requested", "regenerate_requested", "repeat_requested", "continue_requested", "text_requested",
    "model_requested", "copy_requested", "similar_requested", "words_typed",
)  # fmt: skip


class Pane(QAbstractScrollArea, Generic[BodyT]):
    """A scrolled page of turns. Subclasses make the bodies and handle the mouse in them.

    The page is laid out in slices. The top line, or a visible end, stays in place while heights change.
    """

    beginning_near = Signal()  # less than two screens above the visible part
    column_changed = Signal(int, int)  # left edge and width of the text column, in this widget's pixels
    variant_requested = Signal(int)
    edit_requested = Signal(int)
    regenerate_requested = Signal(int)
    repeat_requested = Signal(int)
    continue_requested = Signal(int)
    text_requested = Signal(int)
    model_requested = Signal()
    copy_requested = Signal(str)
    similar_requested = Signal(int)
    words_typed = Signal(str)

    def __init__(self, page: TranscriptPage[BodyT], ink: Ink, parent: QWidget) -> None:
        super().__init__(parent)
        self.page = page
        self._left = 0
        self._suspended = False
        self._waiting: Sequence[TranscriptTurn] | None = None  # the path that was set while suspended
        self._stale: set[int] = set()  # boxes that changed while suspended
        self._pending: tuple[Anchor, int] | None = None  # during slices: the wanted position, and the bar's value so far
        self._restoring = False  # the scroll bar moves, but not the visible part
        self._slices = QTimer(self, interval=SLICE_MS)
        self._slices.timeout.connect(self._slice)
        self._painting = QTimer(self, singleShot=True, interval=0)  # in a later turn of the event loop than the layout
        self._painting.timeout.connect(self._paint_now)
        self.verticalScrollBar().valueChanged.connect(self._check_beginning)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self._selected_of: list[tuple[TranscriptTurn, int]] = []  # turns up to the end of the selection, and their versions
        self._ink = ink
        self.lacking: Lacking = nothing_lacking
        self._hovered: int | None = None  # the box whose actions are shown
        self._pointed = Action.NONE
        self._cursor = Qt.CursorShape.ArrowCursor
        self._filled = False  # a session was set: without turns, the hint is shown
        self._by_tab = False  # focused by Tab: the edge shows it, as a pinned token may be far away
        self._under: dict[int, QWidget] = {}  # widgets under turns, by node id
        page.under = self._height_under
        theme = current_theme()
        page.developer = theme.developer
        theme.developer_changed.connect(self._show_developer)
        speak(self, self._accessible_text)

    def _accessible_text(self) -> str:
        """The text of all turns for a screen reader, each after its role."""
        return "\n".join(f"{box.turn.role}: {box.turn.text.strip()}" for box in self.page.boxes)

    def _show_developer(self, show: bool) -> None:  # a state, not an option
        anchor = self.anchor()
        self.page.show_developer(show)
        self._lay_out(anchor)

    def set_ink(self, ink: Ink) -> None:
        self._ink = ink
        self.viewport().update()

    # ---- content --------------------------------------------------------------------------------------------------

    @property
    def is_at_end(self) -> bool:
        """Whether the end of the page is visible; then it stays visible while tokens arrive."""
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 4

    def column(self) -> tuple[int, int]:
        """Left edge and width of the text, in this widget's pixels."""
        return self._left, int(self.page.width)

    def _check_beginning(self, value: int) -> None:
        if not self._suspended and value < 2 * self.viewport().height():
            self.beginning_near.emit()

    def scroll_to_end(self) -> None:
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def set_faces(self, faces: Faces) -> None:
        anchor = self.anchor()
        self.page.set_faces(faces)
        self._measure()
        self._lay_out(anchor)

    def set_turns(self, turns: Sequence[TranscriptTurn], changed: Sequence[int], *, to_end: bool) -> None:
        """Shows other turns.

        Args:
            turns: The path; turns that were shown before keep their layout.
            changed: Places of turns with other numbers or another state.
            to_end: Whether to scroll to the end; else the line at the top stays there.
        """
        self._hovered, self._pointed = None, Action.NONE
        self._filled = True
        if self._suspended:
            self._waiting = turns
            self._stale = set()
            return
        anchor = self.anchor()
        if self.page.boxes:  # earlier turns were added: the visible part is further down
            first = self.page.boxes[0].turn
            before = next((place for place, turn in enumerate(turns) if turn is first), 0)
            anchor = replace(anchor, turn=anchor.turn + before)
        self.page.set_turns(turns)
        for index in changed:
            self.page.refresh(self.page.boxes[index])
        if changed:
            self.page.place(min(changed))  # the line under a turn may have more rows now
        self._stale.clear()
        self._lay_out(Anchor(0, 0, 0, at_end=True) if to_end else anchor)
        self.viewport().setUpdatesEnabled(False)  # the old frame stays until `_paint_now`, whatever is painted before

    def tokens_appended(self, index: int) -> None:
        """Shows new tokens at the end of box `index`, at a cost that depends on them alone."""
        if self._suspended or self.page.width <= 0:
            return
        box = self.page.boxes[index]
        stick, before = self.is_at_end, box.height
        self.page.refresh_line(box)
        row = box.body.prepare(perf_counter() + SLICE_SECONDS)
        if box.height != before or index == len(self.page.boxes) - 1:
            self.page.place(index)
        self._update_bar()
        if stick:
            self.scroll_to_end()
        self._boxes_moved()
        if not box.done:
            self._slices.start()
        if row is not None:
            top = box.top + row - self.verticalScrollBar().value()
            self.viewport().update(QRect(0, top, self.viewport().width(), max(self.viewport().height() - top, 0)))

    def turn_changed(self, index: int) -> None:
        """Shows other numbers or another state of box `index`."""
        if self._suspended or self.page.width <= 0:
            self._stale.add(index)
            return
        anchor, box = self.anchor(), self.page.boxes[index]
        height = box.height
        self.page.refresh(box)
        row = box.body.prepare(perf_counter() + SLICE_SECONDS)
        if row is None and box.done and box.height == height:  # as with each progress note of a prefill
            reach = max(height, box.meta_top + box.meta.reach)
            self.viewport().update(0, box.top - self.verticalScrollBar().value(), self.viewport().width(), reach)
            return
        self.page.place(index)
        self._lay_out(anchor)

    def suspend(self) -> None:
        """Stops all work until `resume`, as the other mode is shown."""
        self._suspended = True
        self._slices.stop()

    def resume(self, anchor: Anchor) -> None:
        """Resumes work at the scroll position of the other mode."""
        self._suspended = False
        if self._waiting is not None:
            self.page.set_turns(self._waiting)
            self._stale, self._waiting = set(range(len(self._waiting))), None
        self._measure()
        self._refresh_stale()
        self._lay_out(anchor)

    def _refresh_stale(self) -> None:
        for index in self._stale:
            self.page.refresh(self.page.boxes[index])
        self._stale.clear()

    def anchor(self) -> Anchor:
        """The current scroll position, or the one that the unfinished layout will show."""
        if not self.page.boxes:
            return Anchor(0, 0, 0, at_end=True)
        value = self.verticalScrollBar().value()
        if self._pending is not None and self._pending[1] == value:  # not scrolled since
            return self._pending[0]
        index = self.page.index_at(value)
        box = self.page.boxes[index]
        token = box.body.first_token(value - box.top)
        return Anchor(index, token, box.top + box.body.top_of(token) - value, at_end=self.is_at_end)

    def restore(self, anchor: Anchor) -> None:
        """Scrolls so that the anchor's token has its place again, or to the end."""
        self._update_bar()
        bar = self.verticalScrollBar()
        if anchor.at_end:
            bar.setValue(bar.maximum())
        elif anchor.turn < len(self.page.boxes):
            box = self.page.boxes[anchor.turn]
            bar.setValue(box.top + box.body.top_of(anchor.token) - anchor.offset)

    def show_span(self, top: int, bottom: int) -> None:
        """Scrolls as little as necessary to show these pixel rows of the page, with some room around."""
        bar, height = self.verticalScrollBar(), self.viewport().height()
        room = max(min(self.page.faces.pitch * 2, (height - bottom + top) // 2), 0)
        if top - room < bar.value():
            bar.setValue(top - room)
        elif bottom + room > bar.value() + height:
            bar.setValue(bottom + room - height)

    def go_to(self, turn: int, token: int) -> None:
        """Shows a token's line, a third down the viewport unless it is visible already; works during the layout too."""
        if turn >= len(self.page.boxes) or self._suspended:
            return
        box, value, height = self.page.boxes[turn], self.verticalScrollBar().value(), self.viewport().height()
        top = box.top + box.body.top_of(token) - value
        if not (box.done and self.page.faces.pitch <= top <= height - 2 * self.page.faces.pitch):
            self._lay_out(Anchor(turn, token, height // 3, at_end=False))

    # ---- layout ---------------------------------------------------------------------------------------------------

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._slices.stop()  # the rest is laid out when the pane is shown

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._suspended and not all(box.done for box in self.page.boxes):
            self._slices.start()

    def resizeEvent(self, event: QResizeEvent) -> None:
        anchor = self.anchor()
        super().resizeEvent(event)
        self._measure()
        if not self._suspended:
            self._refresh_stale()
        self._lay_out(anchor)

    def _measure(self) -> None:
        available = self.width()  # with the scroll bar, which lies in the right margin: nothing is wrapped again for it
        faces = self.page.faces
        right = MARGIN_RIGHT_PX if available > COLUMN_PX else MARGIN_RIGHT_PX // 2
        column = max(min(round(COLUMN_PX * faces.scale), available - faces.rail - right), 80)
        left = faces.rail + max(0, (available - faces.rail - right - column) // 2)
        if (left, column) != self.column():
            self._left = left
            self.page.set_width(column)
            self.column_changed.emit(left, column)

    def _lay_out(self, anchor: Anchor) -> None:
        if self._suspended:
            return
        self._prepare(anchor, AT_ONCE_SECONDS, self.viewport().height())
        self._slices.stop()  # the rest follows after painting
        self._painting.start()

    def _paint_now(self) -> None:
        self.viewport().setUpdatesEnabled(True)
        self.viewport().update()

    def _slice(self) -> None:
        before = self._in_sight()
        laid = self._prepare(self.anchor(), SLICE_SECONDS)
        if laid.done:
            self._slices.stop()
        else:
            self._slices.start()  # restarts the interval
        if before != self._in_sight() or not laid.touched.isdisjoint(before):
            self.viewport().update()

    def _in_sight(self) -> dict[int, int]:
        """The visible boxes, with the y of each in the viewport."""
        boxes, value = self.page.boxes, self.verticalScrollBar().value()
        last = self.page.index_at(value + self.viewport().height()) if boxes else -1
        return {index: boxes[index].top - value for index in range(self.page.index_at(value), last + 1)}

    def _prepare(self, anchor: Anchor, seconds: float, room: float | None = None) -> Laid:
        """Lays out the surroundings of a scroll position, and scrolls there."""
        boxes = self.page.boxes
        around = boxes[anchor.turn].top if anchor.turn < len(boxes) and not anchor.at_end else self.page.height
        laid = self.page.prepare(around, seconds, room)
        self._restoring = True
        try:
            self.restore(anchor)
        finally:
            self._restoring = False
        self._boxes_moved()
        self._pending = None if laid.done else (anchor, self.verticalScrollBar().value())
        return laid

    def _update_bar(self) -> None:
        bar = self.verticalScrollBar()
        height = self.viewport().height()
        bar.setPageStep(height)
        bar.setSingleStep(self.page.faces.pitch)
        bar.setRange(0, max(self.page.height - height, 0))

    # ---- selection ------------------------------------------------------------------------------------------------

    @property
    def selected_text(self) -> str:
        raise NotImplementedError

    def select_all(self) -> None:
        raise NotImplementedError

    def _remember_selected(self, last: int) -> None:
        """Remembers the turns up to `last` as the source of the selection, for `_keeps_selection`."""
        self._selected_of = [(box.turn, box.turn.version) for box in self.page.boxes[: last + 1]]

    def _keeps_selection(self, turns: Sequence[TranscriptTurn]) -> bool:
        """Whether the turns of the selection are still there with the same tokens."""
        held = self._selected_of
        return len(turns) >= len(held) and all(
            turn is now and version == now.version for (turn, version), now in zip(held, turns, strict=False)
        )

    # ---- parts under turns ------------------------------------------------------------------------------------------

    def show_under(self, parts: Mapping[int, QWidget]) -> None:
        """Puts widgets under the text of turns, by node id, in place of earlier ones."""
        for old in self._under.values():
            if old not in parts.values():
                old.removeEventFilter(self)
                if old.parent() is self.viewport():
                    old.hide()
                    old.setParent(None)
        anchor, self._under = self.anchor(), dict(parts)
        before: QWidget = self
        for part in self._under.values():
            if part.parent() is not self.viewport():
                part.setParent(self.viewport())
                part.installEventFilter(self)
            for each in part.findChildren(QWidget):
                if each.focusPolicy() & Qt.FocusPolicy.TabFocus:
                    QWidget.setTabOrder(before, each)
                    before = each
        self.page.place()
        self._lay_out(anchor)
        for part in self._under.values():
            part.show()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.LayoutRequest and watched in self._under.values():
            anchor = self.anchor()  # the widget may need another height
            self.page.place()
            self._lay_out(anchor)
        return super().eventFilter(watched, event)

    def bring_into_sight(self, part: QWidget) -> None:
        """Scrolls to a part of the widget under a turn, as when it gets the focus."""
        top = part.mapTo(self.viewport(), QPoint(0, 0)).y() + self.verticalScrollBar().value()
        self.show_span(top, top + part.height())

    def _height_under(self, node_id: int) -> int:
        part = self._under.get(node_id)
        if part is None:
            return 0
        width, layout = max(int(self.page.width), 1), part.layout()
        height = layout.totalHeightForWidth(width) if layout is not None and layout.hasHeightForWidth() else -1
        return (height if height >= 0 else part.sizeHint().height()) + _UNDER_GAP_PX

    def _boxes_moved(self) -> None:
        """Moves the widgets under turns, after boxes may have moved."""
        scrolled = self.verticalScrollBar().value()
        for box in self.page.boxes if self._under else ():
            part = self._under.get(box.turn.node_id)
            if part is not None:
                top = box.top + box.body.height + _UNDER_GAP_PX - scrolled
                part.setGeometry(self._left, top, int(self.page.width), max(box.under - _UNDER_GAP_PX, 0))

    # ---- painting -------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        if event.rect() == self.viewport().rect() and self.viewport().updatesEnabled():
            self._painting.stop()  # everything is painted now
        painter = QPainter(self.viewport())
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        try:
            self._paint(painter, event.rect())
            if self._by_tab:
                painter.fillRect(0, event.rect().top(), _FOCUS_PX, event.rect().height(), self._ink.accent)
        finally:
            painter.end()
        if self._pending is not None:
            self._slices.start()  # restarted: no slice in the same turn of the event loop as a frame

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        painter.fillRect(clip, self._ink.window)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        boxes = self.page.boxes
        if not boxes:
            if self._filled:
                self._paint_hint(painter)
            return
        scrolled = self.verticalScrollBar().value()
        for index in range(self.page.index_at(scrolled + clip.top()), len(boxes)):
            box = boxes[index]
            top = box.top - scrolled
            if top > clip.bottom():
                break
            self._paint_rail(painter, box, top, clip)
            painter.save()
            painter.translate(self._left, top)
            height = box.body.height
            if height:
                box.body.paint(painter, self._ink, (clip.top() - top, clip.bottom() + 1 - top))
            painter.translate(0, box.meta_top)
            hovered = index == self._hovered
            disabled = [action for action in NEEDS if self._lacking(action)] if hovered else ()
            box.meta.paint(painter, self._ink, hovered=hovered, pointed=self._pointed, disabled=disabled)
            painter.restore()

    def _paint_rail(self, painter: QPainter, box: Box[BodyT], top: int, clip: QRect) -> None:
        faces, x = self.page.faces, self._left - _RAIL_GAP_PX - _RAIL_LINE_PX
        colour = {Tier.WARM: self._ink.accent, Tier.DISK: self._ink.disk}.get(box.turn.view.tier)
        if colour is not None:
            painter.fillRect(QRectF(x, top, _RAIL_LINE_PX, box.height), colour)
        if top + faces.pitch < clip.top():  # while an answer streams, its role is above the painted part
            return
        metrics = QFontMetricsF(faces.role)
        painter.setFont(faces.role)
        painter.setPen(self._ink.soft)
        left = x - _ROLE_GAP_PX - metrics.horizontalAdvance(box.turn.role)
        painter.drawText(QPointF(left, top + round(_ROLE_BASELINE_PX * faces.scale)), box.turn.role)

    def _paint_hint(self, painter: QPainter) -> None:
        painter.setFont(self.page.faces.text)
        painter.setPen(self._ink.faint)
        area = self.viewport().rect().adjusted(40, 0, -40, 0)
        painter.drawText(area, Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap, translate("Transcript", _EMPTY_HINT))

    # ---- the meta line under the mouse ----------------------------------------------------------------------------

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self._point_at(event.position().toPoint())

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        if event.button() is Qt.MouseButton.LeftButton and self._hovered is not None:
            point = event.position().toPoint()
            self._act(self.page.boxes[self._hovered], self._action_in(self._box_at(point), point))

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QFocusEvent):
            self._by_tab = event.gotFocus() and event.reason() in _TAB
            self.viewport().update(0, 0, _FOCUS_PX, self.viewport().height())
        return super().event(event)

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() is QEvent.Type.Leave:
            self._hover(None, Action.NONE)
        return super().viewportEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.matches(QKeySequence.StandardKey.Copy):
            if self.selected_text:
                QGuiApplication.clipboard().setText(self.selected_text)
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif begins_words(event):
            self.words_typed.emit(event.text())
        else:
            super().keyPressEvent(event)

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        if not self._restoring:  # else the visible part does not move, or is repainted
            self.viewport().scroll(dx, dy)  # moves the widgets under turns too

    # ---- the menu of a turn -----------------------------------------------------------------------------------------

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Opens the menu of a turn, at the mouse or at the focus."""
        by_mouse = event.reason() is event.Reason.Mouse
        at = event.pos() if by_mouse else self._keyboard_at()
        index = self._box_at(at)
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setToolTipsVisible(True)
        self._fill_menu(menu, index, at)
        if index is not None:
            box = self.page.boxes[index]
            menu.addSeparator()
            for action in actions_of(box.turn.view):
                words = translate("Transcript", action.value)
                words = translate("Transcript", "copy the turn") if action is Action.COPY else words
                entry = menu.addAction(words[:1].upper() + words[1:], partial(self._act, box, action))
                allow(entry, True, self._lacking(action))
        if menu.isEmpty():
            menu.deleteLater()
        else:
            menu.popup(event.globalPos() if by_mouse else self.viewport().mapToGlobal(at))

    def _keyboard_at(self) -> QPoint:
        """The place of a menu opened by key, in the viewport."""
        return QPoint(self._left + 4, self.viewport().height() // 3)

    def _fill_menu(self, menu: QMenu, index: int | None, at: QPoint) -> None:
        """Adds the entries for a point of a box."""
        del index, at
        if self.selected_text:
            menu.addAction(translate("Transcript", "Copy"), lambda: self.copy_requested.emit(self.selected_text))

    def _box_at(self, point: QPoint) -> int | None:
        y = point.y() + self.verticalScrollBar().value()
        if not self.page.boxes:
            return None
        index = self.page.index_at(y)
        box = self.page.boxes[index]
        reach = max(box.height + TURN_GAP_PX // 2, box.meta_top + box.meta.reach)
        return index if box.top <= y < box.top + reach else None

    def _action_in(self, index: int | None, point: QPoint, *, hovers: bool = False) -> Action:
        """The action at a point of a box; `hovers`: the mouse is moving to that box."""
        if index is None:
            return Action.NONE
        box = self.page.boxes[index]
        top = box.top + box.meta_top - self.verticalScrollBar().value()
        hovered = hovers or index == self._hovered
        return box.meta.action_at(QPointF(point.x() - self._left, point.y() - top), hovered=hovered)

    def _point_at(self, point: QPoint) -> int | None:
        """Updates hovering for the mouse position; returns the box under it."""
        index = self._box_at(point)
        action = self._action_in(index, point, hovers=True)
        why_not = plain_tooltip(self._lacking(action))
        if why_not != self.viewport().toolTip():
            self.viewport().setToolTip(why_not)
        self._hover(index, Action.NONE if why_not else action)
        return index

    def _show_cursor(self, shape: Qt.CursorShape) -> None:
        """Sets the cursor if it is another one, as setting it is slow."""
        if shape is not self._cursor:
            self._cursor = shape
            self.viewport().setCursor(shape)

    def _hover(self, index: int | None, pointed: Action) -> None:
        if (index, pointed) == (self._hovered, self._pointed):
            return
        changed = {self._hovered, index}
        self._hovered, self._pointed = index, pointed
        for one in changed - {None}:
            if one is not None and one < len(self.page.boxes):
                self._update_meta(self.page.boxes[one])

    def _update_meta(self, box: Box[BodyT]) -> None:
        top = box.top + box.meta_top - self.verticalScrollBar().value()
        self.viewport().update(QRect(0, top, self.viewport().width(), box.meta.reach + 2))

    def _lacking(self, action: Action) -> str:
        return self.lacking(NEEDS[action]) if action in NEEDS else ""

    def _act(self, box: Box[BodyT], action: Action) -> None:
        view = box.turn.view
        if self._lacking(action):
            return
        of_node = {
            Action.EDIT: self.edit_requested,
            Action.SIMILAR: self.similar_requested,
            Action.REGENERATE: self.regenerate_requested,
            Action.REPEAT: self.repeat_requested,
            Action.CONTINUE: self.continue_requested,
            Action.AS_TEXT: self.text_requested,
        }
        if action in of_node:
            of_node[action].emit(view.node_id)
        elif action is Action.PREVIOUS:
            self.variant_requested.emit(view.variants[view.variant - 1])
        elif action is Action.NEXT:
            self.variant_requested.emit(view.variants[view.variant + 1])
        elif action is Action.COPY:
            self.copy_requested.emit(box.turn.text)
        elif action is Action.MODEL:
            self.model_requested.emit()
