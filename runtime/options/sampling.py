"""`SamplingOptions`: how the next token is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from runtime.errors import InvalidRequestError
from runtime.options.checking import FEW, check_fields, check_value, is_whole, many, nearest, number, option, shown, whole

Breaker = int | str  # a token id, or a text: every token that contains it

BANNING: Final = -1e9  # a bias from here down: beside it nothing of float32's is left of a score that models give
LARGEST: Final = 1e30  # that a score is changed by, either way: float32 ends at 3e38, and infinity less infinity is no score
EDITS = ("bias", "penalties", "dry")  # change scores
CUTS = ("top_k", "top_p", "min_p", "typical", "xtc")  # remove tokens
ORDER: Final = (*EDITS, "temperature", *CUTS)  # what stands between the raw distribution and the draw

DEFAULTS: Final[dict[str, Any]] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "penalty_window": 0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_range": 0,
    "dry_breakers": ("\n", ":", '"', "*"),
    "logit_bias": {},
    "banned_tokens": (),
    "order": ORDER,
}

CHANGE: Final = number(-LARGEST, LARGEST)  # of a score

STAGE_OF: Final = {  # the setting that turns a stage on
    "logit_bias": "bias",
    "banned_tokens": "bias",
    "repetition_penalty": "penalties",
    "presence_penalty": "penalties",
    "frequency_penalty": "penalties",
    "dry_multiplier": "dry",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical",
    "xtc_probability": "xtc",
}


def _biases(value: Any) -> str | None:
    wants = "{option} is a dictionary of token ids and numbers, not {value}"
    return None if isinstance(value, dict) else wants


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
        order: Names of stages, of `SAMPLING_STAGES`.
    """

    temperature: float | None = option(None, number(0.0, LARGEST))
    top_k: int | None = option(None, whole(0, least_is="off"))
    top_p: float | None = option(None, number(0.0, 1.0, open_low=True))
    min_p: float | None = option(None, number(0.0, 1.0))
    typical_p: float | None = option(None, number(0.0, 1.0, open_low=True))
    xtc_probability: float | None = option(None, number(0.0, 1.0))
    xtc_threshold: float | None = option(None, number(0.0, 0.5, open_low=True))
    repetition_penalty: float | None = option(None, number(1 / LARGEST, LARGEST))
    presence_penalty: float | None = option(None, CHANGE)
    frequency_penalty: float | None = option(None, CHANGE)
    penalty_window: int | None = option(None, whole(0, least_is="all"))
    dry_multiplier: float | None = option(None, number(0.0, math.inf))
    dry_base: float | None = option(None, number(1.0, math.inf))
    dry_allowed_length: int | None = option(None, whole(1))
    dry_range: int | None = option(None, whole(0, least_is="all"))
    dry_breakers: tuple[Breaker, ...] | None = option(None, many("token ids and texts"))
    logit_bias: dict[int, float] | None = option(None, _biases)
    banned_tokens: tuple[int, ...] | None = option(None, many("token ids"))
    order: tuple[str, ...] | None = option(None, many("names of stages", lambda each: isinstance(each, str)))

    def check(self, vocab: int | None = None) -> Self:
        """Itself.

        Args:
            vocab: Size of the vocabulary, where it is known.

        Raises:
            InvalidRequestError: A value out of range, an id outside the vocabulary, an order with an unknown or repeated
                stage or without one that is set, or nothing left to draw; the message names it.
        """
        check_fields(self)
        self._check_order()
        self._check_ids(vocab)
        return self

    def _check_order(self) -> None:
        if self.order is None:
            return
        for place, name in enumerate(self.order):
            if name not in ORDER:
                raise InvalidRequestError(f"order: unknown stage {name!r}: {nearest(name, ORDER)}")
            if name in self.order[:place]:
                raise InvalidRequestError(f"order: stage {name!r} stands there twice")
        for name, stage in STAGE_OF.items():
            value = getattr(self, name)
            if stage not in self.order and value is not None and value != DEFAULTS[name]:
                raise InvalidRequestError(
                    f"{name}={value!r} contradicts an order without {stage!r}: add it, or leave {name} out"
                )

    def _check_ids(self, vocab: int | None) -> None:
        for token, bias in (self.logit_bias or {}).items():
            _token("logit_bias", token, vocab)
            check_value(f"logit_bias of token {token}", bias, CHANGE)
        for token in self.banned_tokens or ():
            _token("banned_tokens", token, vocab)
        for breaker in self.dry_breakers or ():
            if breaker == "":
                raise InvalidRequestError("dry_breakers: an empty text stands in every token; leave it out")
            if not isinstance(breaker, str):
                _token("dry_breakers", breaker, vocab)
        self._check_bans(vocab)

    def _check_bans(self, vocab: int | None) -> None:
        """What is banned is not favoured as well, and is not everything."""
        banned = set(self.banned_tokens or ())
        biases = self.logit_bias or {}
        both = sorted(token for token in banned.intersection(biases) if biases[token] > 0)
        if both:
            ids = ", ".join(map(str, both[:FEW])) + (f" and {len(both) - FEW:,} more" if len(both) > FEW else "")
            raise InvalidRequestError(
                f"banned_tokens bans what logit_bias makes likelier (token id {ids}): take each out of one of the two"
            )
        if vocab is None or len(banned) + len(biases) < vocab:
            return
        away = {token for token, bias in biases.items() if bias <= BANNING} - banned
        if len(banned) + len(away) >= vocab:
            who = " and ".join(name for name, some in (("banned_tokens", banned), ("logit_bias", away)) if some)
            how = f" (a bias of {BANNING:g} or less bans)" if away else ""
            verb = "ban" if banned and away else "bans"
            raise InvalidRequestError(f"{who} {verb} all {vocab:,} tokens of the vocabulary{how}: nothing is left to draw")

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


def _token(name: str, token: object, vocab: int | None) -> None:
    if not is_whole(token, 0):
        raise InvalidRequestError(f"{name}: a token id is a whole number, 0 or more, not {shown(token)}")
    if vocab is not None and token >= vocab:  # type: ignore[operator]  # a whole number
        raise InvalidRequestError(f"{name}: token id {token} is outside the vocabulary of {vocab:,}")
