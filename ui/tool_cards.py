"""Calls that the model wrote, under its answer: what is called with which arguments, and a field for the result."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QFrame, QLineEdit, QSizePolicy, QVBoxLayout, QWidget

from ui.parts import button
from ui.port import ToolCard, TurnView
from ui.theme.fonts import interface_font, mono_font
from ui.transcript.visible import one_line
from ui.widgets import ElidedLabel, Label

MOST_LINES = 8  # of arguments that are shown; the answer has all of them


class ToolCards(QWidget):
    """The cards of the answer that ends the path. Results are sent together, when the last one is written."""

    answered = Signal(int, str)  # node id, the results

    def __init__(self) -> None:
        super().__init__()
        self._column = QVBoxLayout(self)
        self._column.setContentsMargins(0, 0, 0, 0)
        self._column.setSpacing(6)
        self.cards: list[CallCard] = []
        self._shown: tuple[int, tuple[ToolCard, ...]] = (0, ())
        self.send_button = button(self.tr("Send the result"))
        self.send_button.clicked.connect(self._send)
        self.hide()

    def show_turn(self, turn: TurnView | None) -> None:
        """The cards of a turn; none where nothing is called. What is being written stays while the calls are the same."""
        shown = (turn.node_id, turn.calls) if turn is not None and turn.calls else (0, ())
        if shown == self._shown:
            return
        self._shown = shown
        for old in self.cards:
            self._column.removeWidget(old)
            old.hide()
            old.deleteLater()
        self._column.removeWidget(self.send_button)
        self.cards = [CallCard(call) for call in shown[1]]
        for card in self.cards:
            card.result.textChanged.connect(self._refresh)
            card.result.returnPressed.connect(self._send)
            self._column.addWidget(card)
        can_answer = bool(self.cards) and all(not call.problem for call in shown[1])
        if can_answer:
            self._column.addWidget(self.send_button, 0, Qt.AlignmentFlag.AlignLeft)
        self.send_button.setVisible(can_answer)
        self.setVisible(bool(self.cards))
        self._refresh()

    def _refresh(self) -> None:
        self.send_button.setEnabled(all(card.result.text().strip() for card in self.cards))

    def _send(self) -> None:
        results = [card.result.text() for card in self.cards]
        if self.send_button.isVisible() and all(result.strip() for result in results):
            self.answered.emit(self._shown[0], "\n".join(results))


class CallCard(QFrame):
    """One call; nothing here carries it out."""

    def __init__(self, call: ToolCard) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        column = QVBoxLayout(self)
        column.setContentsMargins(12, 9, 12, 10)
        column.setSpacing(4)
        self.result = QLineEdit()
        if call.problem:
            said = Label(call.problem, "soft", interface_font(12.5))
            said.setWordWrap(True)
            said.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
            column.addWidget(Label(self.tr("a call that cannot be answered"), "", interface_font(12.5, QFont.Weight.Medium)))
            column.addWidget(said)
            return
        name = one_line(call.name)
        column.addWidget(ElidedLabel(self.tr("calls {0}").format(name), "", interface_font(12.5, QFont.Weight.Medium)))
        lines = call.arguments.splitlines()
        cut = [*lines[:MOST_LINES], "…"] if len(lines) > MOST_LINES else lines
        said = Label("\n".join(_kept(line) for line in cut), "soft", mono_font(12))
        said.setWordWrap(True)
        said.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        column.addWidget(said)
        self.result.setProperty("kind", "field")
        self.result.setFont(interface_font(13))
        self.result.setPlaceholderText(self.tr("what {0} answers; you write it, nothing is executed").format(name))
        self.result.setAccessibleName(self.tr("Result of {0}").format(name))
        column.addWidget(self.result)


def _kept(line: str) -> str:
    """A line of JSON with its indentation; what could hide in it is made visible."""
    rest = line.lstrip(" ")
    return "\u00a0" * (len(line) - len(rest)) + one_line(rest)
