"""The buttons 2, 4 and 8: that many ways on from the pinned token's place."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QPushButton, QWidget

from ui.theme.fonts import interface_font
from ui.theme.text_size import fix_width
from ui.widgets import ElidedLabel

COUNTS = (2, 4, 8)


class Ways(QWidget):
    """Three buttons and what they give."""

    wanted = Signal(int)  # how many

    def __init__(self, words: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(7)
        self.buttons: dict[int, QPushButton] = {}
        for count in COUNTS:
            button = QPushButton(str(count))
            button.setProperty("kind", "quiet")
            button.setFont(interface_font(12.5))
            fix_width(button, 32)
            button.setAccessibleName(f"{count} {words}")
            button.clicked.connect(lambda _checked=False, count=count: self.wanted.emit(count))
            self.buttons[count] = button
            row.addWidget(button)
        row.addWidget(ElidedLabel(words, "soft", interface_font(12.5)), 1)
