"""The full-window tree: what it is of and what can be done above, a search, the rows below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.port import RowText, TreeRow
from ui.theme.fonts import interface_font
from ui.transcript.measure import Measure
from ui.tree.rows import Key
from ui.tree.view import TreeView
from ui.widgets.controls import button, row
from ui.widgets.labels import ElidedLabel, Hairline, Label, plain_tooltip
from ui.window.bars import FindBar

WIDE, NARROW = 52, 12  # margins at the sides
ROOM = 760  # pixels of width below which they are narrow


class TreePanel(QWidget):
    """Stands in the place of the conversation and the inspector."""

    closed = Signal()  # by its button
    search_wanted = Signal(str)  # other words; "": none

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("column")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(self.tr("Tree"))
        self.view = TreeView()
        self.finder = FindBar()
        self._found: list[Key] = []  # in reading order
        self._place: int | None = None  # of the one that is shown, among those in sight
        self.title = Label(self.tr("Tree"), "accent", interface_font(13, QFont.Weight.DemiBold))
        self.facts = ElidedLabel("", "soft", interface_font(12.5))
        self.back = button(self.tr("Back to the text"), "plain")
        self.back.setToolTip(plain_tooltip(self.tr("Close the tree (Esc)")))
        self.back.clicked.connect(self.closed)
        self.view.typed.connect(self._begin_search)
        self.finder.wanted.connect(self._look)
        self.finder.step_wanted.connect(self.step)
        self.finder.closed.connect(self.view.setFocus)
        self.finder.field.installEventFilter(self)
        self._lay_out()
        self.hide()

    # ---- rows -------------------------------------------------------------------------------------------------------

    def show_rows(self, rows: Sequence[TreeRow], texts: Mapping[Key, RowText], *, afresh: bool) -> None:
        """Shows the tree; `afresh` from the path that is shown on, else the keyboard stays on its row."""
        row = None if afresh else self.view.row
        top = self.view.verticalScrollBar().value()
        self.view.rows.take(rows, texts, afresh=afresh)
        self.view.stand_at(None if row is None else row.key)
        if row is not None:
            self.view.verticalScrollBar().setValue(top)
        elif afresh:
            self.view.scrollTo(self.view.currentIndex(), self.view.ScrollHint.PositionAtCenter)
        self._tell()
        if self.finder.field.text() and not self.finder.isHidden():
            self.search_wanted.emit(self.finder.field.text())

    def show_texts(self, texts: Mapping[Key, RowText]) -> None:
        self.view.rows.take_texts(texts)

    def colour_by(self, measure: Measure) -> None:
        """The number that colours show; layers are of single turns, and not shown here."""
        self.view.rows.colour_by(Measure.SURPRISAL if measure is Measure.LAYER else measure)

    def set_pruned_visible(self, visible: bool) -> None:  # a state, not an option
        row = self.view.row
        self.view.rows.set_pruned_visible(visible)
        self.view.stand_at(None if row is None else row.key)
        self._tell()

    # ---- search -----------------------------------------------------------------------------------------------------

    def show_found(self, keys: Sequence[Key]) -> None:
        """Rows that contain what was looked for: from the one that has the keyboard on, the first is shown."""
        rows, row = self.view.rows, self.view.row
        self._found = [key for key in keys if rows.under_base(key)]
        order = {each.key: place for place, each in enumerate(rows.all)}
        here = order.get(row.key, 0) if row is not None else 0
        self._place = next((place for place, key in enumerate(self._found) if order[key] >= here), 0 if self._found else None)
        self._show_place()

    def step(self, by: int) -> None:
        """To the next (+1) or the previous (-1) row that was found, round and round."""
        if self._found:
            self._place = ((-1 if self._place is None and by > 0 else self._place or 0) + by) % len(self._found)
            self._show_place()

    def end_search(self) -> None:
        """Nothing is looked for any more."""
        self.finder.dismiss()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress and watched is self.finder.field:
            by = {Qt.Key.Key_Down: +1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()))
            if by is not None:
                self.step(by)
                return True
        return super().eventFilter(watched, event)

    def _begin_search(self, letters: str) -> None:
        self.finder.field.setText(letters)
        self.finder.show()
        self.finder.field.setFocus()
        self.finder.field.setCursorPosition(len(letters))

    def _look(self, words: str) -> None:
        self.view.rows.mark(words)
        if words.strip():
            self.search_wanted.emit(words)
        else:
            self._found, self._place = [], None
            self.finder.show_place(None, 0)

    def _show_place(self) -> None:
        if self._place is not None:
            key = self._found[self._place]
            self.view.rows.reveal(key)
            self.view.stand_at(key)
        self.finder.show_place(self._place, len(self._found))

    # ---- how it looks -----------------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        side = WIDE if self.width() >= ROOM else NARROW
        self._column.setContentsMargins(side, 16, side, 12)

    def _tell(self) -> None:
        rows = self.view.rows.all
        ends = {each.head: each for each in rows}.values()  # the last row of each branch
        branches = sum(not each.ways and not each.pruned for each in ends)
        turns = sum(not each.start and not each.pruned for each in rows)
        words = self.tr("1 branch") if branches == 1 else self.tr("{0:,} branches").format(branches)
        pruned = sum(not each.ways and each.pruned for each in ends)
        parts = [words, self.tr("{0:,} turns").format(turns)]
        parts += [self.tr("{0:,} pruned").format(pruned)] if pruned else []
        self.facts.setText(", ".join(parts))

    def _lay_out(self) -> None:
        self._head = row(self.title, self.facts, spacing=14)
        self._head.setStretch(1, 1)
        self._head.addWidget(self.back)
        self._column = QVBoxLayout(self)
        self._column.setSpacing(8)
        self._column.addLayout(self._head)
        self._column.addWidget(Hairline())
        self._column.addWidget(self.finder)
        self._column.addWidget(self.view, 1)
