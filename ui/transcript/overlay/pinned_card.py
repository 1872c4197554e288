"""The card of the pinned token: its alternatives as buttons, a vocabulary search, and actions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QHideEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QShowEvent
from PySide6.QtWidgets import QApplication, QVBoxLayout, QWidget

from ui.core.shown import Spot
from ui.inspector import words
from ui.inspector.alternatives import COUNTS, Alternative, AlternativeButton, rank_width
from ui.inspector.tab import BytesOf
from ui.inspector.token import alternatives_of
from ui.theme.fonts import interface_font, scaled
from ui.theme.scheme import current_theme
from ui.theme.text_size import panel_width
from ui.transcript.overlay.card import words_before
from ui.transcript.overlay.ghost import TYPED, typed_ghost
from ui.transcript.text.ink import SHADOW_PX, paint_shadow
from ui.transcript.view import TranscriptView
from ui.widgets.controls import allow, button, line_edit, row
from ui.widgets.labels import ElidedLabel, Label, native, plain_tooltip

WIDTH = 372
MOST_FOUND = 10
LEAST_ROWS = 1
MOST_KEPT = 50  # the latest unwritten texts, which are stored for the next window
_GAP_PX = 8  # to the token, or to the line under its turn
_EDGE_PX = 6
_RADIUS = 10
_BY_TAB = (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
_SHORT = 28  # characters of the typed text on the button that writes it
Find = Callable[[str, int], Sequence[int]]  # ids of the tokens that contain a text, best first


class PinnedCard(QWidget):
    """Shown beside the pinned token until Escape, a choice, or a press outside it.

    Args:
        transcript: Shows the token.
        parent: The card is placed inside this widget.
    """

    alternative_chosen = Signal(int, int, int)  # node id, index, token id
    text_typed = Signal(str)  # the text that would replace the token, at each change
    text_written = Signal(int, int, str)  # node id, index, the text that replaces the token
    preview_wanted = Signal(int, int, int)
    columns_wanted = Signal(int, int, int, bool)  # node id, index, how many, whether by a beam search
    ban_wanted = Signal(int)  # token id
    row_wanted = Signal(int, int)  # node id, index: the log-probabilities of all tokens there

    def __init__(self, transcript: TranscriptView, parent: QWidget) -> None:
        super().__init__(parent)
        self._transcript = transcript
        self._spot: Spot | None = None
        self._bytes_of: BytesOf = lambda _ids: []
        self._can_choose = self._can_continue = False
        self._row: Sequence[float] | None = None  # log-probabilities of the vocabulary at the spot
        self._asked = False  # the row of this spot was requested
        self._unwritten: dict[tuple[int, int], str] = {}  # typed texts by the node id and index of their tokens
        self._writes = False  # the user focused the field: digits and spaces are text, not commands
        self._listed: list[Alternative] = []
        self._at = 0  # the marked alternative; -1: none, Return writes the typed text
        self.find_tokens: Find = lambda _text, _most: ()
        self.before, self.choice = ElidedLabel("", "", interface_font(12.5)), Label("", "soft", interface_font(12.5))
        self.rows = [AlternativeButton() for _ in range(MOST_FOUND + 1)]
        self.nothing = Label("", "soft", interface_font(12.5), wraps=True)
        self.field = line_edit(self.tr("Write here, or find a token in the vocabulary"))
        tip = self.tr("Numbers choose and Space previews, until you click here or press {0}")
        self.field.setToolTip(plain_tooltip(tip.format(native("F2"))))
        self.field.textChanged.connect(lambda _text: self._search())
        self.field.textEdited.connect(self._store_typed)
        self.field.installEventFilter(self)
        self.write = button("", "link")
        self.write.setToolTip(self.tr("Return, or {0} where a token is marked").format(native("Ctrl+Return")))
        self.branch, self.preview = button(self.tr("Branch"), "link"), button(self.tr("Preview"), "link")
        self.ways = {count: button(str(count), "link") for count in COUNTS}
        self.why, self.ban = button(self.tr("Why"), "link"), button(self.tr("Ban"), "link")
        self._ways_label = Label(self.tr("ways"), "soft", interface_font(12))
        self._lay_out()
        self._connect()
        self.setAccessibleName(self.tr("Alternatives of the pinned token"))
        self.hide()

    def _lay_out(self) -> None:
        column = QVBoxLayout(self)
        edge = SHADOW_PX
        column.setContentsMargins(edge + 14, edge + 10, edge + 14, edge + 10)
        column.setSpacing(0)
        self._head = row((self.before, 1), self.choice)
        column.addLayout(self._head)
        column.addSpacing(4)
        for each in self.rows:
            each.clicked.connect(lambda _checked=False, each=each: self._choose(each.alternative))
            each.previewed.connect(self._preview)
            column.addWidget(each)
        column.addWidget(self.nothing)
        column.addSpacing(6)
        column.addWidget(self.field)
        column.addLayout(row(self.write, 1))
        column.addSpacing(4)
        self.preview.setToolTip(self.tr("Show what would follow the marked token (Space)"))
        self.why.setToolTip(self.tr("Show how this token was drawn"))
        for count, choice in self.ways.items():
            choice.setAccessibleName(self.tr("{0} continuations from here").format(count))
            choice.setToolTip(choice.accessibleName())
        column.addLayout(
            row(self.branch, self.preview, *self.ways.values(), self._ways_label, self.why, self.ban, 1, spacing=11)
        )

    def _connect(self) -> None:
        self.branch.clicked.connect(lambda: self._choose(self._current))
        self.write.clicked.connect(self._write)
        self.preview.clicked.connect(self._preview_current)
        self.ban.clicked.connect(self._ban)
        for count, choice in self.ways.items():
            choice.clicked.connect(lambda _checked=False, count=count: self._continue(count))
        bar = self._transcript.tokens.verticalScrollBar()
        bar.valueChanged.connect(lambda _value: self._place())
        bar.rangeChanged.connect(lambda _least, _most: self._place())
        self._transcript.column_changed.connect(lambda _left, _width: self._place())
        current_theme().changed.connect(self.update)
        current_theme().scaled.connect(self._place)

    # ---- content --------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Shows the card for its spot, and focuses the field."""
        if self._spot is None:
            return
        self._set_writes(False)
        self._restore_typed()
        self.show()
        self.raise_()
        self._place()
        if self.isVisible():
            self.field.setFocus(Qt.FocusReason.PopupFocusReason)

    def begin_words(self, text: str) -> bool:
        """Opens the card and types `text` into its field; returns whether writing is possible."""
        if self._can_choose:
            self.open()
            self.field.insert(text)
        return self._can_choose

    def close_again(self) -> None:
        """Closes the card; the focus returns to the transcript."""
        focused = QApplication.focusWidget()
        if focused is not None and self.isAncestorOf(focused):  # before it hides: Qt would move it as if by Tab
            self._transcript.tokens.setFocus(Qt.FocusReason.PopupFocusReason)
        self.hide()

    def show_spot(self, spot: Spot | None, bytes_of: BytesOf, *, can_choose: bool, can_continue: bool) -> None:
        """Takes another pinned token, or other numbers of the same one; None closes the card."""
        held, self._spot, self._bytes_of = self._spot, spot, bytes_of
        self._can_choose, self._can_continue = can_choose, can_continue
        if spot is None:
            self.close_again()
            return
        same = held is not None and (held.node_id, held.index) == (spot.node_id, spot.index)
        if not same:
            self._row, self._asked = None, False
        if self.isVisible():
            if held is None or not same:
                self._restore_typed()
            elif held.record != spot.record:  # the typed text stays
                self._search_again() if self.field.text() else self._search()
            else:
                self._fill()

    def show_row(self, node_id: int, index: int, logprobs: Sequence[float]) -> None:
        """The log-probabilities of all tokens at a place, ``(vocab,) float32``."""
        if self._spot is not None and (self._spot.node_id, self._spot.index) == (node_id, index):
            self._row = logprobs
            self._search_again()

    def forget_row(self) -> None:
        """Forgets the probabilities, as another model may be loaded; they are requested again."""
        self._row, self._asked = None, False
        self._search_again()

    def _search_again(self) -> None:
        """Repeats the search with other probabilities; the marked alternative stays marked."""
        if not (self.isVisible() and self.field.text()):
            return
        marked = self._current
        self._search()
        if marked is not None:
            same = (place for place, one in enumerate(self._listed) if one.token_id == marked.token_id)
            self._at = next(same, -1)
            self._place()

    @property
    def _current(self) -> Alternative | None:
        return self._listed[self._at] if 0 <= self._at < len(self._listed) else None

    def _search(self) -> None:
        spot, text = self._spot, self.field.text()
        if spot is None:
            return
        if text and self._row is None and not self._asked:  # once per spot, as a refusal would repeat
            self._asked = True
            self.row_wanted.emit(spot.node_id, spot.index)
        self._show_typed()
        self._listed = self._found(spot, text) if text else alternatives_of(spot.record, self._bytes_of)
        typed = self.typed.encode()  # writing the token's own text makes a branch too
        listed = enumerate(self._listed)
        marked = (at for at, one in listed if (one.data == typed and not one.chosen if text else one.chosen))
        self._at = next(marked, -1 if text else 0)
        self._fill()
        self._place()

    def _found(self, spot: Spot, text: str) -> list[Alternative]:
        """The tokens of the vocabulary that contain `text`, best match first."""
        record, ids = spot.record, list(self.find_tokens(text, MOST_FOUND))
        stored = dict(zip(record.top_ids, record.top_logprobs, strict=True))
        row = self._row
        known = {token: row[token] if row is not None and token < len(row) else stored.get(token, math.nan) for token in ids}
        top = max((value for value in known.values() if not math.isnan(value)), default=0.0)
        return [
            Alternative(
                token, data, known[token], place, 0.0 if math.isnan(known[token]) else math.exp(known[token] - top),
                chosen=token == record.token_id,
            )
            for place, (token, data) in enumerate(zip(ids, self._bytes_of(ids), strict=True), 1)
        ]  # fmt: skip

    def _fill(self, room: int | None = None) -> None:
        """Shows the alternatives in at most `room` rows, of which the last is the marked one if it would not fit."""
        spot, current, count = self._spot, self._current, len(self.rows) if room is None else room
        if spot is None:
            return
        path = self._transcript.turns
        turn = next((place for place, one in enumerate(path) if one.node_id == spot.node_id), None)
        before = "" if turn is None else words_before(path, turn, spot.index)
        self.before.setText(self.tr("after “{0}”").format(before) if before else self.tr("at the start"))
        open_bits = spot.record.entropy
        self.choice.setText("" if open_bits is None else self.tr("entropy {0}").format(words.in_bits(open_bits)))
        self.choice.setToolTip(self.tr("entropy: how open the choice was"))
        shown = self._listed[:count]
        if self._at >= count:
            shown[-1] = self._listed[self._at]
        widest = max((self.fontMetrics().horizontalAdvance(words.token(one.data)) for one in shown), default=0)
        ranks = rank_width(shown)
        for place, bar in enumerate(self.rows):
            bar.setVisible(place < len(shown))
            if place < len(shown):
                bar.token_px = min(max(widest + 12, scaled(74)), scaled(130))
                bar.rank_px = ranks
                bar.show_alternative(shown[place], can_choose=self._can_choose and not shown[place].chosen)
                bar.mark(shown[place] is current)
        text = self.field.text()
        self.nothing.setVisible(not shown)
        self.nothing.setText(
            self.tr("No token contains “{0}”.").format(text) if text else self.tr("Not scored: the model has not read it yet.")
        )
        self.field.setVisible(self._can_choose)
        self.write.setVisible(self._can_choose and bool(text))
        short = text if len(text) <= _SHORT else text[: _SHORT - 1] + "…"
        self.write.setText(
            (self.tr("Write “{0}” and go on") if self._can_continue else self.tr("Write “{0}” here")).format(short)
        )
        can_branch = self._can_choose and current is not None and not current.chosen
        lacking, tip = self._transcript.lacking, self.tr("Branch to the marked token (Return, or its number)")
        allow(self.branch, can_branch, lacking("branch"), tip)
        self.preview.setVisible(self._can_continue)
        self.preview.setEnabled(can_branch)
        allow(self.ban, current is not None, lacking("ban"), self.tr("Ban the marked token in this session"))
        for part in (*self.ways.values(), self._ways_label):
            part.setVisible(self._can_continue)

    # ---- its place ------------------------------------------------------------------------------------------------

    def _place(self) -> None:
        """Places the card beside the token, if possible not over the line under its turn, with as many rows as fit."""
        spot, parent = self._spot, self.parentWidget()
        if spot is None or self.isHidden() or parent is None:
            return
        pane = self._transcript.tokens
        token, line = pane.token_box(spot.node_id, spot.index), pane.line_box(spot.node_id)
        viewport = pane.viewport()
        if token is None or line is None or not viewport.rect().intersects(token):
            if not self.field.text():  # scrolling must not close the card over a typed text
                self.close_again()
            return
        corner = viewport.mapTo(parent, QPoint(0, 0))
        token, line = token.translated(corner), line.translated(corner)
        within = parent.rect().adjusted(_EDGE_PX, _EDGE_PX, -_EDGE_PX, -_EDGE_PX)
        width = min(panel_width(WIDTH), within.width())
        self._show_head(True)
        self._fill()
        full = self._sheet_height(width)
        top, room = best_place(full, token, line, within)
        if room < full:
            spare = -(-(full - room) // max(self.rows[0].height(), 1))
            self._fill(max(min(len(self._listed), len(self.rows)) - spare, LEAST_ROWS))
        height = self._sheet_height(width)
        if height > room:  # with one row
            self._show_head(False)
            height = self._sheet_height(width)
            if height > room:  # it must cover the line
                top, _ = best_place(height, token, token, within)
        if top is None:  # above the token
            top = token.top() - _GAP_PX - height
        top = max(min(top, within.bottom() - height), within.top())
        left = max(min(token.left() - 14, within.right() - width), within.left())
        sheet = QRect(left, top, width, height)
        self.setGeometry(sheet.adjusted(-SHADOW_PX, -SHADOW_PX, SHADOW_PX, SHADOW_PX))

    def _show_head(self, show: bool) -> None:  # a state, not an option
        self.before.setVisible(show)
        self.choice.setVisible(show)
        self._head.invalidate()  # Qt invalidates only the outermost layout

    def _sheet_height(self, width: int) -> int:
        layout = self.layout()
        assert layout is not None
        layout.invalidate()
        wanted = width + 2 * SHADOW_PX
        height = layout.totalHeightForWidth(wanted) if layout.hasHeightForWidth() else layout.totalSizeHint().height()
        return height - 2 * SHADOW_PX

    def sheet(self) -> QRect:
        """The card without its shadow, in its parent's pixels."""
        return self.geometry().adjusted(SHADOW_PX, SHADOW_PX, -SHADOW_PX, -SHADOW_PX)

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)

    # ---- requests -------------------------------------------------------------------------------------------------

    def _choose(self, alternative: Alternative | None) -> None:
        spot = self._spot
        if spot is not None and alternative is not None and not alternative.chosen and self._can_choose:
            self._store_typed("")
            self.close_again()
            self.alternative_chosen.emit(spot.node_id, spot.index, alternative.token_id)

    def _write(self) -> None:
        spot, words = self._spot, self.typed
        if spot is not None and words and self._can_choose:
            self._store_typed("")
            self.close_again()
            self.text_written.emit(spot.node_id, spot.index, words)

    @property
    def typed(self) -> str:
        """The typed text as it would be written: with a leading space if the replaced token begins with one."""
        text = self.field.text()
        spaced = self._spot is not None and self._spot.record.token_bytes.startswith(b" ")
        return f" {text}" if text and spaced and not text[0].isspace() else text

    def remember(self, unwritten: Iterable[tuple[int, int, str]]) -> None:
        """Takes the texts of another window's `unwritten`."""
        for node_id, index, text in unwritten:
            self._unwritten.setdefault((node_id, index), text)  # a text typed here is newer

    def unwritten(self) -> tuple[tuple[int, int, str], ...]:
        """Texts that were typed at tokens and not written: node id, index, text; the latest last."""
        return tuple((*place, text) for place, text in self._unwritten.items())[-MOST_KEPT:]

    def type_again(self, node_id: int, index: int, text: str) -> None:
        """Restores a text that could not be written; opens the card if its place is pinned."""
        self._unwritten[node_id, index] = text
        if self._spot is not None and (self._spot.node_id, self._spot.index) == (node_id, index):
            self.open()

    def _store_typed(self, text: str) -> None:
        """Stores the typed text beyond the life of the card; "": forgets it, as it was used."""
        if self._spot is not None:
            place = self._spot.node_id, self._spot.index
            self._unwritten.pop(place, None)
            if text:
                self._unwritten[place] = text

    def _restore_typed(self) -> None:
        spot = self._spot
        self.field.setText("" if spot is None else self._unwritten.get((spot.node_id, spot.index), ""))
        self._search()

    def _set_writes(self, writes: bool) -> None:  # a state, not an option
        """Sets whether a digit or a space may be the first typed character."""
        self._writes = writes
        self.field.setPlaceholderText(
            self.tr("type words, digits or spaces…") if writes else self.tr("type to write here, or to find a token…")
        )

    def _show_typed(self) -> None:
        """Shows the typed text in the transcript, in grey."""
        spot, tokens = self._spot, self._transcript.tokens
        if spot is not None and self.typed and self._can_choose:
            tokens.set_ghost(typed_ghost(spot.node_id, spot.index, self.typed))
            self.text_typed.emit(self.typed)
        elif tokens.ghost is not None and tokens.ghost.token_id == TYPED:
            tokens.set_ghost(None)

    def _preview(self, token_id: int) -> None:
        if self._spot is not None and self._can_continue:
            self.preview_wanted.emit(self._spot.node_id, self._spot.index, token_id)

    def _preview_current(self) -> None:
        if self._current is not None and not self._current.chosen:
            self._preview(self._current.token_id)

    def _continue(self, count: int) -> None:
        if self._spot is not None:
            self.close_again()
            self.columns_wanted.emit(self._spot.node_id, self._spot.index, count, False)

    def _ban(self) -> None:
        if self._current is not None:
            self.ban_wanted.emit(self._current.token_id)

    def _move(self, by: int) -> None:
        self._at = min(max(self._at + by, 0), max(len(self._listed) - 1, 0))
        self._fill(sum(not bar.isHidden() for bar in self.rows) or None)
        if self._current is not None:
            self.field.setAccessibleDescription(words.token(self._current.data))

    # ---- keys and mouse -------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if not self._take_key(event, writes=False):
            super().keyPressEvent(event)

    def _take_key(self, event: QKeyEvent, *, writes: bool) -> bool:
        """Carries out a key of the card; False: the field takes it, as letters, and digits if `writes` or after a letter."""
        key, empty = event.key(), not self.field.text()
        enter = key in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self._write()
            return True
        if event.modifiers() & ~(Qt.KeyboardModifier.KeypadModifier | Qt.KeyboardModifier.ShiftModifier):
            return False
        if key in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            self._move(-1 if key == Qt.Key.Key_Up else 1)
        elif enter:
            self._choose(self._current) if self._current is not None else self._write()
        elif key == Qt.Key.Key_F2:
            self.field.setFocus(Qt.FocusReason.TabFocusReason)
            self._set_writes(True)
        elif empty and not writes and Qt.Key.Key_1 <= key <= Qt.Key.Key_9:
            place = key - Qt.Key.Key_1
            self._choose(self._listed[place] if place < len(self._listed) else None)
        elif empty and not writes and key == Qt.Key.Key_Space:
            self._preview_current()
        elif empty and key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._transcript.tokens.step(-1 if key == Qt.Key.Key_Left else 1)
            self._place()
        else:
            return False
        return True

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            return self._take_key(event, writes=self._writes)
        tabbed = isinstance(event, QFocusEvent) and event.gotFocus() and event.reason() in _BY_TAB
        if watched is self.field and (tabbed or event.type() is QEvent.Type.MouseButtonPress):
            self._set_writes(True)
        if event.type() is QEvent.Type.MouseButtonPress and isinstance(event, QMouseEvent) and isinstance(watched, QWidget):
            if watched.window() is self.window() and not self._holds(watched, event):
                self.close_again()
        elif watched is self.parentWidget() and event.type() is QEvent.Type.Resize:
            self._place()
        return False

    def _holds(self, watched: QWidget, event: QMouseEvent) -> bool:
        """Whether a press is on the card, not on its shadow."""
        own = watched is self or self.isAncestorOf(watched)
        at = self.mapFromGlobal(event.globalPosition().toPoint())
        return own and self.sheet().translated(-self.pos()).contains(at)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._transcript.hover_shown = False
        self._transcript.tokens.show_caret(self._can_choose)
        QApplication.instance().installEventFilter(self)  # type: ignore[union-attr]  # there is one, widgets exist

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._transcript.hover_shown = True
        self._transcript.tokens.show_caret(False)
        self.field.clear()  # also clears the typed text in the transcript
        QApplication.instance().removeEventFilter(self)  # type: ignore[union-attr]  # there is one, widgets exist

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette = current_theme().palette
        sheet = QRectF(self.rect()).adjusted(SHADOW_PX, SHADOW_PX, -SHADOW_PX, -SHADOW_PX)
        painter = QPainter(self)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint_shadow(painter, sheet, _RADIUS, dark=palette.dark)
        painter.setPen(QPen(QColor(palette.hairline), 1))
        painter.setBrush(QColor(palette.card))
        painter.drawRoundedRect(sheet, _RADIUS, _RADIUS)
        painter.end()


def best_place(height: int, token: QRect, line: QRect, within: QRect) -> tuple[int | None, int]:
    """The place of a card that covers neither its token nor the line under the turn.

    Args:
        height: Wanted height of the card, pixels.
        token: Rectangle of the token.
        line: Rectangle of the line with the turn's actions.
        within: The card stays inside this rectangle.

    Returns:
        The card's top (None: above the token), and the available height.
    """
    between, under, top = token.bottom() + _GAP_PX, line.bottom() + _GAP_PX, within.top()
    places = (
        (between, min(line.top(), within.bottom()) - between),
        (under, within.bottom() - under),
        (None, token.top() - _GAP_PX - top),
    )
    fits = next((place for place in places if place[1] >= height), None)
    return fits or max(places, key=lambda place: place[1])
