"""Tiny models with random weights, written with numpy in the format that every library reads.

They have real architectures, but forwards so short that a library's work around the model shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from benchmarks.findings import EMBEDDED
from benchmarks.measure import Float32
from runtime import list_models

ARCHITECTURES = ("llama", "qwen3")
HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 3, 4, 2, 16
CONTEXT = 4096  # tokens
ROPE = 100_000.0
CONFIG: dict[str, Any] = {  # of every architecture
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
    "rope_parameters": {"rope_type": "default", "rope_theta": ROPE},
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "float32",
}
INNER_SCALE = 0.2  # standard deviation of the layers' weights: large enough for context to matter
OUTER_SCALE = 0.5  # of the embeddings: logits with a standard deviation of 4, about as confident as a real model
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json")
END = "<|endoftext|>"


def shelf_tokenizer() -> Path | None:
    """The folder of the embedded model, which has a tokenizer to copy; None if it is not on the shelf."""
    return next((entry.path for entry in list_models() if entry.name == EMBEDDED and entry.complete), None)


def make_tiny(architecture: str, folder: Path, text: Path | None = None, *, layers: int = LAYERS, words: int = 0) -> int:
    """Writes the folder of a tiny model; equal arguments give equal weights.

    Args:
        architecture: One of `ARCHITECTURES`.
        folder: The folder to make.
        text: A folder whose tokenizer is copied; None for a token per byte.
        layers: Number of layers.
        words: Minimum size of the vocabulary; ids beyond the tokenizer's have no text.

    Returns:
        The size of the vocabulary.
    """
    folder.mkdir(parents=True)
    if text is None:
        write_byte_tokenizer(folder)
    else:
        for name in TEXT_FILES:
            (folder / name).write_bytes((text / name).read_bytes())
    vocabulary = max(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size(), words)
    (folder / "config.json").write_text(json.dumps(_config(architecture, vocabulary, layers), indent=1))
    weights = dict(_weights(architecture, vocabulary, layers))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})  # transformers requires this entry
    return vocabulary


def _config(architecture: str, vocabulary: int, layers: int) -> dict[str, Any]:
    return CONFIG | {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[architecture]],
        "model_type": architecture,
        "vocab_size": vocabulary,
        "num_hidden_layers": layers,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": ROPE,  # for mlx_lm
    }


def _weights(architecture: str, vocabulary: int, layers: int) -> Iterator[tuple[str, Float32]]:
    """Yields transformers' names with their weights; matrices are ``(out, in)``."""
    rng = np.random.default_rng(ARCHITECTURES.index(architecture))

    def matrix(rows: int, columns: int, scale: float) -> Float32:
        return rng.standard_normal((rows, columns), np.float32) * np.float32(scale)

    yield "model.embed_tokens.weight", matrix(vocabulary, HIDDEN, OUTER_SCALE)
    yield "lm_head.weight", matrix(vocabulary, HIDDEN, OUTER_SCALE)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    sizes = {
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    if architecture == "qwen3":
        norms |= {"self_attn.q_norm": HEAD_DIM, "self_attn.k_norm": HEAD_DIM}
    for layer in range(layers):
        for name, (rows, columns) in sizes.items():
            yield f"model.layers.{layer}.{name}.weight", matrix(rows, columns, INNER_SCALE)
        for name, width in norms.items():
            yield f"model.layers.{layer}.{name}.weight", np.ones(width, np.float32)


def write_byte_tokenizer(folder: Path) -> None:
    """Writes a tokenizer with a token per byte and an end-of-text token."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({char: i for i, char in enumerate([END, *alphabet])}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens([tokenizers.AddedToken(END, special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


KERNEL = 3  # width of a convolution, in tokens
KINDS = ("conv", "full_attention") * 2


def make_recurrent(folder: Path) -> int:
    """Writes the folder of a tiny recurrent model (LFM2), with the same weights every time.

    A token is a byte: a large output head would cost more than all layers, whichever way rows are batched.

    Args:
        folder: The folder to make.

    Returns:
        The size of the vocabulary.
    """
    folder.mkdir(parents=True)
    write_byte_tokenizer(folder)
    vocabulary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = CONFIG | {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": vocabulary,
        "num_hidden_layers": len(KINDS),
        "layer_types": KINDS,
        "conv_L_cache": KERNEL,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,  # unused without the adjustment, but mlx_lm requires both
        "block_multiple_of": 256,
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(dict(_recurrent_weights(vocabulary)), folder / "model.safetensors", metadata={"format": "pt"})
    return vocabulary


def _recurrent_weights(vocabulary: int) -> Iterator[tuple[str, Float32]]:
    """Yields transformers' names with their weights; matrices are ``(out, in)``."""
    rng = np.random.default_rng(len(KINDS))

    def matrix(*shape: int, scale: float = INNER_SCALE) -> Float32:
        return rng.standard_normal(shape, np.float32) * np.float32(scale)

    yield "model.embed_tokens.weight", matrix(vocabulary, HIDDEN, scale=OUTER_SCALE)
    yield "model.embedding_norm.weight", np.ones(HIDDEN, np.float32)
    of_kind: dict[str, dict[str, tuple[int, ...]]] = {
        "conv": {"conv.in_proj": (3 * HIDDEN, HIDDEN), "conv.conv": (HIDDEN, 1, KERNEL), "conv.out_proj": (HIDDEN, HIDDEN)},
        "full_attention": {
            "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
            "self_attn.out_proj": (HIDDEN, HEADS * HEAD_DIM),
        },
    }
    for layer, kind in enumerate(KINDS):
        inner = {"feed_forward.w1": (INNER, HIDDEN), "feed_forward.w2": (HIDDEN, INNER), "feed_forward.w3": (INNER, HIDDEN)}
        for name, shape in {**of_kind[kind], **inner}.items():
            yield f"model.layers.{layer}.{name}.weight", matrix(*shape)
        norms = {"operator_norm": HIDDEN, "ffn_norm": HIDDEN}
        if kind == "full_attention":
            norms |= {"self_attn.q_layernorm": HEAD_DIM, "self_attn.k_layernorm": HEAD_DIM}
        for name, width in norms.items():
            yield f"model.layers.{layer}.{name}.weight", np.ones(width, np.float32)
