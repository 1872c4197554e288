"""The page of the server, through which other programs on this computer use the model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QSpinBox

from ui.port import Workbench
from ui.widgets.controls import Page, button, row, words

PORT = 8080  # as on the command line


class ServerPage(Page):
    """Starts and stops the server.

    Args:
        workbench: Whose model is served.
        run: Runs a coroutine, and shows its refusal.
    """

    def __init__(self, workbench: Workbench, run: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        super().__init__()
        self._workbench, self._server = workbench, workbench.server
        self._offers_stop = self._switching = False
        self.port = QSpinBox()
        self.port.setRange(1024, 65535)
        self.port.setValue(PORT)
        self.port.setGroupSeparatorShown(False)
        self.port.setPrefix(self.tr("Port") + " ")
        self.port.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.port.setMinimumWidth(120)
        self.port.setAccessibleName(self.tr("Port"))
        self.switch, self.copy_button = button(self.tr("Start server")), button(self.tr("Copy address"))
        self.address = words("", "")
        self.switch.clicked.connect(lambda: run(self._switch(stop=self._offers_stop)))
        self.copy_button.clicked.connect(lambda: QGuiApplication.clipboard().setText(self._server.address))
        hint = self.tr(
            "Other programs on this computer can ask the model that is loaded here, through OpenAI's API. "
            "Nothing listens until you start the server, no other computer can reach it, and it stops when Elsewise "
            "is closed. It asks for no key: any program on this computer can use it. Your own answers go first."
        )
        start, copy = row(self.port, self.switch, 1), row(self.copy_button, 1)
        self.section(self.tr("Server"), words(hint), start, self.address, copy, 1)
        self.show_state()

    def show_state(self) -> None:
        """Shows whether the server is on, and its address."""
        address = self._server.address
        self._offers_stop = bool(address)
        self.switch.setText(self.tr("Stop server") if address else self.tr("Start server"))
        self.port.setEnabled(not address)
        lacking = "" if address else self._workbench.status.lacking("server")
        self.switch.setEnabled(not lacking and not self._switching)
        self.address.setText(lacking or self.tr("Address: {0}").format(address))
        self.address.setVisible(bool(address or lacking))
        self.copy_button.setVisible(bool(address))

    async def _switch(self, *, stop: bool) -> None:
        """Starts or stops the server as the button said, whatever another window did since."""
        self._switching = True
        self.show_state()
        try:
            await (self._server.stop() if stop else self._server.start(self.port.value()))
        finally:
            self._switching = False
            self.show_state()
