"""What may be asked for, and what the refusal says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from runtime.errors import InvalidRequestError
from runtime.options import GenerationOptions, LoadOptions, SamplingOptions, nearest


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
def test_bad_sampling_is_refused_by_name_and_value(name: str, value: Any) -> None:
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
def test_a_bad_generation_is_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        GenerationOptions(**{name: value}).check()
    assert name in str(caught.value)
    assert repr(value) in str(caught.value)


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
def test_what_makes_sense_is_taken(options: GenerationOptions) -> None:
    assert options.check() is options


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
        ({"context_length": 0}, "context_length must be a whole number above 0, not 0"),
        ({"max_batch_rows": 1.5}, "not 1.5"),
        ({"max_batch_tokens": True}, "not True"),
        ({"prefill_chunk_tokens": -1}, "not -1"),
        ({"kv_cache_bytes": "2GB"}, "not '2GB'"),
        ({"threads": math.nan}, "not nan"),
        ({"draft_model": 5}, "draft_model is a folder or a name on the shelf, as text, not 5"),
        ({"draft_model": ""}, "draft_model"),
    ],
)
def test_bad_load_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        LoadOptions.from_mapping(options)
    assert says in str(caught.value)


def test_load_options_keep_what_was_given() -> None:
    made = LoadOptions.from_mapping({"dtype": "float32", "kv_cache_bytes": 1 << 20, "cache": False})
    assert (made.dtype, made.kv_cache_bytes, made.cache, made.device) == ("float32", 1 << 20, False, "auto")


def test_numpy_floats_are_numbers() -> None:
    SamplingOptions(temperature=float(np.float32(0.7)), top_p=np.float64(0.9)).check()


def test_a_misspelt_name_gets_the_nearest_or_the_list() -> None:
    assert nearest("temprature", ["temperature", "top_k"]) == "did you mean 'temperature'?"
    assert nearest("xyz", ["b", "a"]) == "known: a, b"
