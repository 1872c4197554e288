"""The conversation for a screen reader: a document whose value is the text of all turns."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

from PySide6.QtCore import QObject
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAccessibleWidget, QWidget

MOST_CHARACTERS = 100_000  # the end of a longer conversation; a screen reader reads all of it at once

_texts: WeakKeyDictionary[QWidget, Callable[[], str]] = WeakKeyDictionary()


class SpokenDocument(QAccessibleWidget):
    """The accessible object of a widget that paints a conversation, for which Qt would report a container."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__(widget, QAccessible.Role.Document, "")
        self._widget = widget

    def text(self, kind: QAccessible.Text) -> str:
        """Adds the conversation as the value."""
        if kind == QAccessible.Text.Value and self._widget in _texts:
            return _texts[self._widget]()[-MOST_CHARACTERS:]
        return str(super().text(kind))


def speak(widget: QWidget, text: Callable[[], str]) -> None:
    """Makes `text()` the accessible value of a widget."""
    if not _texts:
        QAccessible.installFactory(_made)  # a second installation does no harm
    _texts[widget] = text


def _made(_class_name: str, thing: QObject | None) -> SpokenDocument | None:
    return SpokenDocument(thing) if isinstance(thing, QWidget) and thing in _texts else None
