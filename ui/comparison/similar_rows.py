"""The list of similar turns: similarity as a number and a bar, role, first words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QAbstractListModel, QModelIndex, QObject, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetrics, QKeyEvent, QPainter
from PySide6.QtWidgets import QListView, QSizePolicy, QStyledItemDelegate, QStyleOptionViewItem

from ui.port import SimilarTurn, SimilarTurns, translate
from ui.sidebar.session_list import paint_row_ground, set_up_rows
from ui.sidebar.session_rows import Index
from ui.theme.fonts import interface_font, scaled
from ui.theme.scheme import current_theme
from ui.transcript.path import ROLES
from ui.widgets.labels import plain_tooltip
from ui.widgets.numbers import count, signed
from ui.widgets.visible import one_line

if TYPE_CHECKING:
    from ui.port import Pooling


ROW_HEIGHT = 27
MOST_ROWS, LEAST_ROWS = 6, 2  # visible at once
BAR, BAR_THICK = 64, 3
GAP = 12
ASIDE_SHARE = 0.4  # of the width of a row's text, at most, for the note at its end
_ROW = int(Qt.ItemDataRole.UserRole)
_MIDDLE = int(Qt.AlignmentFlag.AlignVCenter)


class SimilarRows(QAbstractListModel):
    """The model of the list."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.rows: tuple[SimilarTurn, ...] = ()
        self.limit = 0
        self.least = 0.0  # the similarity at which a bar is empty

    def take(self, found: SimilarTurns | None) -> None:
        self.beginResetModel()
        self.rows = () if found is None else found.rows
        self.limit = 0 if found is None else found.limit
        self.least = min((row.similarity for row in self.rows), default=0.0)
        self.endResetModel()

    def share(self, turn: SimilarTurn) -> float:
        """The filled share of a turn's bar: 0 for the least similar of several turns, 1 for the same text."""
        least = self.least if len(self.rows) > 1 else -1.0
        return (turn.similarity - least) / (1 - least) if least < 1 else 1.0

    def place(self, node_id: int | None) -> int | None:
        """The row of a turn; None if it is not listed."""
        return next((i for i, row in enumerate(self.rows) if row.node_id == node_id), None)

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008  # Qt's own default, an immutable value
        return 0 if parent.isValid() else len(self.rows)

    def data(self, index: Index, role: int = int(Qt.ItemDataRole.DisplayRole)) -> object:
        if not index.isValid():
            return None
        row = self.rows[index.row()]
        if role == _ROW:
            return row
        if role == Qt.ItemDataRole.DisplayRole:
            return one_line(row.words)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return one_line(spoken(row, self.limit))
        if role == Qt.ItemDataRole.ToolTipRole:  # the whole of a text that is cut, and the meaning of the bar
            return plain_tooltip(
                "\n".join(filter(None, (one_line(row.words), one_line(aside(row, self.limit)), bar_explained())))
            )
        return None


class SimilarList(QListView):
    """One click, or Enter, goes to a turn."""

    chosen = Signal(int)  # node id

    def __init__(self) -> None:
        super().__init__()
        self.rows = SimilarRows(self)
        self.left = 0  # left margin, pixels: the words align with the conversation
        self.last_chosen: int | None = None  # node id of the turn
        self.setModel(self.rows)
        self.setItemDelegate(_SimilarDelegate(self))
        set_up_rows(self)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Maximum)
        self.setAccessibleName(self.tr("Similar turns"))
        self.setAccessibleDescription(bar_explained())
        self.clicked.connect(self._choose)
        current_theme().scaled.connect(self._resize)

    def show_found(self, found: SimilarTurns | None) -> None:
        """Shows other rows; the focus stays on its turn if that is still listed."""
        held = self.currentIndex().data(_ROW)
        self.rows.take(found)
        if found is None:
            self.last_chosen = None
        place = self.rows.place(held.node_id) if isinstance(held, SimilarTurn) else None
        if self.rows.rows:
            self.setCurrentIndex(self.rows.index(place or 0))
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        """The height of the rows, up to `MOST_ROWS`; the conversation follows directly."""
        return QSize(200, scaled(ROW_HEIGHT) * min(len(self.rows.rows), MOST_ROWS))

    def minimumSizeHint(self) -> QSize:
        return QSize(0, scaled(ROW_HEIGHT) * min(len(self.rows.rows), LEAST_ROWS))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self._choose(self.currentIndex())
        elif event.key() == Qt.Key.Key_Escape:
            event.ignore()  # the panel closes
        else:
            super().keyPressEvent(event)

    def _choose(self, index: QModelIndex) -> None:
        row = index.data(_ROW)
        if isinstance(row, SimilarTurn):
            self.last_chosen = row.node_id
            self.viewport().update()
            self.chosen.emit(row.node_id)

    def _resize(self) -> None:
        self.doItemsLayout()
        self.updateGeometry()


class _SimilarDelegate(QStyledItemDelegate):
    def __init__(self, view: SimilarList) -> None:
        super().__init__(view)
        self._view = view
        self._theme = current_theme()
        self._theme.scaled.connect(self._take_fonts)
        self._take_fonts()

    def _take_fonts(self) -> None:
        self._font, self._small = interface_font(), interface_font(11.5)

    def sizeHint(self, option: QStyleOptionViewItem, index: Index) -> QSize:  # noqa: ARG002  # the signature is Qt's
        return QSize(0, scaled(ROW_HEIGHT))

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: Index) -> None:
        row: SimilarTurn = index.data(_ROW)
        view, palette, rect = self._view, self._theme.palette, QRect(option.rect)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        rect.adjust(max(view.left - 8, 4), 0, -8, 0)
        fill = palette.selection if row.node_id == view.last_chosen else None
        paint_row_ground(painter, rect, fill, option.state, palette.accent)
        rect.adjust(8, 0, -8, 0)
        metrics, small = QFontMetrics(self._font), QFontMetrics(self._small)
        painter.setFont(self._font)
        painter.setPen(QColor(palette.text))
        _cell(painter, rect, metrics.horizontalAdvance(signed(-1 if view.rows.least < 0 else 1, 3)), signed(row.similarity, 3))
        self._paint_bar(painter, rect, view.rows.share(row))
        painter.setPen(QColor(palette.soft))
        _cell(painter, rect, max(metrics.horizontalAdvance(role(each)) for each in ROLES), role(row.role))
        words, note = one_line(row.words), one_line(aside(row, view.rows.limit))
        if note:
            room = round(rect.width() * ASIDE_SHARE)
            shown = small.elidedText(note, Qt.TextElideMode.ElideRight, room)
            painter.setFont(self._small)
            painter.drawText(rect, _MIDDLE | int(Qt.AlignmentFlag.AlignRight), shown)
            rect.setRight(rect.right() - small.horizontalAdvance(shown) - GAP)
        painter.setFont(self._font)
        painter.setPen(QColor(palette.text))
        painter.drawText(rect, _MIDDLE, metrics.elidedText(words, Qt.TextElideMode.ElideRight, rect.width()))
        painter.restore()

    def _paint_bar(self, painter: QPainter, rect: QRect, share: float) -> None:
        palette, thick, width = self._theme.palette, scaled(BAR_THICK), scaled(BAR)
        ground = QRectF(rect.left(), rect.center().y() + 1 - thick / 2, width, thick)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(palette.hairline))
        painter.drawRoundedRect(ground, thick / 2, thick / 2)
        if share > 0:
            ground.setWidth(max(width * share, thick))
            painter.setBrush(QColor(palette.bar))
            painter.drawRoundedRect(ground, thick / 2, thick / 2)
        rect.setLeft(rect.left() + width + GAP)


def _cell(painter: QPainter, rect: QRect, width: int, words: str) -> None:
    """Paints words at the left of `rect`, and removes their column from it."""
    painter.drawText(QRect(rect.left(), rect.top(), width, rect.height()), _MIDDLE, words)
    rect.setLeft(rect.left() + width + GAP)


def pooling_label(pooling: Pooling) -> str:
    """The name of a pooling on its button."""
    return {
        "mean": translate("Similar", "mean"),
        "last": translate("Similar", "last"),
        "max": translate("Similar", "max"),
        "cls": translate("Similar", "cls"),
    }[pooling]


def pooling_explained(pooling: Pooling) -> str:
    """The tool tip of a pooling."""
    return {
        "mean": translate("Similar", "the mean of all tokens' states: what the turn is about"),
        "last": translate("Similar", "the last token's state, which has seen the whole turn: how it ends"),
        "max": translate("Similar", "the largest value over all tokens: what stands out anywhere"),
        "cls": translate("Similar", "the first token's state, in which this model was trained to summarise a text"),
    }[pooling]


def role(name: str) -> str:
    """The role of a turn, as the transcript shows it."""
    return translate("Transcript", ROLES.get(name, name))


def aside(turn: SimilarTurn, limit: int) -> str:
    """The note at the end of a row: the part that was compared, and the turn's branch."""
    return " · ".join(part for part in (_cut(turn, limit), "" if turn.on_path else _branch(turn)) if part)


def spoken(turn: SimilarTurn, limit: int) -> str:
    """A row for a screen reader."""
    here = translate("Similar", "on this branch")
    where = here if turn.on_path else translate("Similar", "on the branch {0}").format(_branch(turn))
    number = translate("Similar", "similarity {0}").format(signed(turn.similarity, 3))
    return ", ".join(part for part in (number, role(turn.role), turn.words, where, _cut(turn, limit)) if part)


def bar_explained() -> str:
    """The meaning of the length of a bar."""
    return translate("Similar", "Empty for the least similar turn, full for identical text")


def title(words: str) -> str:
    """The title of the panel."""
    return translate("Similar", "Similar to “{0}”").format(words)


def summary(found: SimilarTurns) -> str:
    """What was compared, and what was left out."""
    others = translate("Similar", "1 other turn") if len(found.rows) == 1 else translate("Similar", "{0} other turns")
    parts = [others.format(count(len(found.rows)))]
    parts.append(translate("Similar", "cosine of the hidden states of {0}").format(found.model))
    if found.tokens:
        cut = translate("Similar", "the first {0} of {1} tokens of this turn")
        parts.append(cut.format(count(found.limit), count(found.tokens)))
    if found.damaged:
        one = found.damaged == 1
        left = translate("Similar", "1 damaged turn left out") if one else translate("Similar", "{0} damaged turns left out")
        parts.append(left.format(count(found.damaged)))
    return " · ".join(parts)


def _branch(turn: SimilarTurn) -> str:
    return turn.branch or translate("Similar", "another branch")


def _cut(turn: SimilarTurn, limit: int) -> str:
    if not turn.tokens:
        return ""
    return translate("Similar", "first {0} of {1} tokens").format(count(limit), count(turn.tokens))
