"""Why this token stands here, in a few lines: the stored facts, nothing inferred."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from runtime import Origin, TokenRecord
from ui.inspector import words
from ui.inspector.candidates import cut_words
from ui.inspector.facts import Facts
from ui.numbers import probability
from ui.shown import Spot


class WhyFacts(QWidget):
    """Raw probability, how the token came here, what the stages made of it, and the number it was drawn with.

    Args:
        stages: Whether the stages are among them.
    """

    def __init__(self, parent: QWidget | None = None, *, stages: bool = True) -> None:
        super().__init__(parent)
        self._has_stages = stages
        self.facts = Facts(columns=1)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.addWidget(self.facts)

    def show_spot(self, spot: Spot) -> None:
        """Shows the facts of this token."""
        record = spot.record
        facts = {self.tr("came from"): self.origin(record.origin)}
        if record.logprob is not None:
            facts = {self.tr("raw"): words.likely(record.logprob), **facts}
        facts |= self._stages(record) if self._has_stages else {}
        if spot.draw is not None:
            facts[self.tr("drawn")] = f"u = {words.share(spot.draw)}"
        if record.finish_reason is not None:
            facts[self.tr("ended the answer")] = record.finish_reason.replace("_", " ")
        self.facts.show_facts(facts)

    def _stages(self, record: TokenRecord) -> dict[str, str]:
        """What the token had after each stage."""
        shares: dict[str, str] = {}
        for stage in (record.stages or ())[1:-1]:
            if record.token_id in stage.ids:
                after = stage.after[stage.ids.index(record.token_id)]
                shares[self.tr("after {0}").format(cut_words(stage.name))] = probability(after) if after else self.tr("cut")
        return shares

    def origin(self, origin: Origin) -> str:
        """How a token came into the text, in words."""
        return {
            Origin.TEMPLATE: self.tr("the chat template"),
            Origin.TYPED: self.tr("typed by you"),
            Origin.SAMPLED: self.tr("sampled by the model"),
            Origin.PICKED: self.tr("picked by you"),
            Origin.GRAMMAR: self.tr("forced by the grammar"),
            Origin.IMPORTED: self.tr("imported"),
        }[origin]
