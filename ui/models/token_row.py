"""The row for the hub's token, and the base class of panels that open inline."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QApplication, QFrame, QLineEdit, QWidget

from ui.port import TokenView
from ui.widgets.controls import button, column_in, line_edit, row, words


class InlinePanel(QFrame):
    """A panel that opens inline. Escape closes it, and a focus inside it goes back to `home`.

    Args:
        home: The button that opens it.
        kind: Its look in the style sheet.
    """

    def __init__(self, home: QWidget, kind: str) -> None:
        super().__init__()
        self.setProperty("kind", kind)
        self._home = home
        self.hide()

    def open_at(self, part: QWidget) -> None:
        """Shows the panel, with the focus on one of its parts."""
        self.show()
        part.setFocus(Qt.FocusReason.OtherFocusReason)

    def leave(self) -> None:
        focused = QApplication.focusWidget()
        inside = focused is not None and self.isAncestorOf(focused)
        self.hide()
        if inside:
            self._home.setFocus(Qt.FocusReason.OtherFocusReason)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape:
            self.leave()
        else:
            super().keyPressEvent(event)


class TokenRow(QWidget):
    """Shows a `TokenView` in a section that unfolds."""

    asked = Signal()  # for the TokenView
    keep_wanted = Signal(str)
    forget_wanted = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.open_button = button(self.tr("Private or gated models…"), "plain")
        self.open_button.setCheckable(True)
        self.open_button.toggled.connect(self._open)
        self.state = words()
        self.field = line_edit(self.tr("Hugging Face token"), self.tr("token (hf_…)"), 13)
        self.field.setEchoMode(QLineEdit.EchoMode.Password)
        self.field.setMaxLength(1000)
        self.field.returnPressed.connect(self._keep)
        self.keep_button, self.forget_button = button(self.tr("Keep")), button(self.tr("Delete the token"), "plain")
        self.keep_button.clicked.connect(self._keep)
        self.forget_button.clicked.connect(self._forget)
        self._parts = QWidget()
        column_in(self._parts, self.state, row(self.field, self.keep_button), row(self.forget_button, 1), spacing=7)
        column_in(self, row(self.open_button, 1), self._parts, spacing=7)
        self._parts.hide()

    @property
    def buttons(self) -> tuple[QWidget, ...]:
        return self.open_button, self.field, self.keep_button, self.forget_button

    def show_token(self, view: TokenView) -> None:
        """Shows whether a token is stored, and where it is used."""
        self._wait(False)
        self.forget_button.setVisible(view.kept)
        if view.variable:
            said = self.tr("{0} is set in the environment, and is used for {1}.").format(view.variable, view.hub)
        elif view.kept:
            said = self.tr("A token for {0} is stored in the system keychain. It is sent only to that hub.").format(view.hub)
        else:
            said = self.tr("A read token for {0}. It is stored in the system keychain and sent only to that hub.").format(
                view.hub
            )
        self.state.setText(said)
        self.keep_button.setText(self.tr("Replace") if view.kept else self.tr("Keep"))

    def show_refused(self, why: str) -> None:
        """Shows why the token was not stored or not deleted."""
        self._wait(False)
        self.state.setText(why)

    def _open(self, opened: bool) -> None:  # the signal's
        self._parts.setVisible(opened)
        if opened:
            self.forget_button.hide()
            self.state.setText(self.tr("asking the keychain…"))
            self.field.setFocus(Qt.FocusReason.OtherFocusReason)
            self.asked.emit()
        else:
            self.field.clear()

    def _keep(self) -> None:
        if self.field.text().strip() and self.keep_button.isEnabled():
            self._wait(True)
            self.keep_wanted.emit(self.field.text())
            self.field.clear()

    def _forget(self) -> None:
        self._wait(True)
        self.forget_wanted.emit()
        self.field.setFocus(Qt.FocusReason.OtherFocusReason)

    def _wait(self, waiting: bool) -> None:  # a state, not an option
        self.keep_button.setEnabled(not waiting)
        self.forget_button.setEnabled(not waiting)
