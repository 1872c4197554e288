"""Counters of the scheduler's work, and the number, outcome and latency of requests.

A request is a generation, a score, an embedding or a reading. Log-probability queries, of which a program may send thousands
a second, have separate counters. All work on requests is once per request, none is once per token.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from runtime.grammar.constraint import Constraint
from runtime.info import Latency, Metrics, RequestTimings
from runtime.scheduler.beam.beam_rules import BeamRules
from runtime.scheduler.jobs import BranchesJob, CallJob, GenerateJob, Job, QueryJob
from runtime.scheduler.kv.prefix_cache import PrefixCache

RECENT = 32  # latest requests whose timings are kept
WINDOW = 256  # latest requests that latencies are computed from


@dataclass(slots=True)
class EngineCounters:
    """The mutable counterpart of `Metrics`, field by field; the owner thread writes.

    `publish` only copies the values; `latest` builds the `Metrics`. The fields of `Metrics` that are missing here come from
    the cache.
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
    recent: tuple[RequestTimings, ...] = ()
    queue_latency: tuple[float, ...] = ()  # seconds of the last requests, like the next two
    first_token_latency: tuple[float, ...] = ()
    token_latency: tuple[float, ...] = ()
    _noted: tuple[tuple[Any, ...], tuple[int, ...]] = ((), ())

    def publish(self, cache: PrefixCache) -> None:
        """Makes the present numbers visible to other threads."""
        trie, kv_budget, (forwards, pushed) = cache.trie, cache.kv_budget, cache.before
        of_cache = (
            cache.backend.pushed - pushed,
            cache.backend.forwards - forwards,
            kv_budget.bytes,
            kv_budget.budget,
            kv_budget.peak,
            trie.evicted_bytes,
            trie.evictions,
            cache.hits,
            cache.misses,
            cache.vectors.hits,
        )
        self._noted = (_own(self), of_cache)

    def count_grammar(self, tokens: int, constraint: Constraint | BeamRules) -> None:
        """Adds the costs of a finished generation under a grammar."""
        self.grammar_tokens += tokens
        self.grammar_seconds += constraint.work_seconds
        self.grammar_wait_seconds += constraint.wait_seconds

    @property
    def latest(self) -> Metrics:
        """The numbers last published; any thread."""
        own, of_cache = self._noted
        if not own:
            return Metrics()
        named = dict(zip((*_NAMES, *_OF_CACHE), (*own, *of_cache), strict=True))
        for name in _LATENCIES:
            named[name] = _latency(named[name])
        return Metrics(**named)


_NAMES = tuple(f.name for f in fields(EngineCounters) if not f.name.startswith("_"))
_LATENCIES = tuple(name for name in _NAMES if name.endswith("_latency"))
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


class RequestMetrics:
    """Keeps the request counters. Owner thread only."""

    def __init__(self, counters: EngineCounters) -> None:
        self._counters = counters
        self._recent: deque[RequestTimings] = deque(maxlen=RECENT)
        self._queue, self._first, self._token = (deque[float](maxlen=WINDOW) for _ in _LATENCIES)

    def enter(self, job: Job) -> None:
        """Counts the arrival of a request; each branch of a `BranchesJob` is a request."""
        if isinstance(job, BranchesJob):
            for branch in job.jobs:
                self.enter(branch)
            return
        if isinstance(job, QueryJob | CallJob):
            return
        self._counters.requests_started += 1
        self._counters.requests_active += 1
        self._counters.requests_waiting += 1
        job.number = self._counters.requests_started

    def place(self, job: Job) -> None:
        """Notes that work on a request begins."""
        for branch in job.jobs if isinstance(job, BranchesJob) else ():
            self.place(branch)
        if job.number and not job.placed:
            job.placed = time.monotonic()
            self._counters.requests_waiting -= 1

    def park(self, job: Job) -> None:
        """Notes that a parked request waits again."""
        for branch in job.jobs if isinstance(job, BranchesJob) else ():
            self.park(branch)
        if job.number and job.placed:
            job.placed = job.prompted = 0.0
            self._counters.requests_waiting += 1

    def leave(
        self,
        job: Job,
        finish: str,
        *,
        prompt: int | None = None,
        generated: int = 0,
        reused: int = 0,
        computed: int = 0,
        first: float = 0.0,
        drafted: int = 0,
        accepted: int = 0,
    ) -> None:
        """Counts the end of a request; a second call for the same request does nothing.

        Args:
            job: The request.
            finish: "error", "cancelled" or the reason for its regular end.
            prompt: Prompt tokens, if they are not the job's `ids`.
            generated: Tokens drawn.
            reused: Prompt tokens found in the cache.
            computed: Prompt tokens pushed.
            first: Monotonic seconds of the first token; 0 if there was none.
            drafted: Tokens drafted by speculation.
            accepted: Drafted tokens that were accepted.
        """
        for branch in job.jobs if isinstance(job, BranchesJob) else ():
            self.leave(branch, finish, prompt=prompt, generated=generated, reused=reused, computed=computed, first=first)
        if job.number <= 0:  # no request, or its end was counted before
            return
        counters, now = self._counters, time.monotonic()
        counters.requests_active -= 1
        counters.requests_waiting -= not job.placed
        counters.requests_failed += finish == "error"
        counters.requests_cancelled += finish == "cancelled"
        counters.requests_completed += finish not in ("error", "cancelled")
        counters.prompt_tokens += len(job.ids) if prompt is None else prompt
        placed = job.placed or now
        queued = placed - job.submitted
        timings = RequestTimings(
            request=job.number,
            kind=job.kind,
            finish=finish,
            prompt_tokens=len(job.ids) if prompt is None else prompt,
            generated_tokens=generated,
            reused=reused,
            computed=computed,
            queue_seconds=queued,
            prefill_seconds=(job.prompted or now) - placed,
            first_token_seconds=first - job.submitted if first else None,
            decode_seconds=now - first if first else 0.0,
            total_seconds=now - job.submitted,
            seed=job.sampler.seed if isinstance(job, GenerateJob) else None,
            drafted=drafted,
            accepted=accepted,
        )
        job.number = -job.number
        self._recent.append(timings)
        counters.recent = tuple(self._recent)
        self._queue.append(queued)
        if timings.first_token_seconds is not None:
            self._first.append(timings.first_token_seconds)
        if generated > 1:
            self._token.append(timings.decode_seconds / (generated - 1))
            counters.tokens_per_second = timings.tokens_per_second or counters.tokens_per_second
        counters.queue_latency, counters.first_token_latency = tuple(self._queue), tuple(self._first)
        counters.token_latency = tuple(self._token)


def _latency(seconds: tuple[float, ...]) -> Latency:
    """Mean, median and 95th percentile."""
    if not seconds:
        return Latency()
    rising, n = sorted(seconds), len(seconds)
    return Latency(sum(rising) / n, rising[(n - 1) // 2], rising[-(-95 * n // 100) - 1])
