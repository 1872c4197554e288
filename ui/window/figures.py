"""The figures behind the status bar: how the last answer was made, and what is held of the path. Each says what it means."""

from __future__ import annotations

from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QFrame, QVBoxLayout, QWidget

from ui.inspector.tab import Facts
from ui.port import StatusView, Tier
from ui.theme.text_size import panel_width
from ui.widgets.labels import Caption
from ui.widgets.numbers import count, rate, size

WIDTH = 260
GAP = 4  # above the button


class Figures(QFrame):
    """Opens above its button; a click elsewhere or Escape closes it. What is not known is left out."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setObjectName("popover")
        self.setAccessibleName(self.tr("Figures of the last answer"))
        self.answer, self.held = Facts(columns=1), Facts(columns=1)
        self._answer_head, self._held_head = Caption(self.tr("Last answer")), Caption(self.tr("Memory"))
        column = QVBoxLayout(self)
        column.setContentsMargins(14, 12, 14, 12)
        column.setSpacing(6)
        for part in (self._answer_head, self.answer, self._held_head, self.held):
            column.addWidget(part)

    @property
    def has_any(self) -> bool:
        return bool(self.answer.texts or self.held.texts)

    def open(self, button: QWidget) -> None:
        """Above `button`."""
        self.setFixedWidth(panel_width(WIDTH))
        self.adjustSize()
        left = button.width() - self.width() if button.isRightToLeft() else 0
        self.move(button.mapToGlobal(QPoint(left, -self.height() - GAP)))
        self.show()

    def show_status(self, status: StatusView) -> None:
        for head, facts, rows in (
            (self._answer_head, self.answer, self._of_answer(status)),
            (self._held_head, self.held, self._of_memory(status)),
        ):
            facts.show_facts({name: value for name, value, _ in rows}, {name: meaning for name, _, meaning in rows})
            head.setVisible(bool(rows))
            facts.setVisible(bool(rows))
        if self.isVisible():
            self.adjustSize()

    def _of_answer(self, status: StatusView) -> list[tuple[str, str, str]]:
        rows = []
        if status.tokens_per_second is not None:
            meaning = self.tr("Tokens per second after the first token")
            rows.append((self.tr("speed"), rate(status.tokens_per_second), meaning))
        if status.first_token_seconds is not None:
            meaning = self.tr("Time from sending the message to the first token of the answer")
            rows.append((self.tr("first token"), self.tr("{0:.2f} s").format(status.first_token_seconds), meaning))
        if status.reused is not None and status.computed is not None and status.reused + status.computed:
            whole = count(status.reused + status.computed)
            meaning = self.tr("Tokens before the answer that the model had already read")
            rows.append((self.tr("reused"), self.tr("{0} of {1}").format(count(status.reused), whole), meaning))
            meaning = self.tr("Tokens before the answer that the model had to read; before sending they are “to compute”")
            rows.append((self.tr("computed"), self.tr("{0} of {1}").format(count(status.computed), whole), meaning))
        return rows

    def _of_memory(self, status: StatusView) -> list[tuple[str, str, str]]:
        rows = []
        if status.kv_budget:
            meaning = self.tr("What the model has read is held in memory (KV), up to a limit in the settings")
            rows.append((self.tr("KV"), self.tr("{0} of {1}").format(size(status.kv_bytes), size(status.kv_budget)), meaning))
        names = {
            Tier.WARM: (self.tr("turns in memory"), self.tr("The model can continue from them at once")),
            Tier.DISK: (self.tr("turns on disk"), self.tr("They are loaded from the disk before the model continues")),
            Tier.COLD: (self.tr("turns to compute"), self.tr("The model reads them again before it continues")),
            Tier.SERVER: (self.tr("turns on the server"), self.tr("The server decides what it holds of them")),
        }
        for tier, (name, meaning) in names.items():
            if status.tiers.get(tier):
                rows.append((name, count(status.tiers[tier]), meaning))
        return rows
