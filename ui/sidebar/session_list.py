"""The view of the session list, and the delegate that paints its rows."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QContextMenuEvent, QFontMetrics, QKeyEvent, QPainter, QPen
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

from ui.port import Hit, SessionSummary, TrashedSession
from ui.sidebar.session_rows import IS_OPEN, LEAST_ROWS, ROW_HEIGHT, SUMMARY, Found, Head, Index, SessionRows
from ui.theme.fonts import caption_font, interface_font, scaled
from ui.theme.scheme import current_theme
from ui.widgets.fields import LineEdit
from ui.widgets.visible import one_line

_MARK = 7  # pixels: a ring while a session answers, a dot when its new answer has not been seen
LONGEST_TAG = 12  # characters of its first tag that a row shows


class SessionsView(QListView):
    """One click opens a session, F2 renames it; nothing deletes."""

    def __init__(self, rows: SessionRows) -> None:
        super().__init__()
        self.setModel(rows)
        self.setItemDelegate(SessionDelegate(self))
        set_up_rows(self)
        self.setEditTriggers(QAbstractItemView.EditTrigger.EditKeyPressed)
        self.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        self.setMouseTracking(True)
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setDropIndicatorShown(True)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Maximum)
        self._rows = rows
        self.by_key = False  # the last context menu was requested with the keyboard
        current_theme().scaled.connect(self._resize)

    def _resize(self) -> None:
        self.doItemsLayout()
        self.updateGeometry()

    def viewportEvent(self, event: QEvent) -> bool:
        if isinstance(event, QContextMenuEvent):
            self.by_key = event.reason() is event.Reason.Keyboard
        return super().viewportEvent(event)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QContextMenuEvent):
            self.by_key = event.reason() is event.Reason.Keyboard
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Alt with an arrow moves a session within its group, as dragging does."""
        by = {Qt.Key.Key_Up: -1, Qt.Key.Key_Down: +1}.get(Qt.Key(event.key()))
        row = self.currentIndex().data(SUMMARY)
        if by is not None and event.modifiers() & Qt.KeyboardModifier.AltModifier and isinstance(row, SessionSummary):
            self._rows.shift(row.session_id, by)
        else:
            super().keyPressEvent(event)

    def sizeHint(self) -> QSize:
        """The height of all rows, so that the branches follow directly; with less room the list scrolls."""
        return QSize(0, self._rows.height())

    def minimumSizeHint(self) -> QSize:
        """A few rows stay visible however many branches there are."""
        return QSize(0, min(self._rows.height(), LEAST_ROWS * scaled(ROW_HEIGHT)))


class SessionDelegate(QStyledItemDelegate):
    """Paints the rows; of a session the title at the left, its branches at the right."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._theme = current_theme()
        self._theme.scaled.connect(self.take_fonts)
        self.take_fonts()

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:  # noqa: ARG002  # the signature is Qt's
        return QSize(0, scaled(ROW_HEIGHT))

    def createEditor(self, parent: QWidget, option: QStyleOptionViewItem, index: Index) -> LineEdit:  # noqa: ARG002  # Qt's
        field = LineEdit(parent)
        field.setFrame(False)
        return field

    def take_fonts(self) -> None:
        self._head, self._title, self._count = caption_font(), interface_font(), interface_font(11)
        self._found = interface_font(12)

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        entry = index.data(SUMMARY)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if isinstance(entry, Head):
            self._paint_head(painter, option, entry)
        elif isinstance(entry, Found):
            self._paint_found(painter, option, entry.hit)
        else:
            self._paint_session(painter, option, index)
        painter.restore()

    def _paint_head(self, painter: QPainter, option: QStyleOptionViewItem, head: Head) -> None:
        palette, rect = self._theme.palette, QRect(option.rect)
        if head.folder_id is not None or head.opens:
            paint_row_ground(painter, rect, None, option.state, palette.accent)
        inner = rect.adjusted(8, 5, -8, 0)
        painter.setFont(self._head)
        painter.setPen(QColor(palette.faint))
        count = str(head.count) if head.count else ""
        if head.folder_id is not None:
            middle, left = inner.center().y() + 1, inner.left() + 1
            painter.setPen(QPen(QColor(palette.soft), 1.4, c=Qt.PenCapStyle.RoundCap, j=Qt.PenJoinStyle.RoundJoin))
            tip = [(0, -4), (4, 0), (0, 4)] if head.is_closed else [(-1, -2), (3, 2), (7, -2)]
            painter.drawPolyline([QPoint(left + x, middle + y) for x, y in tip])
            inner.setLeft(inner.left() + 14)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), count)
        room = inner.width() - (QFontMetrics(self._head).horizontalAdvance(count) + 8 if count else 0)
        name = QFontMetrics(self._head).elidedText(one_line(head.name), Qt.TextElideMode.ElideRight, room)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), name)

    def _paint_session(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        palette, rect = self._theme.palette, QRect(option.rect)
        state = option.state
        is_open = bool(index.data(IS_OPEN))
        paint_row_ground(painter, rect, palette.selection if is_open else None, state, palette.accent)
        inner = rect.adjusted(8, 0, -8, 0)
        session: SessionSummary | TrashedSession = index.data(SUMMARY)
        count = self._note(session, is_open=is_open)
        if isinstance(session, SessionSummary) and (session.answering or session.unseen):
            across = scaled(_MARK)
            mark = QRectF(inner.right() - across, inner.center().y() + 0.5 - across / 2, across, across)
            painter.setPen(QPen(QColor(palette.accent), 1.5))
            painter.setBrush(QColor(palette.accent) if session.unseen else Qt.BrushStyle.NoBrush)
            painter.drawEllipse(mark)
            inner.setRight(inner.right() - across - 8)
        painter.setFont(self._count)
        painter.setPen(QColor(palette.faint))
        painter.drawText(inner.adjusted(0, -2, 0, -2), int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight), count)
        room = inner.width() - (QFontMetrics(self._count).horizontalAdvance(count) + 8 if count else 0)
        painter.setFont(self._title)
        painter.setPen(QColor(palette.text))
        title = QFontMetrics(self._title).elidedText(str(index.data()), Qt.TextElideMode.ElideRight, room)
        painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), title)

    def _paint_found(self, painter: QPainter, option: QStyleOptionViewItem, hit: Hit) -> None:
        """Paints the found words in the accent colour, with as much context as fits."""
        palette, rect = self._theme.palette, QRect(option.rect)
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)  # drawn by position: tokens and numbers
        paint_row_ground(painter, rect, None, option.state, palette.accent)
        inner = rect.adjusted(18, -3, -8, -3)
        metrics = QFontMetrics(self._found)
        before, words, behind = (one_line(part) for part in (hit.before + "|", hit.words, "|" + hit.behind))
        before, behind = before[:-1], behind[1:]  # the added bars kept the spaces beside the words
        words = metrics.elidedText(words, Qt.TextElideMode.ElideRight, inner.width())
        left = min(metrics.horizontalAdvance(before), max((inner.width() - metrics.horizontalAdvance(words)) // 2, 0))
        painter.setFont(self._found)
        for text, colour, elide, room in (
            (before, palette.soft, Qt.TextElideMode.ElideLeft, left),
            (words, palette.accent, Qt.TextElideMode.ElideRight, inner.width()),
            (behind, palette.soft, Qt.TextElideMode.ElideRight, inner.width()),
        ):
            painter.setPen(QColor(colour))
            shown = metrics.elidedText(text, elide, min(room, inner.width()))
            painter.drawText(inner, int(Qt.AlignmentFlag.AlignVCenter), shown)
            inner.setLeft(inner.left() + metrics.horizontalAdvance(shown))

    def _note(self, session: SessionSummary | TrashedSession, *, is_open: bool) -> str:
        if isinstance(session, TrashedSession):
            return self.tr("{0} d").format(session.days_left)
        if session.is_sample:
            return self.tr("sample")
        tags = " ".join(f"#{one_line(tag)[:LONGEST_TAG]}" for tag in session.tags[:1])
        if session.branches < 2:
            return tags
        branches = self.tr("{0} branches").format(session.branches) if is_open and not tags else str(session.branches)
        return f"{tags}  {branches}" if tags else branches


def set_up_rows(view: QListView) -> None:
    """No frame, no editing; rows of one height, scrolled by pixels and never sideways."""
    view.setFrameShape(QFrame.Shape.NoFrame)
    view.setUniformItemSizes(True)  # or ten thousand rows are measured one by one
    view.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
    view.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)


def paint_row_ground(painter: QPainter, rect: QRect, fill: str | None, state: QStyle.StateFlag, accent: str) -> None:
    """Paints a row's background: filled if the row is the shown one, outlined if it has the keyboard focus."""
    keyboard = bool(state & QStyle.StateFlag.State_HasFocus) and bool(state & QStyle.StateFlag.State_KeyboardFocusChange)
    if fill is not None:
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(fill))
        painter.drawRoundedRect(rect, 6, 6)
    if keyboard:
        painter.setPen(QPen(QColor(accent), 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRoundedRect(rect.adjusted(0, 0, -1, -1), 6, 6)
