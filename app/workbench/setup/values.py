"""The settings of one session, stored with it, and read back one by one, since any may be invalid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from runtime import SAMPLER_STAGES, GenerationOptions, Grammar, InvalidRequestError, RuntimeFault
from ui import QT_TRANSLATE_NOOP, AdapterChoice, AnswerFormat, FormatKind, Guess, lacking, translate

if TYPE_CHECKING:
    from runtime import LanguageModel, ModelInfo

_PARAMETERS = [each for spec in sorted(SAMPLER_STAGES, key=lambda spec: spec.kind) for each in spec.parameters]
OPTIONS = (  # options that a person can set, in the order in which they are shown
    *(each.name for each in _PARAMETERS if not each.folded),
    "max_tokens",
    "stop",
    "seed",
    "order",  # the window folds this and the following ones
    *(each.name for each in _PARAMETERS if each.folded),
)
MOST_ADAPTERS = 16
MOST_NAME = 80  # characters of a branch's name

Branch = tuple[int, int]  # a node, and the token of it with which the branch begins


class SessionValues(Struct, frozen=True):
    """The settings of one session; unset ones come from preset, model and defaults."""

    options: Mapping[str, Any] = {}  # by the names of `OPTIONS`
    preset: str = ""
    answer_format: AnswerFormat = AnswerFormat()
    adapters: tuple[AdapterChoice, ...] = ()
    guess: Guess = Guess.OFF
    pruned: frozenset[Branch] = frozenset()  # hidden branches
    names: Mapping[Branch, str] = {}  # given names of branches
    bookmarks: frozenset[Branch] = frozenset()  # bookmarked rows of the tree

    @property
    def is_set(self) -> bool:
        return self != SessionValues()

    def layer(self) -> dict[str, Any]:
        """The session's layer for `resolve_options`, without adapters, whose names depend on the model."""
        layer: dict[str, Any] = dict(self.options)
        if self.answer_format.kind is not FormatKind.FREE:
            layer["grammar"] = grammar_of(self.answer_format)
        if self.guess is not Guess.OFF:
            layer["speculative"] = {"method": self.guess.value}
        return layer

    def stored(self) -> dict[str, Any]:
        """The settings as JSON values; empty if nothing is set."""
        if not self.is_set:
            return {}
        return {
            "options": dict(self.options),
            "preset": self.preset,
            "format": [self.answer_format.kind.value, self.answer_format.source],
            "adapters": [[a.folder, a.name, a.scale, a.on] for a in self.adapters],
            "guess": self.guess.value,
            "pruned": sorted(map(list, self.pruned)),
            "names": sorted([node, start, name] for (node, start), name in self.names.items()),
            "bookmarks": sorted(map(list, self.bookmarks)),
        }


def grammar_of(answer_format: AnswerFormat) -> Grammar:
    """The grammar of a format other than free text, not compiled yet.

    Raises:
        GrammarError: The source is not valid.
    """
    make = {FormatKind.JSON_SCHEMA: Grammar.json_schema, FormatKind.REGEX: Grammar.regex, FormatKind.LARK: Grammar.lark}
    return make[answer_format.kind](answer_format.source)


def read_values(stored: object) -> tuple[SessionValues, list[str]]:
    """The valid stored settings, and a line about each piece that was left out."""
    if stored is None:
        return SessionValues(), []
    if not isinstance(stored, Mapping):
        return SessionValues(), [translate("Workbench", "the settings of this session cannot be read; the defaults are used")]
    notes: list[str] = []
    options = read_options(stored.get("options"), notes)
    preset = stored.get("preset", "")
    if not isinstance(preset, str):
        notes.append(translate("Workbench", "its preset has no name; the default is used"))
        preset = ""
    return SessionValues(
        options,
        preset,
        _format(stored.get("format"), notes),
        _adapters(stored.get("adapters"), notes),
        _guess(stored.get("guess", Guess.OFF.value), notes),
        _branches(stored.get("pruned"), translate("Workbench", "a pruned branch cannot be read; it is shown"), notes),
        _names(stored.get("names"), notes),
        _branches(stored.get("bookmarks"), translate("Workbench", "a bookmark cannot be read; it is left out"), notes),
    ), notes


def read_options(stored: object, notes: list[str]) -> dict[str, Any]:
    """The valid options in `stored`, checked one by one; appends a line to `notes` for each other."""
    if stored is None:
        return {}
    if not isinstance(stored, Mapping):
        notes.append(translate("Workbench", "its options cannot be read; they are left out"))
        return {}
    kept: dict[str, Any] = {}
    for name, value in stored.items():
        try:
            if name not in OPTIONS:
                raise InvalidRequestError(translate("Workbench", "there is no option {0!r:.40}").format(name))
            GenerationOptions.from_mapping({name: value})
        except (RuntimeFault, TypeError, ValueError) as fault:
            notes.append(translate("Workbench", "{0!s:.40} was left out: {1}").format(name, fault))
        else:
            kept[name] = value
    return kept


def _format(stored: object, notes: list[str]) -> AnswerFormat:
    if stored is None:
        return AnswerFormat()
    try:
        if not isinstance(stored, list) or len(stored) != 2:
            raise TypeError(stored)
        answer_format = AnswerFormat(FormatKind(stored[0]), str(stored[1]))
        if answer_format.kind is not FormatKind.FREE:
            grammar_of(answer_format)
    except (RuntimeFault, TypeError, ValueError):
        notes.append(translate("Workbench", "its output format cannot be read; its answers are free text"))
        return AnswerFormat()
    return answer_format


def _adapters(stored: object, notes: list[str]) -> tuple[AdapterChoice, ...]:
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        if stored is not None:
            notes.append(translate("Workbench", "its adapters cannot be read; none is used"))
        return ()
    kept = []
    for entry in stored[:MOST_ADAPTERS]:
        match entry:
            case [str(folder), str(name), (int() | float()) as scale, bool(on)] if folder and name and math.isfinite(scale):
                kept.append(AdapterChoice(folder, name, float(scale), on))
            case _:
                notes.append(translate("Workbench", "an adapter of its stack cannot be read; it was left out"))
    return tuple(kept)


def _guess(stored: object, notes: list[str]) -> Guess:
    try:
        return Guess(str(stored))
    except ValueError:
        notes.append(translate("Workbench", "the kind of speculation cannot be read; speculation is off"))
        return Guess.OFF


def _branches(stored: object, problem: str, notes: list[str]) -> frozenset[Branch]:
    kept = set()
    for entry in stored if isinstance(stored, list) else [] if stored is None else [stored]:
        match entry:
            case [int(node), int(start)]:
                kept.add((node, start))
            case _:
                notes.append(problem)
    return frozenset(kept)


def _names(stored: object, notes: list[str]) -> dict[Branch, str]:
    kept = {}
    for entry in stored if isinstance(stored, list) else [] if stored is None else [stored]:
        match entry:
            case [int(node), int(start), str(name)]:
                kept[node, start] = name[:MOST_NAME]
            case _:
                notes.append(translate("Workbench", "the name of a branch cannot be read; it has none"))
    return kept


def without_lacking(preset: GenerationOptions, model: LanguageModel) -> GenerationOptions:
    """A preset without the sampling options that this model lacks; those of a session are refused instead."""
    unset = {name: None for name in preset.sampling.given() if name in model.lacks}
    return replace(preset, sampling=replace(preset.sampling, **unset)) if unset else preset


def guess_problem(guess: Guess, model: LanguageModel) -> str:
    """Why this kind of speculation is not possible with this model; "" if it is."""
    info = model.info
    if guess is Guess.OFF:
        return ""
    if words := lacking("speculation", info.name, model.lacks):
        return words.rstrip(".")
    if "recurrent" in info.attention_kinds:
        return translate("Workbench", "{0} has recurrent state, which cannot be shortened: speculation is not possible").format(
            info.name
        )
    if guess is Guess.DRAFT and not info.options.get("draft_model"):
        return translate("Workbench", "no draft model is loaded: choose one in the settings and reload the model")
    return ""


def guessed_by(layer: Mapping[str, Any], model: LanguageModel) -> Mapping[str, Any]:
    """A session's layer, without speculation if this model cannot do it; the answer is the same."""
    speculative = layer.get("speculative")
    if speculative is None or not guess_problem(Guess(speculative["method"]), model):
        return layer
    return {name: value for name, value in layer.items() if name != "speculative"}


_NOT_LISTED = ("sampling", "seed", "stages", "resolve")  # the seed is shown separately
DEFAULT = "default"
SOURCES = (  # sources of an option, as stored
    QT_TRANSLATE_NOOP("Workbench", "call"),
    QT_TRANSLATE_NOOP("Workbench", "session"),
    QT_TRANSLATE_NOOP("Workbench", "preset"),
    QT_TRANSLATE_NOOP("Workbench", "model"),
    QT_TRANSLATE_NOOP("Workbench", "format"),
    QT_TRANSLATE_NOOP("Workbench", "default"),
)


def spoken_name(info: ModelInfo) -> str:
    """A model's name, with the form of its weights if they are quantised."""
    return with_weights(info.name, info.quantisation)


def with_weights(name: str, form: object) -> str:
    """A model's name with `form`, a value of `ModelInfo.quantisation`."""
    return f"{name} · {form}" if isinstance(form, str) and form else name


def mapping_of(stored: object) -> Mapping[str, Any]:
    """A stored mapping; an empty one for other values, which an imported session may have."""
    return stored if isinstance(stored, Mapping) else {}


def named_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values by the names of `ResolvedOptions.sources` ("sampling.temperature")."""
    plain = {name: value for name, value in options.items() if name not in _NOT_LISTED}
    return plain | {f"sampling.{name}": value for name, value in mapping_of(options.get("sampling")).items()}


def stored_sources(made: Mapping[str, Any]) -> dict[str, str]:
    """The source of each option of a stored answer, by name; defaults are left out."""
    sources = {source: names for source, names in mapping_of(made.get("sources")).items() if isinstance(names, list)}
    return {name: source for source, names in sources.items() for name in names if isinstance(name, str)}


def options_with_sources(options: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Value and source (call, session, preset, model, format, default, or two of them) of each option, by name."""
    return {name: {"value": v, "source": sources.get(name, DEFAULT)} for name, v in named_options(options).items()}


def source_words(source: str) -> str:
    """The source of an option (one of `SOURCES`, or two) in the window's language."""
    first, both, second = source.partition(" and ")
    if not both:
        return known_word(source, SOURCES)
    return translate("Workbench", "{0} and {1}").format(known_word(first, SOURCES), known_word(second, SOURCES))


def known_word(word: str, known: Sequence[str]) -> str:
    """A stored word in the window's language; unchanged if it is unknown."""
    return translate("Workbench", word) if word in known else word
