"""Rows of the session list: the model, and the delegate that paints them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QPersistentModelIndex, QRect, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QPainter, QPen
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QListView,
    QSizePolicy,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from ui.port import SessionSummary
from ui.theme.fonts import caption_font, interface_font
from ui.theme.scheme import current_theme
from ui.transcript.visible import one_line

ROW_HEIGHT = 29
HEAD_HEIGHT = 32
LEAST_HEIGHT = HEAD_HEIGHT + 4 * ROW_HEIGHT  # of a list that has more rows than there is room for
SUMMARY = int(Qt.ItemDataRole.UserRole)
IS_OPEN = SUMMARY + 1

Index = QModelIndex | QPersistentModelIndex


class SessionRows(QAbstractListModel):
    """Heads (plain strings) and sessions, in the order they are shown."""

    renamed = Signal(int, str)

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._rows: list[str | SessionSummary] = []
        self._open: int | None = None

    def take(self, sessions: Sequence[SessionSummary], now: datetime.datetime) -> None:
        """Shows these sessions, grouped by how long ago they changed."""
        self.beginResetModel()
        groups: dict[str, list[SessionSummary]] = {}
        for session in sessions:
            groups.setdefault(self._group(session, now), []).append(session)
        order = [self.tr("Pinned"), self.tr("Today"), self.tr("This week"), self.tr("Earlier")]
        self._rows = []
        for head in order:
            if head in groups:
                self._rows += [head, *groups[head]]
        self.endResetModel()

    def mark_open(self, session_id: int | None) -> None:
        """Which row is drawn as open."""
        self._open = session_id
        if self._rows:
            self.dataChanged.emit(self.index(0), self.index(len(self._rows) - 1))

    def index_of(self, session_id: int) -> QModelIndex:
        """Where a session stands; invalid if it is not listed."""
        for row, entry in enumerate(self._rows):
            if isinstance(entry, SessionSummary) and entry.session_id == session_id:
                return self.index(row)
        return QModelIndex()

    def height(self) -> int:
        """Pixels of all rows together."""
        return sum(HEAD_HEIGHT if isinstance(row, str) else ROW_HEIGHT for row in self._rows)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default, an immutable value
        return 0 if parent.isValid() else len(self._rows)

    def flags(self, index: Index) -> Qt.ItemFlag:
        row = self._rows[index.row()]
        if isinstance(row, str):
            return Qt.ItemFlag.NoItemFlags
        flags = Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable
        return flags if row.is_sample else flags | Qt.ItemFlag.ItemIsEditable

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        if not index.isValid():
            return None
        row = self._rows[index.row()]
        if role == SUMMARY:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return row if isinstance(row, str) else one_line(row.title)
        if role == Qt.ItemDataRole.EditRole:
            return row if isinstance(row, str) else " ".join(row.title.split())
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return row if isinstance(row, str) else self._spoken(row)
        if role == IS_OPEN:
            return isinstance(row, SessionSummary) and row.session_id == self._open
        return None

    def setData(self, index: Index, value: object, role: int = int(Qt.ItemDataRole.EditRole)) -> bool:
        row = self._rows[index.row()]
        title = str(value).strip()
        if role != Qt.ItemDataRole.EditRole or isinstance(row, str) or not title or title == row.title:
            return False
        self.renamed.emit(row.session_id, title)
        return True

    def _group(self, session: SessionSummary, now: datetime.datetime) -> str:
        if session.pinned:
            return self.tr("Pinned")
        days = (now.date() - datetime.datetime.fromtimestamp(session.updated, now.tzinfo).date()).days
        if days <= 0:
            return self.tr("Today")
        return self.tr("This week") if days < 7 else self.tr("Earlier")

    def _spoken(self, session: SessionSummary) -> str:
        return self.tr("{0}, {1} branches").format(session.title, session.branches) if session.branches > 1 else session.title


class SessionsView(QListView):
    """The list itself: one click opens, F2 renames, nothing deletes."""

    def __init__(self, rows: SessionRows, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setModel(rows)
        self.setItemDelegate(SessionDelegate(self))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setMouseTracking(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Maximum)
        self._rows = rows

    def sizeHint(self) -> QSize:
        """As tall as its rows, so that the branches follow at once; where that is too much it scrolls."""
        return QSize(0, self._rows.height())

    def minimumSizeHint(self) -> QSize:
        """A few rows stay in sight however many branches there are."""
        return QSize(0, min(self._rows.height(), LEAST_HEIGHT))


class SessionDelegate(QStyledItemDelegate):
    """Paints a head or a session: title at the left, branches at the right."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = current_theme()
        self._head, self._title, self._count = caption_font(), interface_font(), interface_font(11)

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:  # noqa: ARG002  # the signature is Qt's
        return QSize(0, HEAD_HEIGHT if isinstance(index.data(SUMMARY), str) else ROW_HEIGHT)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        entry, rect = index.data(SUMMARY), QRect(option.rect)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if isinstance(entry, SessionSummary):
            self._paint_session(painter, option, index)
        else:
            painter.setFont(self._head)
            painter.setPen(QColor(self._theme.palette.faint))
            painter.drawText(rect.adjusted(8, 7, -8, 0), int(Qt.AlignmentFlag.AlignVCenter), str(entry))
        painter.restore()

    def _paint_session(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        palette, rect = self._theme.palette, QRect(option.rect)
        state = option.state
        is_open = bool(index.data(IS_OPEN))
        paint_row_ground(painter, rect, palette.selection if is_open else None, state, palette.accent)
        inner = rect.adjusted(8, 0, -8, 0)
        session: SessionSummary = index.data(SUMMARY)
        count = self._note(session, is_open=is_open)
        painter.setFont(self._count)
        painter.setPen(QColor(palette.faint))
        painter.drawText(inner.adjusted(0, -2, 0, -2), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), count)
        room = inner.width() - (QFontMetrics(self._count).horizontalAdvance(count) + 8 if count else 0)
        painter.setFont(self._title)
        painter.setPen(QColor(palette.text))
        title = QFontMetrics(self._title).elidedText(str(index.data()), Qt.TextElideMode.ElideRight, room)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), title)

    def _note(self, session: SessionSummary, *, is_open: bool) -> str:
        if session.is_sample:
            return self.tr("sample")
        if session.branches < 2:
            return ""
        return self.tr("{0} branches").format(session.branches) if is_open else str(session.branches)


def paint_row_ground(painter: QPainter, rect: QRect, fill: str | None, state: QStyle.StateFlag, accent: str) -> None:
    """The ground of a list row: filled where it is the one shown, outlined where the keyboard is."""
    keyboard = bool(state & QStyle.StateFlag.State_HasFocus) and bool(state & QStyle.StateFlag.State_KeyboardFocusChange)
    if fill is not None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(fill))
        painter.drawRoundedRect(rect, 6, 6)
    if keyboard:
        painter.setPen(QPen(QColor(accent), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(rect.adjusted(0, 0, -1, -1), 6, 6)
