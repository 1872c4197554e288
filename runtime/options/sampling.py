"""The sampler's stages, and `SamplingOptions`: their parameters.

A new stage is a file in `runtime.sampling.stages`, a line in `SAMPLER_STAGES` and its fields in `SamplingOptions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from runtime.errors import InvalidRequestError
from runtime.options.checking import check_value, many, nearest
from runtime.sampling.spec import Chosen, Parameter, StageSpec
from runtime.sampling.stages import bias, dry, min_p, penalties, temperature, top_k, top_p, typical, xtc

Breaker = int | str  # a token id, or a text: every token that contains it

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
NUMBERS: Final = {"": 0, "raw": 1, "grammar": 2, "draw": 12} | {spec.name: spec.number for spec in SAMPLER_STAGES}
STAGE_NAMES: Final = tuple(sorted(NUMBERS, key=NUMBERS.__getitem__))  # by number; 0 fills stored columns


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How the next token is drawn. Unset fields are None: the model's own settings, then the defaults, fill them.

    The stages stand in `order`: raw scores -> bias and bans -> penalties and DRY -> temperature -> top-k -> top-p ->
    min-p -> typical -> XTC -> draw. A stage that `order` leaves out does nothing.

    Attributes:
        temperature: Divides the scores; 0 is greedy: the likeliest token after bias and penalties, the lowest id among
            equals, and no cut has a say.
        top_k: Only the k likeliest; 0 is off.
        top_p: The likeliest that together reach this probability, the one that crosses it included; 1 is off.
        min_p: Only those with this share of the likeliest one's probability (arXiv:2407.01082); 0 is off.
        typical_p: Those whose surprisal is nearest to the entropy, up to this probability (arXiv:2202.00666); 1 is off.
        xtc_probability: How often XTC acts: all tokens above the threshold but the least likely of them go; 0 is off.
        xtc_threshold: Probability from which XTC counts a token as a top choice.
        repetition_penalty: Divides positive raw logits of tokens that occurred, multiplies negative ones
            (arXiv:1909.05858, as transformers); 1 is off.
        presence_penalty: Is subtracted from the score of what occurred; 0 is off.
        frequency_penalty: Is subtracted once per occurrence; 0 is off.
        penalty_window: The three penalties look at so many last tokens of prompt and answer; 0 is all.
        dry_multiplier: Strength of DRY, which makes the longer a repetition, the less likely its next token; 0 is off.
        dry_base: Growth per token of the repeated sequence.
        dry_allowed_length: Repetitions shorter than this cost nothing.
        dry_range: DRY looks at so many last tokens; 0 is all.
        dry_breakers: Token ids, or texts that stand for every token containing them; no repetition goes across one.
        logit_bias: Is added to the score of an id; -100 or less in practice bans it, and -1e9 or less counts as a ban.
        banned_tokens: Ids that are never drawn; a positive bias of one is a contradiction.
        order: Names of stages, of `SAMPLER_STAGES`.
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
        """Itself.

        Args:
            vocab: Size of the vocabulary, where it is known.

        Raises:
            InvalidRequestError: A value out of range, an id outside the vocabulary, an order with an unknown or repeated
                stage or without one that is set, or nothing left to draw; the message names it.
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
        """Its own fields, then those of the first of `others` that has them."""
        merged: dict[str, Any] = {}
        for source in (self, *others):
            merged = {**source.given(), **merged}
        return SamplingOptions(**merged)


_NAMES = tuple(f.name for f in fields(SamplingOptions))
