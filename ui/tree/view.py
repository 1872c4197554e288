"""The list of the full-window tree, and its keys."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QModelIndex, QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QListView, QMenu

from ui.port import TreeRow
from ui.sidebar.session_list import set_up_rows
from ui.theme.scheme import current_theme
from ui.tree.painting import RowDelegate
from ui.tree.rows import Key, TreeRows


class TreeView(QListView):
    """An outline as a list with levels: the arrows open and fold, letters search."""

    opened = Signal(object)  # TreeRow whose branch is to be shown in the conversation
    typed = Signal(str)  # the first letters of a search
    hoist_wanted = Signal(object)  # TreeRow: show only it and its continuations; None: everything
    bookmark_wanted = Signal(object)  # TreeRow whose bookmark is set or removed
    jump_wanted = Signal(int)  # to the next (+1) or the previous (-1) bookmark
    list_wanted = Signal()  # the list of bookmarks
    mark_wanted = Signal(object)  # TreeRow to compare
    prune_wanted = Signal(object)  # first TreeRow of a branch, to be pruned or restored
    rename_wanted = Signal(object)  # first TreeRow of a branch

    def __init__(self) -> None:
        super().__init__()
        self.rows = TreeRows(self)
        self.painter_of_rows = RowDelegate(self.rows, self)
        self.setModel(self.rows)
        self.setItemDelegate(self.painter_of_rows)
        set_up_rows(self)
        self.setMouseTracking(True)
        self.setAccessibleName(self.tr("Tree of the session"))
        self.doubleClicked.connect(self._open)
        current_theme().scaled.connect(self.doItemsLayout)
        current_theme().changed.connect(self._repaint)
        self.rows.looks_changed.connect(self._repaint)

    @property
    def row(self) -> TreeRow | None:
        return self.rows.row_at(self.currentIndex())

    def focus_row(self, key: Key | None) -> None:
        """Focuses a row, or the row that it is folded into, and scrolls to it; None: the end of the shown path."""
        row = self.rows.of_key(key)
        index = QModelIndex() if row is None else self.rows.index_of(row.key)
        while row is not None and not index.isValid() and row.parent >= 0:
            row = self.rows.all[row.parent]
            index = self.rows.index_of(row.key)
        if not index.isValid():
            index = self.rows.index_of_current()
        self.setCurrentIndex(index)
        self.scrollTo(index)

    def change(self, row: TreeRow, *, is_open: bool) -> None:
        """Opens or folds a row, and focuses it."""
        self.rows.set_open(row, is_open)
        self.focus_row(row.key)

    def sizeHint(self) -> QSize:
        return QSize(0, 0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row, key = self.row, Qt.Key(event.key())
        plain = not event.modifiers() & ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier)
        if row is not None and plain and key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._step(row, inward=key is Qt.Key.Key_Right)
        elif row is not None and plain and key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.opened.emit(row)
        elif row is not None and self._acts(row, event):
            pass
        elif plain and event.text().strip() and event.text().isprintable():
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        """Scrolls to the focused row once the view has its size."""
        super().showEvent(event)
        if self.row is None:
            self.focus_row(None)
        self.scrollTo(self.currentIndex(), self.ScrollHint.PositionAtCenter)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Keeps the focused row visible."""
        super().resizeEvent(event)
        if self.row is not None:
            self.scrollTo(self.currentIndex())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        index = self.indexAt(event.position().toPoint())
        row = self.rows.row_at(index)
        if row is not None and event.button() is Qt.MouseButton.LeftButton and self.rows.is_parent(row):
            place = self.painter_of_rows.fold_place(row, self.visualRect(index))
            if place.contains(event.position().toPoint()):
                self.change(row, is_open=not self.rows.is_open(row))
                return
        super().mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        by_mouse = event.reason() is event.Reason.Mouse
        index = self.indexAt(event.pos()) if by_mouse else self.currentIndex()
        row = self.rows.row_at(index)
        if row is None:
            return
        self.setCurrentIndex(index)
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.fill_menu(menu, row)
        menu.popup(self.viewport().mapToGlobal(event.pos() if by_mouse else self.visualRect(index).center()))

    def fill_menu(self, menu: QMenu, row: TreeRow) -> None:
        menu.addAction(self.tr("Show"), lambda: self.opened.emit(row))
        if self.rows.is_parent(row):
            is_open = self.rows.is_open(row)
            menu.addAction(self.tr("Fold") if is_open else self.tr("Unfold"), lambda: self.change(row, is_open=not is_open))
        menu.addAction(self.tr("Show Only What Follows"), lambda: self.hoist_wanted.emit(row))
        if self.rows.base is not None:
            menu.addAction(self.tr("Show the Whole Tree"), lambda: self.hoist_wanted.emit(None))
        menu.addSeparator()
        words = self.tr("Remove Bookmark") if row.bookmarked else self.tr("Bookmark")
        menu.addAction(words, lambda: self.bookmark_wanted.emit(row))
        is_marked = row.key in self.painter_of_rows.marks
        words = self.tr("Do Not Compare") if is_marked else self.tr("Mark for Comparing")
        menu.addAction(words, lambda: self.mark_wanted.emit(row))
        menu.addAction(self.tr("Rename Branch…"), lambda: self.rename_wanted.emit(self.rows.head(row)))
        words = self.tr("Restore Branch") if row.pruned else self.tr("Prune Branch")
        menu.addAction(words, lambda: self.prune_wanted.emit(self.rows.head(row)))

    def _acts(self, row: TreeRow, event: QKeyEvent) -> bool:
        """Carries out the command of a key for a row; returns whether it has one."""
        key, modifiers = Qt.Key(event.key()), event.modifiers() & ~Qt.KeyboardModifier.KeypadModifier
        control, shift, alt = (getattr(Qt.KeyboardModifier, f"{name}Modifier") for name in ("Control", "Shift", "Alt"))
        none = Qt.KeyboardModifier.NoModifier
        acts: dict[tuple[Qt.Key, Qt.KeyboardModifier], Callable[[], None]] = {
            (Qt.Key.Key_Right, alt): lambda: self.hoist_wanted.emit(row),
            (Qt.Key.Key_Left, alt): lambda: self.hoist_wanted.emit(None),
            (Qt.Key.Key_B, control): lambda: self.bookmark_wanted.emit(row),
            (Qt.Key.Key_B, control | shift): self.list_wanted.emit,
            (Qt.Key.Key_Down, control): lambda: self.jump_wanted.emit(+1),
            (Qt.Key.Key_Up, control): lambda: self.jump_wanted.emit(-1),
            (Qt.Key.Key_Space, none): lambda: self.mark_wanted.emit(row),
            (Qt.Key.Key_Delete, none): lambda: self.prune_wanted.emit(self.rows.head(row)),
            (Qt.Key.Key_Backspace, none): lambda: self.prune_wanted.emit(self.rows.head(row)),
            (Qt.Key.Key_F2, none): lambda: self.rename_wanted.emit(self.rows.head(row)),
        }
        act = acts.get((key, modifiers))
        if act is not None:
            act()
        return act is not None

    def _step(self, row: TreeRow, *, inward: bool) -> None:
        """Inward: opens a row, or goes to its first child. Outward: folds it, or goes to its parent."""
        is_parent, is_open = self.rows.is_parent(row), self.rows.is_open(row)
        if inward and is_parent and is_open:
            below = self.rows.row_at(self.rows.index(self.currentIndex().row() + 1))
            if below is not None and self.rows.all[below.parent] is row:
                self.focus_row(below.key)
        elif inward != is_open and is_parent:
            self.change(row, is_open=inward)
        elif not inward and row.parent >= 0 and row.key != self.rows.base:
            self.focus_row(self.rows.all[row.parent].key)

    def _repaint(self, _palette: object = None) -> None:  # a bound method is disconnected with the widget
        self.viewport().update()

    def _open(self, index: QModelIndex) -> None:
        row = self.rows.row_at(index)
        if row is not None:
            self.opened.emit(row)
