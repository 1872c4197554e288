"""What was done, counted where it happens."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Protocol

from runtime.info import Metrics
from runtime.scheduler.kv.cache import Cache
from runtime.timings import Latency, RequestTimings


class Timed(Protocol):
    """A grammar in use: a `Constraint`, or the rules of a beam search."""

    @property
    def work_seconds(self) -> float:
        """Processor time its masks and steps took."""

    @property
    def wait_seconds(self) -> float:
        """What was waited for them."""


@dataclass(slots=True)
class Counters:
    """Mutable twin of `Metrics`, field by field; the owner thread writes, each where it happens.

    A step only notes the values; who asks for the metrics makes the object. What `Metrics` has beyond these comes from the
    cache.
    """

    tokens_reused: int = 0
    queries: int = 0
    queries_deduplicated: int = 0
    tokens_rescored: int = 0
    tokens_restored: int = 0
    blocks_saved: int = 0
    block_bytes_saved: int = 0
    texts_embedded: int = 0
    tokens_drafted: int = 0
    tokens_accepted: int = 0
    first_token_seconds: float | None = None
    tokens_per_second: float | None = None
    last_reused: int = 0
    last_computed: int = 0
    grammar_tokens: int = 0
    grammar_seconds: float = 0.0
    grammar_wait_seconds: float = 0.0
    tokens_prefilled: int = 0
    tokens_generated: int = 0
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    requests_started: int = 0
    requests_completed: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    requests_active: int = 0
    requests_waiting: int = 0
    queue_latency: Latency = field(default_factory=Latency)
    first_token_latency: Latency = field(default_factory=Latency)
    token_latency: Latency = field(default_factory=Latency)
    recent: tuple[RequestTimings, ...] = ()
    _noted: tuple[tuple[object, ...], tuple[int, ...]] = ((), ())

    def publish(self, cache: Cache) -> None:
        """Lets other threads see the numbers of this moment."""
        trie, room, (forwards, pushed) = cache.trie, cache.room, cache.before
        of_cache = (
            cache.backend.pushed - pushed,
            cache.backend.forwards - forwards,
            room.bytes,
            room.budget,
            room.peak,
            trie.evicted_bytes,
            trie.evictions,
            trie.hits,
            trie.misses,
            cache.vectors.hits,
        )
        self._noted = (_own(self), of_cache)

    def count_grammar(self, tokens: int, constraint: Timed) -> None:
        """A generation under a grammar has ended."""
        self.grammar_tokens += tokens
        self.grammar_seconds += constraint.work_seconds
        self.grammar_wait_seconds += constraint.wait_seconds

    @property
    def latest(self) -> Metrics:
        """The numbers as they were last published; any thread."""
        own, of_cache = self._noted
        if not own:
            return Metrics()
        return Metrics(**dict(zip(_NAMES, own, strict=True)), **dict(zip(_OF_CACHE, of_cache, strict=True)))  # type: ignore[arg-type]  # by name


_NAMES = tuple(f.name for f in fields(Counters) if not f.name.startswith("_"))
_OF_CACHE = (
    "tokens_computed",
    "forward_calls",
    "kv_bytes",
    "kv_budget",
    "kv_peak_bytes",
    "kv_evicted_bytes",
    "kv_evictions",
    "cache_hits",
    "cache_misses",
    "full_vector_hits",
)
_own = attrgetter(*_NAMES)
