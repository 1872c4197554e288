"""A tiny model of transformers as llama.cpp's converter would write it."""

from __future__ import annotations

import json
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
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def permuted(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """llama.cpp's row order, as its converter makes it for llama."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def as_gguf(folder: Path, path: Path, *, pre: str = "gpt-2") -> Path:
    """Writes the file of a model folder whose tokenizer is byte-level BPE.

    Args:
        folder: config.json, model.safetensors, tokenizer.json.
        path: Where.
        pre: What the file says of how text is cut.
    """
    config = json.loads((folder / "config.json").read_text("utf-8"))
    family = config["model_type"]
    weights = load_file(folder / "model.safetensors")
    heads = {"self_attn.q_proj": config["num_attention_heads"], "self_attn.k_proj": config["num_key_value_heads"]}
    tensors: list[Stored] = [stored("token_embd.weight", weights["model.embed_tokens.weight"])]
    for key, value in weights.items():
        if key.startswith("model.layers."):
            number, _, part = key.removeprefix("model.layers.").partition(".")
            part, _, kind = part.rpartition(".")
            turned = permuted(value, heads[part]) if family == "llama" and part in heads else value
            tensors.append(stored(f"blk.{number}.{NAMES[part]}.{kind}", turned))
    tensors.append(stored("output_norm.weight", weights["model.norm.weight"]))
    if "lm_head.weight" in weights:
        tensors.append(stored("output.weight", weights["lm_head.weight"]))
    return Gguf((*_sizes(family, config), *_vocabulary(folder, pre)), tuple(tensors)).write(path)


def _sizes(family: str, config: dict[str, Any]) -> tuple[Pair, ...]:
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
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
        Pair(f"{family}.rope.freq_base", F32, rope.get("rope_theta", config.get("rope_theta"))),
    )


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
