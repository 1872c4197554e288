"""Before Send, where a message would not fit into the context: what can be done is a choice."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from ui.numbers import count, size
from ui.parts import button, row, words
from ui.port import Composition
from ui.widgets import IconButton


class OverflowBar(QFrame):
    """Says by how much, and offers ways out; nothing is sent meanwhile."""

    larger_wanted = Signal()
    leave_out_wanted = Signal()
    new_wanted = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "notice")
        self.said = words("", "")
        self.too_large = words("", "soft")
        self.larger = button(self.tr("The model's whole context (reloads)"))
        self.leave_out = button(self.tr("Leave out the oldest turns"))
        self.new = button(self.tr("New session"))
        self.dismiss = IconButton("x", self.tr("Dismiss"))
        for part, signal in (
            (self.larger, self.larger_wanted),
            (self.leave_out, self.leave_out_wanted),
            (self.new, self.new_wanted),
        ):
            part.clicked.connect(signal)
            part.clicked.connect(self.hide)
        self.dismiss.clicked.connect(self.hide)
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 8, 6, 8)
        column.setSpacing(6)
        top = row(self.said, self.dismiss)
        top.setStretch(0, 1)
        column.addLayout(top)
        column.addWidget(self.too_large)
        column.addLayout(row(self.leave_out, self.new, self.larger, 1))
        self.hide()

    def offer(self, composition: Composition) -> None:
        """Says what does not fit."""
        assert composition.context_length is not None  # or nobody would know that it does not fit
        over = composition.context_used - composition.context_length
        self.said.setText(
            self.tr(
                "{0} tokens too many for the context of {1}. "
                "Turns that are left out stay in the tree; the model does not see them."
            ).format(count(over), count(composition.context_length))
        )
        self.setAccessibleName(self.said.text())
        self.larger.setVisible(composition.can_grow)
        whole = composition.whole_context
        if whole is not None:
            self.larger.setText(self.tr("The whole context, {0} tokens (reloads)").format(count(whole)))
        self.too_large.setVisible(whole is not None and not composition.can_grow)
        if whole is not None:
            said = self.tr("The model's whole context of {0} tokens would take {1} of KV; {2} is set aside (Settings, Memory).")
            self.too_large.setText(said.format(count(whole), size(composition.whole_bytes), size(composition.kv_budget)))
        self.show()
        self.leave_out.setFocus()
