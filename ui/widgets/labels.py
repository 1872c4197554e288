"""Labels, icon buttons and notices. Every label shows plain text, never markup."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QFont,
    QKeySequence,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QSizePolicy, QStyle, QToolButton, QWidget

from ui.theme.fonts import caption_font, interface_font, scaled
from ui.theme.icons import SIZE_PX, icon
from ui.theme.scheme import current_theme
from ui.widgets.visible import one_line, seen


class Label(QLabel):
    """A label that never interprets markup, and shows invisible characters by name.

    Args:
        text: What to show.
        kind: The colour: "" (main), "soft", "faint" or "accent".
        font: The interface font at 13 px unless given.
        wraps: Whether a long text continues on the next line.
    """

    def __init__(self, text: str = "", kind: str = "", font: QFont | None = None, *, wraps: bool = False) -> None:
        super().__init__()
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setProperty("kind", kind)
        self.setFont(font or interface_font())
        self._alignment = self.alignment()
        self.setAlignment(self._alignment)
        self.setText(text)
        self.setWordWrap(wraps)

    def setText(self, text: str) -> None:
        super().setText(seen(text))

    def setAlignment(self, alignment: Qt.AlignmentFlag) -> None:
        """Aligns by the direction of the window. Qt's label goes by its text: Latin words would stay at the left."""
        self._alignment = alignment
        super().setAlignment(QStyle.visualAlignment(self.layoutDirection(), alignment))

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() == QEvent.Type.LayoutDirectionChange:
            self.setAlignment(self._alignment)


class ElidedLabel(Label):
    """One line that is elided if it does not fit; the tooltip then has the whole text."""

    least_px = 24  # minimum width
    fewest = 0  # letters: if an elided text is not longer, nothing is shown

    @property
    def shown(self) -> str:
        """The visible part of the text."""
        shown = self.fontMetrics().elidedText(self.text(), Qt.TextElideMode.ElideRight, self.contentsRect().width())
        return "" if shown != self.text() and len(shown) <= self.fewest else shown

    def sizeHint(self) -> QSize:
        """The size of the whole text, even with a fixed width (Qt's own hint never falls below that)."""
        around = self.contentsMargins()
        width = self.fontMetrics().horizontalAdvance(self.text()) + around.left() + around.right() + 1
        return QSize(width, super().sizeHint().height())

    def minimumSizeHint(self) -> QSize:
        whole = super().minimumSizeHint()
        return QSize(min(self.least_px, self.sizeHint().width()), whole.height())

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        painter = QPainter(self)
        painter.setPen(self.palette().color(self.foregroundRole()))
        # texts keep their own direction, also in a right-to-left window
        painter.setLayoutDirection(Qt.LayoutDirection.LayoutDirectionAuto)
        painter.drawText(self.contentsRect(), int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), self.shown)
        painter.end()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._explain()

    def setText(self, text: str) -> None:
        line = one_line(text)
        if line != self.text():  # else the layout would be computed again for nothing
            super().setText(line)
            self._explain()
            self.updateGeometry()

    def _explain(self) -> None:
        # Tooltips guess their format: a zero-width space in front keeps "<" from ever being markup.
        cut = self.fontMetrics().horizontalAdvance(self.text()) > self.contentsRect().width()
        self.setToolTip(plain_tooltip(self.text()) if cut else "")


class Caption(Label):
    """A section head: small spaced capitals, faint."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "faint", caption_font())


class Hairline(QFrame):
    """A horizontal line of one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "hairline")
        self.setFixedHeight(1)


class IconButton(QToolButton):
    """A button with an icon, 16 px at 100 % text; `words` is its tooltip and its accessible name."""

    def __init__(self, name: str, words: str) -> None:
        super().__init__()
        self._name = name
        self.setToolTip(plain_tooltip(words))
        self.setAccessibleName(words)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)  # a click does not move the focus, as on macOS
        self._theme = current_theme()
        for news in (self._theme.changed, self._theme.scaled):
            news.connect(self._tint)
        self._tint()

    def _tint(self, _palette: object = None) -> None:
        px = scaled(SIZE_PX)
        self.setIconSize(QSize(px, px))
        self.setIcon(icon(self._name, self._theme.palette.soft, px))


class StepButton(QToolButton):
    """A button with a sign, to go one step; `words` is its tooltip and its accessible name."""

    def __init__(self, sign: str, words: str) -> None:
        super().__init__()
        self.setText(sign)
        self.setProperty("kind", "step")
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(words)
        self.setToolTip(plain_tooltip(words))


TOLD_MS = 5000


def announce(part: QWidget, words: str) -> None:
    """Has a screen reader read a text that appeared without the focus."""
    QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(part, words))


class Notice(QFrame):
    """An inline message with at most one action; hidden without one."""

    acted = Signal()
    dismissed = Signal()

    def __init__(self, kind: str = "notice") -> None:
        super().__init__()
        self._kind = kind
        self.setProperty("kind", kind)
        self._time = QTimer(self, singleShot=True)
        self._time.timeout.connect(self.hide)
        self._words = Label(font=interface_font(12.5), wraps=True)
        self._words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self._words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._action = QPushButton()
        self._action.setProperty("kind", "link")
        self._action.setCursor(Qt.CursorShape.PointingHandCursor)
        self._action.setFont(interface_font(12.5, QFont.Weight.Medium))
        self._action.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self._action.clicked.connect(self._act)
        dismiss = IconButton("x", self.tr("Dismiss"))
        dismiss.clicked.connect(self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 6, 6)
        row.setSpacing(12)
        row.addWidget(self._words, 1)
        row.addWidget(self._action)
        row.addWidget(dismiss)
        self.hide()

    @property
    def words(self) -> str:
        """The message; "" while hidden."""
        return "" if self.isHidden() else self._words.text()

    def say(self, words: str, action: str = "") -> None:
        """Shows `words`, and a button if `action` is not ""."""
        self._show(words, action, self._kind)
        self._time.stop()

    def tell(self, words: str) -> None:
        """Shows that something was done: in a quieter colour, and for a few seconds."""
        self._show(words, "", "done")
        self._time.start(TOLD_MS)

    def _show(self, words: str, action: str, kind: str) -> None:
        set_kind(self, kind)
        self._words.setText(words)
        self.setAccessibleName(words)
        self._action.setText(action)
        self._action.setVisible(bool(action))
        self.show()
        announce(self, words)

    def clear(self) -> None:
        self._time.stop()
        self.hide()

    def _act(self) -> None:
        self.hide()
        self.acted.emit()

    def dismiss(self) -> None:
        """Hides the notice, as its button does."""
        self.hide()
        self.dismissed.emit()


def set_kind(part: QWidget, kind: str) -> None:
    """Changes the `kind` of a widget, and with it its look by the style sheet."""
    if part.property("kind") != kind:
        part.setProperty("kind", kind)
        part.style().unpolish(part)
        part.style().polish(part)


def native(keys: str) -> str:
    """A shortcut as the system writes it."""
    return QKeySequence(keys).toString(QKeySequence.SequenceFormat.NativeText)


def plain_tooltip(words: str) -> str:
    """The text of a tooltip that Qt cannot take for markup (it guesses by the first tag-like characters)."""
    return "\u200b" + words.replace("<", "\u200b<\u200b") if words else ""
