"""The stages of the sampler, as they are listed."""

from __future__ import annotations

from dataclasses import fields

from runtime import SAMPLER_STAGES, SamplingOptions
from runtime.options.sampling import PARAMETERS, STAGE_NAMES, STAGES


def test_every_parameter_is_an_option_and_the_other_way_round() -> None:
    assert len(STAGES) == len(SAMPLER_STAGES)
    assert {f.name for f in fields(SamplingOptions)} == {*PARAMETERS, "order"}


def test_every_default_follows_its_rule() -> None:
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
    # numbers are places in `STAGE_NAMES`: without a gap, each given once
    assert [spec.number for spec in SAMPLER_STAGES if STAGE_NAMES.index(spec.name) != spec.number] == []
