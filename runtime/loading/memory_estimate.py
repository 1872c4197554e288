"""Estimates the memory that a model takes on this machine, from its configuration, before it is fetched or loaded.

The parts were measured with SmolLM2-135M in its own engine process (peak resident memory on Linux): libraries and tokenizer,
weights in the engine's form, KV twice (decode rows and the cache that they are published to), and a chunk of a prompt (logits,
attention, a growing buffer). Pages of a file whose weights are converted are counted separately (`Fit.mapped`): they are
resident at the peak, but the system reclaims them where memory is short.
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
from runtime.loading.config import context_of, quantised_with, small_groups
from runtime.loading.measurements import MOST_TOKENS, PLAIN
from runtime.loading.rope import text_config
from runtime.options.load import CHUNK_TOKENS, CUDA_CHUNK_TOKENS, LoadOptions

CONTEXT = 8192  # tokens, by default
# Bytes of torch and transformers, or mlx and mlx-lm, with a tokenizer: median of measurements, which differ by some 30 MB
# depending on the pages that the system has cached.
_LIBRARIES = {"hf": 505_000_000, "mlx": 430_000_000}
_RESIDENT = 0.8  # resident share of a converted file at the peak: 0.75 to 0.81 for the same weights in 16 and in 32 bits
_METAL_SHARE = 0.7  # of a Mac's memory: about Metal's recommended limit
_SPELLED = {"F16": "float16", "BF16": "bfloat16"}  # dtype names of safetensors: those of the options
_SCORES = 96  # bytes of the cached scores of a token
_VECTORS = 16  # number of logits vectors in the cache
_CHECKPOINT = 512  # tokens between two cached recurrent states, at most


@dataclass(frozen=True, slots=True)
class Fit:
    """Memory of a model, and of the machine, in bytes.

    Attributes:
        backend: "hf" or "mlx".
        context: Length of the estimated context, in tokens.
        libraries: The engine's libraries, with a tokenizer.
        weights: Weights in the engine's form.
        kv_per_token: KV of one token in the cache, without its copy in decode rows.
        kv: KV and recurrent states of the whole context, in decode rows and in the cache. A state is cached for each chunk of a
            prompt; a slow machine has shorter chunks and more states, up to the KV budget.
        working: Logits and attention of one chunk of a prompt.
        loading: Needed in addition during the load: float32 weights while they are put into fewer bits.
        mapped: Pages of a converted file, resident while there is room; not part of `total`.
        memory: The machine's memory; on a Mac with Metal, about the share that Metal recommends.
        free: Memory available at this moment.
        longest: Tokens of the longest context that fits into `memory`, up to the model's own; 0 where the weights alone do not
            fit.
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
        """The highest sum of all parts but `mapped`."""
        return self.libraries + self.weights + self.kv + self.working + self.loading

    @property
    def peak(self) -> int:
        """Peak resident memory on a machine with room to spare."""
        return self.total + self.mapped

    @property
    def fits(self) -> bool:
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
    """Estimates the memory of a model on this machine, within 15 % of the measurements.

    Args:
        config: Its ``config.json``.
        weights_bytes: Bytes of the weights on disk.
        dtype: Type of most weights, as safetensors spells it; empty: that of the config.
        backend: "hf" or "mlx".
        context: In tokens; by default `context_length` of the options, or else the model's own context up to `CONTEXT`.
        options: `weights`, `dtype`, `kv_dtype`, `cache`, `device` and `prefill_chunk_tokens` are read.
    """
    given, text = options or LoadOptions(), text_config(config)
    gpu = on_gpu(backend, given.device)
    plain = backend != "hf" or gpu or given.weights == "auto" or given.dtype not in ("auto", PLAIN)
    packed = PLAIN if plain else given.weights
    numbers, stored = stored_numbers(config, weights_bytes, dtype)
    width = _NAMES.get(given.dtype, stored if gpu else 4)
    weights = held_bytes(config, weights_bytes, numbers, stored=stored, width=width, packed=packed, backend=backend)
    same = stored == width and _SPELLED.get(dtype, given.dtype) in ("auto", given.dtype)
    # Float32 weights that are put into fewer bits are counted as `loading`
    converted = not (quantised_with(config)[0] or same or (packed != PLAIN and stored == 4))
    most = context_of(config)
    wanted = given.context_length and min(given.context_length, most or given.context_length)
    tokens = context or wanted or min(most or CONTEXT, CONTEXT)

    cached_row = kv_row_bytes(config, backend, given.kv_dtype, width)
    chunk = given.prefill_chunk_tokens or (
        CUDA_CHUNK_TOKENS if backend == "hf" and gpu and not is_apple_silicon() else CHUNK_TOKENS
    )
    state = state_numbers(config) * width
    row = kv_row_bytes(config, backend, "auto", width)
    once = row == cached_row and not state  # the cache refers to the memory of decode rows; otherwise it holds copies
    copies = 1 + (given.cache and not once)
    layers = max(number_of(text, "num_hidden_layers", "n_layer"), 1)
    ahead = row // 16 + row // (2 * layers) if once else 0  # buffers grow by a sixteenth, one of them at a time
    by_token = row + ahead + (_SCORES + (0 if once else cached_row) if given.cache else 0)
    states = copies * (1 + -(-tokens // min(chunk, _CHECKPOINT))) * state
    heads = number_of(text, "num_attention_heads", "n_head") if kv_numbers(config) > 0 else 0
    attention = 2 * chunk * heads * 4  # scores of one layer, per token of context, before and after softmax
    vocabulary = number_of(text, "vocab_size") * 4
    logits = 2 * chunk * vocabulary + _VECTORS * vocabulary  # logits and log-probabilities; cached rows
    running = weights + by_token * tokens + states + logits + attention * tokens
    # Both forms of the weights, where the float32 ones are in the mapped file, which is released at the end (others are freed
    # one by one); or the float32 weights and the logits of the fixed text
    packing = 4 * numbers + max(weights if stored == 4 else 0, MOST_TOKENS * vocabulary)
    loading = 0 if packed == PLAIN else packing

    memory = psutil.virtual_memory()
    limit = int(memory.total * _METAL_SHARE) if is_apple_silicon() else int(memory.total)
    libraries = _LIBRARIES.get(backend, _LIBRARIES["hf"])
    left = limit - libraries - weights - logits - copies * 2 * state
    each = by_token + attention + copies * state / min(chunk, _CHECKPOINT)
    longest = max(min(int(left / max(each, 1)), most or left), 0) if libraries + loading <= limit else 0
    return Fit(
        backend=backend,
        context=tokens,
        libraries=libraries,
        weights=weights,
        kv_per_token=cached_row,
        kv=by_token * tokens + states,
        working=logits + attention * tokens,
        memory=limit,
        free=int(memory.available),
        longest=longest,
        loading=max(loading - running, 0),
        mapped=int(_RESIDENT * weights_bytes) if backend == "hf" and not gpu and converted else 0,
    )


def weight_forms(backend: str, device: str = "auto") -> tuple[str, ...]:
    """Forms of linear weights that an engine offers here, as in `LoadOptions.weights`; empty where there is no choice.

    Args:
        backend: "hf" or "mlx".
        device: As in `LoadOptions.device`.
    """
    if backend != "hf" or on_gpu(backend, device) or device not in ("auto", "cpu"):
        return ()
    return (PLAIN, *(["float16"] if has_float16() else []), "bfloat16", "int8", "int4")


def is_apple_silicon() -> bool:
    """Whether this is a Mac with Metal."""
    return sys.platform == "darwin" and platform.machine() == "arm64"


def on_gpu(backend: str, device: str = "auto") -> bool:
    """Whether the engine computes on a GPU, where weights keep their type on disk."""
    if device == "cpu":
        return False
    return is_apple_silicon() or (backend == "hf" and Path("/dev/nvidia0").exists())


_STORED = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_NAMES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
_PACKED = {"bfloat16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}  # bytes of a weight; int4 adds 2 x 2 bytes for each 32 weights
_BLOCK = 512  # FBGEMM pads the width of a float16 matrix to a multiple of it
_TIED = ("gemma", "gpt2", "lfm2", "mamba")  # prefixes of the model types whose head is tied by default


def stored_numbers(config: Mapping[str, Any], weights_bytes: int, dtype: str) -> tuple[int, int]:
    """Number of plain weights, and bytes of each on disk.

    Args:
        config: ``config.json``.
        weights_bytes: Bytes of the weights on disk.
        dtype: Type of most weights, as safetensors spells it; empty: that of the config.
    """
    text = text_config(config)
    named = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    stored = _STORED.get(dtype) or _NAMES.get(str(named), 2)
    return weights_bytes // stored, stored


def held_bytes(
    config: Mapping[str, Any], weights_bytes: int, numbers: int, *, stored: int, width: int, packed: str, backend: str
) -> int:
    """Bytes of the weights in an engine.

    Args:
        config: ``config.json``.
        weights_bytes: Bytes of the weights on disk.
        numbers: Count of weights.
        stored: Bytes of a weight on disk; where weights are quantised, of a scale.
        width: The same in memory.
        packed: Form of linear weights; "float32": all weights have `width`.
        backend: "hf" or "mlx", which has no groups below 32.
    """
    if quantised_with(config)[0]:
        plain = small_groups(config).values() if backend == "mlx" else ()
        others = weights_bytes - sum(layer.nbytes for layer in plain)
        return _quantised(config, others, stored, width) + sum(layer.numbers * width for layer in plain)
    return numbers * width if packed == PLAIN else _packed(config, numbers, packed)


def _packed(config: Mapping[str, Any], numbers: int, form: str) -> int:
    """Bytes with embeddings in float32, the head in float16 where the processor has it, and linear weights in `form`."""
    text = text_config(config)
    hidden, inner = number_of(text, "hidden_size", "n_embd", "d_model"), number_of(text, "intermediate_size")
    embedding = min(number_of(text, "vocab_size") * hidden, numbers)
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    if not isinstance(tied, bool):
        tied = str(text.get("model_type")).startswith(_TIED)
    linear = max(numbers - (1 if tied else 2) * embedding, 0)
    head = 2 * embedding * _filled(hidden) if has_float16() else 4 * embedding * (not tied)
    if form == "float16":
        down = min(number_of(text, "num_hidden_layers", "n_layer") * hidden * inner, linear)  # of the down projection
        return int(4 * embedding + head + 2 * ((linear - down) * _filled(hidden) + down * _filled(inner)))
    return int(4 * embedding + head + linear * _PACKED.get(form, 4.0))


def _filled(width: int) -> float:
    return -(-width // _BLOCK) * _BLOCK / width if width > 0 else 1.0


def has_float16() -> bool:
    """Whether torch multiplies float16 weights here, guessed without importing it."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _quantised(config: Mapping[str, Any], weights_bytes: int, stored: int, width: int) -> int:
    """Bytes of quantised weights in an engine: packed numbers are unchanged, scales get the width of the computation."""
    found = config.get("quantization")
    bits, group = (found.get("bits"), found.get("group_size")) if isinstance(found, Mapping) else (None, None)
    if stored == width or not isinstance(bits, int) or not isinstance(group, int) or bits < 1 or group < 1:
        return weights_bytes
    pair = 2 * 8 / group  # bits of a scale and a bias of one byte each, for each number
    return int(weights_bytes * (bits + width * pair) / (bits + stored * pair))


_LEAST_GROUP = {"mlx": 32, "hf": 1}  # heads of quantised KV are padded to a multiple of it
_CACHED = ("full_attention", "sliding_attention", "chunked_attention", "attention")  # layers with KV
_PURELY_RECURRENT = ("mamba", "mamba2", "rwkv", "falcon_mamba")
_WIDTHS = {"f32": 4, "f16": 2, "bf16": 2}


def kv_numbers(config: Mapping[str, Any]) -> int:
    """Numbers in the KV of one token over all layers. Sliding layers keep every token: the window is a mask."""
    layers, heads, widths = _kv_shape(config)
    return layers * heads * sum(widths)


def kv_row_bytes(config: Mapping[str, Any], backend: str, kv_dtype: str, width: int) -> int:
    """Bytes of one token's KV.

    Args:
        config: ``config.json``.
        backend: "hf" or "mlx".
        kv_dtype: As in `LoadOptions.kv_dtype`.
        width: Bytes of a number in the computation, for "auto".
    """
    if kv_dtype not in ("q8", "q4"):
        return kv_numbers(config) * _WIDTHS.get(kv_dtype, width)
    layers, heads, widths = _kv_shape(config)
    least, bits = _LEAST_GROUP.get(backend, 1), int(kv_dtype[1:])
    full = [-(-each // least) * least for each in widths]
    return layers * heads * sum(each * bits // 8 + each // group_width(each) * 8 for each in full if each)


def state_numbers(config: Mapping[str, Any]) -> int:
    """Numbers in one recurrent state over all layers: windows of convolutions, and states of other recurrent layers."""
    text = text_config(config)
    layers = _layers(text) - (_attention_layers(text) if _kinds(text) else 0)
    heads = number_of(text, "mamba_n_heads", "mamba_num_heads")
    if heads:  # Mamba 2, alone or with attention in the same layer
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
        convolved = 2 * number_of(text, "linear_num_key_heads") * key + values
        return layers * (values * key + convolved * number_of(text, "linear_conv_kernel_dim"))
    return layers * number_of(text, "hidden_size") * number_of(text, "conv_L_cache")  # short convolutions


def _mamba2(inner: int, text: Mapping[str, Any], state: str, groups: str, kernel: str) -> int:
    size = number_of(text, state)
    return inner * size + (inner + 2 * number_of(text, groups) * size) * number_of(text, kernel)


def _kv_shape(config: Mapping[str, Any]) -> tuple[int, int, tuple[int, int]]:
    """Number of layers with KV and of KV heads, and the widths of a key and of a value."""
    text = text_config(config)
    layers = _attention_layers(text)
    heads = number_of(text, "num_attention_heads", "n_head")
    hidden = number_of(text, "hidden_size", "n_embd", "d_model")
    if number_of(text, "kv_lora_rank"):  # compressed KV, which transformers caches expanded
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


def number_of(config: Mapping[str, Any], *names: str) -> int:
    """The first of these fields that is a whole number; 0 without one."""
    found = (config.get(name) for name in names)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), 0)
