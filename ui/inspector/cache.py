"""The tab for the KV cache: what the status bar says, with room."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from ui.inspector.facts import Facts
from ui.inspector.words import percent
from ui.numbers import count, size
from ui.port import StatusView, Tier
from ui.widgets import Caption, Label


class CacheTab(QWidget):
    """Bytes of the budget, tiers of the path, and what the last request had to compute."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = Label(self.tr("Nothing is cached yet: the engine has not read anything."), "soft")
        self.empty.setWordWrap(True)
        self.memory, self.last, self.turns = Facts(columns=1), Facts(columns=1), Facts(columns=1)
        self._sections = (
            (Caption(self.tr("Memory")), self.memory),
            (Caption(self.tr("Last request")), self.last),
            (Caption(self.tr("Turns of this path")), self.turns),
        )
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 16)
        column.setSpacing(6)
        column.addWidget(self.empty)
        for caption, facts in self._sections:
            column.addWidget(caption)
            column.addWidget(facts)
            column.addSpacing(12)
        column.addStretch(1)

    def show_status(self, status: StatusView) -> None:
        """Shows these numbers."""
        memory = last = {}
        if status.kv_budget:
            memory = {
                self.tr("KV held"): size(status.kv_bytes),
                self.tr("budget"): size(status.kv_budget),
                self.tr("used"): percent(status.kv_bytes / status.kv_budget),
            }
        if status.reused is not None and status.computed is not None:
            last = {
                self.tr("prompt tokens"): count(status.reused + status.computed),
                self.tr("reused"): count(status.reused),
                self.tr("computed"): count(status.computed),
            }
        turns = {self._tier(tier): count(status.tiers[tier]) for tier in Tier if tier in status.tiers}
        for (caption, facts), shown in zip(self._sections, (memory, last, turns), strict=True):
            caption.setVisible(bool(shown))
            facts.setVisible(bool(shown))
            facts.show_facts(shown)
        self.empty.setVisible(not (memory or last or turns))

    def _tier(self, tier: Tier) -> str:
        return {
            Tier.WARM: self.tr("warm, in memory"),
            Tier.DISK: self.tr("on disk"),
            Tier.COLD: self.tr("cold, to be computed"),
        }[tier]
