"""A tiny model of transformers as llama.cpp's converter would write it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from tests.runtime.loading.gguf_files import ARRAY, BOOL, F32, I32, SPECIALS, STRING, U32, Pair, Stored, stored
from tests.runtime.loading.gguf_files import GgufFile as Gguf

NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA_NAMES = {
    **NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
ARCHITECTURES = {"mistral": "llama", "gemma3_text": "gemma3"}  # model types with another name in llama.cpp


def permuted(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp's row order, as its converter writes it for llama."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def as_gguf(folder: Path, path: Path, *, pre: str = "gpt-2", vocabulary: tuple[Pair, ...] | None = None) -> Path:
    """Writes the GGUF file of a model folder; arguments as in `gguf_of`."""
    return gguf_of(folder, pre=pre, vocabulary=vocabulary).write(path)


def gguf_of(folder: Path, *, pre: str = "gpt-2", vocabulary: tuple[Pair, ...] | None = None) -> Gguf:
    """The GGUF file of a model folder.

    Args:
        folder: config.json, model.safetensors, and a tokenizer.json of byte-level BPE where no vocabulary is given.
        pre: The name of the pre-tokenizer in the file.
        vocabulary: Replaces the vocabulary of the folder.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    family = ARCHITECTURES.get(config["model_type"], config["model_type"])
    names = GEMMA_NAMES if family.startswith("gemma") else NAMES
    weights = load_file(folder / "model.safetensors")
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    tensors: list[Stored] = [stored("token_embd.weight", weights["model.embed_tokens.weight"])]
    for key, value in weights.items():
        raised = value + 1 if family.startswith("gemma") and key.endswith("norm.weight") else value
        if key.startswith("model.layers."):
            number, _, part = key.removeprefix("model.layers.").partition(".")
            part, _, kind = part.rpartition(".")
            turned = permuted(value, heads[part]) if family == "llama" and part in heads else raised
            tensors.append(stored(f"blk.{number}.{names[part]}.{kind}", turned))
        elif key == "model.norm.weight":
            tensors.append(stored("output_norm.weight", raised))
    if "lm_head.weight" in weights:
        tensors.append(stored("output.weight", weights["lm_head.weight"]))
    rope = config["rope_parameters"]
    if rope.get("rope_type") == "llama3":
        tensors.append(stored("rope_freqs.weight", llama3_divisors(rope, head_size(config))))
    pairs = (*_sizes(family, config), *_features(family, config), *(vocabulary or _vocabulary(folder, pre)))
    return Gguf(pairs, tuple(tensors))


def head_size(config: dict[str, Any]) -> int:
    """The number of values per head."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def llama3_divisors(rope: dict[str, Any], head: int) -> npt.NDArray[np.float32]:
    """The tensor that llama.cpp's converter writes for Llama 3, computed as the converter does."""
    divisors = []
    low, high = (rope["original_max_position_embeddings"] / rope[f"{end}_freq_factor"] for end in ("low", "high"))
    for i in range(0, head, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (i / head)
        if wave < high:
            divisors.append(1.0)
        elif wave > low:
            divisors.append(rope["factor"])
        else:
            share = rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]
            share /= rope["high_freq_factor"] - rope["low_freq_factor"]
            divisors.append(1 / ((1 - share) / rope["factor"] + share))
    return np.array(divisors, np.float32)


def _sizes(family: str, config: dict[str, Any]) -> tuple[Pair, ...]:
    head_dim = head_size(config)
    return (
        Pair("general.architecture", STRING, family),
        Pair("general.name", STRING, f"Tiny {family}"),
        Pair(f"{family}.block_count", U32, config["num_hidden_layers"]),
        Pair(f"{family}.context_length", U32, config["max_position_embeddings"]),
        Pair(f"{family}.embedding_length", U32, config["hidden_size"]),
        Pair(f"{family}.feed_forward_length", U32, config["intermediate_size"]),
        Pair(f"{family}.attention.head_count", U32, config["num_attention_heads"]),
        Pair(f"{family}.attention.head_count_kv", U32, config["num_key_value_heads"]),
        Pair(f"{family}.attention.key_length", U32, head_dim),
        Pair(f"{family}.attention.value_length", U32, head_dim),
        Pair(f"{family}.attention.layer_norm_rms_epsilon", F32, config["rms_norm_eps"]),
    )


def _features(family: str, config: dict[str, Any]) -> Iterator[Pair]:
    """The metadata of rotary positions, windows and caps that llama.cpp's converters write."""
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    yield Pair(f"{family}.rope.freq_base", F32, rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        yield Pair(f"{family}.rope.scaling.type", STRING, rope["rope_type"])
        yield Pair(f"{family}.rope.scaling.factor", F32, rope["factor"])
    if "original_max_position_embeddings" in rope and rope["rope_type"] != "llama3":
        yield Pair(f"{family}.rope.scaling.original_context_length", U32, rope["original_max_position_embeddings"])
    if family == "phi3":
        turned = int(head_size(config) * rope.get("partial_rotary_factor", 1.0))
        yield Pair("phi3.rope.dimension_count", U32, turned)
    if config.get("sliding_window") or family == "phi3":
        yield Pair(f"{family}.attention.sliding_window", U32, config["sliding_window"] or 0)
    if family == "gemma2":
        yield Pair("gemma2.attn_logit_softcapping", F32, config["attn_logit_softcapping"])
        yield Pair("gemma2.final_logit_softcapping", F32, config["final_logit_softcapping"])
    if family == "gemma3" and config["num_hidden_layers"] < 6:
        yield Pair("gemma3.attention.sliding_window_pattern", U32, config["layer_types"].index("full_attention") + 1)


def _vocabulary(folder: Path, pre: str) -> tuple[Pair, ...]:
    layout = json.loads((folder / "tokenizer.json").read_text("utf-8"))["model"]
    tokens = sorted(layout["vocab"], key=layout["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in layout["merges"]]
    return (
        Pair("tokenizer.ggml.model", STRING, "gpt2"),
        Pair("tokenizer.ggml.pre", STRING, pre),
        Pair("tokenizer.ggml.tokens", ARRAY, tokens, STRING),
        Pair("tokenizer.ggml.token_type", ARRAY, [3 if token in SPECIALS else 1 for token in tokens], I32),
        Pair("tokenizer.ggml.merges", ARRAY, merges, STRING),
        Pair("tokenizer.ggml.bos_token_id", U32, 1),
        Pair("tokenizer.ggml.eos_token_id", U32, 2),
        Pair("tokenizer.ggml.add_bos_token", BOOL, 0),
    )
