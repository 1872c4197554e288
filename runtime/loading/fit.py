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

from runtime.loading.check import quantised_with
from runtime.loading.describing import context_of
from runtime.loading.kv_bytes import attends, kv_row_bytes, number_of, state_numbers, text_config
from runtime.loading.perplexity import MOST_TOKENS, PLAIN
from runtime.loading.weight_bytes import has_float16, held_bytes, stored_numbers
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
