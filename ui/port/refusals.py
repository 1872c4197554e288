"""Refusals, and the translation of texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from runtime import SAMPLER_STAGES

_translators: list[Callable[[str, str], str]] = []


def translate(context: str, text: str) -> str:
    """Translates a sentence; returns it unchanged without a window."""
    return _translators[0](context, text) if _translators else text


def QT_TRANSLATE_NOOP(context: str, text: str) -> str:  # the name that lupdate looks for
    """Marks a sentence for lupdate, and returns it unchanged; it is translated where it is used."""
    del context
    return text


def translate_with(translator: Callable[[str, str], str]) -> None:
    """Sets the translator.

    Args:
        translator: Called with the context and the sentence.
    """
    _translators[:] = [translator]


BUSY: Final = QT_TRANSLATE_NOOP("Workbench", "an answer is being written here; stop it first (Ctrl-.)")
PLACES: Final = {
    "ask": QT_TRANSLATE_NOOP("Refusals", "Settings > Models"),
    "models": QT_TRANSLATE_NOOP("Refusals", "Settings > Models"),
    "sessions": QT_TRANSLATE_NOOP("Refusals", "Settings > Data"),
}  # of commands
LOADING: Final = {  # options of loading, as the settings name them
    "kv_cache_bytes": QT_TRANSLATE_NOOP("Refusals", "KV in memory (Settings > Memory)"),
    "backend": QT_TRANSLATE_NOOP("Refusals", "the engine {0}"),
    "device": QT_TRANSLATE_NOOP("Refusals", "the device {0}"),
    "dtype": QT_TRANSLATE_NOOP("Refusals", "the precision {0}"),
    "weights": QT_TRANSLATE_NOOP("Refusals", "weights in {0}"),
    "offload": QT_TRANSLATE_NOOP("Refusals", "weights on {0}"),
    "kv_dtype": QT_TRANSLATE_NOOP("Refusals", "KV in {0}"),
    "context_length": QT_TRANSLATE_NOOP("Refusals", "a context of {0}"),
    "chat_format": QT_TRANSLATE_NOOP("Refusals", "the chat format {0}"),
}
_LABELS: Final = {each.name: each.label for spec in SAMPLER_STAGES for each in spec.parameters if "_" in each.name}
OPTIONS: Final = {**_LABELS, "max_tokens": QT_TRANSLATE_NOOP("Options", "longest answer")}  # as a session's settings name them
_OPTION: Final = re.compile(rf"(?<![\w./'\"`])(?:{'|'.join(OPTIONS)})(?![\w'\"`])")
_SET: Final = re.compile(rf"\b({'|'.join(LOADING)})=(?:'([^']*)'|(\d[\d,]*))|\bkv_cache_bytes\b")
_COMMAND: Final = re.compile(r"`elsewise\s(ask|models|sessions)\b[^`]*`")
_TERMINAL: Final = re.compile(r" \((?:[^()`]*`[^`]*`)+[^()`]*\)")


def in_window(words: str) -> str:
    """Rewrites a message of the library or the store for the window.

    Commands in backquotes become places of the window. Hints in parentheses with backquotes, for terminals and programs, are
    left out. Options get their names in the settings.
    """
    words = _COMMAND.sub(lambda found: translate("Refusals", PLACES[found[1]]), _TERMINAL.sub("", words))
    words = _SET.sub(lambda found: translate("Refusals", LOADING[found[1] or found[0]]).format(found[2] or found[3]), words)
    return _OPTION.sub(lambda found: f"“{translate('Options', OPTIONS[found[0]])}”", words)


class Refusal(Exception):
    """A command that was not carried out. The text says what is wrong and what to do; nothing was lost."""

    def __init__(self, words: str = "") -> None:
        super().__init__(in_window(words))


class ModelRefusal(Refusal):
    """There is no model, or it lacks a capability: another one may be chosen."""


class ShownInOtherWindow(Refusal):
    """The session was not opened, because another window shows it and comes to the front."""
