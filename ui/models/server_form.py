"""The form to connect a model on a server."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QLineEdit, QPushButton, QVBoxLayout, QWidget

from ui.models.token_row import InlinePanel
from ui.port import ServerModel
from ui.widgets.controls import Check, button, fill, line_edit, row, words
from ui.widgets.labels import set_kind


class ServerForm(InlinePanel):
    """Address, id, name and key. No request is sent before *Connect* is pressed.

    Args:
        home: The button that opens it.
    """

    wanted = Signal(object)  # ServerModel
    dropped = Signal()  # the request is cancelled

    def __init__(self, home: QPushButton) -> None:
        super().__init__(home, "card")
        self.url = _field(self.tr("http://127.0.0.1:8000 or https://host/v1"), self.tr("Address of the server"))
        self.model_id = _field(self.tr("model (if the server has several)"), self.tr("Model on the server"))
        self.name = _field(self.tr("name in this list (optional)"), self.tr("Name in this list"))
        self.key = _field(self.tr("API key (if the server needs one)"), self.tr("API key"))
        self.key.setEchoMode(QLineEdit.EchoMode.Password)
        self.plain_http = Check(self.tr("Allow unencrypted HTTP to another machine (others on the network can read it)"))
        self.connect_button, self.cancel_button = button(self.tr("Connect")), button(self.tr("Cancel"), "plain")
        self.said = words("", "warm")
        self._lay_out()
        for each in self._fields:
            each.returnPressed.connect(self._connect)
        self.url.textChanged.connect(self._forget_consent)
        self.connect_button.clicked.connect(self._connect)
        self.cancel_button.clicked.connect(self.leave)

    @property
    def _fields(self) -> tuple[QLineEdit, ...]:
        return self.url, self.model_id, self.name, self.key

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        return *self._fields, self.plain_http, self.connect_button, self.cancel_button

    def ask(self) -> None:
        """Opens with empty fields."""
        for each in self._fields:
            each.clear()
        self.plain_http.setChecked(False)
        self._say("")
        self.open_at(self.url)

    def show_refused(self, why: str) -> None:
        """Shows why it could not connect; the form stays open."""
        self._say(why)
        self.plain_http.setVisible(self.plain_http.isVisible() or "unencrypted" in why)

    def leave(self) -> None:
        """Closes the form and cancels a request."""
        self.key.clear()
        self.dropped.emit()
        super().leave()

    def _forget_consent(self) -> None:
        """Resets the consent, which was for another address."""
        self.plain_http.setChecked(False)
        self.plain_http.hide()

    def _connect(self) -> None:
        if not self.url.text().strip():
            self.url.setFocus()
            return
        if not self.connect_button.isEnabled():
            return
        self._say(self.tr("asking the server…"), "soft")
        self.connect_button.setEnabled(False)
        url, model, name, key = (each.text().strip() for each in self._fields)
        self.wanted.emit(ServerModel(url, name, model, key, self.plain_http.isChecked()))

    def _say(self, text: str, kind: str = "warm") -> None:
        self.connect_button.setEnabled(True)
        set_kind(self.said, kind)
        self.said.setText(text)
        self.said.setVisible(bool(text))

    def _lay_out(self) -> None:
        hint = self.tr(
            "Connects to vLLM, another Elsewise (elsewise serve), llama.cpp, SGLang, mlx_lm or any server with OpenAI's "
            "completions API. Messages and scored text are sent to it; drafts are not. The key is stored in the system "
            "keychain and sent only to that server."
        )
        column = QVBoxLayout(self)
        column.setSpacing(8)
        fill(column, words(hint), self.url, row(self.model_id, self.name), self.key, self.plain_http, self.said)
        column.addLayout(row(self.connect_button, self.cancel_button, 1))
        self.plain_http.hide()


def _field(hint: str, name: str) -> QLineEdit:
    made = line_edit(name, hint, 13)
    made.setMaxLength(1000)
    return made
