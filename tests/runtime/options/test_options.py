"""Valid and invalid options, and the messages of their refusals."""

from __future__ import annotations

import math
import re
import time
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from runtime import BeamOptions, LanguageModel
from runtime.errors import InvalidRequestError, OptionError
from runtime.options.aliases import OPTION_HINTS, OPTION_NAMES, option_hint
from runtime.options.checking import nearest
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import LoadOptions


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "0.7"),
        ("temperature", True),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_p", -0.5),
        ("top_p", math.nan),
        ("min_p", -0.01),
        ("min_p", 1.5),
        ("min_p", math.nan),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_k", True),
    ],
)
def test_invalid_sampling_options_are_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationOptions(sampling=SamplingOptions(**{name: value})).check()
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("max_tokens", 2.0),
        ("max_tokens", True),
        ("stop", ""),
        ("stop", "END"),
        ("stop", ("a", "")),
        ("stop", (b"a",)),
        ("stop", None),
        ("top_k", -1),
        ("top_k", 1001),
        ("top_k", 1.5),
        ("top_k", True),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 0.5),
        ("seed", True),
        ("branch", -1),
        ("branch", 1 << 64),
        ("branch", "a"),
        ("resolve", "x"),
        ("ignore_eos", 5),
        ("stages", 1),
        ("speculative", {"num_tokens": 3}),
        ("eos_token_ids", 7),
        ("eos_token_ids", (-1,)),
        ("eos_token_ids", (True,)),
        ("eos_token_ids", "ab"),
    ],
)
def test_invalid_generation_options_are_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationOptions(**{name: value}).check()
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


def test_stop_strings_have_a_maximum_length_in_all() -> None:
    GenerationOptions(stop=("a" * 65_535, "b")).check(9)
    stored = GenerationOptions.from_mapping({"stop": ["a" * 65_536, "b"]})  # as stored by a version without a limit
    with pytest.raises(OptionError, match="stop has 65,537 characters in all; at most 65,536 are read"):
        stored.check(9)


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(),
        GenerationOptions(max_tokens=1, stop=("a", "\n\n"), top_k=0, seed=0, branch=3),
        GenerationOptions(stop=(), top_k=1000, seed=(1 << 64) - 1),
        GenerationOptions(sampling=SamplingOptions(temperature=0, top_k=0, top_p=1, min_p=0)),
        GenerationOptions(sampling=SamplingOptions(temperature=1e-300, top_p=1e-9, min_p=1.0)),
    ],
)
def test_valid_generation_options_are_accepted(options: GenerationOptions) -> None:
    assert options.check() is options


@pytest.mark.parametrize("name", ["nonsense", "soft_option"])
def test_only_public_options_are_suggested(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="known: ") as refused:
        LoadOptions.from_mapping({name: 1})
    assert "soft_options" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_cache_byte": 1}, "'kv_cache_bytes'"),
        ({"Dtype": "float32"}, "'dtype'"),
        ({"trust_remote_code": True}, "unknown load option 'trust_remote_code'"),
        ({"dtype": "float23"}, "'float32'"),
        ({"kv_dtype": "fp16"}, "'f16'"),
        ({"attention": "flash"}, "attention='flash'"),
        ({"add_bos": True}, "add_bos=True"),
        ({"cache": "no"}, "cache is True or False, not 'no'"),
        ({"context_length": 0}, "context_length must be a whole number, 1 or more, not 0"),
        ({"max_batch_rows": 1.5}, "not 1.5"),
        ({"max_batch_tokens": True}, "not True"),
        ({"prefill_chunk_tokens": -1}, "not -1"),
        ({"kv_cache_bytes": "2GB"}, "not '2GB'"),
        ({"threads": math.nan}, "not nan"),
        ({"draft_model": 5}, "draft_model is a folder or a name on the shelf, as text, not 5"),
        ({"draft_model": ""}, "draft_model"),
    ],
)
def test_invalid_load_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        LoadOptions.from_mapping(options)
    assert says in str(caught.value)


def test_soft_options_are_also_read_under_their_former_name() -> None:
    assert LoadOptions.from_mapping({"wishes": ("offload",)}).soft_options == ("offload",)


def test_load_options_keep_the_given_values() -> None:
    made = LoadOptions.from_mapping({"dtype": "float32", "kv_cache_bytes": 1 << 20, "cache": False})
    assert (made.dtype, made.kv_cache_bytes, made.cache, made.device) == ("float32", 1 << 20, False, "auto")


def test_numpy_floats_are_accepted() -> None:
    SamplingOptions(temperature=float(np.float32(0.7)), top_p=np.float64(0.9)).check()


def test_a_misspelt_name_gets_the_nearest_name_or_the_list() -> None:
    assert nearest("temprature", ["temperature", "top_k"]) == "did you mean 'temperature'?"
    assert nearest("xyz", ["b", "a"]) == "known: a, b"
    assert nearest("TOP_K", ["temperature", "top_k"]) == "did you mean 'top_k'?"
    assert nearest("anything", []) == "known: "


def test_a_part_of_a_name_suggests_the_name() -> None:
    assert nearest("xtc", ["seed", "xtc_threshold"]) == "did you mean 'xtc_threshold'?"
    assert nearest("repetition", ["repeat_last_n", "repetition_penalty", "seed"]) == "did you mean 'repetition_penalty'?"


def test_with_many_names_the_nearest_comes_first_even_without_a_good_match() -> None:
    many = [f"setting_{letter}" for letter in "abcdefghijklm"]
    assert nearest("7_k", many) == f"the nearest is 'setting_k'; known: {', '.join(many)}"


def test_a_very_long_name_is_answered_at_once() -> None:
    began = time.thread_time()
    assert "seed" in nearest("seed" * 1_000_000, ["seed", "stop"])
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("num_beams", "model.beam_generate(ids, BeamOptions(width=...))"),
        ("beam_width", "model.beam_generate(ids, BeamOptions(width=...))"),
        ("length_penalty", "model.beam_generate(ids, BeamOptions(length_penalty=...))"),
        ("early_stopping", "model.beam_generate(ids, BeamOptions(early_stopping=...))"),
        ("n", "model.continue_many(ids, n, options)"),
        ("num_return_sequences", "model.continue_many(ids, n, options)"),
        ("tools", "model.render_chat(messages, tools=...)"),
        ("stream", "iterate over model.generate(ids, options)"),
        ("messages", "model.complete(text or messages, options)"),
        ("max_length", "max_tokens counts the answer's tokens alone"),
        ("min_new_tokens", "ignore_eos=True goes on to max_tokens"),
        ("echo", "model.score(ids)"),
        ("guided_json", "Grammar.json_schema(...)"),
        ("assistant_model", "load(..., draft_model=...)"),
        ("kv_cache_bytes", "load(..., kv_cache_bytes=...)"),
        ("ignoreEOS", "did you mean 'ignore_eos'?"),
        ("eos", "eos"),
        ("topp", "did you mean 'top_p'?"),
        ("repetition", "did you mean 'repetition_penalty'?"),
        ("xyz", "the nearest is 'typ_p'; known: adapters, alternatives, "),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name_or_the_right_call(name: str, says: str) -> None:
    for options in ({name: 1}, {"sampling": {name: 1}}):
        with pytest.raises(InvalidRequestError, match=f"^unknown option '{name}': ") as caught:
            GenerationOptions.from_mapping(options)
        assert says in str(caught.value)


def test_no_valid_option_name_is_redirected_to_another_call() -> None:
    assert set(OPTION_HINTS).isdisjoint(OPTION_NAMES)
    assert [name for name in OPTION_HINTS if option_hint(name) is None] == []
    assert option_hint("Num-Beams") == option_hint("num_beams")


def test_the_suggested_calls_exist() -> None:
    text = " ".join(OPTION_HINTS.values())
    calls = set(re.findall(r"model\.(\w+)\(", text))
    assert {"beam_generate", "continue_many", "render_chat", "generate"} <= calls
    assert [name for name in calls if not callable(getattr(LanguageModel, name, None))] == []
    assert set(re.findall(r"BeamOptions\((\w+)=", text)) <= {field.name for field in fields(BeamOptions)}
    assert set(re.findall(r"load\(\.\.\., (\w+)=", text)) <= {field.name for field in fields(LoadOptions)}


@pytest.mark.parametrize("name", ["logprobs", "top_logprobs"])
def test_openais_logprobs_option_sets_the_number_of_alternatives(name: str) -> None:
    assert GenerationOptions.from_mapping({name: 3}).top_k == 3
