"""What every backend says of itself in the same way: fingerprints, context length, the options in force."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runtime.errors import InvalidRequestError, UnsupportedFeatureError
from runtime.options import LoadOptions

KV_FORMAT = 1  # of payloads on disk; a change makes every stored KV block a stranger
UNBOUNDED_CONTEXT = 131_072  # tokens; for models that name no limit (recurrent ones)

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length")


def digest(*parts: Any) -> str:
    """SHA-256 hex over JSON of the parts: the same parts give the same digest on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def kv_fingerprint(weights_digest: str, backend: str, dtype: str, kv_dtype: str, geometry: Mapping[str, Any]) -> str:
    """Guards KV: equal only where keys and values mean the same numbers."""
    return digest("kv", KV_FORMAT, weights_digest, backend, dtype, kv_dtype, dict(geometry))


def model_fingerprint(kv: str, text_digest: str) -> str:
    """Guards text and ids: the KV fingerprint, tokenizer and template."""
    return digest("model", kv, text_digest)


def context_length(config: Mapping[str, Any], options: LoadOptions) -> int:
    """Tokens that fit: what was asked for, or what the model was made for.

    Raises:
        InvalidRequestError: More was asked for than the model has positions.
    """
    limits = [config[key] for key in _CONTEXT_KEYS if isinstance(config.get(key), int)]
    limit = int(limits[0]) if limits else UNBOUNDED_CONTEXT
    if options.context_length is None:
        return limit
    if options.context_length > limit:
        raise InvalidRequestError(f"context_length={options.context_length:,}, but the model has {limit:,} positions")
    return options.context_length


def payload_dtype(options: LoadOptions, compute: str) -> str:
    """The dtype cached KV is kept in, as "float32", "float16" or "bfloat16": `kv_dtype`, or the one computed in.

    Raises:
        UnsupportedFeatureError: A quantised cache.
    """
    wide = {"auto": compute, "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
    if options.kv_dtype not in wide:
        raise UnsupportedFeatureError(f"kv_dtype={options.kv_dtype!r} is not supported yet; use auto, f32, f16 or bf16")
    return wide[options.kv_dtype]


def options_in_force(options: LoadOptions, **chosen: Any) -> dict[str, Any]:
    """Every load option as it is, "auto" replaced by what was chosen."""
    return {**asdict(options), **chosen}


def text_digest_of(tokenizer: Any) -> str:
    """The digest of a ready tokenizer object: its `tokenizers` form where it has one, and its template."""
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    form = fast.to_str() if hasattr(fast, "to_str") else repr(tokenizer)
    return digest("text", form, getattr(tokenizer, "chat_template", None))
