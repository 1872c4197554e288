"""GGUF's decoders in Hugging Face's layout: architectures, sizes, tensor names, shapes, row order, config.json.

Each architecture is proven equal to transformers on tiny models (`tests/runtime/loading/test_families.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.loading.gguf.header import GgufHeader, fault, positive_number, whole_number
from runtime.loading.gguf.rope import FACTORS, MAX_CONTEXT, rope_parameters


@dataclass(frozen=True, slots=True)
class Family:
    """One architecture. All are decoders of llama's build: RMS norms, rotary positions, gated MLPs."""

    model_type: str  # in config.json
    transformers: str  # class of the model in transformers
    interleaved: bool = False  # rows of q and k have llama.cpp's order of rotary pairs
    biased: bool = False  # q, k and v have biases
    normed: bool = False  # q and k are normed per head
    fused: bool = False  # q, k and v are one matrix, gate and up another
    narrow: bool = False  # all heads together are as wide as the model; its config has no head size
    # Gemma's build: norms before and after attention and MLP, all stored 1 higher in GGUF than in the model's own folder;
    # GELU; tied embeddings; a query scale in config.json
    gemma: bool = False
    capped: bool = False  # logits and attention scores are capped by a tanh
    windowed: bool = False  # the file's sliding window applies
    full_every: int = 1  # every n-th layer has full attention, the others the window; 1: all have the window
    ropes: tuple[str, ...] = ("default", "linear", "llama3", "yarn")  # proven kinds of ``rope_parameters``
    largest: int = 0  # layers of the largest model, whose queries are scaled by width / heads instead of the head size


_PLAIN = ("default",)
_GEMMA2 = Family("gemma2", "Gemma2ForCausalLM", gemma=True, capped=True, windowed=True, full_every=2, ropes=_PLAIN, largest=46)
_GEMMA3 = Family("gemma3_text", "Gemma3ForCausalLM", normed=True, gemma=True, windowed=True, full_every=6, largest=62)
FAMILIES = {  # by general.architecture
    "llama": Family("llama", "LlamaForCausalLM", interleaved=True),
    "qwen2": Family("qwen2", "Qwen2ForCausalLM", biased=True, narrow=True),
    "qwen3": Family("qwen3", "Qwen3ForCausalLM", normed=True),
    "phi3": Family("phi3", "Phi3ForCausalLM", fused=True, narrow=True, windowed=True, ropes=_PLAIN),
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA3, ropes=("default", "linear")),
}
MISTRAL = Family("mistral", "MistralForCausalLM", interleaved=True, windowed=True)  # in GGUF: "llama" with a window
WORKS = f"{', '.join(FAMILIES)} (a Mistral says llama)"


Number = TypeVar("Number", bound=np.generic)

MAX_LAYERS, MAX_WIDTH = 1024, 1 << 18

# Norms of a layer in GGUF and in transformers, from input to output
_NORMS = (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"))
_GEMMA_NORMS = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)

# Keys that change the computation and that llama.cpp does not use for these families
_FOREIGN = (
    *("attention.scale", "attention.clamp_kqv", "attention.temperature_scale", "attention.max_alibi_bias"),
    *("logit_scale", "residual_scale", "embedding_scale"),
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the model, with its required shape."""

    source: str  # name in GGUF
    target: str  # name in transformers
    shape: tuple[int, ...]
    permuted_heads: int = 0  # heads whose rows (of q or k) are interleaved in GGUF; 0: not permuted
    excess: float = 0.0  # added to its values in GGUF


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
    norm_eps: float
    tied: bool
    rope: Mapping[str, Any]  # transformers' rope_parameters, of the layers with full attention
    window: int | None = None  # tokens that a sliding layer attends to, the token itself included
    full_every: int = 1  # as in `Family`
    local_theta: float = 10000.0  # base of the frequencies in sliding layers, where it differs
    caps: tuple[float, float] = (50.0, 30.0)  # of attention scores and of logits

    @classmethod
    def of(cls, header: GgufHeader) -> DecoderShape:
        """Reads the sizes from a file's metadata.

        Raises:
            ModelLoadError: A number is missing or absurd, or the file uses a feature that is not supported.
        """
        name = header.architecture
        _refuse_unsupported(header)
        hidden = whole_number(header, f"{name}.embedding_length", MAX_WIDTH)
        heads = whole_number(header, f"{name}.attention.head_count", 4096)
        head_dim = whole_number(header, f"{name}.attention.key_length", 4096, hidden // heads)
        context = whole_number(header, f"{name}.context_length", MAX_CONTEXT)
        window = _window(header, context)
        family = MISTRAL if name == "llama" and window is not None else FAMILIES[name]
        rotated = whole_number(header, f"{name}.rope.dimension_count", head_dim, head_dim)
        theta = positive_number(header, f"{name}.rope.freq_base", None if name == "gemma3" else 10000.0)
        rope = rope_parameters(header, theta, rotated)
        shape = cls(
            family=family,
            layers=whole_number(header, f"{name}.block_count", MAX_LAYERS),
            hidden=hidden,
            intermediate=whole_number(header, f"{name}.feed_forward_length", MAX_WIDTH * 8),
            heads=heads,
            kv_heads=whole_number(header, f"{name}.attention.head_count_kv", heads, heads),
            head_dim=head_dim,
            vocabulary=_vocabulary(header),
            context=context,
            norm_eps=positive_number(header, f"{name}.attention.layer_norm_rms_epsilon", 1e-5),
            tied=family.gemma or "output.weight" not in header.tensors,
            rope=rope if rotated == head_dim else {**rope, "partial_rotary_factor": rotated / head_dim},
            window=window,
            full_every=whole_number(header, f"{name}.attention.sliding_window_pattern", MAX_LAYERS, family.full_every),
            local_theta=positive_number(header, f"{name}.rope.freq_base_swa", 10000.0),
            caps=(
                positive_number(header, f"{name}.attn_logit_softcapping", 50.0),
                positive_number(header, f"{name}.final_logit_softcapping", 30.0),
            ),
        )
        _check(header, shape, rotated)
        return shape

    def tensors(self) -> Iterator[Tensor]:
        """All tensors of the model, in the order of writing."""
        excess = 1.0 if self.family.gemma else 0.0
        yield Tensor("token_embd.weight", "model.embed_tokens.weight", (self.vocabulary, self.hidden))
        for n in range(self.layers):
            block, layer = f"blk.{n}", f"model.layers.{n}"
            norms = [
                Tensor(f"{block}.{source}.weight", f"{layer}.{target}.weight", (self.hidden,), excess=excess)
                for source, target in (_GEMMA_NORMS if self.family.gemma else _NORMS)
            ]
            yield norms[0]
            yield from self._attention(block, f"{layer}.self_attn")
            yield from norms[1:3]
            yield from self._mlp(block, f"{layer}.mlp")
            yield from norms[3:]
        yield Tensor("output_norm.weight", "model.norm.weight", (self.hidden,), excess=excess)
        if not self.tied:
            yield Tensor("output.weight", "lm_head.weight", (self.vocabulary, self.hidden))

    def _attention(self, block: str, layer: str) -> Iterator[Tensor]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        parts = (("q", q, self.heads), ("k", kv, self.kv_heads), ("v", kv, 0))
        if self.family.fused:
            yield Tensor(f"{block}.attn_qkv.weight", f"{layer}.qkv_proj.weight", (q + 2 * kv, self.hidden))
        for part, rows, permuted in () if self.family.fused else parts:
            heads = permuted if self.family.interleaved else 0
            yield Tensor(f"{block}.attn_{part}.weight", f"{layer}.{part}_proj.weight", (rows, self.hidden), heads)
            if self.family.biased:
                yield Tensor(f"{block}.attn_{part}.bias", f"{layer}.{part}_proj.bias", (rows,))
            if self.family.normed and part != "v":
                excess = 1.0 if self.family.gemma else 0.0
                target = f"{layer}.{part}_norm.weight"
                yield Tensor(f"{block}.attn_{part}_norm.weight", target, (self.head_dim,), excess=excess)
        yield Tensor(f"{block}.attn_output.weight", f"{layer}.o_proj.weight", (self.hidden, q))

    def _mlp(self, block: str, layer: str) -> Iterator[Tensor]:
        up = (self.intermediate, self.hidden)
        if self.family.fused:
            yield Tensor(f"{block}.ffn_up.weight", f"{layer}.gate_up_proj.weight", (2 * self.intermediate, self.hidden))
        else:
            yield Tensor(f"{block}.ffn_gate.weight", f"{layer}.gate_proj.weight", up)
            yield Tensor(f"{block}.ffn_up.weight", f"{layer}.up_proj.weight", up)
        yield Tensor(f"{block}.ffn_down.weight", f"{layer}.down_proj.weight", up[::-1])

    def config(self) -> dict[str, Any]:
        """config.json; rope in both spellings where there is one base."""
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
            "rope_theta": self.rope["rope_theta"],
            "rope_parameters": dict(self.rope),
            "tie_word_embeddings": self.tied,
            "attention_bias": False,  # qwen2 has its biases regardless of this field
            "mlp_bias": False,
            "dtype": "float32",
            **({"sliding_window": self.window} if self.family.windowed else {}),
            # transformers' defaults of these two are those of the published Phi-3
            **({"original_max_position_embeddings": self.context, "pad_token_id": None} if self.family.fused else {}),
            **(self._gemma() if self.family.gemma else {}),
        }

    def _gemma(self) -> dict[str, Any]:
        """Fields of config.json in which Gemma differs from other families."""
        kinds = ["full_attention" if (n + 1) % self.full_every == 0 else "sliding_attention" for n in range(self.layers)]
        found: dict[str, Any] = {
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": kinds,
            "sliding_window_pattern": self.full_every,
            # not in the file; llama.cpp recognises the largest model by its number of layers
            "query_pre_attn_scalar": self.hidden // self.heads if self.layers == self.family.largest else self.head_dim,
            "attn_logit_softcapping": self.caps[0] if self.family.capped else None,
            "final_logit_softcapping": self.caps[1] if self.family.capped else None,
        }
        if self.family.model_type == "gemma3_text":
            local = {"rope_type": "default", "rope_theta": self.local_theta}
            found["rope_parameters"] = {"full_attention": dict(self.rope), "sliding_attention": local}
            found["rope_local_base_freq"] = self.local_theta
        return found


def check_tensors(header: GgufHeader, shape: DecoderShape) -> list[Tensor]:
    """The tensors to convert: each is in the file with the right shape, and the file has no others.

    Raises:
        ModelLoadError: Names the tensor.
    """
    wanted = list(shape.tensors())
    for tensor in wanted:
        info = header.tensors.get(tensor.source)
        if info is None:
            raise fault(header, f"the tensor {tensor.source} is missing")
        if info.shape != tensor.shape:
            raise fault(header, f"{tensor.source} has the shape {info.shape}, the sizes say {tensor.shape}")
    extra = sorted(header.tensors.keys() - {tensor.source for tensor in wanted} - {FACTORS})  # FACTORS was read with the sizes
    if extra:
        raise fault(
            header, f"the tensor {extra[0]} is not part of a plain {header.architecture} (of {len(extra)} such): not supported"
        )
    return wanted


def unpermuted(weight: npt.NDArray[Number], heads: int) -> npt.NDArray[Number]:
    """Undoes llama.cpp's row order: moves adjacent rotary pairs back into the two halves of each head.

    Rows stay whole, so the same order applies to words, scales and biases of a quantised matrix.
    """
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _check(header: GgufHeader, shape: DecoderShape, rotated: int) -> None:
    """Refuses sizes that contradict each other."""
    name, family, head_dim = header.architecture, shape.family, shape.head_dim
    value_length = header.metadata.get(f"{name}.attention.value_length", head_dim)
    rotary_length = head_dim if family.fused else rotated  # Phi-3 may rotate a part of each head
    for key, found in (("rope.dimension_count", rotary_length), ("attention.value_length", value_length)):
        if found != head_dim:
            raise fault(header, f"{name}.{key} is {found!r} where the head size is {head_dim}: not supported")
    if family.narrow and head_dim * shape.heads != shape.hidden:
        raise fault(header, f"{shape.heads} heads of {head_dim} are not as wide as the model, {shape.hidden}: not supported")
    if head_dim % 2 or rotated % 2 or shape.heads % shape.kv_heads:
        raise fault(header, f"{shape.heads} heads of {head_dim} over {shape.kv_heads} KV heads do not fit together")
    if shape.rope["rope_type"] not in family.ropes:
        raise fault(header, f"rope scaling of the kind {shape.rope['rope_type']!r} in a {name} is not supported")
    if not family.gemma and shape.full_every != 1:
        raise fault(
            header, f"{name}.attention.sliding_window_pattern is {shape.full_every}: not supported in this architecture"
        )
    if family.gemma and shape.window is None:
        raise fault(header, f"{name}.attention.sliding_window is missing")
    if family.gemma and shape.hidden % shape.heads and shape.layers == family.largest:
        raise fault(header, f"{shape.heads} heads do not divide the width {shape.hidden}")
    if not family.capped and header.metadata.get(f"{name}.final_logit_softcapping"):
        raise fault(header, f"{name}.final_logit_softcapping is not supported")


def _window(header: GgufHeader, context: int) -> int | None:
    """Tokens that a sliding layer attends to; None where the file has no window, or one as long as the context."""
    key = f"{header.architecture}.attention.sliding_window"
    if not header.metadata.get(key):  # llama.cpp writes 0 for none
        return None
    window = whole_number(header, key, 1 << 31)
    if window >= context and not FAMILIES[header.architecture].gemma:
        return None
    if not (FAMILIES[header.architecture].windowed or header.architecture == "llama"):
        raise fault(header, f"{key} is {window:,}: a sliding window in this architecture is not supported")
    return window


def _refuse_unsupported(header: GgufHeader) -> None:
    if header.metadata.get(f"{header.architecture}.expert_count", 0):
        raise fault(header, "mixtures of experts in a GGUF are not supported; use the model's own folder")
    if header.metadata.get("split.count", 1) != 1:
        raise fault(header, "one part of a split GGUF: join the parts with llama-gguf-split --merge first")
    foreign = next((key for key in _FOREIGN if header.metadata.get(f"{header.architecture}.{key}")), None)
    if foreign is not None:
        raise fault(header, f"{header.architecture}.{foreign} is not supported; use the model's own folder")


def _vocabulary(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise fault(header, "the tensor token_embd.weight is missing or has no two dimensions")
    rows = embedding.shape[0]
    size = header.metadata.get(f"{header.architecture}.vocab_size", rows)
    if size != rows:
        raise fault(header, f"{header.architecture}.vocab_size is {size!r}, the embedding has {rows:,} rows")
    return rows
