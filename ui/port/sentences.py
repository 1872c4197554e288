"""Sentences that are made behind the window and shown in it: English, or what the window's translators make of them.

Use cases know no Qt. They write `translate("Workbench", "a sentence with {0}").format(value)`, which Qt's lupdate finds, and
the window lends them its translators.
"""

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
