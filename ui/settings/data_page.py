"""The page of the data: its folder, verification, and backups."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtCore import QUrl, Signal
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QLabel

from ui.port import DataFacts, Workbench
from ui.widgets.controls import Page, button, row, words
from ui.widgets.numbers import size

BACKUPS_SHOWN = 8


class DataPage(Page):
    """Shows `DataFacts`.

    Args:
        workbench: Backs up and verifies.
        run: Runs a coroutine, and shows its refusal.
    """

    refused = Signal(str)

    def __init__(self, workbench: Workbench, run: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        super().__init__()
        self._workbench = workbench
        self.folder, self.backups = words("", ""), words()
        self.reveal_button, self.verify_button = button(self.tr("Show in file manager")), button(self.tr("Verify"))
        self.verified = words()
        self.back_up_button, self.backed_up = button(self.tr("Back up now")), words()
        self.reveal_button.clicked.connect(self._reveal)
        self.verify_button.clicked.connect(lambda: run(self._verify()))
        self.back_up_button.clicked.connect(lambda: run(self._back_up()))
        self.section(self.tr("Folder"), self.folder, row(self.reveal_button, self.verify_button, 1), self.verified)
        self.section(self.tr("Backups"), self.backups, row(self.back_up_button, 1), self.backed_up, 1)
        for said in (self.verified, self.backed_up):
            said.hide()

    def show_data(self, data: DataFacts) -> None:
        self.folder.setText(data.folder)
        kept = ", ".join(data.backups[:BACKUPS_SHOWN]) or self.tr("none yet")
        more = len(data.backups) - BACKUPS_SHOWN
        kept = self.tr("{0} and {1:,} more").format(kept, more) if more > 0 else kept
        self.backups.setText(self.tr("sessions: {0} · backups: {1}").format(size(data.sessions_bytes), kept))

    async def _verify(self) -> None:
        self._say(self.verified, self.tr("verifying…"))
        self.verify_button.setEnabled(False)
        found = ""
        try:
            damage = await self._workbench.settings.verify_data()
            found = "\n".join(damage) if damage else self.tr("no damage was found")
        finally:
            self.verify_button.setEnabled(True)
            self._say(self.verified, found)

    async def _back_up(self) -> None:
        self._say(self.backed_up, self.tr("copying and verifying…"))
        self.back_up_button.setEnabled(False)
        said = ""
        try:
            made = await self._workbench.settings.back_up()
            said = self.tr("{0}, {1}; the copy was verified").format(made.path, size(made.size))
            data = (await self._workbench.settings.view()).data
            if data is not None:
                self.show_data(data)
        finally:
            self.back_up_button.setEnabled(True)
            self._say(self.backed_up, said)

    def _say(self, label: QLabel, text: str) -> None:
        label.setText(text)
        label.setVisible(bool(text))

    def _reveal(self) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(self.folder.text())):
            self.refused.emit(self.tr("no file manager was found; the folder is {0}").format(self.folder.text()))
