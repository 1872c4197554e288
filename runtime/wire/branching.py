"""Arguments and answers of the branching members, as values of the wire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runtime.beams import BeamOptions, Hypothesis
from runtime.options.generation import GenerationOptions
from runtime.wire.arrays import Array, pack_run, unpack_run


class ContinueMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `continue_many_runs`."""

    ids: list[int]
    n: int
    options: GenerationOptions | None


class GenerateMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `generate_many_runs`."""

    prompts: list[str | list[int]]
    options: GenerationOptions | list[GenerationOptions | None] | None


class BeamGenerate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `beam_generate`."""

    ids: list[int]
    options: BeamOptions | None
    watched: bool  # somebody wants its Steps
    adapters: list[tuple[str, float]] | None = None  # (name, scale)


class WireHypothesis(msgspec.Struct, frozen=True):
    """One of a beam search's answers."""

    columns: dict[str, Array]
    logprob: float
    score: float


def pack_hypotheses(hypotheses: Sequence[Hypothesis]) -> list[WireHypothesis]:
    """Hypotheses, in order."""
    return [WireHypothesis(pack_run(one.run), one.logprob, one.score) for one in hypotheses]


def unpack_hypotheses(packed: Sequence[WireHypothesis]) -> list[Hypothesis]:
    """The inverse of `pack_hypotheses`.

    Raises:
        ArrayError: Columns that do not fit together.
    """
    return [Hypothesis(unpack_run(one.columns), one.logprob, one.score) for one in packed]
