"""What is known of a loaded model, and what it has done: frozen snapshots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a backend knows of its model. `kv_fingerprint` guards KV, `model_fingerprint` guards text and ids."""

    name: str
    backend: str
    device: str
    dtype: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    hidden_size: int
    vocab_size: int  # width of the logits
    parameters: int
    quantisation: str | None
    attention_kinds: tuple[str, ...]  # of: full, sliding, recurrent
    context_length: int  # tokens
    has_template: bool
    kv_bytes_per_token: int
    kv_fingerprint: str
    model_fingerprint: str
    options: dict[str, Any] = field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Metrics:
    """Counters since load; times in seconds. `tokens_computed` counts everything pushed through the model, padding too."""

    tokens_computed: int = 0
    tokens_reused: int = 0
    forward_calls: int = 0
    queries: int = 0
    queries_deduplicated: int = 0
    kv_bytes: int = 0
    kv_budget: int = 0
    kv_peak_bytes: int = 0  # the most under this budget, moments of copying included; never above it
    kv_evicted_bytes: int = 0
    tokens_rescored: int = 0
    tokens_drafted: int = 0  # guessed by speculative decoding
    tokens_accepted: int = 0  # of them, those that the model drew as well
    full_vector_hits: int = 0
    first_token_seconds: float | None = None  # of the last generation
    tokens_per_second: float | None = None  # of the last generation, after its first token
    last_reused: int = 0  # of the last generation: prompt tokens found in the cache
    last_computed: int = 0  # of the last generation: prompt tokens pushed through the model

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted among drafted tokens; None where nothing was speculated."""
        return self.tokens_accepted / self.tokens_drafted if self.tokens_drafted else None


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far one request's prompt is; the last one, with `done` equal to `total`, comes before the first token."""

    done: int  # tokens in place
    total: int  # tokens of the prompt
    reused: int  # of `done`: found in the cache, or computed by another request
    computed: int  # tokens pushed through the model for this request


OnProgress = Callable[[PromptProgress], None]


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """One edge of the trie: its last tokens, size, age on the logical clock, leases."""

    tokens: int
    bytes: int
    age: int
    leases: int
    tail: tuple[int, ...]
    hits: int = 0  # lookups that passed it


@dataclass(frozen=True, slots=True)
class CacheReport:
    """The trie at one moment."""

    edges: int
    tokens: int
    bytes: int
    leases: int
    leased_bytes: int
    budget: int
    hits: int
    misses: int
    largest: tuple[EdgeReport, ...] = ()
    last_prefix: int = 0  # tokens the last request found
    last_reason: str = ""  # why its prefix ended there
    last_cause: str = "none"  # the same in a word: none, whole, new, evicted, cleared, refused, other, checkpoint, scores, off
    working_bytes: int = 0  # of packs, beside the trie's `bytes`
    vector_bytes: int = 0  # of kept next-token vectors
    pins: int = 0  # paths that open sessions keep; their leases are among `leases`
