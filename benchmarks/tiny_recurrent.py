"""A tiny model that carries a recurrent state: lfm2, short convolutions and attention in turns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from benchmarks.measure import Float32
from benchmarks.tiny import (
    CONTEXT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    INNER_SCALE,
    KV_HEADS,
    OUTER_SCALE,
    ROPE,
    write_byte_tokenizer,
)

KERNEL = 3  # tokens that a convolution sees
KINDS = ("conv", "full_attention") * 2


def make_recurrent(folder: Path) -> int:
    """Writes the model folder; the same one every time.

    A token is a byte: a large head would cost more than all layers, and the same however its rows are pushed.

    Args:
        folder: Where; it is made.

    Returns:
        The size of its vocabulary.
    """
    folder.mkdir(parents=True)
    write_byte_tokenizer(folder)
    vocabulary = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    config = {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": len(KINDS),
        "layer_types": KINDS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "conv_L_cache": KERNEL,
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
        "block_ffn_dim_multiplier": 1.0,  # not used then, and mlx_lm wants both
        "block_multiple_of": 256,
        "norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": ROPE},
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(dict(_weights(vocabulary)), folder / "model.safetensors", metadata={"format": "pt"})
    return vocabulary


def _weights(vocabulary: int) -> Iterator[tuple[str, Float32]]:
    """Names as transformers gives them, matrices ``(out, in)``."""
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
