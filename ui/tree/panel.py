"""The full-window tree: facts and actions at the top, a search, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QFont, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QMenu, QPushButton, QWidget

from ui.comparison.model_facts import LEFT, RIGHT
from ui.port import RowText, TreeRow
from ui.theme.fonts import interface_font
from ui.transcript.measure import Measure
from ui.tree.rows import Key
from ui.tree.view import TreeView
from ui.widgets.controls import button, column_in, row
from ui.widgets.labels import ElidedLabel, Hairline, Label, native, plain_tooltip
from ui.window.bars import FindBar

WIDE, NARROW = 52, 12  # margins at the sides
MOST_LISTED = 60  # characters of an entry in the list of bookmarks
ROOM = 760  # panels of less width, pixels, have narrow margins


class TreePanel(QWidget):
    """Replaces the conversation and the inspector."""

    search_wanted = Signal(str)  # the words to find; "": none
    compare_wanted = Signal(int, int)  # node ids of two branches
    refused = Signal(str)  # why an action is impossible, and what to do instead

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("column")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(self.tr("Tree"))
        self.view = TreeView()
        self.finder = FindBar()
        self._found: list[Key] = []  # in reading order
        self._place: int | None = None  # of the shown match in `_found`
        self.title = Label(self.tr("Tree"), "accent", interface_font(13, QFont.Weight.DemiBold))
        self.facts = ElidedLabel("", "soft", interface_font(12.5))
        self.bookmarks = button("", "plain")
        self.bookmarks.setToolTip(plain_tooltip(self.tr("List of the bookmarks ({0})").format(native("Ctrl+Shift+B"))))
        self.bookmarks.clicked.connect(self.list_bookmarks)
        self.compare_button = self._act(
            self.tr("Compare two"),
            self.tr("Space marks a row; two marked rows are compared ({0})").format(native("Ctrl+D")),
            self.compare,
        )
        self.hoist_button = self._act(
            self.tr("Hoist"),
            self.tr("Show only what follows this row ({0}; back with {1})").format(native("Alt+Right"), native("Alt+Left")),
            lambda: self.hoist(self.view.row),
        )
        self.bookmark_button = self._act(
            self.tr("Bookmark"),
            self.tr("Bookmark this row, or remove its bookmark ({0})").format(native("Ctrl+B")),
            self._bookmark,
        )
        self.prune_button = self._act(
            self.tr("Prune"), self.tr("Hide this branch, or show it again ({0})").format(native("Del")), self.prune
        )
        self.whole = button(self.tr("‹ Whole tree"), "link")
        self.whole.setToolTip(plain_tooltip(self.tr("Back to the whole tree ({0})").format(native("Alt+Left"))))
        self.whole.clicked.connect(lambda: self.hoist(None))
        self.hoisted = ElidedLabel("", "soft", interface_font(12.5))
        self.back = button(self.tr("Back to the text"), "plain")
        self.back.setToolTip(plain_tooltip(self.tr("Close the tree ({0})").format(native("Esc"))))
        self.view.typed.connect(self._begin_search)
        self.finder.wanted.connect(self._look)
        self.finder.step_wanted.connect(self.step)
        self.finder.closed.connect(self.view.setFocus)
        self.finder.field.installEventFilter(self)
        self.view.hoist_wanted.connect(self.hoist)
        self.view.mark_wanted.connect(self.mark)
        self.view.jump_wanted.connect(self.jump)
        self.view.list_wanted.connect(self.list_bookmarks)
        self._lay_out()
        self._show_base()
        self.hide()

    # ---- rows -------------------------------------------------------------------------------------------------------

    def show_rows(self, rows: Sequence[TreeRow], texts: Mapping[Key, RowText], *, afresh: bool) -> None:
        """Shows the tree; `afresh`: focused on the shown path, else the focus stays on its row."""
        row, before = None if afresh else self.view.row, self.view.rows.all
        top = self.view.verticalScrollBar().value()
        self.view.rows.take(rows, texts, afresh=afresh)
        marks = {} if afresh else self.view.painter_of_rows.marks
        known = {key: sign for key, sign in marks.items() if self.view.rows.of_key(key) is not None}
        self.view.painter_of_rows.marks = known
        self._show_base()
        if row is not None:
            self._refocus(row, before)
            self.view.verticalScrollBar().setValue(top)
        self._show_facts()
        if self.finder.field.text() and not self.finder.isHidden():
            self.search_wanted.emit(self.finder.field.text())

    def colour_by(self, measure: Measure) -> None:
        """Sets the number that colours show; layers, known for single turns only, are not shown here."""
        self.view.rows.colour_by(Measure.SURPRISAL if measure is Measure.LAYER else measure)

    def set_pruned_visible(self, visible: bool) -> None:  # a state, not an option
        row = self.view.row
        self.view.rows.set_pruned_visible(visible)
        if row is not None:
            self._refocus(row, self.view.rows.all)
        self._show_base()
        self._show_facts()

    def _refocus(self, row: TreeRow, before: Sequence[TreeRow]) -> None:
        """Focuses a row again; if it is hidden now, the nearest visible one after or before it in the order `before`."""
        place = next(place for place, each in enumerate(before) if each is row)
        near = (each.key for each in (*before[place:], *reversed(before[:place])))
        self.view.focus_row(next((key for key in near if self.view.rows.index_of(key).isValid()), None))

    # ---- actions ----------------------------------------------------------------------------------------------------

    def hoist(self, row: TreeRow | None) -> None:
        """Shows only a row, which is focused, and its continuations; None: everything, with the focus on its row."""
        here = row or self.view.row
        self.view.rows.hoist(None if row is None else row.key)
        self.view.focus_row(None if here is None else here.key)
        self._show_base()
        if not self.finder.isHidden():
            self._look(self.finder.field.text())

    def mark(self, row: TreeRow) -> None:
        """Marks a row for comparison, the first as A and the second as B; a marked row is unmarked."""
        marks = self.view.painter_of_rows.marks
        if row.key in marks:
            del marks[row.key]
        else:
            free = [sign for sign in (LEFT, RIGHT) if sign not in marks.values()]
            if not free:  # a third row replaces the second
                marks.pop(next(key for key, sign in marks.items() if sign == RIGHT))
            marks[row.key] = (*free, RIGHT)[0]
        self.view.viewport().update()

    def compare(self) -> None:
        """Compares the two marked rows; or the marked and the focused row; or the focused row and the shown branch."""
        marks, rows, row = self.view.painter_of_rows.marks, self.view.rows, self.view.row
        wanted = [rows.of_key(key) for key in sorted(marks, key=lambda key: marks[key])]
        if len(wanted) < 2:
            wanted.append(row)
        if len(wanted) < 2:
            wanted.insert(0, next((each for each in rows.all if each.current), None))
        left, right = wanted
        if left is None or right is None or left is right or (left.on_path and right.on_path):
            self.refused.emit(self.tr("Both are on one branch: mark two rows of different branches with Space, then compare"))
        else:
            marks.clear()
            self.compare_wanted.emit(left.end, right.end)

    def prune(self) -> None:
        """Prunes or restores the branch of the focused row."""
        if self.view.row is not None:
            self.view.prune_wanted.emit(self.view.rows.head(self.view.row))

    def jump(self, by: int) -> None:
        """Goes to the next (+1) or the previous (-1) bookmark, cyclically."""
        rows, row = self.view.rows, self.view.row
        marked = [place for place, each in enumerate(rows.all) if each.bookmarked and rows.under_base(each.key)]
        if not marked or row is None:
            return
        here = next(place for place, each in enumerate(rows.all) if each is row)
        before, after = [place for place in marked if place < here], [place for place in marked if place > here]
        self._go_to(rows.all[(after or marked)[0] if by > 0 else (before or marked)[-1]])

    def list_bookmarks(self) -> None:
        """Opens a menu of all bookmarks; an entry goes to its row."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for each in self.view.rows.all:
            if each.bookmarked:
                words = self.view.rows.line(each)
                cut = words if len(words) <= MOST_LISTED else words[: MOST_LISTED - 1] + "…"
                menu.addAction(cut.replace("&", "&&"), partial(self._go_to, each))
        if menu.isEmpty():
            menu.addAction(self.tr("No bookmarks")).setEnabled(False)
        at = self.bookmarks if self.bookmarks.isVisible() else self.bookmark_button
        menu.popup(at.mapToGlobal(at.rect().bottomLeft()))

    def _go_to(self, row: TreeRow) -> None:
        if not self.view.rows.under_base(row.key):
            self.hoist(None)
        self.view.rows.reveal(row.key)
        self.view.focus_row(row.key)
        self.view.setFocus()

    def _bookmark(self) -> None:
        if self.view.row is not None:
            self.view.bookmark_wanted.emit(self.view.row)

    def _show_base(self) -> None:
        base = self.view.rows.of_key(self.view.rows.base)
        self.whole.setVisible(base is not None)
        self.hoisted.setVisible(base is not None)
        self.hoisted.setText("" if base is None else self.view.rows.line(base))

    def _act(self, text: str, hint: str, run: Callable[[], None]) -> QPushButton:
        made = button(text, "plain")
        made.setToolTip(plain_tooltip(hint))
        made.clicked.connect(run)
        return made

    # ---- search -----------------------------------------------------------------------------------------------------

    def show_found(self, keys: Sequence[Key]) -> None:
        """Takes the rows that contain the words; shows the first one at or after the focused row."""
        rows, row = self.view.rows, self.view.row
        self._found = [key for key in keys if rows.under_base(key)]
        order = {each.key: place for place, each in enumerate(rows.all)}
        here = order.get(row.key, 0) if row is not None else 0
        self._place = next((place for place, key in enumerate(self._found) if order[key] >= here), 0 if self._found else None)
        self._show_place()

    def step(self, by: int) -> None:
        """Goes to the next (+1) or the previous (-1) found row, cyclically."""
        if self._found:
            self._place = ((-1 if self._place is None and by > 0 else self._place or 0) + by) % len(self._found)
            self._show_place()

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
        self.search_wanted.emit(words)
        if not words.strip():
            self._found, self._place = [], None
            self.finder.show_place(None, 0)

    def _show_place(self) -> None:
        if self._place is not None:
            key = self._found[self._place]
            self.view.rows.reveal(key)
            self.view.focus_row(key)
        self.finder.show_place(self._place, len(self._found))

    # ---- how it looks -----------------------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        side = WIDE if self.width() >= ROOM else NARROW
        self._column.setContentsMargins(side, 16, side, 12)

    def _show_facts(self) -> None:
        rows = self.view.rows.all
        ends = {each.head: each for each in rows}.values()  # the last row of each branch
        branches = sum(not each.ways and not each.pruned for each in ends)
        turns = len([each for each in rows if not each.start and not each.pruned])
        words = self.tr("1 branch") if branches == 1 else self.tr("{0:,} branches").format(branches)
        pruned = sum(not each.ways and each.pruned for each in ends)
        parts = [words, self.tr("{0:,} turns").format(turns)]
        parts += [self.tr("{0:,} pruned").format(pruned)] if pruned else []
        self.facts.setText(", ".join(parts))
        marked = len([each for each in rows if each.bookmarked])
        self.bookmarks.setVisible(marked > 0)
        self.bookmarks.setText(self.tr("★ 1 bookmark") if marked == 1 else self.tr("★ {0:,} bookmarks").format(marked))

    def _lay_out(self) -> None:
        acts = self.bookmarks, self.compare_button, self.hoist_button, self.bookmark_button, self.prune_button, self.back
        self._head = row(self.title, (self.facts, 1), *acts, spacing=14)
        base = row(self.whole, (self.hoisted, 1), spacing=10)
        self._column = column_in(self, self._head, Hairline(), self.finder, base, (self.view, 1), spacing=8)
