"""Refusals in words, and translation of the words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from runtime import SAMPLER_STAGES

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
    """A message of the library or the store, as the window says it.

    Its commands stand in backquotes: the window names its own place. What only a terminal or a program can do stands in
    parentheses and backquotes, and is left out. Options have the names that the settings give them.
    """
    words = _COMMAND.sub(lambda found: translate("Refusals", PLACES[found[1]]), _TERMINAL.sub("", words))
    words = _SET.sub(lambda found: translate("Refusals", LOADING[found[1] or found[0]]).format(found[2] or found[3]), words)
    return _OPTION.sub(lambda found: f"“{translate('Options', OPTIONS[found[0]])}”", words)


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""

    def __init__(self, words: str = "") -> None:
        super().__init__(in_window(words))


class ModelRefusal(Refusal):
    """There is no model for it, or the one in use cannot: another one may be chosen."""


class ShownElsewhere(Refusal):
    """A session is not opened here since another window shows it, which comes to the front."""
