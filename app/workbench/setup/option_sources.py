"""Every option that held, by name, with who said so: of an answer as it was stored, or before it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ui import QT_TRANSLATE_NOOP, translate

if TYPE_CHECKING:
    from runtime import ModelInfo

_NOT_TOLD = ("sampling", "seed", "stages", "resolve")  # the seed stands beside the options
DEFAULT = "default"
SOURCES = (  # who said an option, as it is stored
    QT_TRANSLATE_NOOP("Workbench", "call"),
    QT_TRANSLATE_NOOP("Workbench", "session"),
    QT_TRANSLATE_NOOP("Workbench", "preset"),
    QT_TRANSLATE_NOOP("Workbench", "model"),
    QT_TRANSLATE_NOOP("Workbench", "format"),
    QT_TRANSLATE_NOOP("Workbench", "default"),
)


def spoken_name(info: ModelInfo) -> str:
    """What a model is called beside its numbers: with the form of its weights where that is not the plain one."""
    return with_weights(info.name, info.quantisation)


def with_weights(name: str, form: object) -> str:
    """The same, of a name; `form` as `ModelInfo.quantisation` has it."""
    return f"{name} · {form}" if isinstance(form, str) and form else name


def named_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values by name as `ResolvedOptions.sources` has them ("sampling.temperature").

    Args:
        options: As `plain_options` gives them, or as they are stored.
    """
    plain = {name: value for name, value in options.items() if name not in _NOT_TOLD}
    return plain | {f"sampling.{name}": value for name, value in (options.get("sampling") or {}).items()}


def stored_sources(made: Mapping[str, Any]) -> dict[str, str]:
    """Who said so, by name, of an answer as it is stored; what nobody said is not among them."""
    return {name: who for who, names in (made.get("sources") or {}).items() for name in names}


def told_options(options: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """By name: the value, and its source (call, session, preset, model, format, default, or two of them)."""
    return {name: {"value": v, "source": sources.get(name, DEFAULT)} for name, v in named_options(options).items()}


def source_words(who: str) -> str:
    """Who said an option, for the window: one of `SOURCES`, or two."""
    first, both, second = who.partition(" and ")
    if not both:
        return known_word(who, SOURCES)
    return translate("Workbench", "{0} and {1}").format(known_word(first, SOURCES), known_word(second, SOURCES))


def known_word(word: str, known: Sequence[str]) -> str:
    """A stored word in the window's language; as it is where it is not one of ours."""
    return translate("Workbench", word) if word in known else word
