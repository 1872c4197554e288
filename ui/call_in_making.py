"""The card of a call while the model writes it: its name as soon as it can be read, and its last lines."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QSizePolicy, QVBoxLayout

from ui.theme.fonts import interface_font, mono_font
from ui.transcript.calling import called_name
from ui.transcript.visible import one_line
from ui.widgets import Label

LAST_LINES = 4
LINE_MOST = 160  # characters


class CallInMaking(QFrame):
    """Shows the source of calls as it grows; when the answer has ended, the cards of its calls take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.name = Label("", "soft", interface_font(12.5, QFont.Weight.Medium))
        self.source = Label("", "soft", mono_font(12))
        for label in (self.name, self.source):
            label.setWordWrap(True)
            label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 9, 12, 10)
        column.setSpacing(4)
        column.addWidget(self.name)
        column.addWidget(self.source)

    def show_source(self, source: str) -> None:
        """What was written so far, from where the first call begins."""
        name = one_line(called_name(source))
        self.name.setText(self.tr("is writing a call of {0}…").format(name) if name else self.tr("is writing a call…"))
        self.setAccessibleName(self.name.text())
        lines = [line for line in source.splitlines() if line.strip()][-LAST_LINES:]
        self.source.setText("\n".join(one_line(line)[-LINE_MOST:] for line in lines))
