"""An adapter by its name on the shelf or on the hub."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget

from ui.models.bars import ThinBar
from ui.parts import button, row, words
from ui.port import Download, DownloadState
from ui.theme.fonts import interface_font


class AdapterField(QWidget):
    """Takes ORG/NAME[@REVISION]; nobody is asked before *Get* or Return is pressed."""

    wanted = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._getting = ""
        self.field = QLineEdit()
        self.field.setProperty("kind", "field")
        self.field.setFont(interface_font(12.5))
        self.field.setPlaceholderText("org/name, org/name@revision")
        self.field.setAccessibleName(self.tr("Adapter by its name"))
        self.get_button = button(self.tr("Get"))
        self.get_button.setAccessibleName(self.tr("Get the adapter"))
        self.bar, self.state = ThinBar(self.tr("Download of the adapter")), words("", "soft")
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(5)
        column.addLayout(row(self.field, self.get_button))
        column.addWidget(self.bar)
        column.addWidget(self.state)
        self.get_button.clicked.connect(self._get)
        self.field.returnPressed.connect(self._get)
        self.field.textEdited.connect(lambda _text: self.state.setVisible(bool(self._getting)))
        for part in (self.bar, self.state):
            part.hide()

    def show_downloads(self, downloads: Sequence[Download]) -> None:
        """How far the one is that was asked for."""
        repository = self._getting.partition("@")[0]
        view = next((each for each in downloads if each.repository == repository), None)
        if view is not None and view.state is DownloadState.RUNNING and self._getting:
            self.bar.show_share(view.done, view.total)
            self.bar.show()

    def end(self, wanted: str, *, got: bool) -> None:
        """It is on the stack, or not (`refuse` says why; what was typed stays)."""
        if wanted == self._getting:
            self._getting = ""
            self.get_button.setEnabled(True)
            self.bar.hide()
            self.state.hide()
            if got and self.field.text().strip() == wanted:
                self.field.clear()

    def refuse(self, why: str) -> None:
        """It is not on the stack."""
        self.state.setText(why)
        self.state.show()

    def _get(self) -> None:
        wanted = self.field.text().strip()
        if not wanted or self._getting:
            return
        self._getting = wanted
        self.get_button.setEnabled(False)
        self.state.setText(self.tr("getting {0}…").format(wanted))
        self.state.show()
        self.wanted.emit(wanted)
