"""What is marked in the text of Tokens mode: the pinned token, what is selected, the preview of an alternative, the caret."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from PySide6.QtCore import QRect, QRectF, Qt, Signal
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QWidget

from ui.port import TurnStatus
from ui.transcript.overlay.ghost import Ghost, paint_ghost
from ui.transcript.pane.find import Match
from ui.transcript.pane.page import Box, TranscriptPage
from ui.transcript.pane.pane import Pane
from ui.transcript.pane.scroller import Anchor
from ui.transcript.pane.selection import Selection, TextPosition
from ui.transcript.path import Turn
from ui.transcript.text.compose import Place
from ui.transcript.text.faces import Faces
from ui.transcript.text.ink import Ink
from ui.transcript.tokens_mode import walk
from ui.transcript.tokens_mode.tokens_body import TokensBody
from ui.transcript.tokens_mode.walk import TokenAt
from ui.widgets.visible import is_right_to_left

_CARET_PX = 2
_PIN_GAP_PX = 2.0  # from the span to the middle of the outline: one free pixel, two drawn
_PIN_RADIUS = 5.0


class MarkedPane(Pane[TokensBody]):
    """Tokens with marks on them; `TokensPane` has the mouse and the keys that put them there."""

    token_pinned = Signal(object)  # (node_id, index) or None
    range_selected = Signal(object)  # of each turn that is touched (node id, first token, behind the last one); none: ()
    ghost_left = Signal()  # the preview is out of sight

    def __init__(self, ink: Ink, faces: Faces, parent: QWidget | None = None) -> None:
        self._template = False
        super().__init__(TranscriptPage(self._make_body, faces), ink, parent)
        self._pinned: tuple[int, int] | None = None
        self._ghost: Ghost | None = None
        self._selection: Selection | None = None
        self._caret = False
        self._hits: dict[int, list[tuple[Place, Place]]] = {}  # by turn

    # ---- the pin and the preview ------------------------------------------------------------------------------------

    @property
    def pin(self) -> tuple[int, int] | None:
        """The pinned token: node and index into the turn's run."""
        return self._pinned

    @property
    def _pin(self) -> TokenAt | None:
        """Where on the page the pinned token is; None while it is not there."""
        turn = None if self._pinned is None else self._page.index_of(self._pinned[0])
        if turn is None or self._pinned is None or self._pinned[1] >= self._page.boxes[turn].turn.count:
            return None
        return TokenAt(turn, self._pinned[1])

    def set_turns(self, turns: Sequence[Turn], changed: Sequence[int], *, to_end: bool) -> None:
        self._select(None)
        self.set_ghost(None)
        super().set_turns(turns, changed, to_end=to_end)
        if self._pinned is not None:
            node_id, index = self._pinned
            if not any(turn.node_id == node_id and index < turn.count for turn in turns):
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
            if box.done:
                top = box.top + box.body.top_of(at.token)
                self.show_span(top, top + self._page.faces.pitch)
            else:  # where it will stand is known when what is around it is laid out
                self.go_to(at.turn, at.token)
        self.viewport().update()

    def clear_pin(self) -> None:
        self.set_ghost(None)
        self._pinned = None
        self.viewport().update()

    @property
    def ghost(self) -> Ghost | None:
        return self._ghost

    def set_ghost(self, ghost: Ghost | None) -> None:
        """Shows what an alternative would lead to; None: the text as it is."""
        if ghost is None and self._ghost is not None:
            self.ghost_left.emit()
        if ghost != self._ghost:
            self._ghost = ghost
            self.viewport().update()

    def show_caret(self, shown: bool) -> None:  # a state, not an option
        """Whether what is typed goes in front of the pinned token: a caret stands there."""
        self._caret = shown
        self.viewport().update()

    def set_template_visible(self, visible: bool) -> None:
        anchor = self.anchor()
        self._template = visible
        for body in self._made():
            body.set_template_visible(visible)
        self._lay_out(anchor)

    def show_match(self, match: Match | None) -> None:
        """Selects words that were found and scrolls to them."""
        self._select(
            None if match is None else Selection(TextPosition(match.turn, match.first), TextPosition(match.turn, match.last))
        )
        if match is not None:
            self.go_to(match.turn, match.first.token)

    def show_hits(self, found: Sequence[Match]) -> None:
        """Marks all words that were found."""
        self._hits = {}
        for match in found:
            self._hits.setdefault(match.turn, []).append((match.first, match.last))
        self.viewport().update()

    def repaint_numbers(self) -> None:
        """The same tokens have other colours."""
        for body in self._made():
            body.refresh()
        self.viewport().update()

    def token_box(self, node_id: int, index: int) -> QRect | None:
        """Where a token is drawn, in the viewport's pixels; its first line."""
        turn = self._page.index_of(node_id)
        if turn is None:
            return None
        rects = self._page.boxes[turn].body.rects_of(index)
        return None if not rects else self._to_viewport(turn, rects[0]).toAlignedRect()

    def line_box(self, node_id: int) -> QRect | None:
        """Where the line under a turn is, in the viewport's pixels, with its actions."""
        turn = self._page.index_of(node_id)
        if turn is None:
            return None
        box = self._page.boxes[turn]
        top = box.top + box.meta_top - self.verticalScrollBar().value()
        return QRect(self._left, top, int(self._page.width), box.meta.reach)

    def _make_body(self, turn: Turn, faces: Faces, width: float) -> TokensBody:
        return TokensBody(turn, faces, width, template=self._template)

    def _made(self) -> list[TokensBody]:
        """The texts that were made: the others will be as everything is then."""
        return [box.made for box in self._page.boxes if box.made is not None]

    def _turns(self) -> list[Turn]:
        return [box.turn for box in self._page.boxes]

    # ---- selection ------------------------------------------------------------------------------------------------

    @property
    def selected_text(self) -> str:
        return "" if self._selection is None else self._selection.text(self._turns(), template=self._template)

    def select_all(self) -> None:
        boxes = self._page.boxes
        if boxes:
            end = TextPosition(len(boxes) - 1, walk.end_of(boxes[-1].turn))
            self._select(Selection(TextPosition(0, walk.START), end))

    def _select(self, selection: Selection | None) -> None:
        if selection == self._selection:
            return
        self._selection = selection
        for index, box in enumerate(self._page.boxes):
            within = None if selection is None else selection.within(index, box.turn.count)
            if within is not None or box.made is not None:
                box.body.selection = within
        self.range_selected.emit(tuple(self._selected_tokens()))
        self.viewport().update()

    def _selected_tokens(self) -> Iterator[tuple[int, int, int]]:
        for box in self._page.boxes:
            part = None if box.made is None else box.made.selection
            if part is not None:
                yield box.turn.node_id, part[0].token, part[1].token + (part[1].offset > 0)

    # ---- painting -------------------------------------------------------------------------------------------------

    def _paint(self, painter: QPainter, clip: QRect) -> None:
        for index in self._in_sight():
            self._page.boxes[index].body.hits = self._hits.get(index, ())
        super()._paint(painter, clip)
        if self._page.boxes:
            self._paint_caret(painter, self._page.boxes[-1])
        pin = self._pin
        if pin is not None and self._ghost is not None:
            self._paint_ghost(painter, self._ghost, pin)
        elif pin is not None:
            self._paint_pin(painter, pin)
            if self._caret:
                self._paint_typing(painter, pin)

    def _paint_caret(self, painter: QPainter, box: Box[TokensBody]) -> None:
        if box.turn.view.status is not TurnStatus.STREAMING or not self._is_in_sight(box):
            return
        at, faces = box.body.end_of_text(), self._page.faces
        top = box.top - self.verticalScrollBar().value() + at.y()
        painter.fillRect(QRectF(self._left + at.x() + 2, top, _CARET_PX, faces.glyphs), self._ink.accent)

    def _paint_typing(self, painter: QPainter, pin: TokenAt) -> None:
        box, faces = self._page.boxes[pin.turn], self._page.faces
        if box.body.rects_of(pin.token) and self._is_in_sight(box):
            at = box.body.before(pin.token)
            top = box.top - self.verticalScrollBar().value() + at.y()
            painter.fillRect(QRectF(self._left + at.x() - _CARET_PX / 2, top, _CARET_PX, faces.glyphs), self._ink.accent)

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
