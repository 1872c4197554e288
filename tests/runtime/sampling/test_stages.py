"""The registry of the sampler's stages."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from runtime import SAMPLER_STAGES, SamplingOptions, make_sampler
from runtime.numerics.scoring import log_softmax
from runtime.numerics.stage_table import NUMBER_COLUMNS, StageTable
from runtime.options.generation import PARAMETERS, STAGE_NAMES, STAGES


def test_the_parameters_of_the_stages_are_the_sampling_options() -> None:
    assert len(STAGES) == len(SAMPLER_STAGES)
    assert {f.name for f in fields(SamplingOptions)} == {*PARAMETERS, "order"}


def test_every_default_is_valid() -> None:
    for name, parameter in PARAMETERS.items():
        assert parameter.rule(parameter.default) is None, name


def test_the_numbers_of_stored_stages_never_change() -> None:
    stored = (
        "",
        "raw",
        "grammar",
        "bias",
        "penalties",
        "dry",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "typical",
        "xtc",
        "draw",
    )
    assert STAGE_NAMES[: len(stored)] == stored
    # a number is an index into `STAGE_NAMES`: without gaps, each used once
    assert [spec.number for spec in SAMPLER_STAGES if STAGE_NAMES.index(spec.name) != spec.number] == []


def test_every_random_number_has_a_stored_column() -> None:
    assert NUMBER_COLUMNS["xtc"] == "u_xtc"
    assert {*NUMBER_COLUMNS.values()} <= {f.name for f in fields(StageTable)}


def test_the_mass_of_a_stage_does_not_change_when_a_later_one_searches_deeper() -> None:
    # given a row of unknown mass after a grammar, and a cut beyond the sorted head
    logprobs = log_softmax(np.random.default_rng(1).normal(size=(1, 5000)).astype(np.float32))[0]
    allowed = np.arange(5000) % 3 > 0
    traced = make_sampler(SamplingOptions(temperature=0.9, top_k=300), 5).trace(logprobs, 3, allowed=allowed)
    # then the mass before that cut is right
    for step, temperature in zip(traced.steps[1:3], (1.0, 0.9), strict=True):
        weights = np.exp((logprobs[allowed].astype(np.float64) - logprobs[allowed].max()) / temperature)
        assert step.view.mass == pytest.approx(weights.sum(), rel=1e-5), step.stage
