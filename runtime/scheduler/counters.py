"""What was done, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass, field

from runtime.info import Metrics
from runtime.scheduler.cache import Cache


@dataclass(slots=True)
class Counters:
    """Mutable twin of `Metrics`; the owner thread writes."""

    tokens_computed: int = 0
    tokens_reused: int = 0
    forward_calls: int = 0
    queries: int = 0
    queries_deduplicated: int = 0
    tokens_rescored: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    last_reused: int = 0
    last_computed: int = 0
    latest: Metrics = field(default_factory=Metrics)  # what other threads may read

    def publish(self, cache: Cache) -> None:
        """Lets other threads see the numbers of this moment."""
        self.latest = self.snapshot(cache)

    def snapshot(self, cache: Cache) -> Metrics:
        """The counters and the cache's bytes at this moment."""
        return Metrics(
            tokens_computed=self.tokens_computed,
            tokens_reused=self.tokens_reused,
            forward_calls=self.forward_calls,
            queries=self.queries,
            queries_deduplicated=self.queries_deduplicated,
            kv_bytes=cache.bytes,
            kv_budget=cache.budget,
            kv_peak_bytes=cache.peak,
            kv_evicted_bytes=cache.trie.evicted_bytes,
            tokens_rescored=self.tokens_rescored,
            tokens_drafted=self.tokens_drafted,
            tokens_accepted=self.tokens_accepted,
            full_vector_hits=cache.vectors.hits,
            first_token_seconds=self.first_token_seconds,
            tokens_per_second=self.tokens_per_second,
            last_reused=self.last_reused,
            last_computed=self.last_computed,
        )
