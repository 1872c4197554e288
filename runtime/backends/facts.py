"""Facts that all backends derive alike: fingerprints, context length, KV format, options in force."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.loading.rope import length_limit
from runtime.options.load import LoadOptions

KV_FORMAT = 1  # of payloads on disk; a change invalidates every stored KV block
UNBOUNDED_CONTEXT = 131_072  # tokens; for models that name no limit (recurrent ones)

LEAST_BUDGET = 64 << 20  # bytes
BUDGET_SHARE = 4  # KV gets 1 / 4 of the memory that is left after the weights

CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")


def digest(*parts: Any) -> str:
    """SHA-256 hex over JSON of the parts: the same parts give the same digest on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def kv_fingerprint(weights_digest: str, backend: str, dtype: str, kv_dtype: str, geometry: Mapping[str, Any]) -> str:
    """Identifies KV: equal only where keys and values are interchangeable."""
    return digest("kv", KV_FORMAT, weights_digest, backend, dtype, kv_dtype, dict(geometry))


def model_fingerprint(kv: str, text_digest: str) -> str:
    """Identifies a model with its texts: KV fingerprint, tokenizer and chat template."""
    return digest("model", kv, text_digest)


def kv_budget(options: LoadOptions, free: int) -> int:
    """Bytes for KV: `kv_cache_bytes`, or a quarter of the memory that is `free` once the weights are loaded."""
    return options.kv_cache_bytes or max(free // BUDGET_SHARE, LEAST_BUDGET)


def whole_context(config: Mapping[str, Any]) -> int:
    """The model's own context in tokens, up to the limit of a rope type that changes with the length of the text."""
    limits = [config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)]
    edge = length_limit(config)
    return min(int(limits[0]) if limits else UNBOUNDED_CONTEXT, edge[1] if edge else UNBOUNDED_CONTEXT)


def context_length(config: Mapping[str, Any], options: LoadOptions) -> int:
    """The context in tokens: the option's, or the model's own.

    Raises:
        InvalidRequestError: The option exceeds the model's positions.
    """
    limit = whole_context(config)
    if options.context_length is None or (options.context_length > limit and "context_length" in options.soft_options):
        return limit
    if options.context_length > limit:
        edge = length_limit(config)
        if edge is not None and edge[1] == limit:
            raise InvalidRequestError(
                f"context_length={options.context_length:,}, but rope type {edge[0]!r} turns longer texts by other "
                f"frequencies, which no cached token survives: {limit:,} tokens at most"
            )
        raise InvalidRequestError(f"context_length={options.context_length:,}, but the model has {limit:,} positions")
    return options.context_length


def rope_warning(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Warns of a context shorter than the model's own, where the rope type changes before its end."""
    edge = length_limit(config)
    named = next((config[key] for key in CONTEXT_KEYS if isinstance(config.get(key), int)), 0)
    if edge is None or named <= edge[1]:
        return ()
    return (
        f"rope type {edge[0]!r}: the context ends at {edge[1]:,} of {named:,} tokens, for longer texts are turned by other "
        "frequencies, which no cached token survives",
    )


def ignored_option(options: LoadOptions, name: str, why: str) -> str:
    """The warning about an option that has no effect on this model and was set for all models.

    Args:
        options: The load options.
        name: The option's name.
        why: The reason, with the alternative.

    Raises:
        UnsupportedFeatureError: The option was set for this model.
    """
    if name not in options.soft_options:
        raise UnsupportedFeatureError(why)
    return f"{why}; it is set for all models, and has no effect on this one"


def ignored_by_ready_model(options: LoadOptions, **own: str) -> tuple[str, ...]:
    """`ignored_option` for the options that differ from a ready model, which is not changed.

    Raises:
        UnsupportedFeatureError: Such an option was set for this model.
    """
    found = []
    for name, there in own.items():
        wanted = getattr(options, name)
        if wanted not in ("auto", there, there.partition(":")[0]):  # `wanted` may name only the kind of a device
            why = f"takes a model folder; a model that is in memory already is used as it is, with {there}"
            found.append(ignored_option(options, name, f"{name}={wanted!r} {why}"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The format of cached KV: a floating-point dtype, or integers of some bits.

    Attributes:
        name: "float32", "float16", "bfloat16", "q8" or "q4"; part of the KV fingerprint.
        bits: None for floating point.
    """

    name: str
    bits: int | None = None


def kv_format(options: LoadOptions, compute: str) -> KvFormat:
    """The format that `kv_dtype` asks for; "auto" is the dtype that the model computes in."""
    if options.kv_dtype in ("q8", "q4"):
        return KvFormat(options.kv_dtype, int(options.kv_dtype[1:]))
    return KvFormat({"auto": compute, "f32": "float32", "f16": "float16", "bf16": "bfloat16"}[options.kv_dtype])


def group_width(width: int) -> int:
    """Size of the groups along the width of a head that share a step and a minimum: 64, 32, or the whole width."""
    return next((group for group in (64, 32) if width % group == 0), width)


def options_in_force(options: LoadOptions, **chosen: Any) -> dict[str, Any]:
    """Every load option, with "auto" replaced by the chosen value."""
    return {**asdict(options), "max_batch_rows": options.batch_rows, **chosen}


def text_digest_of(tokenizer: Any) -> str:
    """The digest of a ready tokenizer object: its `tokenizers` form where it has one, and its template."""
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    form = fast.to_str() if hasattr(fast, "to_str") else repr(tokenizer)
    return digest("text", form, getattr(tokenizer, "chat_template", None))
