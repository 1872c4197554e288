"""The About box: name, version, and the licences of all installed parts."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QVBoxLayout, QWidget

from resources.licences import notices
from ui.port import __version__
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, fill, row
from ui.widgets.labels import Label


class AboutBox(QDialog):
    """Open it with `open()`; it deletes itself."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(self.tr("About Elsewise"))
        name = Label("Elsewise", "", interface_font(17, QFont.Weight.DemiBold))
        version = Label(self.tr("Version {0}").format(__version__), "soft")
        words = Label(
            self.tr("Language models on your own machine, and what else they might have said. Apache-2.0.\n")
            + self.tr("Fonts: Inter and JetBrains Mono, OFL. Icons: Lucide, ISC."),
            "soft",
        )
        licences, close = button(self.tr("Licences…")), button(self.tr("Close"))
        licences.clicked.connect(self._show_licences)
        close.clicked.connect(self.close)
        column_in(self, name, version, words, row(licences, 1, close), spacing=8, margins=(24, 20, 24, 16))

    def _show_licences(self) -> None:
        """Shows all licence notices as plain text."""
        box = QDialog(self)
        box.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        box.setWindowTitle(self.tr("Licences"))
        box.resize(720, 520)
        text = QPlainTextEdit(notices())
        text.setReadOnly(True)
        close = button(self.tr("Close"))
        close.clicked.connect(box.close)
        fill(QVBoxLayout(box), text, row(1, close))
        box.open()
