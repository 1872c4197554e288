"""The line under a draft: its tokens, how full the context is with it; opened, the parts of the context."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QObject

from ui.composer.context_panel import ContextPanel, Meter
from ui.port import Composition
from ui.theme.fonts import interface_font
from ui.widgets.labels import ElidedLabel


class DraftCost(QObject):
    """Updates its widgets together; the composer lays them out.

    Attributes:
        composition: The last count; None before the first.
        cost: Tokens and bits of the draft.
        context: How full the context is; a press opens `panel`.
        busy: A message in the place of `context`, see `say_busy`.
    """

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self.composition: Composition | None = None
        self.cost = ElidedLabel("", "faint", interface_font(11.5))
        self.context = Meter()
        self.cost.least_px = self.context.least_px = 8
        self.panel = ContextPanel()
        self.context.pressed.connect(lambda: self.panel.setVisible(self.panel.isHidden()))
        self.busy = ElidedLabel("", "soft", interface_font(11.5))
        self.busy.hide()

    @property
    def is_too_long(self) -> bool:
        counted = self.composition
        return counted is not None and counted.context_length is not None and counted.context_used > counted.context_length

    def show_cost(self, composition: Composition) -> None:
        """Shows the tokens of the draft and of the context with it."""
        self.composition = composition
        self.panel.show_composition(composition)
        self.cost.setText(self._cost_words(composition))
        self.cost.setVisible(bool(self.cost.text()))
        self.context.setText(self._context_words(composition))

    def show_growth(self, tokens: int) -> None:
        """Shows the context after the path has grown by `tokens` since it was counted."""
        counted = self.composition
        if counted is not None:
            self.context.setText(self._context_words(replace(counted, context_used=counted.context_used + tokens)))

    def show_bits(self, bits: float | None) -> None:
        """Shows the surprise of the counted draft."""
        if self.composition is not None:
            self.show_cost(replace(self.composition, bits=bits))

    def show_unscored(self, why: str) -> None:
        """Shows why the draft is not scored, after its tokens, until it is counted again."""
        words = "" if self.composition is None else self._cost_words(self.composition)
        if words:
            self.cost.setText(self.tr("{0}, {1}").format(words, why))

    def say_busy(self, words: str) -> None:
        """Shows a message in place of the context; "" shows the context again."""
        self.busy.setText(words)
        self.busy.setVisible(bool(words))
        self.context.setVisible(not words)

    def _cost_words(self, cost: Composition) -> str:
        if not cost.tokens:
            return ""
        words = self.tr("1 token") if cost.tokens == 1 else self.tr("{0:,} tokens").format(cost.tokens)
        if cost.bits is not None:
            words = self.tr("{0}, {1:.1f} bits each").format(words, cost.bits / cost.tokens)
        return words

    def _context_words(self, cost: Composition) -> str:
        if cost.context_length is None:
            return ""
        context = self.tr("context {0:,} of {1:,}").format(cost.context_used, cost.context_length)
        over = cost.context_used - cost.context_length
        return context if over <= 0 else self.tr("{0}: {1:,} too many").format(context, over)
