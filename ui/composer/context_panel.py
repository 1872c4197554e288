"""The parts of the context, and the ways to make room for a message that does not fit."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QKeyEvent, QMouseEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from ui.port import Composition, ContextPart, PartKind
from ui.theme.fonts import interface_font
from ui.theme.scheme import current_theme
from ui.widgets.controls import button, column_in, grid, row, words
from ui.widgets.labels import ElidedLabel, IconButton, Label
from ui.widgets.numbers import count, size


class OverflowBar(QFrame):
    """Shows how many tokens a message is too long, and offers ways to make room; nothing is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "notice")
        self.message = words("", "")
        self.too_large = words()
        self.larger = button(self.tr("The model's whole context (reloads)"))
        self.leave_out = button(self.tr("Leave out the oldest turns"))
        self.new = button(self.tr("New session"))
        self.dismiss = IconButton("x", self.tr("Dismiss"))
        for part in (self.larger, self.leave_out, self.new, self.dismiss):
            part.clicked.connect(self.hide)
        top, ways = row((self.message, 1), self.dismiss), row(self.leave_out, self.new, 1)
        column_in(self, top, self.too_large, ways, row(self.larger, 1), spacing=6, margins=(12, 8, 6, 8))
        self.hide()

    def offer(self, composition: Composition) -> None:
        """Shows how much does not fit, and the ways that are possible."""
        assert composition.context_length is not None  # known, as the message does not fit
        length, alone = composition.context_length, composition.tokens or 0
        fits_alone = alone < length
        if fits_alone:
            message = self.tr(
                "{0} tokens too many for the context of {1}. "
                "Turns that are left out stay in the tree; the model does not see them."
            ).format(count(composition.context_used - length), count(length))
        else:
            message = self.tr(
                "The message alone has {0} tokens, and the context has room for {1}: shorten it, or remove a file."
            ).format(count(alone), count(length))
        self.message.setText(message)
        self.leave_out.setVisible(fits_alone)
        self.new.setVisible(fits_alone)
        self.setAccessibleName(self.message.text())
        self.larger.setVisible(composition.can_grow)
        whole = composition.whole_context
        if whole is not None:
            self.larger.setText(self.tr("The whole context, {0} tokens (reloads)").format(count(whole)))
        self.too_large.setVisible(whole is not None and not composition.can_grow)
        if whole is not None:
            message = self.tr(
                "The model's whole context of {0} tokens would take {1} of KV; {2} is set aside (Settings > Memory)."
            )
            self.too_large.setText(message.format(count(whole), size(composition.whole_bytes), size(composition.kv_budget)))
        self.show()
        self.leave_out.setFocus()


BAR_PX = 6


class Meter(ElidedLabel):
    """The line "context 45 of 8,192"; a press opens the details."""

    pressed = Signal()

    def __init__(self) -> None:
        super().__init__("", "faint", interface_font(11.5))
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if self.hasFocus():
            painter = QPainter(self)
            painter.fillRect(0, self.height() - 1, self.width(), 1, QColor(current_theme().palette.accent))
            painter.end()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.pressed.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self.pressed.emit()
        else:
            super().keyPressEvent(event)

    def setText(self, text: str) -> None:
        super().setText(text)
        self.setAccessibleName(self.tr("{0}; show details").format(text) if text else "")


class ContextPanel(QFrame):
    """Shows the parts of a `Composition`, and how many tokens are computed before the next answer."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setAccessibleName(self.tr("Context"))
        self.bar = PartsBar()
        self.total = Label("", "", interface_font(12.5), wraps=True)
        self.total.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._names = {
            PartKind.SYSTEM: self.tr("system"),
            PartKind.FILES: self.tr("files"),
            PartKind.HISTORY: self.tr("history"),
            PartKind.DRAFT: self.tr("draft"),
        }
        column = column_in(self, self.bar, spacing=6, margins=(12, 10, 12, 10))
        table = grid(18, 2)
        table.setColumnStretch(3, 1)
        self.tokens: dict[PartKind, Label] = {}
        self.states: dict[PartKind, Label] = {}
        for line, (kind, name) in enumerate(self._names.items()):
            self.tokens[kind] = Label("", "", interface_font(12.5))
            self.tokens[kind].setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self.states[kind] = Label("", "soft", interface_font(12.5))
            for place, label in enumerate((Label(name, "soft", interface_font(12.5)), self.tokens[kind], self.states[kind])):
                table.addWidget(label, line, place)
        column.addLayout(table)
        column.addWidget(self.total)
        self.hide()

    def show_composition(self, composition: Composition) -> None:
        parts = composition.parts
        known = {part.kind: part for part in parts}
        for kind in self._names:
            part = known.get(kind, ContextPart(kind, 0, 0))
            self.tokens[kind].setText(count(part.tokens) if parts else "")
            self.states[kind].setText(self._state(part))
        self.bar.show_parts(parts, composition.context_length)
        self.total.setText(self._total(composition))

    def _state(self, part: ContextPart) -> str:
        if not part.tokens:
            return ""
        if part.warm == part.tokens:
            return self.tr("reused")
        if not part.warm:
            return self.tr("to compute")
        return self.tr("{0} reused, {1} to compute").format(count(part.warm), count(part.tokens - part.warm))

    def _total(self, composition: Composition) -> str:
        if composition.new_tokens is None:
            return self.tr("Details are shown once the engine runs.")
        whole = sum(part.tokens for part in composition.parts) or composition.context_used
        new = min(composition.new_tokens, whole)
        words = self.tr("{0} of {1} tokens to compute before the answer, {2} reused")
        return words.format(count(new), count(whole), count(whole - new))


class PartsBar(QWidget):
    """The context as a bar: reused tokens, tokens to compute, free space."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: tuple[ContextPart, ...] = ()
        self._length: int | None = None
        self.setFixedHeight(BAR_PX)

    def sizeHint(self) -> QSize:
        return QSize(120, BAR_PX)

    def show_parts(self, parts: tuple[ContextPart, ...], length: int | None) -> None:
        self._parts, self._length = parts, length
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # the signature is Qt's
        palette, painter = current_theme().palette, QPainter(self)
        painter.fillRect(self.rect(), QColor(palette.hairline))
        whole = max(self._length or 1, sum(part.tokens for part in self._parts), 1)
        left = 0.0
        for part in self._parts:
            for tokens, colour in ((part.warm, palette.accent), (part.tokens - part.warm, palette.surprise[3])):
                width = self.width() * tokens / whole
                painter.fillRect(QRectF(left, 0, max(width, 1.0) if tokens else 0, BAR_PX), QColor(colour))
                left += width
        painter.end()
