"""The conversation for a screen reader: a document whose value is what was said, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from PySide6.QtCore import QObject
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAccessibleWidget, QWidget

MOST_CHARACTERS = 100_000  # of the end of a conversation; a reader asks for all of it at once

_texts: WeakKeyDictionary[QWidget, Callable[[], str]] = WeakKeyDictionary()


class SpokenDocument(QAccessibleWidget):
    """What is told of a widget that paints a conversation; Qt itself would call it a mere container."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget, QAccessible.Role.Document, "")
        self._widget = widget

    def text(self, kind: QAccessible.Text) -> str:
        """Its name, and as its value what was said."""
        if kind == QAccessible.Text.Value and self._widget in _texts:
            return _texts[self._widget]()[-MOST_CHARACTERS:]
        return str(super().text(kind))


def speak(widget: QWidget, text: Callable[[], str]) -> None:
    """From now on a screen reader is told `text` of a widget, whenever it asks."""
    if not _texts:
        QAccessible.installFactory(_made)  # once is enough, twice no harm
    _texts[widget] = text


def _made(_class_name: str, thing: QObject | None) -> SpokenDocument | None:
    return SpokenDocument(thing) if isinstance(thing, QWidget) and thing in _texts else None
