"""Tool calls of an answer as cards, while they stream and with fields for their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, Signal
from PySide6.QtGui import QFont, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QWidget

from ui.composer.draft_field import DraftField
from ui.core.shown import RUNNING, typed_text
from ui.port import TokenRun, ToolCard, TurnView
from ui.theme.fonts import interface_font, mono_font
from ui.transcript import TranscriptView
from ui.transcript.read_mode.markup import called_name, open_call
from ui.widgets.controls import button, column_in, row
from ui.widgets.labels import Label
from ui.widgets.visible import one_line

LAST_LINES = 4
LINE_MOST = 160  # characters


class StreamingCall(QFrame):
    """Shows the last lines of a call that is being generated; `TurnCards` replace it when the answer ends."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self.setCursor(Qt.CursorShape.ArrowCursor)
        self.name = Label("", "soft", interface_font(12.5, QFont.Weight.Medium), wraps=True)
        self.source = Label("", "soft", mono_font(12), wraps=True)
        for label in (self.name, self.source):
            label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        column_in(self, self.name, self.source, spacing=4, margins=(12, 9, 12, 10))

    def show_source(self, source: str) -> None:
        name = one_line(called_name(source))
        self.name.setText(self.tr("is writing a call of {0}…").format(name) if name else self.tr("is writing a call…"))
        self.setAccessibleName(self.name.text())
        lines = [line for line in source.splitlines() if line.strip()][-LAST_LINES:]
        self.source.setText("\n".join(one_line(line)[-LINE_MOST:] for line in lines))


SETTLE_MS = 500
MOST_KEPT = 50  # the latest turns with typed results, which are stored for the next window
MOST_LINES = 8  # of arguments; the answer has all of them
FIELD_EDGES = 10  # pixels above and below the lines of a field: its frame and padding


class ToolCards(QObject):
    """Puts cards under the turns of the path that contain tool calls."""

    answered = Signal(int, object)  # node id, the results: a list[str]
    settled = Signal()  # the typed results have not changed for a while

    def __init__(self, transcript: TranscriptView) -> None:
        super().__init__(transcript)
        self._transcript = transcript
        self.turns: dict[int, TurnCards] = {}  # by node id
        self._typed: dict[int, list[str]] = {}  # unsent results of turns that are not shown, by node id
        self.streaming: StreamingCall | None = None  # of the running answer
        self._running_answer: tuple[int, str] | None = None  # node id and text so far of the running answer
        self._settle_timer = QTimer(self, singleShot=True, interval=SETTLE_MS)
        self._settle_timer.timeout.connect(self.settled)

    def show_turns(self, turns: Sequence[TurnView], *, running: bool) -> None:
        """Shows the cards of these turns. Typed results stay as long as the calls of their turn are the same."""
        held, self.turns = self.turns, {}
        for turn in turns:
            if turn.calls or turn.called:
                known = held.get(turn.node_id)
                same = known is not None and known.shown == (turn.calls, turn.called)
                self.turns[turn.node_id] = known if known is not None and same else self._made(turn)
        writing = next((turn for turn in turns if turn.may_call and turn.status in RUNNING), None)
        self._running_answer = None if writing is None else (writing.node_id, typed_text(writing.run))
        changed = self._show_streaming()
        if self.turns != held or changed:
            self._show_under()
            for node_id, old in held.items():
                if old not in self.turns.values():
                    if node_id not in self.turns:
                        self._store(node_id, old.results)
                    old.deleteLater()
        for cards in self.turns.values():
            cards.set_running(running)

    def remember(self, typed: Iterable[tuple[int, Sequence[str]]]) -> None:
        """Takes the unsent results of another window's `typed`."""
        for node_id, results in typed:
            if any(results):
                self._typed.setdefault(node_id, list(results))  # results typed here are newer

    @property
    def typed(self) -> tuple[tuple[int, Sequence[str]], ...]:
        """Unsent results: node id, and a text for each call; the latest last."""
        held = dict(self._typed)
        for node_id, cards in self.turns.items():
            if any(cards.results):
                held[node_id] = cards.results
        return tuple(held.items())[-MOST_KEPT:]

    def carry(self, nodes: Mapping[int, int]) -> None:
        """Moves typed results to the session's copy, which is shown next; `nodes` maps old node ids to new ones."""
        for node_id, cards in self.turns.items():
            if node_id in nodes:
                self._store(nodes[node_id], cards.results)
                cards.results = [""] * len(cards.results)

    def _store(self, node_id: int, results: Sequence[str]) -> None:
        if any(results):
            self._typed[node_id] = list(results)

    def append_tokens(self, node_id: int, run: TokenRun) -> None:
        """Takes more tokens of the running answer."""
        if self._running_answer is not None and self._running_answer[0] == node_id:
            self._running_answer = node_id, self._running_answer[1] + typed_text(run)
            if self._show_streaming():
                self._show_under()

    def _show_streaming(self) -> bool:
        """Updates the card of the unfinished call; returns whether the card appeared or disappeared."""
        text = "" if self._running_answer is None else self._running_answer[1]
        start, known = open_call(text), self.streaming
        if start is None:
            self.streaming = None
            if known is not None:
                known.deleteLater()
            return known is not None
        self.streaming = known or StreamingCall()
        self.streaming.show_source(text[start:])
        return known is None

    def _show_under(self) -> None:
        under: dict[int, QWidget] = dict(self.turns)
        if self._running_answer is not None and self.streaming is not None:
            under[self._running_answer[0]] = self.streaming
        self._transcript.show_under(under)

    def _made(self, turn: TurnView) -> TurnCards:
        made = TurnCards(turn)
        made.results = self._typed.pop(turn.node_id, [])
        made.edited.connect(self._settle_timer.start)
        made.answered.connect(self.answered)
        made.focused.connect(self._transcript.bring_into_sight)
        return made


class TurnCards(QWidget):
    """The cards of one answer. All results are sent together, once none is empty."""

    answered = Signal(int, object)  # node id, the results in the order of the calls
    focused = Signal(object)  # the QWidget that got the focus
    edited = Signal()  # a result has changed

    def __init__(self, turn: TurnView) -> None:
        super().__init__()
        self.shown = (turn.calls, turn.called)
        self._node_id = turn.node_id
        self._running = False
        self.setCursor(Qt.CursorShape.ArrowCursor)
        open_calls = bool(turn.calls)
        self.cards = [CallCard(call, answered=not open_calls) for call in turn.calls or turn.called]
        self.send_button = button(self.tr("Send the result") if len(self.cards) == 1 else self.tr("Send the results"))
        self.send_button.clicked.connect(self._send)
        self.can_answer = open_calls and all(not call.problem for call in turn.calls)
        column = column_in(self, spacing=6, margins=(0, 0, 0, 4))
        for card in self.cards:
            column.addWidget(card)
        self._fields = [card.result for card in self.cards if card.result is not None]
        for field in self._fields:
            field.textChanged.connect(self._refresh)
            field.textChanged.connect(self.edited)
            field.submitted.connect(self._send)
            field.installEventFilter(self)
        column.addLayout(row(self.send_button, 1))
        self.send_button.setVisible(self.can_answer)  # only with a parent, or it would be shown as a window
        self.send_button.installEventFilter(self)
        self._refresh()

    def set_running(self, running: bool) -> None:  # a state, not an option
        """Disables sending while an answer is being generated."""
        self._running = running
        self._refresh()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() is QEvent.Type.FocusIn:
            self.focused.emit(watched)
        return super().eventFilter(watched, event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        event.setAccepted(event.key() != Qt.Key.Key_Escape)  # Return in a field is no command of the transcript

    def mousePressEvent(self, event: QMouseEvent) -> None:
        event.accept()  # selects nothing in the transcript behind

    def _refresh(self) -> None:
        self.send_button.setEnabled(not self._running and all(result.strip() for result in self.results))

    @property
    def results(self) -> list[str]:
        """The texts of the fields, one for each unanswered call."""
        return [field.toPlainText() for field in self._fields]

    @results.setter
    def results(self, typed: Sequence[str]) -> None:
        for field, text in zip(self._fields, typed, strict=False):
            field.setPlainText(text)

    def _send(self) -> None:
        if self.can_answer and self.send_button.isEnabled():
            self.answered.emit(self._node_id, self.results)


class CallCard(QFrame):
    """One call, which is only shown and never executed.

    Attributes:
        result: The field for its result; None if the call is invalid or answered.
    """

    def __init__(self, call: ToolCard, *, answered: bool) -> None:
        super().__init__()
        self.setProperty("kind", "card")
        self._column = column_in(self, spacing=4, margins=(12, 9, 12, 10))
        self.result: DraftField | None = None
        if call.problem:
            self._say(self.tr("a call that cannot be answered"), strong=True)
            self._say(call.problem)
            self.setAccessibleName(self.tr("A call that cannot be answered: {0}").format(one_line(call.problem)))
            return
        name = one_line(call.name)
        self._say(self.tr("called {0}").format(name) if answered else self.tr("calls {0}").format(name), strong=True)
        lines = call.arguments.splitlines()
        cut = [*lines[:MOST_LINES], "…"] if len(lines) > MOST_LINES else lines
        self._say("\n".join(_kept(line) for line in cut), mono=True)
        self.setAccessibleName(self.tr("Call of {0}").format(name))
        self.setAccessibleDescription(one_line(call.arguments))
        if not answered:
            self.result = self._field(name)

    def _say(self, text: str, *, strong: bool = False, mono: bool = False) -> None:
        weight = QFont.Weight.Medium if strong else QFont.Weight.Normal
        label = Label(text, "" if strong else "soft", mono_font(12) if mono else interface_font(12.5, weight), wraps=True)
        label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        self._column.addWidget(label)

    def _field(self, name: str) -> DraftField:
        field = DraftField(around=FIELD_EDGES)
        field.setProperty("kind", "field")
        field.setFont(interface_font(13))
        field.set_hint(self.tr("the result of {0}; you type it, nothing is executed").format(name))
        field.setAccessibleName(self.tr("Result of {0}").format(name))
        field.setAccessibleDescription(self.tr("Return sends, Shift-Return starts a new line"))
        self._column.addSpacing(4)
        self._column.addWidget(field)
        return field


def _kept(line: str) -> str:
    """A line of JSON with its indentation and with invisible characters made visible."""
    rest = line.lstrip(" ")
    return "\u00a0" * (len(line) - len(rest)) + one_line(rest)
