"""Refusals in words, and translation of the words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_translators: list[Callable[[str, str], str]] = []


def translate(context: str, text: str) -> str:
    """The sentence in the window's language; as it is where there is no window."""
    return _translators[0](context, text) if _translators else text


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:  # as lupdate knows it
    """Marks a sentence that is translated where it is used; as it is."""
    del context
    return text


def translate_with(translator: Callable[[str, str], str]) -> None:
    """Lends the translators of the window.

    Args:
        translator: Given the context and the sentence.
    """
    _translators[:] = [translator]


PLACES: Final = {
    "ask": QT_TRANSLATE_NOOP("Refusals", "Settings > Models"),
    "models": QT_TRANSLATE_NOOP("Refusals", "Settings > Models"),
    "sessions": QT_TRANSLATE_NOOP("Refusals", "Settings > Data"),
}  # of commands
_COMMAND: Final = re.compile(r"`elsewise\s(ask|models|sessions)\b[^`]*`")
_TERMINAL: Final = re.compile(r" \((?:[^()`]*`[^`]*`)+[^()`]*\)")


def in_window(words: str) -> str:
    """A message of the library or the store, as the window says it.

    Its commands stand in backquotes: the window names its own place. What only a terminal or a program can do stands in
    parentheses and backquotes, and is left out.
    """
    return _COMMAND.sub(lambda found: translate("Refusals", PLACES[found[1]]), _TERMINAL.sub("", words))


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""

    def __init__(self, words: str = "") -> None:
        super().__init__(in_window(words))


class ModelRefusal(Refusal):
    """There is no model for it, or the one in use cannot: another one may be chosen."""


class ShownElsewhere(Refusal):
    """A session is not opened here since another window shows it, which comes to the front."""
