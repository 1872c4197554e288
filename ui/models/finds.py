"""What the hub found by words, each to be looked up."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QPushButton, QVBoxLayout, QWidget

from ui.parts import button, row, words
from ui.port import HubFind
from ui.theme.fonts import interface_font
from ui.transcript.visible import one_line
from ui.widgets import Caption, ElidedLabel


class Finds(QWidget):
    """A row for each; hidden while there is none."""

    wanted = Signal(str)  # org/name

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[FindRow] = []
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 4, 0, 4)
        self._column.setSpacing(9)
        self._column.addWidget(Caption(self.tr("Found on the hub")))
        self.hide()

    @property
    def buttons(self) -> tuple[QPushButton, ...]:
        """In the order of the keyboard."""
        return tuple(each.look_button for each in self.rows)

    def show_finds(self, finds: Sequence[HubFind]) -> None:
        """Shows these instead."""
        for old in self.rows:
            self._column.removeWidget(old)
            old.hide()
            old.deleteLater()
        self.rows = [FindRow(find) for find in finds]
        for made in self.rows:
            made.wanted.connect(self.wanted)
            self._column.addWidget(made)
        self.setVisible(bool(self.rows))


class FindRow(QWidget):
    """One of them."""

    wanted = Signal(str)  # org/name

    def __init__(self, find: HubFind) -> None:
        super().__init__()
        name = ElidedLabel(find.source, "", interface_font(13, QFont.Weight.Medium))
        consent = self.tr("its owners ask for consent first") if find.gated else ""
        self.facts = words(one_line(" · ".join(part for part in (find.facts, consent) if part)), "soft")
        self.facts.setFont(interface_font(11.5))
        self.problem = words(one_line(find.problem), "warm")
        self.problem.setFont(interface_font(11.5))
        self.problem.setVisible(bool(find.problem))
        self.look_button = button(self.tr("Look up"))
        self.look_button.setAccessibleName(self.tr("Look up {0}").format(find.source))
        self.look_button.clicked.connect(lambda: self.wanted.emit(find.source))
        left = QVBoxLayout()
        left.setSpacing(1)
        for part in (name, self.facts, self.problem):
            left.addWidget(part)
        line = row(spacing=12)
        line.setContentsMargins(0, 0, 0, 0)
        line.addLayout(left, 1)
        line.addWidget(self.look_button)
        self.setLayout(line)
