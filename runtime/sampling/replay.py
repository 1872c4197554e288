"""Repeats a draw without a model, as it was or with other settings (the window's *Why*)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from runtime.errors import InvalidRequestError
from runtime.numerics.stage_table import Stage
from runtime.options.generation import SAMPLER_STAGES, SamplingOptions
from runtime.records import Float32, Int32, TokenRecord
from runtime.sampling.chain import Bool, Traced, make_sampler, uniform
from runtime.sampling.heads import Heads
from runtime.sampling.report import report


@dataclass(frozen=True, slots=True)
class Replayed:
    """A repeated draw.

    Attributes:
        token: The id; None where it is, or depends on, a token that the record does not hold.
        stages: The effect of each stage.
        whole: Whether all shares are exact; a token that is not None is certain either way. A record holds the likeliest
            tokens, and the number and total probability of the others: with other settings the others count as equally likely,
            and some shares are approximate.
    """

    token: int | None
    stages: tuple[Stage, ...]
    whole: bool


def replay_draw(
    source: TokenRecord | Float32,
    sampling: SamplingOptions | None = None,
    *,
    seed: int | None = None,
    position: int | None = None,
    branch: int = 0,
    history: Int32 | Sequence[int] | None = None,
    allowed: Bool | None = None,
    shift: float | None = None,
    pieces: Callable[[], Sequence[bytes]] = tuple,
) -> Replayed:
    """Draws a token again.

    Args:
        source: A record made with ``stages=True``, or the full row ``(vocab,)`` float32 of log-probabilities before the
            token (`LanguageModel.next_token_logprobs`).
        sampling: Other settings, resolved (see `resolve_options`); None replays a record exactly as it was drawn.
        seed: Key of the stream's random numbers; None uses those of the record.
        position: The token's position in its path.
        branch: The stream's branch number.
        history: The ids before the token, for penalties and DRY.
        allowed: ``(vocab,)`` bool, the tokens that a grammar allowed there; None uses the grammar stage of the record.
        shift: The raw logits less the log-probabilities, for the repetition penalty; None uses that of the record.
        pieces: Returns the bytes of every id, for DRY breakers that are texts.

    Raises:
        InvalidRequestError: Invalid settings, a record without stages, no settings, or no random number.
    """
    record = source if isinstance(source, TokenRecord) else None
    if record is not None and record.stages is None:
        raise InvalidRequestError("the record has no stages: generate with GenerationOptions(stages=True)")
    if sampling is None:
        if record is None:
            raise InvalidRequestError("a row alone does not say how it was drawn from: give its sampling settings")
        assert record.stages is not None  # checked above
        return Replayed(record.redrawn, record.stages, whole=True)
    if record is None:
        row = np.asarray(source, np.float32)
        if row.ndim != 1:
            raise InvalidRequestError(f"a row is (vocab,) float32, not {row.shape}")
        sampling.check(len(row))
    else:
        heads = Heads.of(record, within_grammar=allowed is None)
        shift = record.shift if shift is None else shift
    sampler = make_sampler(sampling.check(), seed or 0, branch, pieces=pieces)
    ids = None if history is None else np.asarray(history, np.int32)

    def trace(row: Float32, allowed: Bool | None) -> Traced:
        number = partial(_number, record, seed=seed, position=position, branch=branch)
        return sampler.trace(row, position or 0, history=ids, allowed=allowed, shift=shift or 0.0, number=number)

    if record is None:
        traced = trace(row, allowed)
        return Replayed(traced.token, report(traced).stages(0), whole=True)
    named = [*(ids if ids is not None else ()), *(sampling.logit_bias or ()), *(sampling.banned_tokens or ())]
    even, steep = (heads.row(named, steep=steep) for steep in (False, True))
    traced, other = (trace(row, heads.mask(row, allowed)) for row in (even, steep))
    sure = traced.token == other.token and traced.token in heads.ids
    return Replayed(traced.token if sure else None, heads.known(report(traced).stages(0)), whole=False)


def _number(record: TokenRecord | None, stage: int, *, seed: int | None, position: int | None, branch: int) -> float:
    """The random number of a stage: of the given stream and position, else of the record."""
    if seed is not None and position is not None:
        return uniform(seed, position, branch, stage)
    name = next((spec.name for spec in SAMPLER_STAGES if spec.draws == stage), "draw")
    for known in (record.stages or ()) if record else ():
        if known.name == name and known.u is not None:
            return known.u
    raise InvalidRequestError(f"no random number for the stage {name!r}: give seed and position of the token")
