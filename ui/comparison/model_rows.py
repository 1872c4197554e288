"""The numbers of both compared models for the pinned token."""

from __future__ import annotations

import math

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QWidget

from ui.comparison.model_facts import LEFT, RIGHT, SideFacts, SpanFacts, difference, divergence, in_nats
from ui.inspector import words
from ui.inspector.tab import FactGrid
from ui.theme.fonts import interface_font, mono_font
from ui.widgets.controls import column_in, fill, grid
from ui.widgets.labels import Caption, ElidedLabel, Hairline, Label
from ui.widgets.numbers import UNKNOWN, probability


class ComparedRows(QWidget):
    """Two columns of numbers, then their differences; hidden while nothing is compared."""

    def __init__(self) -> None:
        super().__init__()
        self.names = (self._cell("soft"), self._cell("soft"))
        self._grid = grid(14, 4)
        self._grid.setColumnStretch(1, 1)
        self._grid.setColumnStretch(2, 1)
        self.cells: dict[str, tuple[ElidedLabel, ElidedLabel]] = {}
        for column, name in enumerate(self.names, 1):
            self._grid.addWidget(name, 0, column)
        self.facts = FactGrid()
        self.note = Label("", "soft", interface_font(12), wraps=True)
        column_ = column_in(self, Hairline(), spacing=6, margins=(0, 0, 0, 14))
        column_.addSpacing(4)
        fill(column_, Caption(self.tr("Two models")), self._grid, self.facts, self.note)
        self.hide()

    def show_facts(self, facts: SpanFacts | None) -> None:
        self.setVisible(facts is not None)
        if facts is None:
            return
        sides = (facts.left, facts.right)
        for sign, label, side in zip((LEFT, RIGHT), self.names, sides, strict=True):
            label.setText(f"{sign} {side.name}")
        self._row(self.tr("probability"), *(_probability(side) for side in sides))
        self._row(self.tr("logprob"), *(in_nats(side.logprob) for side in sides))
        self._row(self.tr("rank"), *(UNKNOWN if side.rank is None else f"{side.rank:,}" for side in sides))
        self._row(self.tr("likeliest"), *(words.token(side.likeliest, 14) or UNKNOWN for side in sides), mono=True)
        self._row(self.tr("tokens"), *(f"{side.tokens:,}" for side in sides))
        self.facts.show_facts({self.tr("B − A"): difference(facts.difference), "KL": divergence(facts.kl)})
        self.note.setText(self._note(facts))
        self.note.setVisible(bool(self.note.text()))

    def _note(self, facts: SpanFacts) -> str:
        sentences = []
        if facts.disagree:
            sentences.append(self.tr("The two models would have continued differently here."))
        if facts.left.tokens != 1 or facts.right.tokens != 1:
            sentences.append(
                self.tr("The numbers are for {0}, where both tokenizers have boundaries.").format(words.token(facts.text))
            )
        if facts.kl_of_last:
            sentences.append(
                self.tr("KL is known for the last {0:,} tokens; “KL of all tokens” computes the others.").format(
                    facts.kl_of_last
                )
            )
        return " ".join(sentences)

    def _row(self, name: str, left: str, right: str, *, mono: bool = False) -> None:
        if name not in self.cells:
            line = len(self.cells) + 1
            self._grid.addWidget(Label(name, "soft", interface_font(12)), line, 0)
            self.cells[name] = self._cell(mono=mono), self._cell(mono=mono)
            for column, cell in enumerate(self.cells[name], 1):
                self._grid.addWidget(cell, line, column)
        for sign, cell, text in zip((LEFT, RIGHT), self.cells[name], (left, right), strict=True):
            cell.setText(text)
            cell.setAccessibleName(f"{name} {sign} {text}")

    def _cell(self, kind: str = "", *, mono: bool = False) -> ElidedLabel:
        made = ElidedLabel("", kind, mono_font(12) if mono else interface_font(12, QFont.Weight.Medium))
        made.setAlignment(Qt.AlignmentFlag.AlignRight)
        return made


def _probability(side: SideFacts) -> str:
    return UNKNOWN if side.logprob is None else probability(math.exp(side.logprob))
