"""The About box: name, version, licence. Plain text, never blocking."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialog, QVBoxLayout, QWidget

from ui.port.tokens import __version__
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, row
from ui.widgets.labels import Label


class AboutBox(QDialog):
    """Open it with `open()`; it deletes itself."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("About Elsewise"))
        column = QVBoxLayout(self)
        column.setContentsMargins(24, 20, 24, 16)
        column.setSpacing(8)
        column.addWidget(Label("Elsewise", "", interface_font(17, QFont.Weight.DemiBold)))
        column.addWidget(Label(self.tr("Version {0}").format(__version__), "soft"))
        words = Label(
            self.tr("Language models on your own machine, and what else they might have said. Apache-2.0.\n")
            + self.tr("Fonts: Inter and JetBrains Mono, OFL. Icons: Lucide, ISC."),
            "soft",
        )
        column.addWidget(words)
        close = button(self.tr("Close"))
        close.clicked.connect(self.close)
        column.addLayout(row(1, close))
