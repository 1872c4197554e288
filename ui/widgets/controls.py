"""Buttons, fields, choices and pages of panels and settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QColor, QFont, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QBoxLayout,
    QButtonGroup,
    QCheckBox,
    QComboBox,
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLayout,
    QPushButton,
    QSizePolicy,
    QStyle,
    QStyleOptionButton,
    QVBoxLayout,
    QWidget,
)

from ui.theme.fonts import interface_font, mono_font, scaled
from ui.theme.icons import SIZE_PX, icon
from ui.theme.scheme import current_theme
from ui.theme.text_size import fix_height
from ui.widgets.fields import LineEdit, TextField
from ui.widgets.labels import Caption, Label, plain_tooltip, set_kind

T = TypeVar("T")
BoxT = TypeVar("BoxT", bound=QBoxLayout)
LINE_PX = 12.5


def words(text: str = "", kind: str = "soft", px: float = LINE_PX) -> Label:
    """A label whose text wraps and can be selected."""
    label = Label(text, kind, interface_font(px), wraps=True)
    label.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    return label


def line_edit(name: str, hint: str = "", px: float = LINE_PX) -> LineEdit:
    """A field of one line; `name` is for screen readers, `hint` is shown while it is empty."""
    made = LineEdit()
    made.setProperty("kind", "field")
    made.setFont(interface_font(px))
    made.setAccessibleName(name)
    made.setPlaceholderText(hint)
    return made


def button(text: str, kind: str = "quiet") -> QPushButton:
    """A button; `kind` is its look in the style sheet."""
    made = QPushButton(text)
    made.setProperty("kind", kind)
    made.setCursor(_cursor(kind))
    made.setFont(interface_font(LINE_PX, QFont.Weight.Medium))
    made.setFocusPolicy(Qt.FocusPolicy.TabFocus)
    return made


def _cursor(kind: str) -> Qt.CursorShape:
    """A hand over buttons that look like plain text, else an arrow."""
    return Qt.CursorShape.PointingHandCursor if kind in ("link", "plain") else Qt.CursorShape.ArrowCursor


def restyle(made: QPushButton, kind: str) -> None:
    """Changes the kind of a button, and with it its look and its cursor."""
    set_kind(made, kind)
    made.setCursor(_cursor(kind))


def drop(layout: QLayout, part: QWidget) -> None:
    """Removes a widget from a layout and deletes it."""
    layout.removeWidget(part)
    part.hide()
    part.deleteLater()


def allow(part: QAction | QWidget, possible: bool, problem: str, tip: str = "") -> None:
    """Enables a widget or an action if it is `possible` and has no problem; the tooltip is the problem, else `tip`.

    Menus show the tooltips of actions if `toolTipsVisible` is set.
    """
    part.setEnabled(possible and not problem)
    part.setToolTip(plain_tooltip(problem or tip))
    part.setStatusTip(problem)


Part = QWidget | QLayout | tuple[QWidget | QLayout, int] | int  # a number is a stretch, beside a part that of the part


def fill(layout: BoxT, *parts: Part) -> BoxT:
    """Adds parts to a row or a column."""
    for each in parts:
        part, stretch = each if isinstance(each, tuple) else (each, 0)
        if isinstance(part, int):
            layout.addStretch(part)
        elif isinstance(part, QLayout):
            layout.addLayout(part, stretch)
        else:
            layout.addWidget(part, stretch)
    return layout


def row(*parts: Part, spacing: int = 8) -> QHBoxLayout:
    """Parts beside each other."""
    made = QHBoxLayout()
    made.setSpacing(spacing)
    return fill(made, *parts)


def column_of(*parts: Part, spacing: int) -> QVBoxLayout:
    """Parts below each other."""
    made = QVBoxLayout()
    made.setSpacing(spacing)
    return fill(made, *parts)


def row_in(widget: QWidget, *parts: Part, spacing: int, margins: tuple[int, int, int, int] = (0, 0, 0, 0)) -> QHBoxLayout:
    """Parts beside each other as the layout of a widget; margins are left, top, right and bottom."""
    made = QHBoxLayout(widget)
    made.setSpacing(spacing)
    made.setContentsMargins(*margins)
    return fill(made, *parts)


def column_in(widget: QWidget, *parts: Part, spacing: int, margins: tuple[int, int, int, int] = (0, 0, 0, 0)) -> QVBoxLayout:
    """Parts below each other as the layout of a widget; margins are left, top, right and bottom."""
    made = QVBoxLayout(widget)
    made.setSpacing(spacing)
    made.setContentsMargins(*margins)
    return fill(made, *parts)


def grid(across: int, down: int, widget: QWidget | None = None) -> QGridLayout:
    """A grid with these gaps and no margins, as the layout of a widget if one is given."""
    made = QGridLayout(widget) if widget is not None else QGridLayout()
    made.setContentsMargins(0, 0, 0, 0)
    made.setHorizontalSpacing(across)
    made.setVerticalSpacing(down)
    return made


class Page(QWidget):
    """A column of parts under captions."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.column = column_in(self, spacing=8, margins=(16, 14, 16, 16))

    def minimumSizeHint(self) -> QSize:
        """Without a minimum height if the height depends on the width, so that a scroll area uses that for its width."""
        layout = self.layout()
        assert layout is not None
        hint = super().minimumSizeHint()
        return QSize(hint.width(), 0 if layout.hasHeightForWidth() else hint.height())

    def section(self, caption: str, *parts: Part) -> None:
        """Adds a caption and the parts under it."""
        if self.column.count():
            self.column.addSpacing(10)
        fill(self.column, Caption(caption), *parts)


class SourceField(TextField):
    """A field of several lines of plain text; Tab moves the focus."""

    def __init__(self, name: str, hint: str, *, mono: bool = True, height: int = 120) -> None:
        super().__init__()
        self.setProperty("kind", "field")
        self.setFont(mono_font(12) if mono else interface_font(13))
        self.setAccessibleName(name)
        self.setPlaceholderText(hint)
        self.setTabChangesFocus(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        fix_height(self, height)

    def show_text(self, text: str) -> None:
        """Sets the text, unless it is the same: the cursor and undo steps stay."""
        if text != self.toPlainText():
            self.setPlainText(text)


class PageDrafts(Generic[T]):
    """The drafts of a page, by session: a draft is kept while values change or another session is shown."""

    def __init__(self) -> None:
        self.session_id = 0
        self._waiting: dict[int, T] = {}  # of the sessions that are not shown

    def show(self, session_id: int, written: T, held: T, *, is_draft: bool) -> T:
        """Returns what the page shows from now on.

        Args:
            session_id: The session of the page.
            written: What the page showed until now.
            held: The value in force in that session.
            is_draft: Whether `written` differs from the value that was in force.
        """
        if session_id == self.session_id:
            return written if is_draft else held
        if is_draft:
            self._waiting[self.session_id] = written
        self.session_id = session_id
        return self._waiting.pop(session_id, held)


class Combo(QComboBox):
    """A combo box with an arrow of our own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setFont(interface_font(LINE_PX))
        self.setAccessibleName(name)
        self._theme = current_theme()

    def minimumSizeHint(self) -> QSize:
        """Bounded by the size hint, for Qt caches it when the text becomes smaller."""
        return super().minimumSizeHint().boundedTo(self.sizeHint())

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        painter = QPainter(self)
        px = scaled(SIZE_PX)
        left = 5 if self.isRightToLeft() else self.width() - px - 5
        top = (self.height() - px) // 2
        icon("chevron-down", self._theme.palette.soft, px).paint(painter, left, top, px, px)
        painter.end()


class Check(QCheckBox):
    """A check box with a box of our own, for Qt's is hardly visible on a dark background."""

    def __init__(self, words: str = "") -> None:
        super().__init__(words)
        self.setFont(interface_font(LINE_PX))
        self._theme = current_theme()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        option = QStyleOptionButton()
        self.initStyleOption(option)
        box = self.style().subElementRect(QStyle.SubElement.SE_CheckBoxIndicator, option, self).toRectF()
        side = min(box.width(), box.height()) - 1
        square = QRectF(box.center().x() - side / 2, box.center().y() - side / 2, side, side)
        palette, on = self._theme.palette, self.isChecked()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(palette.accent if on or self.hasFocus() else palette.soft if self.isEnabled() else palette.faint))
        painter.setBrush(QColor(palette.accent if on else palette.window))
        painter.drawRoundedRect(square, 3, 3)
        if on:
            inner = square.adjusted(1, 1, -1, -1).toAlignedRect()
            icon("check", palette.on_accent, inner.width()).paint(painter, inner)
        painter.end()


class Choice(QWidget):
    """One of a few choices, as a row of segments."""

    chosen = Signal(int)

    def __init__(self, name: str, labels: Sequence[str]) -> None:
        super().__init__()
        self.setObjectName("segments")
        self.setAttribute(Qt.WidgetAttribute.WA_StyledBackground)
        self.setAccessibleName(name)
        self._group = QButtonGroup(self)
        self.buttons: list[QPushButton] = []
        line = row_in(self, spacing=0)
        for place, label in enumerate(labels):
            part = QPushButton(label)
            part.setCheckable(True)
            part.setFocusPolicy(Qt.FocusPolicy.TabFocus)
            part.setFont(interface_font(LINE_PX, QFont.Weight.Medium))
            part.setAccessibleName(f"{name}: {label}")
            if place in (0, len(labels) - 1):
                part.setObjectName("segment_first" if place == 0 else "segment_last")
            part.clicked.connect(lambda _checked, place=place: self.chosen.emit(place))
            self._group.addButton(part, place)
            line.addWidget(part)
            self.buttons.append(part)

    def show_choice(self, place: int) -> None:
        """Checks a segment; emits nothing."""
        self.buttons[place].setChecked(True)

    @property
    def place(self) -> int:
        """The index of the checked segment."""
        return self._group.checkedId()
