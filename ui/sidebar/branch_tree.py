"""The outline of a session's branches: where each leaves, its words, its log-probability."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QContextMenuEvent, QFont, QFontMetrics, QKeyEvent, QPainter, QPen
from PySide6.QtWidgets import QDialog, QListView, QMenu, QStyledItemDelegate, QStyleOptionViewItem, QWidget

from ui.port import BranchRow, TreeRow
from ui.sidebar.session_list import paint_row_ground, set_up_rows
from ui.sidebar.session_rows import Index, replace_rows
from ui.theme.fonts import interface_font, scaled, text_scale
from ui.theme.scheme import current_theme
from ui.widgets.controls import button, column_in, row
from ui.widgets.fields import LineEdit
from ui.widgets.labels import Label, plain_tooltip
from ui.widgets.numbers import probability, signed
from ui.widgets.visible import one_line

ROW_HEIGHT = 25
INDENT = 14
DEEPEST_INDENT = 8  # deeper levels are drawn at this one, so that a row keeps room for its words
SHARED_SHARE = 0.35  # of a row's width: kept for the words that the branch shares with its siblings
LEAST_PX = 24  # with less room, no words are shown after a name
_DOT = 7
_MIDDLE = int(Qt.AlignmentFlag.AlignVCenter)
_ROW = int(Qt.ItemDataRole.UserRole)


class BranchRows(QAbstractListModel):
    """The model of the outline."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.rows: tuple[BranchRow, ...] = ()

    def take(self, rows: Sequence[BranchRow]) -> None:
        def replace() -> None:
            self.rows = tuple(rows)

        before, after = ([(row.node_id, row.start) for row in each] for each in (self.rows, rows))
        replace_rows(self, before, after, replace)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default, an immutable value
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        if not index.isValid():
            return None
        row = self.rows[index.row()]
        if role == _ROW:
            return row
        words = one_line(f"{row.given} {row.before} {row.name}")
        if role == Qt.ItemDataRole.DisplayRole:
            return words
        if role == Qt.ItemDataRole.ToolTipRole:
            return plain_tooltip(one_line(f"{row.before} {row.text or row.name}"))
        if role == Qt.ItemDataRole.AccessibleTextRole:
            shown = self.tr("shown") if row.current else ""
            likely = self.tr("{0} nats").format(signed(row.logprob, 1)) if row.logprob is not None else ""
            mean = self.tr("{0} a token").format(probability(row.likely)) if row.likely is not None else ""
            pruned = self.tr("pruned") if row.pruned else ""
            parts = (words, self.tr("level {0}").format(row.depth + 1), likely, mean, pruned, shown)
            return ", ".join(part for part in parts if part)
        return None


class BranchTree(QListView):
    """The outline as a list with indents: unlike a drawn graph, it stays readable with 300 branches."""

    selected = Signal(int)  # node id
    compare_wanted = Signal(int)  # node id of the branch to compare with the one that is shown
    renamed = Signal(int, int, str, str)  # node id, its token where the branch begins, old name, new name
    prune_wanted = Signal(int, int, bool)  # node id, its token where the branch begins, True: prune, False: restore

    def __init__(self) -> None:
        super().__init__()
        self._all: tuple[BranchRow, ...] = ()
        self._shows_pruned = False
        self.rows = BranchRows(self)
        self.setModel(self.rows)
        self.setItemDelegate(_BranchDelegate(self))
        set_up_rows(self)
        self.setAccessibleName(self.tr("Branches"))
        self.clicked.connect(self._choose)
        self.activated.connect(self._choose)
        current_theme().scaled.connect(self.doItemsLayout)

    def show_branches(self, rows: Sequence[BranchRow]) -> None:
        """Shows the outline and scrolls to the current branch."""
        place = self.currentIndex().row() if self.hasFocus() else -1
        self._all = tuple(rows)
        self.rows.take([row for row in self._all if self._shows_pruned or not row.pruned or row.on_path])
        if place >= 0 and not self.currentIndex().isValid():  # the focused row was removed
            self.setCurrentIndex(self.rows.index(min(place, self.rows.rowCount() - 1)))
        current = next((i for i, row in enumerate(self.rows.rows) if row.current), None)
        if current is not None:
            self.scrollTo(self.rows.index(current))

    def other(self) -> int | None:
        """The branch to compare with the shown one: the focused one, else the nearest; None: there is no other branch."""
        row = self.currentIndex().data(_ROW)
        if isinstance(row, BranchRow) and not row.on_path:
            return row.node_id
        places = [i for i, each in enumerate(self.rows.rows) if not each.on_path]
        shown = next((i for i, each in enumerate(self.rows.rows) if each.current), 0)
        return self.rows.rows[min(places, key=lambda i: abs(i - shown))].node_id if places else None

    def set_pruned_visible(self, visible: bool) -> None:  # a state, not an option
        """Shows or hides pruned branches, which are drawn faint."""
        self._shows_pruned = visible
        self.show_branches(self._all)

    def prune_current(self) -> None:
        """Prunes or restores the branch of the focused row, else the shown branch."""
        place = self.currentIndex().row() if self.hasFocus() else -1
        rows = self.rows.rows
        row = rows[place] if 0 <= place < len(rows) else next((row for row in rows if row.current), None)
        if row is not None:
            self.prune_wanted.emit(row.node_id, row.start, not row.pruned)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        by_mouse = event.reason() is event.Reason.Mouse
        index = self.indexAt(event.pos()) if by_mouse else self.currentIndex()
        row = index.data(_ROW)
        if not isinstance(row, BranchRow):
            return
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction(self.tr("Show"), lambda: self.selected.emit(row.node_id))
        compare = menu.addAction(self.tr("Compare with the Shown Branch"), lambda: self.compare_wanted.emit(row.node_id))
        compare.setEnabled(not row.current)
        menu.addAction(self.tr("Rename…"), lambda: self.ask_name(row))
        words = self.tr("Restore Branch") if row.pruned else self.tr("Prune Branch")
        menu.addAction(words, lambda: self.prune_wanted.emit(row.node_id, row.start, not row.pruned))
        menu.popup(self.viewport().mapToGlobal(event.pos() if by_mouse else self.visualRect(index).center()))

    def ask_name(self, row: BranchRow | TreeRow) -> None:
        """Asks for the name of a branch; returns before the dialog is closed."""
        box = NameBox(row.given, self)
        box.accepted.connect(lambda: self.renamed.emit(row.node_id, row.start, row.given, box.field.text().strip()))
        box.open()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        row = self.currentIndex().data(_ROW)
        if event.key() == Qt.Key.Key_F2 and isinstance(row, BranchRow):
            self.ask_name(row)
        else:
            super().keyPressEvent(event)

    def _choose(self, index: QModelIndex) -> None:
        row = index.data(_ROW)
        if isinstance(row, BranchRow):
            self.selected.emit(row.node_id)


class NameBox(QDialog):
    """Asks for the name of a branch. Open it with `open()`; it deletes itself."""

    def __init__(self, name: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("Rename Branch"))
        label = Label(self.tr("Name of the branch; empty: its own words"))
        self.field = LineEdit(name)
        self.field.setProperty("kind", "field")
        self.field.setAccessibleName(label.text())
        self.field.selectAll()
        cancel, rename = button(self.tr("Cancel")), button(self.tr("Rename"))
        cancel.clicked.connect(self.reject)
        rename.clicked.connect(self.accept)
        rename.setDefault(True)
        column_in(self, label, self.field, row(1, cancel, rename), spacing=10, margins=(20, 16, 20, 16))


class _BranchDelegate(QStyledItemDelegate):
    """Dot, shared words, differing words in medium weight, log-probability."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = current_theme()
        self._theme.scaled.connect(self.take_fonts)
        self.take_fonts()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:  # noqa: ARG002  # the signature is Qt's
        return QSize(0, scaled(ROW_HEIGHT))

    def take_fonts(self) -> None:
        self._plain, self._strong = interface_font(), interface_font(weight=QFont.Weight.Medium)
        self._small, self._named = interface_font(11), interface_font(weight=QFont.Weight.DemiBold)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: BranchRow = index.data(_ROW)
        palette, rect = self._theme.palette, QRect(option.rect)
        state = option.state
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        paint_row_ground(painter, rect, palette.selection if row.current else None, state, palette.accent)
        left = rect.left() + 10 + INDENT * min(row.depth, DEEPEST_INDENT)
        across, pen = scaled(_DOT), 1.5 * text_scale()
        dot = QRectF(left + pen / 2, rect.center().y() + 0.5 - (across - pen) / 2, across - pen, across - pen)
        painter.setPen(QPen(QColor(palette.accent), pen))
        painter.setBrush(QColor(palette.accent) if row.current else Qt.BrushStyle.NoBrush)
        painter.drawEllipse(dot)
        words = rect.adjusted(0, 0, -8, 0)
        words.setLeft(left + across + 7)
        if row.logprob is not None:
            score = signed(row.logprob, 1)
            painter.setFont(self._small)
            painter.setPen(QColor(palette.faint))
            painter.drawText(words, _MIDDLE | int(Qt.AlignmentFlag.AlignRight), score)
            words.setRight(words.right() - QFontMetrics(self._small).horizontalAdvance(score) - 8)
        if row.likely is not None:
            width = max(2.0, words.width() * row.likely)
            painter.fillRect(QRectF(words.left(), rect.bottom() - 3, width, 2), QColor(palette.bar_rest))
        painter.setPen(QColor(palette.faint if row.pruned else palette.text))
        self._paint_words(painter, words, row)
        painter.restore()

    def _paint_words(self, painter: QPainter, room: QRect, row: BranchRow) -> None:
        """Shortens the shared words first if not all words fit: a branch is recognised by where it differs."""
        given, before, name = (one_line(words) for words in (row.given, row.before, row.name))
        if given:
            metrics = QFontMetrics(self._named)
            shown = metrics.elidedText(given, Qt.TextElideMode.ElideRight, room.width())
            painter.setFont(self._named)
            painter.drawText(room, _MIDDLE, shown)
            room.setLeft(room.left() + metrics.horizontalAdvance(shown + "  "))
            painter.setPen(QColor(self._theme.palette.faint if row.pruned else self._theme.palette.soft))
            if room.width() < scaled(LEAST_PX):
                return
        shared_font = self._strong if row.current else self._plain
        name_font = self._strong if before or row.current else self._plain
        if before:
            needed = QFontMetrics(name_font).horizontalAdvance(name)
            shared = QFontMetrics(shared_font)
            most = max(room.width() - needed, round(room.width() * SHARED_SHARE))
            shown = last_words(before, shared, most)
            painter.setFont(shared_font)
            painter.drawText(room, _MIDDLE, shown)
            room.setLeft(room.left() + shared.horizontalAdvance(shown))
        painter.setFont(name_font)
        painter.drawText(room, _MIDDLE, QFontMetrics(name_font).elidedText(name, Qt.TextElideMode.ElideRight, room.width()))


def last_words(text: str, metrics: QFontMetrics, room: int) -> str:
    """As many whole words from the end of `text` as fit into `room` pixels, followed by a space."""
    if metrics.horizontalAdvance(text + " ") <= room:
        return text + " "
    words = text.removeprefix("…").split()
    for first in range(1, len(words)):
        shown = "… " + " ".join(words[first:]) + " "
        if metrics.horizontalAdvance(shown) <= room:
            return shown
    return "… "
