"""Whether a model fits into this machine, worked out from its configuration before anything is fetched or loaded.

The parts were measured with SmolLM2-135M in an engine of its own (peak resident memory on Linux): libraries and tokenizer,
weights as the engine keeps them, keys and values twice (in the rows at work and in the cache that they are published to),
and what one chunk of a prompt takes: its logits, its attention, and a buffer that grows. Pages of a file that is only
converted stand apart: they are resident at the peak, but the system takes them back where memory is short.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from runtime.backends.facts import group_width
from runtime.loading.config import context_of, quantised_with
from runtime.loading.measurements import MOST_TOKENS, PLAIN
from runtime.options import LoadOptions

CONTEXT = 8192  # tokens that are reckoned with where nobody says how many
# Bytes of torch and transformers, or mlx and mlx-lm, with a tokenizer: the middle of what was measured. How much of their files
# is resident depends on what the system holds of them already, some 30 MB more or less.
_LIBRARIES = {"hf": 505_000_000, "mlx": 430_000_000}
_RESIDENT = 0.8  # of a converted file at the peak: 0.75 to 0.81 where the same weights were stored in 16 and in 32 bits
_METAL_SHARE = 0.7  # of a Mac's memory that Metal recommends to hold at most, about; the machine itself says it exactly
_SPELLED = {"F16": "float16", "BF16": "bfloat16"}  # by safetensors
_SCORES = 96  # bytes of what is remembered of a scored token
_VECTORS = 16  # rows of the vocabulary's width that are kept
_CHECKPOINT = 512  # tokens between two recurrent states that are kept, at most


@dataclass(frozen=True, slots=True)
class Fit:
    """What a model would take, in bytes, and what there is.

    Attributes:
        backend: That it is reckoned for.
        context: Tokens that it is reckoned for.
        libraries: Of the engine itself.
        weights: As the engine keeps them.
        kv_per_token: Keys and values of one token as they rest in the cache, once.
        kv: Keys, values and recurrent states of the whole context: at work, and at rest. A state is kept for each chunk of a
            prompt; a slow machine makes chunks shorter, and keeps more of them, up to the budget of KV.
        working: Of one chunk of a prompt.
        loading: What more than all that is needed for a moment while it is loaded: where weights are put into fewer bits,
            those in float32 are there too.
        mapped: Pages of a file that was converted, resident while there is room for them; no part of `total`.
        memory: What the machine has for it.
        free: Of that, what nobody uses at this moment.
        longest: The largest context that `memory` has room for, up to the model's own; 0 where the weights alone do not fit.
    """

    backend: str
    context: int
    libraries: int
    weights: int
    kv_per_token: int
    kv: int
    working: int
    memory: int
    free: int
    longest: int
    loading: int = 0
    mapped: int = 0

    @property
    def total(self) -> int:
        """Everything together, at its highest."""
        return self.libraries + self.weights + self.kv + self.working + self.loading

    @property
    def peak(self) -> int:
        """The most that is resident on a machine with room to spare."""
        return self.total + self.mapped

    @property
    def fits(self) -> bool:
        """Into the machine's memory, with all else at rest."""
        return self.total <= self.memory


def estimate_fit(
    config: Mapping[str, Any],
    weights_bytes: int,
    *,
    dtype: str = "",
    backend: str = "hf",
    context: int | None = None,
    options: LoadOptions | None = None,
) -> Fit:
    """What a model will take on this machine, within 15 % of what was measured.

    Args:
        config: Its ``config.json``.
        weights_bytes: Of its weights on disk.
        dtype: Of most of them, as safetensors spells it; what the config says where it is empty.
        backend: "hf" or "mlx".
        context: Tokens to reckon with; those of the options, or the model's own up to `CONTEXT`, by default.
        options: It will be loaded with. `weights`, `dtype`, `kv_dtype`, `cache`, `device` and `prefill_chunk_tokens` count.
    """
    given = options or LoadOptions()
    gpu = _on_gpu(backend, given.device)
    plain = backend != "hf" or gpu or given.weights == "auto" or given.dtype not in ("auto", PLAIN)
    packed = PLAIN if plain else given.weights
    numbers, stored = stored_numbers(config, weights_bytes, dtype)
    width = {"float16": 2, "bfloat16": 2, "float32": 4}.get(given.dtype, stored if gpu else 4)
    weights = held_bytes(config, weights_bytes, numbers, stored=stored, width=width, packed=packed)
    same = stored == width and _SPELLED.get(dtype, given.dtype) in ("auto", given.dtype)
    converted = not (quantised_with(config)[0] or same or (packed != PLAIN and stored == 4))  # packing reckons that itself
    most = context_of(config)
    wanted = given.context_length and min(given.context_length, most or given.context_length)
    tokens = context or wanted or min(most or CONTEXT, CONTEXT)

    resting = kv_row_bytes(config, backend, given.kv_dtype, width)
    chunk = given.prefill_chunk_tokens
    state = state_numbers(config) * width
    copies = 1 + given.cache  # at work, and in the cache
    by_token = kv_row_bytes(config, backend, "auto", width) + (resting + _SCORES if given.cache else 0)
    states = copies * (1 + -(-tokens // min(chunk, _CHECKPOINT))) * state
    attention = _attention_bytes(config, chunk)
    vocabulary = number_of(text_config(config), "vocab_size") * 4
    logits = 2 * chunk * vocabulary + _VECTORS * vocabulary  # as they come, once more as log-probabilities; rows kept
    running = weights + by_token * tokens + states + logits + attention * tokens
    loading = 0 if packed == PLAIN else _packing_bytes(numbers, weights, vocabulary, mapped=stored == 4)

    memory = psutil.virtual_memory()
    limit = int(memory.total * _METAL_SHARE) if _apple() else int(memory.total)
    libraries = _LIBRARIES.get(backend, _LIBRARIES["hf"])
    left = limit - libraries - weights - logits - copies * 2 * state
    each = by_token + attention + copies * state / min(chunk, _CHECKPOINT)
    longest = max(min(int(left / max(each, 1)), most or left), 0) if libraries + loading <= limit else 0
    return Fit(
        backend=backend,
        context=tokens,
        libraries=libraries,
        weights=weights,
        kv_per_token=resting,
        kv=by_token * tokens + states,
        working=logits + attention * tokens,
        memory=limit,
        free=int(memory.available),
        longest=longest,
        loading=max(loading - running, 0),
        mapped=int(_RESIDENT * weights_bytes) if backend == "hf" and not gpu and converted else 0,
    )


def weight_forms(backend: str, device: str = "auto") -> tuple[str, ...]:
    """In which forms an engine can hold linear weights here, as `LoadOptions.weights` has them; none where it has no choice.

    Args:
        backend: "hf" or "mlx".
        device: As `LoadOptions.device` has it.
    """
    if backend != "hf" or _on_gpu(backend, device) or device not in ("auto", "cpu"):
        return ()
    return (PLAIN, *(["float16"] if has_float16() else []), "bfloat16", "int8", "int4")


def _packing_bytes(numbers: int, packed: int, vocabulary: int, *, mapped: bool) -> int:
    """The most while float32 weights are put into fewer bits: both, or the weights and the logits of the fixed text.

    Args:
        numbers: Weights in all.
        packed: Bytes of what becomes of them.
        vocabulary: Bytes of a row of logits.
        mapped: They are used as they stand in the file, which is let go at the end; others are freed one by one.
    """
    return 4 * numbers + max(packed if mapped else 0, MOST_TOKENS * vocabulary)


def _attention_bytes(config: Mapping[str, Any], chunk: int) -> int:
    """Of one chunk against one token of context: every head's score of one layer, before and after its softmax."""
    heads = number_of(text_config(config), "num_attention_heads", "n_head")
    return 2 * chunk * heads * 4 if attends(config) else 0


def _apple() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _on_gpu(backend: str, device: str = "auto") -> bool:
    """Whether the engine would compute on a GPU, where weights stay as they are stored."""
    if device == "cpu":
        return False
    return _apple() or (backend == "hf" and Path("/dev/nvidia0").exists())


_STORED = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_PACKED = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}  # bytes of a weight; int4: two numbers of 2 for each 32
_BLOCK = 512  # FBGEMM fills the width of a float16 matrix up to a multiple of it
_TIED = ("gemma", "gpt2", "lfm2", "mamba")  # families whose head is their embeddings where the configuration does not say


def stored_numbers(config: Mapping[str, Any], weights_bytes: int, dtype: str) -> tuple[int, int]:
    """How many numbers plain weights are, and the bytes of each on disk.

    Args:
        config: ``config.json``.
        weights_bytes: On disk.
        dtype: As safetensors spells it; what the config says where it is empty.
    """
    text = text_config(config)
    named = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    stored = _STORED.get(dtype) or _NAMES.get(str(named), 2)
    return weights_bytes // stored, stored


def held_bytes(config: Mapping[str, Any], weights_bytes: int, numbers: int, *, stored: int, width: int, packed: str) -> int:
    """Weights as an engine keeps them.

    Args:
        config: ``config.json``.
        weights_bytes: On disk.
        numbers: How many they are.
        stored: Bytes of each on disk; of quantised ones, of their scales.
        width: Bytes of each in memory; likewise.
        packed: In which form linear ones are held; "float32": as all others.
    """
    if quantised_with(config)[0]:
        return _quantised(config, weights_bytes, stored, width)
    return numbers * width if packed == PLAIN else _packed(config, numbers, packed)


def _packed(config: Mapping[str, Any], numbers: int, form: str) -> int:
    """Embeddings in float32, the head in float16 where the processor has it, all else in a form."""
    text = text_config(config)
    hidden, inner = number_of(text, "hidden_size", "n_embd", "d_model"), number_of(text, "intermediate_size")
    embedding = min(number_of(text, "vocab_size") * hidden, numbers)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if not isinstance(tied, bool):
        tied = str(text.get("model_type")).startswith(_TIED)
    linear = max(numbers - (1 if tied else 2) * embedding, 0)
    head = 2 * embedding * _filled(hidden) if has_float16() else 4 * embedding * (not tied)
    if form == "float16":
        down = min(number_of(text, "num_hidden_layers", "n_layer") * hidden * inner, linear)  # those that read the wide side
        return int(4 * embedding + head + 2 * ((linear - down) * _filled(hidden) + down * _filled(inner)))
    return int(4 * embedding + head + linear * _PACKED.get(form, 4.0))


def _filled(width: int) -> float:
    return -(-width // _BLOCK) * _BLOCK / width if width > 0 else 1.0


def has_float16() -> bool:
    """Whether torch can multiply float16 weights here, guessed without loading it."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _quantised(config: Mapping[str, Any], weights_bytes: int, stored: int, width: int) -> int:
    """Packed weights stay as they are; their scales get the width that all else is computed in."""
    found = config.get("quantization")
    bits, group = (found.get("bits"), found.get("group_size")) if isinstance(found, Mapping) else (None, None)
    if stored == width or not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        return weights_bytes
    pair = 2 * 8 / group  # bits of a scale and a bias of one byte each, for each number
    return int(weights_bytes * (bits + width * pair) / (bits + stored * pair))


_LEAST_GROUP = {"mlx": 32, "hf": 1}  # numbers: rows of quantised KV are filled up to a multiple of it
_CACHED = ("full_attention", "sliding_attention", "chunked_attention", "attention")  # layers that keep keys and values
_PURELY_RECURRENT = ("mamba", "mamba2", "rwkv", "falcon_mamba")
_WIDTHS = {"f32": 4, "f16": 2, "bf16": 2}


def kv_numbers(config: Mapping[str, Any]) -> int:
    """Keys and values of one token, in all layers that keep such. Sliding layers keep all of them: the window is a mask."""
    layers, heads, widths = _kv_shape(config)
    return layers * heads * sum(widths)


def attends(config: Mapping[str, Any]) -> bool:
    """Whether any layer keeps keys and values."""
    return kv_numbers(config) > 0


def kv_row_bytes(config: Mapping[str, Any], backend: str, kv_dtype: str, width: int) -> int:
    """Bytes of one token's keys and values in a form.

    Args:
        config: ``config.json``.
        backend: "hf" or "mlx".
        kv_dtype: As `LoadOptions.kv_dtype` has it.
        width: Bytes of a number that is computed with, which "auto" means.
    """
    if kv_dtype not in ("q8", "q4"):
        return kv_numbers(config) * _WIDTHS.get(kv_dtype, width)
    layers, heads, widths = _kv_shape(config)
    least, bits = _LEAST_GROUP.get(backend, 1), int(kv_dtype[1:])
    full = [-(-each // least) * least for each in widths]
    return layers * heads * sum(each * bits // 8 + each // group_width(each) * 8 for each in full if each)


def state_numbers(config: Mapping[str, Any]) -> int:
    """Of one recurrent state, in all layers that have one: what a convolution still sees, and what other layers sum up."""
    text = text_config(config)
    layers = _layers(text) - (_attention_layers(text) if _kinds(text) else 0)
    heads = number_of(text, "mamba_n_heads", "mamba_num_heads")
    if heads:  # Mamba 2, alone or beside attention in every layer
        inner = number_of(text, "mamba_d_ssm") or heads * number_of(text, "mamba_d_head", "mamba_head_dim")
        return layers * _mamba2(inner, text, "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    if text.get("model_type") == "mamba2":
        inner = number_of(text, "num_heads") * number_of(text, "head_dim")
        return layers * _mamba2(inner, text, "state_size", "n_groups", "conv_kernel")
    inner = number_of(text, "intermediate_size")
    if text.get("model_type") in ("mamba", "falcon_mamba"):
        return layers * inner * (number_of(text, "state_size") + number_of(text, "conv_kernel"))
    if number_of(text, "linear_num_value_heads"):  # gated delta rule
        values = number_of(text, "linear_num_value_heads") * number_of(text, "linear_value_head_dim")
        key = number_of(text, "linear_key_head_dim")
        seen = 2 * number_of(text, "linear_num_key_heads") * key + values
        return layers * (values * key + seen * number_of(text, "linear_conv_kernel_dim"))
    return layers * number_of(text, "hidden_size") * number_of(text, "conv_L_cache")  # short convolutions


def _mamba2(inner: int, text: Mapping[str, Any], state: str, groups: str, kernel: str) -> int:
    size = number_of(text, state)
    return inner * size + (inner + 2 * number_of(text, groups) * size) * number_of(text, kernel)


def _kv_shape(config: Mapping[str, Any]) -> tuple[int, int, tuple[int, int]]:
    """Layers, heads, and the widths of a key and of a value."""
    text = text_config(config)
    layers = _attention_layers(text)
    heads = number_of(text, "num_attention_heads", "n_head")
    hidden = number_of(text, "hidden_size", "n_embd", "d_model")
    if number_of(text, "kv_lora_rank"):  # a compressed cache, which transformers keeps unfolded
        key = number_of(text, "qk_nope_head_dim") + number_of(text, "qk_rope_head_dim")
        return layers, heads, (key, number_of(text, "v_head_dim"))
    width = number_of(text, "head_dim") or (hidden // heads if heads else 0)
    return layers, number_of(text, "num_key_value_heads") or heads, (width, width)


def _layers(text: Mapping[str, Any]) -> int:
    return number_of(text, "num_hidden_layers", "n_layer", "num_layers")


def _kinds(text: Mapping[str, Any]) -> list[Any]:
    for name in ("layer_types", "layers_block_type"):
        found = text.get(name)
        if isinstance(found, list) and found:
            return found
    return []


def _attention_layers(text: Mapping[str, Any]) -> int:
    if text.get("model_type") in _PURELY_RECURRENT:
        return 0
    kinds = _kinds(text)
    return sum(kind in _CACHED for kind in kinds) if kinds else _layers(text)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part about text, of a model that reads more than text."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def number_of(config: Mapping[str, Any], *names: str) -> int:
    """The first of these that is a whole number; 0 where none is."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)
