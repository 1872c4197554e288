"""Counters of a connection's requests, for the `Metrics` of a remote model; counters of the server are not read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from runtime.info import Metrics, OnProgress, PromptProgress, RequestTimings
from runtime.remote.dialect import AnswerChunk


@dataclass(slots=True)
class RequestCounters:
    """The counters of which `Metrics` is made."""

    queries: int = 0
    deduplicated: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    generated: int = 0
    prompt: int = 0
    reused: int = 0
    recent: deque[RequestTimings] = field(default_factory=lambda: deque(maxlen=32))

    @property
    def metrics(self) -> Metrics:
        last = next((each for each in reversed(self.recent) if each.kind == "generate"), None)
        return Metrics(
            queries=self.queries,
            queries_deduplicated=self.deduplicated,
            requests_started=self.started,
            requests_completed=self.completed,
            requests_failed=self.failed,
            requests_cancelled=self.cancelled,
            requests_active=self.started - self.completed - self.failed - self.cancelled,
            tokens_generated=self.generated,
            prompt_tokens=self.prompt,
            tokens_reused=self.reused,
            recent=tuple(self.recent),
            first_token_seconds=None if last is None else last.first_token_seconds,
            tokens_per_second=None if last is None else last.tokens_per_second,
            last_reused=0 if last is None else last.reused,
            last_computed=0 if last is None else last.computed,
        )


class Request:
    """One request in the counters, from its beginning to its end."""

    def __init__(self, counters: RequestCounters, kind: str, number: int, prompt: int, seed: int | None) -> None:
        self._counters, self._kind, self._number, self._prompt, self._seed = counters, kind, number, prompt, seed
        self._begun, self._first = time.monotonic(), 0.0
        self._tokens = 0
        self.on_progress: OnProgress | None = None
        self._cached: int | None = None
        self.finish = "done"

    def token(self) -> None:
        """Counts a token; at the first, reports the prompt as done (the cached tokens are known only at the end)."""
        if not self._tokens and self.on_progress is not None:
            self.on_progress(PromptProgress(self._prompt, self._prompt, None, None, self._number))
        self._tokens += 1
        self._first = self._first or time.monotonic()

    def take_counts(self, chunk: AnswerChunk) -> None:
        """Stores the server's count of cached tokens."""
        if chunk.cached_tokens is not None:
            self._cached = min(max(chunk.cached_tokens, 0), self._prompt)

    async def __aenter__(self) -> Request:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        counters, now = self._counters, time.monotonic()
        if kind is None:
            counters.completed += 1
        elif issubclass(kind, asyncio.CancelledError | GeneratorExit):
            counters.cancelled += 1
            self.finish = "cancelled"
        else:
            counters.failed += 1
            self.finish = "error"
        reused = self._cached
        counters.generated += self._tokens
        counters.prompt += self._prompt
        counters.reused += reused or 0
        counters.recent.append(
            RequestTimings(
                request=self._number,
                kind=self._kind,
                finish=self.finish,
                prompt_tokens=self._prompt,
                generated_tokens=self._tokens,
                reused=reused,
                computed=None if reused is None else self._prompt - reused,
                queue_seconds=None,
                prefill_seconds=(self._first or now) - self._begun,
                first_token_seconds=self._first - self._begun if self._first else None,
                decode_seconds=now - self._first if self._first else 0.0,
                total_seconds=now - self._begun,
                seed=self._seed,
            )
        )
