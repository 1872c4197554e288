"""``config.json``: accepted values, one spelling for every library, and the model that it describes.

transformers 5 and mlx_lm read different keys for the same numbers, and each reports invalid values in its own words.
Checks that need a library's own model are in its backend (`runtime.backends.hf.loading`, `runtime.backends.mlx.loading`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from runtime.backends.facts import CONTEXT_KEYS
from runtime.errors import ModelLoadError
from runtime.loading.architectures import libraries_knowing
from runtime.loading.rope import (
    differs_by_layer,
    is_proven,
    length_limit,
    rope_parameters_of,
    same_rope,
    spell_at_top,
    text_config,
)


@dataclass(frozen=True, slots=True)
class Field:
    """The accepted values of a field, and their description for messages."""

    accepts: Callable[[Any], bool]
    expected: str


def _or_null(field: Field) -> Field:
    return Field(lambda value: value is None or field.accepts(value), f"{field.expected}, or null")


def _whole(low: int, high: int) -> Field:
    def accepts(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return Field(accepts, f"a whole number from {low:,} to {high:,}")


def _number(low: float, high: float, *, above: bool = False) -> Field:
    def accepts(value: Any) -> bool:
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        return plain and low <= value <= high and not (above and value == low)

    return Field(accepts, f"a number {'above' if above else 'from'} {low:g}{', at most' if above else ' to'} {high:g}")


def _list(item: Field, length: int | None = None) -> Field:
    def accepts(value: Any) -> bool:
        return isinstance(value, list) and length in (None, len(value)) and all(map(item.accepts, value))

    return Field(accepts, f"a list{'' if length is None else f' of {length}'}, each {item.expected}")


def _either(one: Field, other: Field) -> Field:
    return Field(lambda value: one.accepts(value) or other.accepts(value), f"{one.expected}, or {other.expected}")


def _one_of(*values: Any) -> Field:
    # types are compared too: 1 is not true
    accepts = [(type(value), value) for value in values]
    return Field(lambda value: (type(value), value) in accepts, " or ".join(json.dumps(value) for value in values))


FLAG = Field(lambda value: isinstance(value, bool), "true or false")
TEXT = Field(lambda value: isinstance(value, str), "a text")
OBJECT = Field(lambda value: isinstance(value, dict), "an object")
TOKEN_TEXT = _or_null(_either(TEXT, Field(lambda v: isinstance(v, dict) and isinstance(v.get("content"), str), "a token")))
_ID = _whole(-(1 << 31), 1 << 31)
_FINITE = _number(-1e9, 1e9)
_ANY = _number(-math.inf, math.inf)
_PROBABILITY = _number(0, 1)
_THETA = _number(1, 1e15)
_ACTIVATION = _one_of(
    *("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_python", "gelu_python_tanh", "gelu_10"),
    *("gelu_accurate", "quick_gelu", "relu", "relu2", "relu6", "leaky_relu", "prelu", "xielu", "linear", "tanh", "sigmoid"),
    *("mish", "laplace", "hardswish", "sqrtsoftplus", "swiglu", "swigluoai", "geglu"),
)

# Accepted values of the fields of config.json; a name means the same in every architecture. Fields that are not in this table
# are left to the library (`runtime.loading.model_folder.library_faults`).
_FIELDS: Mapping[str, Field] = MappingProxyType(
    {
        **dict.fromkeys(("hidden_size", "n_embd", "d_model"), _whole(1, 1 << 18)),
        **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), _whole(1, 4096)),
        **dict.fromkeys(("num_attention_heads", "n_head", "mamba_n_heads"), _whole(1, 1 << 14)),
        **dict.fromkeys(("num_key_value_heads", "head_dim"), _or_null(_whole(1, 1 << 14))),
        "vocab_size": _whole(1, 1 << 24),
        "max_position_embeddings": _whole(1, 1 << 31),
        **dict.fromkeys(("n_positions", "n_ctx"), _whole(1, 1 << 22)),  # each position has its own vector
        "original_max_position_embeddings": _or_null(_whole(1, 1 << 31)),
        "intermediate_size": _whole(1, 1 << 22),
        "n_inner": _or_null(_whole(1, 1 << 22)),
        "sliding_window": _or_null(_whole(0, 1 << 31)),
        "max_window_layers": _or_null(_whole(0, 4096)),
        "attention_window_size": _whole(1, 1 << 31),
        **dict.fromkeys(("_sliding_window_pattern", "sliding_window_pattern"), _or_null(_whole(1, 4096))),
        **dict.fromkeys(("state_size", "conv_kernel", "conv1d_width", "conv_L_cache", "expand"), _whole(1, 1 << 16)),
        **dict.fromkeys(("mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_n_groups"), _whole(1, 1 << 16)),
        **dict.fromkeys(("mamba_chunk_size", "mamba_expand", "block_multiple_of"), _whole(1, 1 << 16)),
        **dict.fromkeys(("mamba_d_ssm", "lru_width"), _or_null(_whole(1, 1 << 20))),
        "time_step_rank": _either(_whole(1, 1 << 20), _one_of("auto")),
        "pretraining_tp": _or_null(_whole(1, 1 << 10)),
        **dict.fromkeys(("attention_bias", "mlp_bias", "lm_head_bias", "tie_word_embeddings", "use_cache"), FLAG),
        **dict.fromkeys(("use_bias", "use_conv_bias", "conv_bias", "mamba_conv_bias", "mamba_proj_bias"), FLAG),
        **dict.fromkeys(("mamba_rms_norm", "mamba_norm_before_gate", "projectors_bias", "residual_in_fp32"), FLAG),
        **dict.fromkeys(("rescale_prenorm_residual", "use_mambapy", "use_associative_scan"), FLAG),
        **dict.fromkeys(("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), FLAG),
        **dict.fromkeys(("block_auto_adjust_ff_dim", "summary_use_proj", "summary_proj_to_labels"), FLAG),
        "use_sliding_window": _or_null(FLAG),
        # required by a causal model with a cache
        "return_dict": _or_null(_one_of(True)),
        **dict.fromkeys(("use_bidirectional_attention", "add_cross_attention"), _or_null(_one_of(False))),
        **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"), _number(0, 0.1, above=True)),
        "initializer_range": Field(lambda value: isinstance(value, float) and 0 <= value <= 1, "a fraction from 0.0 to 1.0"),
        **dict.fromkeys(("attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop"), _or_null(_PROBABILITY)),
        "summary_first_dropout": _PROBABILITY,
        **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _or_null(_number(0, 1e6, above=True))),
        "logits_soft_cap": _number(0, 1e6, above=True),
        "query_pre_attn_scalar": _number(0, 1e6, above=True),
        **dict.fromkeys(("embedding_multiplier", "lm_head_multiplier", "key_multiplier"), _FINITE),
        **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier"), _FINITE),
        **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier", "block_ffn_dim_multiplier"), _FINITE),
        "mlp_multipliers": _list(_FINITE, 2),
        "ssm_multipliers": _list(_FINITE, 5),
        "time_step_limit": _list(_ANY, 2),
        **dict.fromkeys(("time_step_floor", "time_step_max", "time_step_min", "time_step_scale"), _FINITE),
        **dict.fromkeys(("w_init_variance_scale", "final_w_init_variance_scale"), _FINITE),
        **dict.fromkeys(("hidden_act", "activation_function"), _ACTIVATION),
        "hidden_activation": _or_null(_ACTIVATION),
        **dict.fromkeys(("summary_type", "time_step_init_scheme"), TEXT),
        "summary_activation": _or_null(TEXT),
        **dict.fromkeys(("architectures", "layer_types", "block_types"), _or_null(_list(TEXT))),
        **dict.fromkeys(("dtype", "torch_dtype"), _or_null(_either(TEXT, OBJECT))),
        "full_attn_idxs": _or_null(_list(_whole(0, 4096))),
        **dict.fromkeys(("bos_token_id", "pad_token_id"), _or_null(_ID)),
        "eos_token_id": _or_null(_either(_ID, _list(_ID))),
        "rope_theta": _THETA,
        "rope_local_base_freq": _THETA,
        "partial_rotary_factor": _or_null(_number(0, 1, above=True)),
        **dict.fromkeys(("rope_parameters", "rope_scaling"), _or_null(OBJECT)),
    }
)
_WIDTH = _FIELDS["intermediate_size"]
_IMAGES = {"use_bidirectional_attention": _or_null(_one_of(False, "vision"))}  # "vision": only between tokens of images
_FIELDS_OF: Mapping[str, Mapping[str, Field]] = MappingProxyType(  # by model_type: fields with other accepted values
    {
        "gpt_neo": {"intermediate_size": _or_null(_WIDTH)},  # null: four times hidden_size
        "gemma3n_text": {"intermediate_size": _either(_WIDTH, _list(_WIDTH))},
        "cohere2_moe": {"rms_norm_eps": _or_null(_FIELDS["rms_norm_eps"])},  # null: layer_norm_eps
        "gemma4_text": _IMAGES,
        "gemma4_unified_text": _IMAGES,
    }
)
_HEAD_SIZES = ("head_dim", "qk_head_dim", "qk_nope_head_dim", "attention_head_size")  # without these, it is hidden_size / heads
_ROPE: Mapping[str, Field] = MappingProxyType(  # fields of rope_parameters (also by kind of layer) and of rope_scaling
    {
        **dict.fromkeys(("rope_type", "type"), TEXT),
        "rope_theta": _THETA,
        "partial_rotary_factor": _number(0, 1, above=True),
        "factor": _or_null(_number(0, 1e6, above=True)),
        "original_max_position_embeddings": _or_null(_whole(1, 1 << 31)),
        **dict.fromkeys(("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"), _or_null(_number(0, 1e6))),
        **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"), _or_null(_number(0, 1e6))),
        **dict.fromkeys(("short_factor", "long_factor"), _list(_number(0, 1e6, above=True))),
    }
)
_TOKENIZER: Mapping[str, Field] = MappingProxyType(  # the fields of tokenizer_config.json that are read
    {
        **dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), TOKEN_TEXT),
        "add_bos_token": _or_null(FLAG),
        "chat_template": _or_null(_either(TEXT, _list(OBJECT))),
    }
)
_SHAPING = (  # fields that determine the shapes of tensors
    *("vocab_size", "hidden_size", "n_embd", "intermediate_size", "n_inner", "num_hidden_layers", "n_layer", "layer_types"),
    *("num_attention_heads", "n_head", "num_key_value_heads", "head_dim", "attention_bias", "mlp_bias", "tie_word_embeddings"),
    *("n_positions", "state_size", "conv_kernel", "expand", "time_step_rank", "use_bias", "use_conv_bias"),
    *("conv_L_cache", "conv_bias", "block_multiple_of", "block_ffn_dim_multiplier", "block_auto_adjust_ff_dim"),
    *("mamba_d_ssm", "mamba_d_conv", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_n_heads", "mamba_expand"),
    *("mamba_conv_bias", "mamba_proj_bias", "mamba_rms_norm", "projectors_bias", "full_attn_idxs", "mlp_multipliers"),
    *("rope_parameters", "lru_width", "conv1d_width", "block_types", "lm_head_bias", "add_cross_attention"),
)
_TOKEN_PATHS = (  # fields that decide which earlier tokens a layer attends to
    *("layer_types", "sliding_window", "attention_chunk_size", "no_rope_layers", "use_cache", "time_step_limit"),
    *("rope_parameters", "rope_scaling"),
)
_SHOWN = 60  # characters of a value in a message
_MAX_DEPTH = 32  # levels of nesting; real configurations have 6


def normalised(config: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with rope in both spellings and the keys that mlx_lm needs, without the keys that name the model's own code.

    transformers 5 writes ``rope_parameters: {rope_theta, rope_type, ...}`` (per layer type for gemma 3); older folders
    and mlx_lm have ``rope_theta``, ``rope_scaling`` and ``rope_local_base_freq`` at the top. Without them mlx_lm silently
    uses a base of 10,000, which is 6 nats off on SmolLM2.
    """
    result: dict[str, Any] = _plain_floats(dict(config))
    result.pop("auto_map", None)
    if "model_file" in result:
        result["model_file"] = None  # mlx_lm updates the file on disk with this: a missing key would keep its value
    if isinstance(result.get("text_config"), Mapping):
        result["text_config"] = normalised(result["text_config"])
    rope = result.get("rope_parameters")
    if isinstance(rope, Mapping) and rope:
        spell_at_top(result, rope)
    elif "rope_theta" in result and not differs_by_layer(result):
        result["rope_parameters"] = rope_parameters_of(result)
    if result.get("model_type") in ("lfm2", "lfm2_moe") and "hidden_size" in result:
        result.setdefault("block_dim", result["hidden_size"])
    pattern = _sliding_pattern(result.get("layer_types"))
    if pattern is not None:
        result["sliding_window_pattern"] = pattern  # transformers reads layer_types
    return result


def check_fields(config: Mapping[str, Any], where: str) -> None:
    """Refuses values that no library can use, and values that contradict each other.

    Raises:
        ModelLoadError: Names the file, the field, its value and the expected one.
    """
    try:
        plain = _plain_floats(dict(config))
    except ModelLoadError as fault:
        raise ModelLoadError(f"{where}: {fault}") from None
    _check(plain, {**_FIELDS, **_FIELDS_OF.get(str(plain.get("model_type")), {})}, where)
    for name in ("rope_parameters", "rope_scaling"):
        rope = plain.get(name)
        if rope:
            _check(rope, _ROPE, f"{where}: {name}")
            for kind in [key for key in rope if key.endswith(("attention", "hybrid", "hybrid_sliding"))]:
                _check(rope, {kind: _or_null(OBJECT)}, f"{where}: {name}")
                _check(rope[kind] or {}, _ROPE, f"{where}: {name}: {kind}")
    _check_relations(plain, where)
    inner = plain.get("text_config")
    if isinstance(inner, Mapping):
        check_fields(inner, f"{where}: text_config")


def sizes(config: Mapping[str, Any]) -> str:
    """The fields that determine the shapes of tensors, for messages: "hidden_size 64, num_hidden_layers 3"."""
    values = {**config, **text_config(config)}
    absent = [name for name in _SHAPING if name not in values and name.startswith("mamba_") and "mamba_n_heads" in values]
    given = ", ".join(f"{name} {shown_json(values[name])}" for name in _SHAPING if name in values)
    return f"{given}, without {', '.join(absent)}" if absent else given


def token_paths(config: Mapping[str, Any]) -> str:
    """The fields that decide which earlier tokens a layer attends to, for messages: "sliding_window 8"."""
    values = {**config, **text_config(config)}
    return ", ".join(f"{name} {shown_json(values[name])}" for name in _TOKEN_PATHS if values.get(name) is not None)


def check_tokenizer_fields(config: Mapping[str, Any], where: str) -> None:
    """Checks the fields of ``tokenizer_config.json`` that this program reads; raises as `check_fields` does."""
    _check(config, _TOKENIZER, where)


def ignored_values(config: Mapping[str, Any], generation_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Token ids outside the vocabulary, which are ignored: one sentence each, for `ModelInfo.warnings`."""
    size = config.get("vocab_size")
    found = []
    for file, values in (("config.json", config), ("generation_config.json", generation_config)):
        for name in ("bos_token_id", "eos_token_id"):
            value = values.get(name)
            for token in value if isinstance(value, list) else [value]:
                if token is not None and not _ID.accepts(token):
                    found.append(f"{file}: {name} is {shown_json(token)} and is ignored: it must be {_ID.expected}")
                elif isinstance(token, int) and isinstance(size, int) and not 0 <= token < size:
                    found.append(f"{file}: {name} {token:,} is ignored: the vocabulary has {size:,} tokens")
    return tuple(found)


def _check(values: Mapping[str, Any], fields: Mapping[str, Field], where: str) -> None:
    for name, field in fields.items():
        if name in values and not field.accepts(values[name]):
            raise ModelLoadError(f"{where}: {name} is {shown_json(values[name])}; it must be {field.expected}")


def _check_relations(config: Mapping[str, Any], where: str) -> None:
    hidden, heads, groups = (config.get(name) for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    if hidden and heads and hidden % heads and not any(config.get(name) for name in _HEAD_SIZES):
        raise ModelLoadError(f"{where}: hidden_size {hidden:,} is no multiple of num_attention_heads {heads:,}")
    if heads and groups and heads % groups:
        raise ModelLoadError(f"{where}: num_attention_heads {heads:,} is no multiple of num_key_value_heads {groups:,}")
    kinds, layers = config.get("layer_types"), config.get("num_hidden_layers")
    if kinds is not None and layers and len(kinds) != layers:
        raise ModelLoadError(f"{where}: layer_types has {len(kinds):,} entries for num_hidden_layers {layers:,}")
    if kinds and "sliding_attention" in kinds and "sliding_window" in config and not config["sliding_window"]:
        raise ModelLoadError(
            f"{where}: layer_types has sliding layers, but sliding_window is {shown_json(config['sliding_window'])}"
        )
    pad, size = config.get("pad_token_id"), config.get("vocab_size")
    if pad is not None and size and not -size <= pad < size:
        raise ModelLoadError(f"{where}: pad_token_id is {pad:,}; it must be below vocab_size {size:,}")
    new, old = config.get("rope_parameters"), config.get("rope_scaling")
    if new and old and not same_rope(config, new, old):
        raise ModelLoadError(f"{where}: rope_parameters and rope_scaling contradict each other; leave one of them out")


def shown_json(value: Any) -> str:
    """A value as JSON, shortened to 60 characters."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _plain_floats(value: Any, depth: int = 0) -> Any:
    """A deep copy, of few levels, in which ``{"__float__": "Infinity"}``, as written by transformers 5, is a number."""
    if depth > _MAX_DEPTH:
        raise ModelLoadError(f"the configuration is nested more than {_MAX_DEPTH} levels deep; fetch the file again")
    if isinstance(value, Mapping):
        tagged = value.get("__float__")
        if len(value) == 1 and tagged in ("Infinity", "-Infinity", "NaN"):
            return float(tagged)
        return {key: _plain_floats(item, depth + 1) for key, item in value.items()}
    return [_plain_floats(item, depth + 1) for item in value] if isinstance(value, list) else value


def _sliding_pattern(layer_types: object) -> int | None:
    """Period of layers with full attention among sliding layers; None where there is no regular period."""
    if not isinstance(layer_types, Sequence) or isinstance(layer_types, str) or "sliding_attention" not in layer_types:
        return None
    if "full_attention" not in layer_types:
        return len(layer_types) + 1
    period = layer_types.index("full_attention") + 1
    regular = ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(len(layer_types))]
    return period if list(layer_types) == regular else None


@dataclass(frozen=True, slots=True)
class Description:
    """The model that a configuration describes."""

    architecture: str  # ``model_type``
    context: int | None  # tokens; None where the configuration has no length
    quantisation: str | None  # "4 bit (mlx)", the name of another method, None for plain weights
    backends: tuple[str, ...]  # those of "hf" and "mlx" that support its architecture, rope type and quantisation


def describe(config: Mapping[str, Any]) -> Description:
    """Describes a ``config.json`` whose values may be of any type."""
    kind = str(config.get("model_type", ""))
    method, bits = quantised_with(config)
    libraries = libraries_knowing(kind)
    by_form = {None: {"hf": "transformers", "mlx": "mlx_lm"}, "mlx": {"mlx": "mlx_lm"}}.get(method, {})
    backends = tuple(name for name, library in by_form.items() if library in libraries and is_proven(config, name))
    return Description(kind, context_of(config), f"{bits} bit (mlx)" if method == "mlx" else method, backends)


def context_of(config: Mapping[str, Any]) -> int | None:
    """The context length in tokens, as in `runtime.backends.facts.whole_context`; None where the configuration has none."""
    found = (part.get(key) for part in (config, text_config(config)) for key in CONTEXT_KEYS)
    named = next((value for value in found if isinstance(value, int) and not isinstance(value, bool) and value > 0), None)
    edge = length_limit(config)
    return named if edge is None or named is None else min(named, edge[1])


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuses a configuration with impossible sizes, or of a model that needs its own code.

    Raises:
        ModelLoadError: Names the key.
    """
    kind = config.get("model_type")
    code = next((key for key in ("auto_map", "model_file") if config.get(key)), None)
    known = isinstance(kind, str) and kind.replace("_", "").replace("-", "").replace(".", "").isalnum()
    if code and not (known and libraries_knowing(str(kind))):
        raise ModelLoadError(
            f"{where}: the model needs code of its own ({code} in config.json), which is never run; "
            "choose a model whose architecture the libraries know"
        )
    if not known:
        raise ModelLoadError(f"{where}/config.json: model_type is {str(kind)[:40]!r}; it must name the architecture")
    check_fields(config, f"{where}/config.json")


def quantised_with(config: Mapping[str, Any]) -> tuple[str | None, str]:
    """The quantisation method ("mlx", another method's name, or None for plain weights) and its bits."""
    mlx, other = config.get("quantization"), config.get("quantization_config")
    if isinstance(mlx, Mapping) and "group_size" in mlx:
        return "mlx", _in_layers(mlx, "bits") or "?"
    if isinstance(other, Mapping) and other.get("quant_method"):
        return str(other["quant_method"])[:40], ""
    return None, ""


MLX_GROUPS = (32, 64, 128)  # group sizes of MLX: numbers that share a scale


class SmallGroups(NamedTuple):
    """A layer that stays quantised on disk, in groups of a size that MLX does not have."""

    bits: int  # of a number
    group: int  # numbers that share a scale and a bias, both float32
    numbers: int  # of the whole layer

    @property
    def nbytes(self) -> int:
        return self.numbers * self.bits // 8 + self.numbers // self.group * 8


def small_groups(config: Mapping[str, Any]) -> dict[str, SmallGroups]:
    """The layers of a GGUF import that stay quantised with hf and become float32 when mlx loads them."""
    found = {}
    quantization = config.get("quantization")
    for layer, own in quantization.items() if isinstance(quantization, Mapping) else ():
        match own:
            case {"bits": int(bits), "group_size": int(group), "shape": [int(rows), int(columns)]} if group not in MLX_GROUPS:
                found[layer] = SmallGroups(bits, max(group, 1), rows * columns)
    return found


def bytes_on_mlx(config: Mapping[str, Any], stored: int) -> int:
    """Bytes in mlx of weights with `stored` bytes on disk: layers of `small_groups` become float32, others keep their width."""
    return stored + sum(4 * layer.numbers - layer.nbytes for layer in small_groups(config).values())


def quantisation_words(config: Mapping[str, Any]) -> str | None:
    """The quantisation in words, as in "4 and 6 bits, groups of 16 and 32"; None for plain weights."""
    found = config.get("quantization")
    if not found:
        return None
    return f"{_in_layers(found, 'bits')} bits, groups of {_in_layers(found, 'group_size')}"


def _in_layers(quantization: Mapping[str, Any], key: str) -> str:
    """The different values of a setting over all layers, sorted: "4 and 6".

    Args:
        quantization: As mlx_lm writes it: the settings of most layers, and exceptions by layer name (False: not quantised).
        key: "bits" or "group_size".
    """
    layers = [quantization, *(value for value in quantization.values() if isinstance(value, Mapping))]
    return " and ".join(map(str, sorted({layer[key] for layer in layers if isinstance(layer.get(key), int)})))
