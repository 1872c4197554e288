"""The text field of a message: plain text, as tall as its lines, Enter to send."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QMimeData, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QSizePolicy

from ui.composer.draft_colours import DraftColours
from ui.theme.fonts import interface_font
from ui.widgets.fields import TextField

MOST_LINES = 10


class DraftField(TextField):
    """Plain text only, as tall as its lines; Enter submits, Shift-Enter breaks the line.

    Args:
        around: Pixels of height above and below the lines together.
    """

    submitted = Signal()
    picture_pasted = Signal()

    def __init__(self, around: int = 4) -> None:
        self._around = around
        self._made = False  # Qt sends the first font change before there is anything to measure
        super().__init__()
        self.setFont(interface_font(15))
        self._hint = ""
        self.set_hint(self.tr("Message…"))
        self.setAccessibleName(self.tr("Message"))
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTabChangesFocus(True)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.document().setDocumentMargin(0)
        self.document().clearUndoRedoStacks()  # Qt would count the margin as a change of the text
        self.document().documentLayout().documentSizeChanged.connect(self._grow)
        self.colours = DraftColours(self)
        self._made = True
        self._grow()

    def set_hint(self, words: str) -> None:
        """Sets the placeholder, which is shortened to one line."""
        self._hint = words
        self._show_hint()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        enter = event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter)
        if enter and not event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.submitted.emit()
        elif enter:
            self.textCursor().insertBlock()  # Qt's own line break would be U+2028, which no model expects
            self.ensureCursorVisible()
        else:
            super().keyPressEvent(event)

    def insertFromMimeData(self, source: QMimeData) -> None:
        if source.hasImage() and not source.hasText() and not source.hasUrls():
            self.picture_pasted.emit()
        else:
            super().insertFromMimeData(source)

    def paintEvent(self, event: QPaintEvent) -> None:
        self.colours.paint(event.rect())
        super().paintEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._grow()
        self._show_hint()

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        if event.type() is QEvent.Type.FontChange and self._made:  # another text size
            self._grow()
            self._show_hint()

    def sizeHint(self) -> QSize:
        return QSize(super().sizeHint().width(), self.minimumHeight())

    def _show_hint(self) -> None:
        room = self.viewport().width() - 2
        self.setPlaceholderText(self.fontMetrics().elidedText(self._hint, Qt.TextElideMode.ElideRight, room))

    def _grow(self) -> None:
        lines = max(1, int(self.document().size().height()))  # wrapped lines, for this kind of document
        self.setVerticalScrollBarPolicy(
            Qt.ScrollBarPolicy.ScrollBarAsNeeded if lines > MOST_LINES else Qt.ScrollBarPolicy.ScrollBarAlwaysOff
        )
        self.setFixedHeight(min(lines, MOST_LINES) * self.fontMetrics().lineSpacing() + self._around)
