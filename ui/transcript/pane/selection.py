"""The selected range of text, and the veil that fades out a previous path."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import QEasingCurve, Qt, QVariantAnimation
from PySide6.QtGui import QPainter, QPaintEvent, QPixmap
from PySide6.QtWidgets import QWidget

from ui.theme.scheme import current_theme
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import TurnPlace, is_hidden, shown

_BETWEEN_TURNS = "\n\n"


class TextPosition(Struct, frozen=True, order=True):
    """A place in the conversation."""

    turn: int
    place: TurnPlace


class Selection(Struct, frozen=True):
    """From the place of the mouse press (`anchor`) to the current place (`head`), in either order."""

    anchor: TextPosition
    head: TextPosition

    @property
    def is_empty(self) -> bool:
        return self.anchor == self.head

    def within(self, turn: int, tokens: int) -> tuple[TurnPlace, TurnPlace] | None:
        """The selected part of a turn that has `tokens` tokens; None if nothing of it is selected."""
        first, last = sorted((self.anchor, self.head))
        if first == last or not first.turn <= turn <= last.turn:
            return None
        return (
            first.place if turn == first.turn else TurnPlace(0),
            last.place if turn == last.turn else TurnPlace(tokens),
        )

    def text(self, turns: Sequence[TranscriptTurn], *, template: bool) -> str:
        """The exact text, with control characters instead of the symbols that are drawn for them."""
        parts = []
        for index, turn in enumerate(turns):
            part = self.within(index, len(turn.tokens))
            if part is not None:
                parts.append(_text(turn, *part, template=template))
        return _BETWEEN_TURNS.join(parts)


def _text(turn: TranscriptTurn, first: TurnPlace, last: TurnPlace, *, template: bool) -> str:
    pieces = []
    tokens = turn.tokens
    for index in range(first.token, min(last.token + 1, len(tokens))):
        text = tokens.texts[index]
        if is_hidden(tokens.marks[index], template=template):
            continue
        start = first.offset if index == first.token else 0
        stop = last.offset if index == last.token else None
        if start == 0 and stop is None:
            pieces.append(text)
        elif shown(text).text == text:
            pieces.append(text[start:stop])
        elif stop is None or stop > start:  # drawn as codes: selected as a whole or not at all
            pieces.append(text)
    return "".join(pieces)


class Veil(QWidget):
    """A picture of a widget that fades out over it within `Theme.fade_ms`; ignores mouse, focus and accessibility."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self._picture = QPixmap()
        self._strength = 0.0
        self._animation = QVariantAnimation(self)
        self._animation.valueChanged.connect(self._set_strength)
        self._animation.setEasingCurve(QEasingCurve.Type.OutCubic)
        self._animation.setStartValue(1.0)
        self._animation.setEndValue(0.0)
        self._animation.finished.connect(self._end)
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.hide()

    def fade(self, over: QWidget) -> None:
        """Fades out a picture of `over`, a sibling or a child of one; does nothing if animations are off."""
        self._end()
        duration = current_theme().fade_ms
        parent = self.parentWidget()
        if not duration or not over.isVisible() or parent is None:
            return
        self._picture, self._strength = over.grab(), 1.0
        self.setGeometry(over.rect().translated(over.mapTo(parent, over.rect().topLeft())))
        self.show()
        self.raise_()
        self._animation.setDuration(duration)
        self._animation.start()

    def paintEvent(self, event: QPaintEvent) -> None:  # noqa: ARG002  # Qt's signature
        painter = QPainter(self)
        painter.setOpacity(self._strength)
        painter.drawPixmap(0, 0, self._picture)
        painter.end()

    def _set_strength(self, value: float) -> None:
        self._strength = value
        self.update()

    def _end(self) -> None:
        self._animation.stop()
        self.hide()
        self._picture = QPixmap()
