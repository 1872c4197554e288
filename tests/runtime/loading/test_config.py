from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from runtime.errors import ModelLoadError
from runtime.loading.config import check_fields, normalised
from runtime.loading.model_folder import read_json
from tests.tiny_models import tiny_path

_MLX_MODULES = {"mistral": "llama"}  # architectures with another name in mlx_lm


def test_transformers_5_spelling_gets_the_older_keys() -> None:
    config = normalised({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    assert config["rope_theta"] == 5e5
    assert "rope_scaling" not in config


def test_older_spelling_gets_rope_parameters() -> None:
    config = normalised({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert config["rope_parameters"] == {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}


def test_scaled_rope_is_converted_in_both_directions() -> None:
    # given
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    # when
    config = normalised({"rope_parameters": rope})
    again = normalised({key: value for key, value in config.items() if key != "rope_parameters"})
    # then
    assert config["rope_scaling"] == {**{k: v for k, v in rope.items() if k != "rope_theta"}, "type": "llama3"}
    assert again["rope_parameters"] == rope


def test_rope_by_layer_type_gets_gemma_3s_older_keys() -> None:
    # given
    layers = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    # when
    config = normalised({"model_type": "gemma3_text", "rope_parameters": layers})
    # then
    assert (config["rope_theta"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert config["rope_parameters"] == layers


def test_one_rope_theta_is_not_applied_to_two_kinds_of_layers() -> None:
    assert "rope_parameters" not in normalised({"model_type": "gemma3_text", "rope_theta": 1e6})


@pytest.mark.parametrize(
    ("kinds", "pattern"),
    [("ssf" * 2, 3), ("sf" * 3, 2), ("sss", 4), ("fff", None), ("ffs", None), ("sfsff", None)],
)
def test_the_sliding_pattern_is_derived_from_regular_layers(kinds: str, pattern: int | None) -> None:
    names = {"s": "sliding_attention", "f": "full_attention"}
    assert normalised({"layer_types": [names[kind] for kind in kinds]}).get("sliding_window_pattern") == pattern


def test_fields_that_name_code_are_removed() -> None:
    assert normalised({"auto_map": {"AutoModel": "x.Y"}, "model_file": "x.py", "a": 1}) == {"model_file": None, "a": 1}


def test_infinity_in_the_spelling_of_transformers_5_is_a_number() -> None:
    config = normalised({"a": [0.0, {"__float__": "Infinity"}], "b": {"__float__": "-Infinity"}, "c": {"__float__": "x"}})
    assert config == {"a": [0.0, math.inf], "b": -math.inf, "c": {"__float__": "x"}}


@pytest.mark.parametrize("read", [normalised, lambda config: check_fields(config, "config.json")])
@pytest.mark.parametrize("name", ["a", "text_config"])
def test_a_config_nested_too_deeply_is_refused(name: str, read: Callable[[dict[str, Any]], object]) -> None:
    config: dict[str, Any] = {"hidden_size": 64}
    for _ in range(900):  # fewer levels than stop a JSON parser
        config = {name: config}
    with pytest.raises(ModelLoadError, match="nested more than 32 levels deep"):
        read(config)


def test_normalising_leaves_the_original_unchanged() -> None:
    original: dict[str, Any] = {"rope_parameters": {"rope_theta": 2.0}, "text_config": {"rope_theta": 3.0}}
    config = normalised(original)
    assert original == {"rope_parameters": {"rope_theta": 2.0}, "text_config": {"rope_theta": 3.0}}
    assert config["text_config"]["rope_parameters"]["rope_theta"] == 3.0


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mistral", "lfm2", "falcon_h1"])
def test_mlx_lm_reads_a_normalised_config_of_transformers(name: str) -> None:
    # given
    from transformers import AutoConfig

    folder = tiny_path(name)
    theirs = AutoConfig.from_pretrained(folder)
    # when
    config = normalised(read_json(folder / "config.json") or {})
    arguments = importlib.import_module(f"mlx_lm.models.{_MLX_MODULES.get(name, config['model_type'])}").ModelArgs.from_dict(
        config
    )
    # then
    rope = theirs.rope_parameters
    assert arguments.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    if name == "gemma3":
        assert arguments.rope_local_base_freq == rope["sliding_attention"]["rope_theta"]
        assert arguments.sliding_window_pattern == 2


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3", "mistral", "lfm2", "falcon_h1", "gpt2", "mamba"])
def test_transformers_reads_the_normalised_config_as_its_own(name: str) -> None:
    # given
    from transformers import AutoConfig

    theirs = AutoConfig.from_pretrained(tiny_path(name))
    # when
    config = normalised(read_json(tiny_path(name) / "config.json") or {})
    ours = AutoConfig.for_model(**config)
    # then
    assert getattr(ours, "rope_parameters", None) == getattr(theirs, "rope_parameters", None)
    assert getattr(ours, "layer_types", None) == getattr(theirs, "layer_types", None)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", 1 << 40),
        ("hidden_size", "64"),
        ("n_embd", 1.5),
        ("num_hidden_layers", 10**9),
        ("num_attention_heads", True),
        ("vocab_size", 10**30),
        ("max_position_embeddings", 1 << 60),
    ],
)
def test_absurd_sizes_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=f"config.json.*{key} is "):
        check_fields({"text_config": {key: value}}, "config.json")


def test_a_hidden_size_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="hidden_size 64 is no multiple of num_attention_heads 7"):
        check_fields({"hidden_size": 64, "num_attention_heads": 7}, "config.json")


@pytest.mark.sampled(18)
@pytest.mark.parametrize("kind", sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
def test_the_defaults_of_an_architecture_are_accepted(kind: str) -> None:
    if kind in ("prophetnet", "glm4_moe"):  # a decoder of an encoder; and heads of another size than hidden_size / heads
        with pytest.raises(ModelLoadError):
            check_fields(_defaults(kind), kind)
    elif kind != "gemma4_assistant":  # transformers itself refuses its own defaults
        check_fields(_defaults(kind), kind)


def _defaults(kind: str) -> dict[str, Any]:
    return dict(json.loads(AutoConfig.for_model(kind).to_json_string(use_diff=False)))


def test_llama_refuses_null_for_fields_that_it_requires() -> None:
    for field in ("intermediate_size", "rms_norm_eps"):
        with pytest.raises(ModelLoadError, match=f"{field} is null"):
            check_fields({"model_type": "llama", field: None}, "config.json")
