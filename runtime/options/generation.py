"""Options of one answer (sampler stages and their parameters, length, recorded alternatives), and how layers are resolved.

A new stage of the sampler is a file in `runtime.sampling.stages`, a line in `SAMPLER_STAGES` and its fields in
`SamplingOptions`; one that draws a number also has a column in `StageTable`. The layers of options are, the first taking
precedence: the call, the session, a preset, the model's own generation_config.json, the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from runtime.adapters.uses import AdapterUse, check_adapters
from runtime.errors import GrammarError, InvalidRequestError, OptionError
from runtime.grammar.source import Grammar
from runtime.options.checking import (
    MOST_SEED,
    check_fields,
    check_token,
    check_value,
    flag,
    instance,
    is_whole,
    many,
    nearest,
    option,
    shown,
    whole,
)
from runtime.options.speculation import SpeculativeOptions
from runtime.sampling.spec import Chosen, Parameter, StageSpec
from runtime.sampling.stages import bias, dry, min_p, penalties, temperature, top_k, top_p, typical, xtc

Breaker = int | str  # a token id, or a text for every token that contains it

SAMPLER_STAGES: Final[tuple[StageSpec, ...]] = (  # in their default order
    bias.SPEC,
    penalties.SPEC,
    dry.SPEC,
    temperature.SPEC,
    top_k.SPEC,
    top_p.SPEC,
    min_p.SPEC,
    typical.SPEC,
    xtc.SPEC,
)
STAGES: Final = {spec.name: spec for spec in SAMPLER_STAGES}
ORDER: Final = tuple(STAGES)
PARAMETERS: Final[dict[str, Parameter]] = {each.name: each for spec in SAMPLER_STAGES for each in spec.parameters}
DEFAULTS: Final[dict[str, Any]] = {**{each.name: each.default for each in PARAMETERS.values()}, "order": ORDER}
_ORDER_RULE: Final = many("names of stages", lambda each: isinstance(each, str))
_CHECKS: Final = {each.name: spec.check for spec in SAMPLER_STAGES if spec.check for each in spec.parameters}
STAGE_OF: Final = {each.name: spec.name for spec in SAMPLER_STAGES for each in spec.parameters if each.switch}
RANDOM_STAGES: Final = tuple(spec.name for spec in SAMPLER_STAGES if spec.draws is not None)  # beside the draw
NUMBERS: Final = {"": 0, "raw": 1, "grammar": 2, "draw": 12} | {spec.name: spec.number for spec in SAMPLER_STAGES}
STAGE_NAMES: Final = tuple(sorted(NUMBERS, key=NUMBERS.__getitem__))  # by number; 0 fills stored columns


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """Settings of the sampler. Fields of None are filled by the model's own settings, then by the defaults.

    The default `order` is: raw scores -> bias and bans -> penalties and DRY -> temperature -> top-k -> top-p -> min-p ->
    typical -> XTC -> draw. A stage that `order` leaves out does nothing.

    Attributes:
        temperature: Divides the scores. 0 is greedy: the likeliest token after bias and penalties, the lowest id among equals;
            cuts then have no effect.
        top_k: Keeps the k likeliest tokens; 0 is off.
        top_p: Keeps the likeliest tokens that together reach this probability, including the one that crosses it; 1 is off.
        min_p: Keeps tokens with at least this share of the likeliest token's probability (arXiv:2407.01082); 0 is off.
        typical_p: Keeps the tokens whose surprisal is nearest to the entropy, up to this probability (arXiv:2202.00666); 1 is
            off.
        xtc_probability: The probability that XTC acts in a draw: it removes all tokens above the threshold except the least
            likely of them; 0 is off.
        xtc_threshold: The probability from which XTC counts a token as a top choice.
        repetition_penalty: Divides the positive raw logits of tokens that occurred and multiplies their negative ones
            (arXiv:1909.05858, as in transformers); 1 is off.
        presence_penalty: Subtracted from the score of tokens that occurred; 0 is off.
        frequency_penalty: Subtracted once per occurrence; 0 is off.
        penalty_window: The number of last tokens of prompt and answer that the three penalties count; 0 is all.
        dry_multiplier: Strength of DRY, which penalises the next token of a repetition, increasingly with its length; 0 is off.
        dry_base: Growth factor of the DRY penalty per repeated token.
        dry_allowed_length: Repetitions shorter than this are not penalised.
        dry_range: The number of last tokens in which DRY finds repetitions; 0 is all.
        dry_breakers: Token ids, or texts for every token that contains them; no repetition extends across a breaker.
        logit_bias: Added to the score of an id. -100 or less bans it in practice; -1e9 or less counts as a ban.
        banned_tokens: Ids that are never drawn; a positive bias of a banned id is a contradiction.
        order: Names of stages of `SAMPLER_STAGES`, in the order in which they are applied.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    penalty_window: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_range: int | None = None
    dry_breakers: tuple[Breaker, ...] | None = None
    logit_bias: dict[int, float] | None = None
    banned_tokens: tuple[int, ...] | None = None
    order: tuple[str, ...] | None = None

    def check(self, vocab: int | None = None) -> Self:
        """Checks the settings and returns them.

        Args:
            vocab: Size of the vocabulary; None: not known.

        Raises:
            InvalidRequestError: A value out of range, an id outside the vocabulary, an order with an unknown or repeated
                stage or without a stage that is set, or nothing left to draw; the message names it.
        """
        given: dict[str, Any] = {}
        checks: dict[Callable[[Chosen, int | None], None], None] = {}
        for name, parameter in PARAMETERS.items():
            value = getattr(self, name)
            if value is not None and value is not parameter.default:
                check_value(name, value, parameter.rule)
                given[name] = value
                if name in _CHECKS:
                    checks[_CHECKS[name]] = None
        if self.order is not None and self.order is not ORDER:
            check_value("order", self.order, _ORDER_RULE)
            self._check_order(self.order)
        for check in checks:
            check(given, vocab)
        return self

    def _check_order(self, order: tuple[str, ...]) -> None:
        for place, name in enumerate(order):
            if name not in ORDER:
                raise InvalidRequestError(f"order: unknown stage {name!r}: {nearest(name, ORDER)}")
            if name in order[:place]:
                raise InvalidRequestError(f"order: stage {name!r} stands there twice")
        for name, stage in STAGE_OF.items():
            value = getattr(self, name)
            if stage not in order and value is not None and value != DEFAULTS[name]:
                raise InvalidRequestError(
                    f"{name}={value!r} contradicts an order without {stage!r}: add it, or leave {name} out"
                )

    def given(self) -> dict[str, Any]:
        """The fields that are set."""
        return {name: value for name in _NAMES if (value := getattr(self, name)) is not None}

    def over(self, *others: SamplingOptions) -> SamplingOptions:
        """These settings, with unset fields filled from the first of `others` that sets them."""
        merged: dict[str, Any] = {}
        for source in (self, *others):
            merged = {**source.given(), **merged}
        return SamplingOptions(**merged)


_NAMES = tuple(f.name for f in fields(SamplingOptions))


# ---- one generation ----------------------------------------------------------------------------------------------

MOST_ALTERNATIVES: Final = 1000
ALTERNATIVES: Final = whole(0, MOST_ALTERNATIVES, of="alternatives recorded")
MOST_STOP: Final = 65_536  # characters of all stop strings: an engine needs a few hundred bytes for each character


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """The options of one generation."""

    max_tokens: int | None = option(None, whole(1))  # None: 512, or the rest of the context
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    stop: tuple[str, ...] = option((), many("texts, none of them empty", lambda each: isinstance(each, str) and each != ""))
    ignore_eos: bool = option(False, flag)
    # ids that end the answer, in place of those of the model and the chat format
    eos_token_ids: tuple[int, ...] | None = option(None, many("token ids", lambda each: is_whole(each, 0)))
    top_k: int = option(10, ALTERNATIVES)  # alternatives recorded per token; the sampler's top-k is in `sampling`
    stages: bool = option(False, flag)  # whether records have the sampler's stages, and at least 64 alternatives
    seed: int | None = option(None, whole(0, MOST_SEED))  # None: a random seed, which `Metrics.request` has
    branch: int = option(0, whole(0, MOST_SEED))  # selects other random numbers of the same seed
    resolve: bool = option(True, flag)  # False: only the library's defaults, for parity and benchmarks
    # verifies several drafted tokens in one forward
    speculative: SpeculativeOptions | None = option(None, instance(SpeculativeOptions, "SpeculativeOptions(...) or None"))
    adapters: tuple[AdapterUse, ...] | None = None  # loaded adapters, in order; () is the base, None the model's stack
    grammar: Grammar | None = None  # restricts the answer
    grammar_prefix: int = option(0, whole(0))  # number of last prompt ids that already belong to the answer

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> Self:
        """Checked options from names and values: own names, flat or nested, or the spellings of Hugging Face and OpenAI.

        Raises:
            InvalidRequestError: An unknown name (the message has the nearest), two spellings that contradict each other, or a
                value out of range.
        """
        from runtime.options.aliases import read_options  # circular: that module imports these classes

        return cls(**read_options(options))

    def check(self, vocab: int | None = None) -> Self:
        """Checks the options and returns them.

        Args:
            vocab: Size of the vocabulary; None: not known.

        Raises:
            InvalidRequestError: A value out of range, an id outside the vocabulary, or nothing left to draw; the message names
                it.
            GrammarError: An option that contradicts the grammar.
        """
        check_fields(self)
        if not isinstance(self.sampling, SamplingOptions):
            raise OptionError("{option} is SamplingOptions(...), not {value}", "sampling", shown(self.sampling))
        self.sampling.check(vocab)
        if vocab is not None:
            for token in self.eos_token_ids or ():
                check_token("eos_token_ids", token, vocab)
            size = sum(map(len, self.stop))
            if size > MOST_STOP:  # checked only with a vocabulary, so that stored options of earlier versions can be read
                words = (
                    f"{{option}} has {size:,} characters in all; at most {MOST_STOP:,} are read: give fewer or shorter texts"
                )
                raise OptionError(words, "stop", shown(self.stop))
        if self.speculative is not None:
            self.speculative.check()
        if self.adapters is not None:
            check_adapters(self.adapters)
        if self.grammar is not None or self.grammar_prefix:
            self._check_grammar()
        return self

    def _check_grammar(self) -> None:
        if self.grammar is None:
            raise InvalidRequestError(f"grammar_prefix={self.grammar_prefix} without a grammar: give both or neither")
        if not isinstance(self.grammar, Grammar):
            raise GrammarError(
                f"grammar is made by Grammar.json_schema, Grammar.regex or Grammar.lark, not {shown(self.grammar)}"
            )
        name = "ignore_eos" if self.ignore_eos else "eos_token_ids" if self.eos_token_ids is not None else None
        if name is not None:
            raise GrammarError(
                f"{name} contradicts a grammar, which alone says where an answer may end: leave out one of the two"
            )


def given(options: GenerationOptions | None, named: Mapping[str, Any] | None = None) -> GenerationOptions:
    """The checked options of a call; the defaults if none are given.

    Args:
        options: The options as an object.
        named: Or single options, by the names that `GenerationOptions.from_mapping` knows.

    Raises:
        InvalidRequestError: Not options, a value out of range, or both forms at once.
    """
    if named:
        if options is not None:
            raise InvalidRequestError(f"options and {', '.join(named)} beside them: put all of them into the GenerationOptions")
        return GenerationOptions.from_mapping(named)
    if options is None:
        return GenerationOptions()
    if not isinstance(options, GenerationOptions):
        raise InvalidRequestError(
            f"options is a GenerationOptions, not {shown(options)}; make one by its keywords, "
            "GenerationOptions(max_tokens=64), or by GenerationOptions.from_mapping(names and values)"
        )
    return options.check()


# ---- layers ------------------------------------------------------------------------------------------------------

Layer = GenerationOptions | Mapping[str, Any] | None
DEFAULT_MAX_TOKENS: Final = 512
_PLAIN = GenerationOptions()


@dataclass(frozen=True, slots=True)
class AnswerEnds:
    """The default ends of an answer of a loaded model.

    Attributes:
        eos_token_ids: From the model's configuration.
        format_eos: Other tokens that end a turn of the chat format.
        format_stops: Texts that end a turn of the chat format.
    """

    eos_token_ids: tuple[int, ...] = ()
    format_eos: tuple[int, ...] = ()
    format_stops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """The options in force, and their sources.

    Attributes:
        options: `max_tokens` and every setting of `sampling` are set; the seed stays None where none was chosen. For a loaded
            model `stop` and `eos_token_ids` include the ends of a turn of its chat format. With a grammar, which decides where
            an eos may come, `eos_token_ids` stays None.
        sources: By field: "call", "session", "preset", "model", "format" (the chat format) or "default", or two of them ("call
            and format") where both contribute; settings of the sampler are named like "sampling.temperature".
    """

    options: GenerationOptions
    sources: dict[str, str]


def resolve_options(
    call: Layer = None,
    *,
    session: Layer = None,
    preset: Layer = None,
    model: Layer = None,
    ends: AnswerEnds | None = None,
) -> ResolvedOptions:
    """The options in force: each field from the first layer that sets it.

    Args:
        call: The request's options. With ``resolve=False`` only the call and the defaults count.
        session: The session's options.
        preset: The application's options.
        model: The model's own options; `LanguageModel.resolve_options` passes them.
        ends: The model's default ends of an answer; likewise.

    A layer is a mapping (see `GenerationOptions.from_mapping`), which sets the fields that it has, or a `GenerationOptions`,
    which sets the fields that differ from their defaults. False for `grammar` or `speculative` in a mapping switches them off,
    whatever the lower layers set. Of two contradicting settings of different layers the lower layer's is dropped.

    Raises:
        InvalidRequestError: An unknown name, a value out of range, or settings of one layer that contradict each other.
    """
    layers = {"call": _given(call), "session": _given(session), "preset": _given(preset), "model": _given(model)}
    if layers["call"].get("resolve") is False:
        layers = {"call": layers["call"]}
    values: dict[str, Any] = {**_DEFAULTS}
    sources = dict.fromkeys(values, "default")
    for source, layer in reversed(layers.items()):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    if sources[_ORDER] != "default":
        values[_ORDER], sources[_ORDER] = _order(layers, values, sources)
    if values["grammar"] is not None or values["grammar_prefix"]:
        _drop_conflicts_with_grammar(values, sources, list(layers))
    if sources[_BANS] != sources[_BIASES]:
        _drop_conflicts_with_bans(values, sources, list(layers))
    sampling = dict(zip(DEFAULTS, map(values.pop, _SETTINGS), strict=True))
    if sampling["order"] != DEFAULTS["order"]:
        sampling |= _settings_off(sampling["order"], sources)
    made = replace(_PLAIN, **values, sampling=SamplingOptions(**sampling)).check()
    if ends is not None and made.grammar is None and not made.ignore_eos and made.eos_token_ids is None:
        sources["eos_token_ids"] = _joined("model" if ends.eos_token_ids else None, "format" if ends.format_eos else None)
        stops = tuple(dict.fromkeys((*made.stop, *ends.format_stops))) if made.resolve else made.stop
        if stops != made.stop:
            sources["stop"] = _joined(sources["stop"] if made.stop else None, "format")
        made = replace(made, stop=stops, eos_token_ids=(*ends.eos_token_ids, *ends.format_eos))
    return ResolvedOptions(made, sources)


def _order(layers: Mapping[str, dict[str, Any]], values: dict[str, Any], sources: dict[str, str]) -> tuple[Any, str]:
    """The order of the first layer whose order includes all stages that higher layers set, and that layer."""
    set_above: set[str] = set()  # stages
    for source, layer in layers.items():
        order = layer.get(_ORDER)
        if order is not None and set_above.issubset(order):
            return tuple(order), source
        set_above |= {
            stage
            for name, stage in STAGE_OF.items()
            if sources[_PREFIX + name] == source and values[_PREFIX + name] not in (None, DEFAULTS[name])
        }
    return DEFAULTS["order"], "default"


def _drop_conflicts_with_grammar(values: dict[str, Any], sources: dict[str, str], layers: list[str]) -> None:
    """Drops the lower layer's setting where a grammar contradicts `ignore_eos` or `eos_token_ids`."""
    rank = {source: place for place, source in enumerate([*layers, "default"])}
    for name, plain in (("ignore_eos", False), ("eos_token_ids", None)):
        if values["grammar"] is None or values[name] == plain or sources[name] == sources["grammar"]:
            continue
        lower, other = (name, "grammar") if rank[sources["grammar"]] < rank[sources[name]] else ("grammar", name)
        values[lower], sources[lower] = plain if lower == name else None, sources[other]
    if values["grammar_prefix"] and rank[sources["grammar"]] < rank[sources["grammar_prefix"]]:
        values["grammar_prefix"], sources["grammar_prefix"] = 0, sources["grammar"]  # that prefix belongs to another grammar


def _drop_conflicts_with_bans(values: dict[str, Any], sources: dict[str, str], layers: list[str]) -> None:
    """Where a token has a ban and a positive bias, drops the setting of the lower layer for that token."""
    both = {token for token in values[_BANS] if values[_BIASES].get(token, 0) > 0}
    if not both:
        return
    lower, upper = sorted((_BANS, _BIASES), key=lambda name: -layers.index(sources[name]))
    if lower == _BANS:
        values[_BANS] = tuple(token for token in values[_BANS] if token not in both)
    else:
        values[_BIASES] = {token: bias for token, bias in values[_BIASES].items() if token not in both}
    sources[lower] = _joined(sources[upper], sources[lower] if values[lower] else None)


def _joined(*sources: str | None) -> str:
    return " and ".join(one for one in sources if one is not None) or "default"


_PREFIX = "sampling."
_ORDER, _BANS, _BIASES = _PREFIX + "order", _PREFIX + "banned_tokens", _PREFIX + "logit_bias"
_PLAIN_VALUES = {f.name: getattr(_PLAIN, f.name) for f in fields(GenerationOptions)}
_DEFAULTS = {
    **{name: value for name, value in _PLAIN_VALUES.items() if name != "sampling"},
    "max_tokens": DEFAULT_MAX_TOKENS,
    **{_PREFIX + name: value for name, value in DEFAULTS.items()},
}
_SETTINGS = [_PREFIX + name for name in DEFAULTS]


def _settings_off(order: tuple[str, ...], sources: dict[str, str]) -> dict[str, Any]:
    """The defaults for settings of stages that another layer's `order` leaves out."""
    decided = sources[_ORDER]
    off = {
        name: DEFAULTS[name] for name, stage in STAGE_OF.items() if stage not in order and sources[_PREFIX + name] != decided
    }
    for name in off:
        sources[_PREFIX + name] = decided
    return off


def _given(layer: Layer) -> dict[str, Any]:
    """The fields that a layer sets."""
    if layer is None:
        return {}
    if isinstance(layer, GenerationOptions):
        found = {}
        for name, plain in _PLAIN_VALUES.items():
            value = getattr(layer, name)
            if value != plain:
                found[name] = value
    elif isinstance(layer, Mapping):
        from runtime.options.aliases import read_options  # circular: that module imports these classes

        found = read_options(layer)
    else:
        raise InvalidRequestError(f"options are GenerationOptions or a mapping, not {layer!r:.80}")
    sampling = found.pop("sampling", None)
    return {**found, **({_PREFIX + name: value for name, value in sampling.given().items()} if sampling else {})}
