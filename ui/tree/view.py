"""The list of the full-window tree, and its keys."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, QSize, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QKeyEvent, QMouseEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QFrame, QListView, QMenu, QWidget

from ui.port import TreeRow
from ui.theme.scheme import current_theme
from ui.tree.painting import RowDelegate
from ui.tree.rows import Key, TreeRows


class TreeView(QListView):
    """An outline as a list with levels: the arrows open and fold, letters search."""

    opened = Signal(object)  # TreeRow: its branch is wanted in the conversation
    typed = Signal(str)  # letters to look for

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows = TreeRows(self)
        self.painter_of_rows = RowDelegate(self.rows, self)
        self.setModel(self.rows)
        self.setItemDelegate(self.painter_of_rows)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setUniformItemSizes(True)  # or thousands of rows are measured one by one
        self.setMouseTracking(True)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setAccessibleName(self.tr("Tree of the session"))
        self.doubleClicked.connect(self._open)
        current_theme().scaled.connect(self.doItemsLayout)
        current_theme().changed.connect(self._repaint)

    @property
    def row(self) -> TreeRow | None:
        """The one that has the keyboard."""
        return self.rows.row_at(self.currentIndex())

    def stand_at(self, key: Key | None) -> None:
        """Puts the keyboard onto a row, or what it is folded into, and brings it into sight; None: on the path shown."""
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
        """Opens or folds a row; the keyboard stays on it."""
        self.rows.set_open(row, is_open)
        self.stand_at(row.key)

    def sizeHint(self) -> QSize:
        return QSize(0, 0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row, key = self.row, Qt.Key(event.key())
        plain = not event.modifiers() & ~(Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.KeypadModifier)
        if row is not None and plain and key in (Qt.Key.Key_Left, Qt.Key.Key_Right):
            self._step(row, inward=key is Qt.Key.Key_Right)
        elif row is not None and plain and key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.opened.emit(row)
        elif plain and event.text().strip() and event.text().isprintable():
            self.typed.emit(event.text())
        else:
            super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """The row that has the keyboard stays in sight."""
        super().resizeEvent(event)
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
        index = self.indexAt(event.pos()) if event.reason() is event.Reason.Mouse else self.currentIndex()
        row = self.rows.row_at(index)
        if row is None:
            return
        self.setCurrentIndex(index)
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.fill_menu(menu, row)
        menu.popup(event.globalPos())

    def fill_menu(self, menu: QMenu, row: TreeRow) -> None:
        """What can be done with a row."""
        menu.addAction(self.tr("Show"), lambda: self.opened.emit(row))
        if self.rows.is_parent(row):
            is_open = self.rows.is_open(row)
            menu.addAction(self.tr("Fold") if is_open else self.tr("Unfold"), lambda: self.change(row, is_open=not is_open))

    def _step(self, row: TreeRow, *, inward: bool) -> None:
        """Opens a row, or goes to the first one under it; folds it, or goes to the one that it stands under."""
        is_parent, is_open = self.rows.is_parent(row), self.rows.is_open(row)
        if inward and is_parent and is_open:
            below = self.rows.row_at(self.rows.index(self.currentIndex().row() + 1))
            if below is not None and self.rows.all[below.parent] is row:
                self.stand_at(below.key)
        elif inward != is_open and is_parent:
            self.change(row, is_open=inward)
        elif not inward and row.parent >= 0 and row.key != self.rows.base:
            self.stand_at(self.rows.all[row.parent].key)

    def _repaint(self, _palette: object) -> None:  # a bound method is disconnected with the widget
        self.viewport().update()

    def _open(self, index: QModelIndex) -> None:
        row = self.rows.row_at(index)
        if row is not None:
            self.opened.emit(row)
