"""Refusals in words, and translation of the words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from resources.processes import is_bundle

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
_COMMAND: Final = re.compile(
    r"(['`]?)elsewise\s(ask|models|sessions)\s(?:--)?\w+(?:\s(?!(?:or|puts|shows?|says|names|takes|does|helps)\b)[^\s,;()'`]+)*\1"
)

_OPTION: Final = re.compile(r"\s\([^()]*--(?:adapter|float32|name|plain-http)\b[^()]*\)")
_TOKENIZER: Final = re.compile(r":\sname\s[a-z\s]+\sby\sconnect\([^()]*\),\s--tokenizer\sFOLDER")
_VARIABLE: Final = re.compile(r",?\sor\sset\s(?:HF_TOKEN|ELSEWISE_[A-Z_]+)[^;]*?(?=\s\(|;|$)")
_INSTALL: Final = re.compile(r"(?s):\s(?:make|pip)\s\w+.*")


def in_window(words: str) -> str:
    """A message of the library or the store: in place of the commands that it names, where the window does the same.

    Variables of the environment are left out; from an installed app, which has no command line, how to add a library too.
    """
    words = _VARIABLE.sub("", words)
    words = _INSTALL.sub("", words) if is_bundle() else words
    words = _TOKENIZER.sub(translate("Refusals", "; get that model in Settings > Models"), _OPTION.sub("", words))
    return _COMMAND.sub(lambda found: translate("Refusals", PLACES[found[2]]), words)


class Refusal(Exception):
    """A command that was not carried out. The text says what was wrong and what to do; nothing was lost."""

    def __init__(self, words: str = "") -> None:
        super().__init__(in_window(words))


class ModelRefusal(Refusal):
    """There is no model for it, or the one in use cannot: another one may be chosen."""


class ShownElsewhere(Refusal):
    """A session is not opened here since another window shows it, which comes to the front."""
