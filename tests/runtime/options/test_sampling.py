"""Valid and invalid sampling options, and the messages of their refusals."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

import pytest

from runtime.errors import InvalidRequestError
from runtime.options.generation import GenerationOptions, SamplingOptions


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"typical_p": 0.0}, "typical_p must be a number above 0 and at most 1, not 0.0"),
        ({"temperature": 1e308}, "temperature must be a number from 0 to 1e+30, not 1e+308"),
        ({"typical_p": math.nan}, "not nan"),
        ({"xtc_probability": 1.1}, "xtc_probability must be a number from 0 to 1"),
        ({"xtc_threshold": 0.6}, "xtc_threshold must be a number above 0 and at most 0.5"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a number above 0, not 0"),
        ({"repetition_penalty": -2}, "repetition_penalty must be a number above 0, not -2"),
        ({"repetition_penalty": 1e-31}, "repetition_penalty must be a number from 1e-30 to 1e+30, not 1e-31"),
        ({"temperature": -1}, "temperature must be a number, 0 or more, not -1"),
        ({"repetition_penalty": 1e-40}, "not 1e-40"),
        ({"repetition_penalty": math.inf}, "not inf"),
        ({"presence_penalty": math.nan}, "presence_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty must be a number, not 'much'"),
        ({"penalty_window": -1}, "penalty_window must be a whole number, 0 (all) or more, not -1"),
        ({"dry_multiplier": -0.5}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base must be a number, 1 or more"),
        ({"dry_allowed_length": 0}, "dry_allowed_length must be a whole number, 1 or more, not 0"),
        ({"dry_range": 1.5}, "dry_range"),
        ({"dry_breakers": "\n"}, "dry_breakers is a sequence"),
        ({"dry_breakers": ("",)}, "empty text"),
        ({"dry_breakers": (-1,)}, "dry_breakers: a token id"),
        ({"logit_bias": [(1, 2.0)]}, "logit_bias is a dictionary"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 must be a number, not nan"),
        ({"logit_bias": {1: 1e39}}, "logit_bias of token 1 must be a number from -1e+30 to 1e+30, not 1e+39"),
        ({"presence_penalty": -1e39}, "presence_penalty must be a number from -1e+30 to 1e+30, not -1e+39"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: a token id is a whole number, 0 or more, not -1"),
        ({"logit_bias": {"1": 1.0}}, "not '1'"),
        ({"logit_bias": {100: 1.0}}, "logit_bias: token id 100 is outside the vocabulary of 100"),
        ({"banned_tokens": (3, 100)}, "banned_tokens: token id 100 is outside the vocabulary of 100"),
        ({"banned_tokens": 3}, "banned_tokens is a sequence of token ids, not 3"),
        ({"banned_tokens": tuple(range(100))}, "banned_tokens bans all 100 tokens of the vocabulary"),
        ({"banned_tokens": (3, 4), "logit_bias": {4: 0.5, 5: 1.0}}, "bans what logit_bias makes likelier (token id 4): "),
        ({"banned_tokens": tuple(range(30)), "logit_bias": dict.fromkeys(range(30), 1)}, "10, 11 and 18 more): take each out"),
        (
            {"logit_bias": dict.fromkeys(range(100), -1e30)},
            "logit_bias bans all 100 tokens of the vocabulary (a bias of -1e+09",
        ),
        ({"logit_bias": dict.fromkeys(range(100), -1e9)}, "nothing is left to draw"),
        (
            {"banned_tokens": tuple(range(60)), "logit_bias": dict.fromkeys(range(50, 100), -1e9)},
            "banned_tokens and logit_bias ban all 100 tokens of the vocabulary",
        ),
        ({"order": "top_p"}, "order is a sequence"),
        ({"order": ("temperature", "topp")}, "unknown stage 'topp': did you mean 'top_p'?"),
        ({"order": ("top_p", "min_p", "top_p")}, "stage 'top_p' stands there twice"),
        ({"order": ("top_p",), "top_k": 5}, "top_k=5 contradicts an order without 'top_k'"),
        ({"order": ("top_k",), "banned_tokens": (1,)}, "an order without 'bias'"),
    ],
    ids=str,
)
def test_invalid_sampling_options_are_refused_with_a_reason(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingOptions(**settings).check(100)
    assert says in str(caught.value)


def test_valid_sampling_options_are_accepted() -> None:
    for settings in (
        SamplingOptions(logit_bias={99: -100}, banned_tokens=tuple(range(99)), dry_breakers=("\n", 3), order=("bias", "dry")),
        SamplingOptions(logit_bias={3: -5.0, 4: 0.0, 5: 2.0}, banned_tokens=(3, 4)),
        SamplingOptions(logit_bias=dict.fromkeys(range(100), -100)),
        SamplingOptions(logit_bias=dict.fromkeys(range(99), -1e30)),
        SamplingOptions(logit_bias=dict.fromkeys(range(40), -1e30), banned_tokens=tuple(range(30, 99))),
        SamplingOptions(order=(), typical_p=1, top_k=0, temperature=1.0),
        SamplingOptions(presence_penalty=-2, frequency_penalty=2.0, repetition_penalty=0.5, typical_p=1),
    ):
        assert settings.check(100) is settings


def test_a_ban_and_a_positive_bias_of_one_token_are_refused_without_a_vocabulary_too() -> None:
    with pytest.raises(InvalidRequestError, match=r"token id 7\b"):
        GenerationOptions.from_mapping({"banned_tokens": [7], "logit_bias": {"7": 2}})


def test_settings_survive_json() -> None:
    settings = SamplingOptions(
        temperature=0.5, logit_bias={7: -1.5}, banned_tokens=(1, 2), dry_breakers=("\n", 4), order=("bias", "temperature")
    )
    options = GenerationOptions(sampling=settings, stop=("a",), top_k=3, stages=True, seed=9)
    assert GenerationOptions.from_mapping(json.loads(json.dumps(asdict(options)))) == options


def test_merged_settings_take_the_first_given_value() -> None:
    merged = SamplingOptions(top_k=0).over(SamplingOptions(top_k=5, top_p=0.5), SamplingOptions(top_p=0.1, min_p=0.2))
    assert merged == SamplingOptions(top_k=0, top_p=0.5, min_p=0.2)
