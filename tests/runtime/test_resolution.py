"""Who decides, by which names, and who is told."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.errors import InvalidRequestError
from runtime.model.text import own_options
from runtime.options import GenerationOptions, SamplingOptions
from runtime.resolution import resolve_options
from runtime.sampling.settings import DEFAULTS, ORDER


def test_the_nearest_layer_decides_each_field() -> None:
    resolved = resolve_options(
        GenerationOptions(sampling=SamplingOptions(temperature=0.2), seed=7),
        session={"temperature": 0.3, "top_p": 0.4, "max_new_tokens": 30},
        preset=GenerationOptions(max_tokens=1024, sampling=SamplingOptions(top_p=0.95, min_p=0.05)),
        model={"top_k": 50, "min_p": 0.2, "max_new_tokens": 2048},
    )
    sampling = resolved.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.min_p, sampling.top_k) == (0.2, 0.4, 0.05, 50)
    assert (resolved.options.max_tokens, resolved.options.seed) == (30, 7)
    assert sampling.typical_p == 1.0
    assert sampling.order == ORDER
    wanted = {
        "sampling.temperature": "call",
        "seed": "call",
        "sampling.top_p": "session",
        "max_tokens": "session",
        "sampling.min_p": "preset",
        "sampling.top_k": "model",
        "sampling.typical_p": "default",
        "stop": "default",
    }
    assert {name: resolved.sources[name] for name in wanted} == wanted
    assert {name.removeprefix("sampling.") for name in resolved.sources} >= set(DEFAULTS)


def test_without_resolving_only_the_call_and_the_defaults_count() -> None:
    call = GenerationOptions(resolve=False, sampling=SamplingOptions(top_k=3))
    resolved = resolve_options(call, session={"temperature": 0.1}, model={"max_new_tokens": 5})
    assert resolved.options.max_tokens == 512
    assert resolved.options.sampling.temperature == 1.0
    assert set(resolved.sources.values()) == {"call", "default"}


def test_a_mapping_sets_a_field_to_its_default_too() -> None:
    resolved = resolve_options({"temperature": 1.0, "alternatives": 10}, preset={"temperature": 0.5, "alternatives": 3})
    assert resolved.options.sampling.temperature == 1.0
    assert resolved.options.top_k == 10
    assert resolved.sources["top_k"] == "call"


def test_an_order_switches_off_what_other_layers_set() -> None:
    resolved = resolve_options({"order": ("temperature",)}, model={"top_k": 50, "temperature": 0.7})
    assert resolved.options.sampling.top_k == 0
    assert resolved.sources["sampling.top_k"] == "call"
    assert resolved.options.sampling.temperature == 0.7
    with pytest.raises(InvalidRequestError, match="contradicts an order without 'top_k'"):
        resolve_options({"order": ("temperature",), "top_k": 3})


def test_layers_are_checked() -> None:
    with pytest.raises(InvalidRequestError, match="temperature must lie"):
        resolve_options(session={"temperature": -1})
    with pytest.raises(InvalidRequestError, match="options are"):
        resolve_options(7)  # type: ignore[arg-type]  # the mistake


def test_a_models_own_options() -> None:
    config = {
        "do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "typical_p": 0.9, "repetition_penalty": 1.05,
        "max_new_tokens": 2048, "eos_token_id": [1, 2], "transformers_version": "5", "min_p": None,
    }  # fmt: skip
    own = own_options(config)
    assert own == GenerationOptions(
        max_tokens=2048,
        sampling=SamplingOptions(temperature=0.6, top_k=20, top_p=0.95, typical_p=0.9, repetition_penalty=1.05),
    )
    # one that does not ask to be sampled says nothing of how
    assert own_options({**config, "do_sample": False}).sampling == SamplingOptions(repetition_penalty=1.05)
    assert own_options([]) == GenerationOptions()  # type: ignore[arg-type]  # a file that holds something else


# ---- spellings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "options"),
    [
        ({}, GenerationOptions()),
        ({"max_new_tokens": 5}, GenerationOptions(max_tokens=5)),
        ({"max_completion_tokens": 5, "max_tokens": 5}, GenerationOptions(max_tokens=5)),
        ({"do_sample": False}, GenerationOptions(sampling=SamplingOptions(temperature=0.0))),
        ({"do_sample": True, "temperature": 0.5}, GenerationOptions(sampling=SamplingOptions(temperature=0.5))),
        ({"do_sample": False, "temperature": 0}, GenerationOptions(sampling=SamplingOptions(temperature=0.0))),
        ({"stop": "END"}, GenerationOptions(stop=("END",))),
        ({"stop_strings": ["a", "b"]}, GenerationOptions(stop=("a", "b"))),
        ({"logprobs": True, "top_logprobs": 4}, GenerationOptions(top_k=4)),
        ({"logprobs": 3}, GenerationOptions(top_k=3)),
        ({"logprobs": False}, GenerationOptions(top_k=0)),
        ({"top_k": 7}, GenerationOptions(sampling=SamplingOptions(top_k=7))),
        ({"top_k": 7, "sampling": {"top_k": 3}}, GenerationOptions(top_k=7, sampling=SamplingOptions(top_k=3))),
        ({"sampling": SamplingOptions(top_k=3)}, GenerationOptions(sampling=SamplingOptions(top_k=3))),
        ({"logit_bias": {"12": -5, "3": 1.5}}, GenerationOptions(sampling=SamplingOptions(logit_bias={12: -5, 3: 1.5}))),
        ({"bad_words_ids": [[3], [9]]}, GenerationOptions(sampling=SamplingOptions(banned_tokens=(3, 9)))),
        ({"repeat_penalty": 1.1}, GenerationOptions(sampling=SamplingOptions(repetition_penalty=1.1))),
        ({"repeat_last_n": 64}, GenerationOptions(sampling=SamplingOptions(penalty_window=64))),
        ({"frequency_penalty": None, "seed": 4}, GenerationOptions(seed=4)),
        ({"temp": 0.3}, GenerationOptions(sampling=SamplingOptions(temperature=0.3))),
    ],
    ids=str,
)  # fmt: skip
def test_other_libraries_spellings(mapping: dict[str, Any], options: GenerationOptions) -> None:
    assert GenerationOptions.from_mapping(mapping) == options


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"max_new_token": 5}, "unknown option 'max_new_token': did you mean 'max_new_tokens'?"),
        ({"temprature": 1}, "did you mean 'temperature'?"),
        ({"sampling": {"topp": 1}}, "did you mean 'top_p'?"),
        ({"max_tokens": 5, "max_new_tokens": 6}, "max_tokens=5 and max_new_tokens=6 contradict each other"),
        ({"do_sample": False, "temperature": 0.7}, "temperature=0.7"),
        ({"temperature": 0.7, "temp": 0.8}, "contradict"),
        ({"do_sample": "yes"}, "do_sample is True or False"),
        ({"bad_words_ids": [[3, 4]]}, "only words of one token"),
        ({"logit_bias": {"a": 1}}, "its keys are token ids"),
        ({"logit_bias": 3}, "logit_bias is a dictionary"),
        ({"sampling": 3}, "sampling is a mapping"),
        ({"stop": ""}, "none of them empty"),
        ({"top_p": 2}, "top_p must lie within (0, 1]"),
        ([], "options are a mapping"),
    ],
    ids=str,
)
def test_what_contradicts_itself_or_is_unknown_is_refused(mapping: Any, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationOptions.from_mapping(mapping)
    assert says in str(caught.value)
