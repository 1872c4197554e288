"""The box of the message: its files, the field, and a row with its actions and its cost."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QFocusEvent, QFont
from PySide6.QtWidgets import QFrame, QPushButton

from ui.commands.actions import STOP_KEYS
from ui.composer.draft_cost import DraftCost
from ui.composer.draft_field import DraftField
from ui.composer.file_chips import FileChips
from ui.theme.fonts import interface_font
from ui.widgets.controls import button, column_in, row
from ui.widgets.labels import IconButton, native, plain_tooltip


class WritingBox(QFrame):
    """Lays out the widgets; the composer connects them.

    Args:
        meter: The cost of the message, shown in the row.
    """

    def __init__(self, meter: DraftCost) -> None:
        super().__init__()
        self.setObjectName("composer")
        self.chips, self.field = FileChips(), DraftField()
        self.attach_button = IconButton("plus", self.tr("Attach a text file"))
        self.setup_button = IconButton("sliders", self.tr("Sampling of this session"))
        self.roles = button(self.tr("plain text: choose a chat format…"), "link")
        self.roles.setToolTip(self.tr("This model has no chat template. With a chat format it can answer questions."))
        self.roles.hide()
        self.send_button = QPushButton()
        self.send_button.setObjectName("send")
        self.send_button.setFont(interface_font(12.5, QFont.Weight.DemiBold))
        self.send_button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.field.installEventFilter(self)
        self._lay_out(meter)

    def show_send(self, *, running: bool, can_send: bool, wait: str) -> None:
        """Shows Send, or Stop while an answer is generated; a reason to wait disables Send and is its tool tip."""
        self.send_button.setText(self.tr("Stop") if running else self.tr("Send"))
        self.send_button.setAccessibleName(self.tr("Stop the answer") if running else self.tr("Send the message"))
        self.send_button.setEnabled(running or (can_send and not wait))
        name = self.send_button.accessibleName()
        key = native(STOP_KEYS) if running else native("Return")
        self.send_button.setToolTip(plain_tooltip(wait if wait and not running else self.tr("{0} ({1})").format(name, key)))
        self.send_button.setAccessibleDescription("" if running else wait)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.field and event.type() in (QEvent.Type.FocusIn, QEvent.Type.FocusOut):
            assert isinstance(event, QFocusEvent)
            self.setProperty("focused", "true" if event.gotFocus() else "false")
            self.style().polish(self)
        return super().eventFilter(watched, event)

    def _lay_out(self, meter: DraftCost) -> None:
        tools = row(self.attach_button, self.setup_button, spacing=0)
        foot = row(tools, self.roles, meter.cost, (meter.context, 1), (meter.busy, 1), self.send_button, spacing=10)
        column_in(self, self.chips, self.field, foot, spacing=10, margins=(13, 11, 13, 11))
