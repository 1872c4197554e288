"""A scrolled page of turns: layout in slices, anchors, sticking to the end."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Generic

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QRect, Qt, QTimer, Signal
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QWidget

from ui.transcript.pane.page import BodyT, Laid, TranscriptPage
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.faces import COLUMN_PX, MARGIN_RIGHT_PX, Faces

AT_ONCE_SECONDS = 0.005  # for laying out the visible part before the first frame; the rest follows in slices
SLICE_SECONDS = 0.003
SLICE_MS = 4  # between slices, for other events


class Anchor(Struct, frozen=True):
    """A scroll position: a token of a turn, `offset` pixels below the top of the viewport."""

    turn: int
    token: int
    offset: int
    at_end: bool


class Scroller(QAbstractScrollArea, Generic[BodyT]):
    """A scrolled page that is laid out in slices. The top line, or a visible end, stays in place while heights change."""

    beginning_near = Signal()  # less than two screens above the visible part
    column_changed = Signal(int, int)  # left edge and width of the text column, in this widget's pixels

    def __init__(self, page: TranscriptPage[BodyT], parent: QWidget) -> None:
        super().__init__(parent)
        self._page = page
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

    # ---- content --------------------------------------------------------------------------------------------------

    @property
    def page(self) -> TranscriptPage[BodyT]:
        return self._page

    @property
    def is_at_end(self) -> bool:
        """Whether the end of the page is visible; then it stays visible while tokens arrive."""
        bar = self.verticalScrollBar()
        return bar.value() >= bar.maximum() - 4

    def column(self) -> tuple[int, int]:
        """Left edge and width of the text, in this widget's pixels."""
        return self._left, int(self._page.width)

    def _check_beginning(self, value: int) -> None:
        if not self._suspended and value < 2 * self.viewport().height():
            self.beginning_near.emit()

    def scroll_to_end(self) -> None:
        self.verticalScrollBar().setValue(self.verticalScrollBar().maximum())

    def set_faces(self, faces: Faces) -> None:
        anchor = self.anchor()
        self._page.set_faces(faces)
        self._measure()
        self._lay_out(anchor)

    def set_turns(self, turns: Sequence[TranscriptTurn], changed: Sequence[int], *, to_end: bool) -> None:
        """Shows other turns.

        Args:
            turns: The path; turns that were shown before keep their layout.
            changed: Places of turns with other numbers or another state.
            to_end: Whether to scroll to the end; else the line at the top stays there.
        """
        if self._suspended:
            self._waiting = turns
            self._stale = set()
            return
        anchor = self.anchor()
        if self._page.boxes:  # earlier turns were added: the visible part is further down
            first = self._page.boxes[0].turn
            before = next((place for place, turn in enumerate(turns) if turn is first), 0)
            anchor = replace(anchor, turn=anchor.turn + before)
        self._page.set_turns(turns)
        for index in changed:
            self._page.refresh(self._page.boxes[index])
        if changed:
            self._page.place(min(changed))  # the line under a turn may have more rows now
        self._stale.clear()
        self._lay_out(Anchor(0, 0, 0, at_end=True) if to_end else anchor)
        self.viewport().setUpdatesEnabled(False)  # the old frame stays until `_paint_now`, whatever is painted before

    def tokens_appended(self, index: int) -> None:
        """Shows new tokens at the end of box `index`, at a cost that depends on them alone."""
        if self._suspended or self._page.width <= 0:
            return
        box = self._page.boxes[index]
        stick, before = self.is_at_end, box.height
        self._page.refresh_line(box)
        row = box.body.prepare(perf_counter() + SLICE_SECONDS)
        if box.height != before or index == len(self._page.boxes) - 1:
            self._page.place(index)
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
        if self._suspended or self._page.width <= 0:
            self._stale.add(index)
            return
        anchor, box = self.anchor(), self._page.boxes[index]
        height = box.height
        self._page.refresh(box)
        row = box.body.prepare(perf_counter() + SLICE_SECONDS)
        if row is None and box.done and box.height == height:  # as with each progress note of a prefill
            reach = max(height, box.meta_top + box.meta.reach)
            self.viewport().update(0, box.top - self.verticalScrollBar().value(), self.viewport().width(), reach)
            return
        self._page.place(index)
        self._lay_out(anchor)

    def suspend(self) -> None:
        """Stops all work until `resume`, as the other mode is shown."""
        self._suspended = True
        self._slices.stop()

    def resume(self, anchor: Anchor) -> None:
        """Resumes work at the scroll position of the other mode."""
        self._suspended = False
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
        """The current scroll position, or the one that the unfinished layout will show."""
        if not self._page.boxes:
            return Anchor(0, 0, 0, at_end=True)
        value = self.verticalScrollBar().value()
        if self._pending is not None and self._pending[1] == value:  # not scrolled since
            return self._pending[0]
        index = self._page.index_at(value)
        box = self._page.boxes[index]
        token = box.body.first_token(value - box.top)
        return Anchor(index, token, box.top + box.body.top_of(token) - value, at_end=self.is_at_end)

    def restore(self, anchor: Anchor) -> None:
        """Scrolls so that the anchor's token has its place again, or to the end."""
        self._update_bar()
        bar = self.verticalScrollBar()
        if anchor.at_end:
            bar.setValue(bar.maximum())
        elif anchor.turn < len(self._page.boxes):
            box = self._page.boxes[anchor.turn]
            bar.setValue(box.top + box.body.top_of(anchor.token) - anchor.offset)

    def show_span(self, top: int, bottom: int) -> None:
        """Scrolls as little as necessary to show these pixel rows of the page, with some room around."""
        bar, height = self.verticalScrollBar(), self.viewport().height()
        room = max(min(self._page.faces.pitch * 2, (height - bottom + top) // 2), 0)
        if top - room < bar.value():
            bar.setValue(top - room)
        elif bottom + room > bar.value() + height:
            bar.setValue(bottom + room - height)

    def go_to(self, turn: int, token: int) -> None:
        """Shows a token's line, a third down the viewport unless it is visible already; works during the layout too."""
        if turn >= len(self._page.boxes) or self._suspended:
            return
        box, value, height = self._page.boxes[turn], self.verticalScrollBar().value(), self.viewport().height()
        top = box.top + box.body.top_of(token) - value
        if not (box.done and self._page.faces.pitch <= top <= height - 2 * self._page.faces.pitch):
            self._lay_out(Anchor(turn, token, height // 3, at_end=False))

    # ---- layout ---------------------------------------------------------------------------------------------------

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._slices.stop()  # the rest is laid out when the pane is shown

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if not self._suspended and not all(box.done for box in self._page.boxes):
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
        faces = self._page.faces
        right = MARGIN_RIGHT_PX if available > COLUMN_PX else MARGIN_RIGHT_PX // 2
        column = max(min(round(COLUMN_PX * faces.scale), available - faces.rail - right), 80)
        left = faces.rail + max(0, (available - faces.rail - right - column) // 2)
        if (left, column) != self.column():
            self._left = left
            self._page.set_width(column)
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
        boxes, value = self._page.boxes, self.verticalScrollBar().value()
        last = self._page.index_at(value + self.viewport().height()) if boxes else -1
        return {index: boxes[index].top - value for index in range(self._page.index_at(value), last + 1)}

    def _prepare(self, anchor: Anchor, seconds: float, room: float | None = None) -> Laid:
        """Lays out the surroundings of a scroll position, and scrolls there."""
        boxes = self._page.boxes
        around = boxes[anchor.turn].top if anchor.turn < len(boxes) and not anchor.at_end else self._page.height
        laid = self._page.prepare(around, seconds, room)
        self._restoring = True
        try:
            self.restore(anchor)
        finally:
            self._restoring = False
        self._boxes_moved()
        self._pending = None if laid.done else (anchor, self.verticalScrollBar().value())
        return laid

    def _boxes_moved(self) -> None:
        """Called when boxes may have moved, to move the widgets under turns."""

    def _update_bar(self) -> None:
        bar = self.verticalScrollBar()
        height = self.viewport().height()
        bar.setPageStep(height)
        bar.setSingleStep(self._page.faces.pitch)
        bar.setRange(0, max(self._page.height - height, 0))
