"""Refusals in words, and translation of the words."""

from __future__ import annotations

from collections.abc import Callable

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


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""


class ModelRefusal(Refusal):
    """There is no model for it, or the one in use cannot: another one may be chosen."""


class ShownElsewhere(Refusal):
    """A session is not opened here since another window shows it, which comes to the front."""
