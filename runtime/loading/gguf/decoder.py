"""GGUF's decoders of llama's build in Hugging Face's layout: tensor names, shapes, row order, config.json.

A family differs from llama in a few parts of its attention. Each is proven equal to transformers on a tiny model
(`tests/runtime/loading/test_import.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.errors import ModelLoadError
from runtime.loading.gguf.layout import GgufHeader

MAX_LAYERS, MAX_WIDTH, MAX_CONTEXT = 1024, 1 << 18, 1 << 27


@dataclass(frozen=True, slots=True)
class Family:
    """What sets an architecture apart.

    Attributes:
        model_type: In config.json.
        transformers: The class of the model there.
        interleaved: Whether rows of q and k lie in GGUF in llama.cpp's order of rotary pairs.
        biased: Whether q, k and v have biases.
        normed: Whether q and k go through norms, a head at a time.
    """

    model_type: str
    transformers: str
    interleaved: bool = False
    biased: bool = False
    normed: bool = False


FAMILIES = {  # by general.architecture
    "llama": Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", biased=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", normed=True),
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model: its names here and there, the shape it must have."""

    source: str
    target: str
    shape: tuple[int, ...]
    permuted_heads: int = 0  # rows of q and k are interleaved per head in GGUF; 0: not permuted


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes of a model, checked against each other."""

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    rope_theta: float
    norm_eps: float
    tied: bool

    @classmethod
    def of(cls, header: GgufHeader) -> DecoderShape:
        """Reads the metadata.

        Raises:
            ModelLoadError: A number is missing or absurd, or the file uses a feature that is not supported.
        """
        _refuse_unsupported(header)
        name = header.architecture
        hidden = _whole(header, f"{name}.embedding_length", MAX_WIDTH)
        heads = _whole(header, f"{name}.attention.head_count", 4096)
        head_dim = _whole(header, f"{name}.attention.key_length", 4096, hidden // heads)
        shape = cls(
            family=FAMILIES[name],
            layers=_whole(header, f"{name}.block_count", MAX_LAYERS),
            hidden=hidden,
            intermediate=_whole(header, f"{name}.feed_forward_length", MAX_WIDTH * 8),
            heads=heads,
            kv_heads=_whole(header, f"{name}.attention.head_count_kv", heads, heads),
            head_dim=head_dim,
            vocabulary=_vocabulary(header),
            context=_whole(header, f"{name}.context_length", MAX_CONTEXT),
            rope_theta=_positive(header, f"{name}.rope.freq_base", 10000.0),
            norm_eps=_positive(header, f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
            tied="output.weight" not in header.tensors,
        )
        for key, expected in ((f"{name}.rope.dimension_count", head_dim), (f"{name}.attention.value_length", head_dim)):
            if header.metadata.get(key, expected) != expected:
                raise _fault(header, f"{key} is {header.metadata[key]!r} where the head size is {expected}: not supported")
        if shape.family.model_type == "qwen2" and head_dim * heads != hidden:  # its config has no size of a head
            raise _fault(header, f"{heads} heads of {head_dim} are not as wide as the model, {hidden}: not supported")
        if head_dim % 2 or shape.heads % shape.kv_heads:
            raise _fault(header, f"{heads} heads of {head_dim} over {shape.kv_heads} KV heads do not fit together")
        return shape

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor the model consists of, in writing order."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield Tensor("token_embd.weight", "model.embed_tokens.weight", (self.vocabulary, self.hidden))
        for n in range(self.layers):
            there, here = f"blk.{n}", f"model.layers.{n}"
            yield Tensor(f"{there}.attn_norm.weight", f"{here}.input_layernorm.weight", (self.hidden,))
            for part, rows, permuted in (("q", q, self.heads), ("k", kv, self.kv_heads), ("v", kv, 0)):
                source, target = f"{there}.attn_{part}", f"{here}.self_attn.{part}_proj"
                heads = permuted if self.family.interleaved else 0
                yield Tensor(f"{source}.weight", f"{target}.weight", (rows, self.hidden), heads)
                if self.family.biased:
                    yield Tensor(f"{source}.bias", f"{target}.bias", (rows,))
                if self.family.normed and part != "v":
                    yield Tensor(f"{source}_norm.weight", f"{here}.self_attn.{part}_norm.weight", (self.head_dim,))
            yield Tensor(f"{there}.attn_output.weight", f"{here}.self_attn.o_proj.weight", (self.hidden, q))
            yield Tensor(f"{there}.ffn_norm.weight", f"{here}.post_attention_layernorm.weight", (self.hidden,))
            yield Tensor(f"{there}.ffn_gate.weight", f"{here}.mlp.gate_proj.weight", (self.intermediate, self.hidden))
            yield Tensor(f"{there}.ffn_up.weight", f"{here}.mlp.up_proj.weight", (self.intermediate, self.hidden))
            yield Tensor(f"{there}.ffn_down.weight", f"{here}.mlp.down_proj.weight", (self.hidden, self.intermediate))
        yield Tensor("output_norm.weight", "model.norm.weight", (self.hidden,))
        if not self.tied:
            yield Tensor("output.weight", "lm_head.weight", (self.vocabulary, self.hidden))

    def config(self) -> dict[str, Any]:
        """config.json, rope in both spellings."""
        return {
            "architectures": [self.family.transformers],
            "model_type": self.family.model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.context,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "tie_word_embeddings": self.tied,
            "attention_bias": False,  # qwen2's are there without being asked for
            "mlp_bias": False,
            "dtype": "float32",
        }


def check_tensors(header: GgufHeader, shape: DecoderShape) -> list[Tensor]:
    """The tensors to convert: all there, all of the right shape, none too many.

    Raises:
        ModelLoadError: Names the tensor.
    """
    wanted = list(shape.tensors())
    for tensor in wanted:
        info = header.tensors.get(tensor.source)
        if info is None:
            raise _fault(header, f"the tensor {tensor.source} is missing")
        if info.shape != tensor.shape:
            raise _fault(header, f"{tensor.source} has the shape {info.shape}, the sizes say {tensor.shape}")
    extra = sorted(header.tensors.keys() - {tensor.source for tensor in wanted})
    if extra:
        raise _fault(
            header, f"the tensor {extra[0]} is not part of a plain {header.architecture} (of {len(extra)} such): not supported"
        )
    return wanted


def unpermuted(weight: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Undoes llama.cpp's row order: rotary pairs that lie side by side go back to the two halves of each head."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _refuse_unsupported(header: GgufHeader) -> None:
    scaling = header.metadata.get(f"{header.architecture}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in header.tensors:
        raise _fault(header, "rope scaling in a GGUF is not supported; use the model's own folder")
    if header.metadata.get(f"{header.architecture}.expert_count", 0):
        raise _fault(header, "mixtures of experts in a GGUF are not supported; use the model's own folder")
    if header.metadata.get("split.count", 1) != 1:
        raise _fault(header, "one part of a split GGUF: join the parts with llama-gguf-split --merge first")


def _vocabulary(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise _fault(header, "the tensor token_embd.weight is missing or has no two dimensions")
    rows = embedding.shape[0]
    said = header.metadata.get(f"{header.architecture}.vocab_size", rows)
    if said != rows:
        raise _fault(header, f"{header.architecture}.vocab_size is {said!r}, the embedding has {rows:,} rows")
    return rows


def _whole(header: GgufHeader, key: str, limit: int, default: int | None = None) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise _fault(header, f"{key} is {'missing' if value is None else repr(value)}; 1 to {limit:,} is possible")
    return value


def _positive(header: GgufHeader, key: str, default: float) -> float:
    value = header.metadata.get(key, default)
    if not isinstance(value, float) or not 0 < value < 1e12:
        raise _fault(header, f"{key} is {value!r}, not a positive number")
    return float(str(np.float32(value)))  # 1e-05, as the model's own config says, not 9.999999747378752e-06


def _fault(header: GgufHeader, what: str) -> ModelLoadError:
    return ModelLoadError(f"{header.path}: {what}")
