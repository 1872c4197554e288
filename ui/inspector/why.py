"""Why this token stands here: the stored facts, nothing inferred."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from runtime import Origin
from ui.inspector import words
from ui.inspector.facts import Facts
from ui.shown import Spot
from ui.widgets import Label


class WhyFacts(QWidget):
    """Raw probability, how the token came here, and the number it was drawn with."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.facts = Facts(columns=1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.facts)

    def show_spot(self, spot: Spot) -> None:
        """Shows the facts of this token."""
        record = spot.record
        facts = {self.tr("came from"): self._origin(record.origin)}
        if record.logprob is not None:
            facts = {self.tr("raw"): words.likely(record.logprob), **facts}
        if spot.draw is not None:
            facts[self.tr("drawn")] = f"u = {words.share(spot.draw)}"
        if record.finish_reason is not None:
            facts[self.tr("ended the answer")] = record.finish_reason.replace("_", " ")
        self.facts.show_facts(facts)

    def _origin(self, origin: Origin) -> str:
        return {
            Origin.TEMPLATE: self.tr("the chat template"),
            Origin.TYPED: self.tr("typed by you"),
            Origin.SAMPLED: self.tr("sampled by the model"),
            Origin.PICKED: self.tr("picked by you"),
            Origin.GRAMMAR: self.tr("forced by the grammar"),
            Origin.IMPORTED: self.tr("imported"),
        }[origin]


class WhyTab(QWidget):
    """The same facts with room; says so when no token is pinned."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.empty = Label(self.tr("Click a token to see how it came to stand there."), "soft")
        self.empty.setWordWrap(True)
        self.why = WhyFacts()
        column = QVBoxLayout(self)
        column.setContentsMargins(16, 14, 16, 16)
        column.addWidget(self.empty)
        column.addWidget(self.why)
        column.addStretch(1)
        self.show_spot(None)

    def show_spot(self, spot: Spot | None) -> None:
        """Shows a token's facts, None for none."""
        self.empty.setVisible(spot is None)
        self.why.setVisible(spot is not None)
        if spot is not None:
            self.why.show_spot(spot)
