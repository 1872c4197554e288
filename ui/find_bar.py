"""The line to find words in the session that is shown."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLineEdit, QWidget

from ui.theme.fonts import interface_font
from ui.widgets import IconButton, Label, StepButton


class FindBar(QFrame):
    """Says what to look for and where it is among what was found; hidden until `open`."""

    wanted = Signal(str)  # other words, "" when the bar closes
    step_wanted = Signal(int)  # to the next (+1) or the previous (-1) place
    closed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("find")
        self.field = QLineEdit()
        self.field.setObjectName("search")
        self.field.setPlaceholderText(self.tr("Find in this session"))
        self.field.setAccessibleName(self.tr("Find in this session"))
        self.field.setFont(interface_font())
        self.field.textChanged.connect(self.wanted)
        self.field.installEventFilter(self)
        self.count = Label("", "soft", interface_font(11.5))
        self.previous = self._button("‹", self.tr("Previous place"), -1)
        self.next = self._button("›", self.tr("Next place"), +1)
        close = IconButton("x", self.tr("Close"))
        close.clicked.connect(self.dismiss)
        row = QHBoxLayout(self)
        row.setContentsMargins(12, 6, 12, 6)
        row.setSpacing(8)
        row.addWidget(self.field, 1)
        row.addWidget(self.count)
        row.addWidget(self.previous)
        row.addWidget(self.next)
        row.addWidget(close)
        self.show_place(None, 0)
        self.hide()

    def open(self) -> None:
        """Comes up with what was looked for last, ready to be typed over."""
        self.show()
        self.field.setFocus()
        self.field.selectAll()
        self.wanted.emit(self.field.text())

    def step(self, by: int) -> None:
        """To the next place; comes up first where it is hidden."""
        if self.isHidden():
            self.open()
        else:
            self.step_wanted.emit(by)

    def show_place(self, place: int | None, total: int) -> None:
        """Which of how many places is shown, from 0; None: none of them."""
        words = ""
        if self.field.text():
            words = self.tr("{0:,} of {1:,}").format((place or 0) + 1, total) if total else self.tr("not found")
        self.count.setText(words)
        self.count.setAccessibleName(words)
        self.previous.setEnabled(total > 0)
        self.next.setEnabled(total > 0)

    def dismiss(self) -> None:
        """Looks for nothing any more."""
        if not self.isHidden():
            self.hide()
            self.wanted.emit("")
            self.closed.emit()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if isinstance(event, QKeyEvent) and event.type() is QEvent.Type.KeyPress:
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.step_wanted.emit(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else +1)
                return True
            if event.key() == Qt.Key.Key_Escape:
                self.dismiss()
                return True
        return super().eventFilter(watched, event)

    def _button(self, sign: str, words: str, by: int) -> StepButton:
        button = StepButton(sign, words)
        button.clicked.connect(lambda: self.step_wanted.emit(by))
        return button
