"""Counters of a connection's requests, for the `Metrics` of a remote model; counters of the server are not read."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from runtime.info import Metrics, OnProgress, PromptProgress, RequestTimings
from runtime.remote.dialect import AnswerChunk

_RECENT = 32  # ended requests


class RequestCounters:
    """The `Metrics` of a connection, replaced at each change, so that any thread may read them."""

    def __init__(self) -> None:
        self.metrics = Metrics()

    def add(self, **counts: int) -> None:
        """Adds to counters of `Metrics`, by their names."""
        self.metrics = replace(self.metrics, **{name: getattr(self.metrics, name) + count for name, count in counts.items()})

    def end(self, timings: RequestTimings, how: str) -> None:
        """Records an ended request; `how`: completed, cancelled or failed."""
        old, count = self.metrics, f"requests_{how}"
        changes: dict[str, Any] = {count: getattr(old, count) + 1}
        if timings.kind == "generate":
            changes |= {name: getattr(timings, name) for name in ("first_token_seconds", "tokens_per_second")}
            changes |= {"last_reused": timings.reused, "last_computed": timings.computed}
        self.metrics = replace(
            old,
            requests_active=old.requests_active - 1,
            tokens_generated=old.tokens_generated + timings.generated_tokens,
            prompt_tokens=old.prompt_tokens + timings.prompt_tokens,
            tokens_reused=old.tokens_reused + (timings.reused or 0),
            recent=(*old.recent, timings)[-_RECENT:],
            **changes,
        )


class CountedRequest:
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

    async def __aenter__(self) -> CountedRequest:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        now = time.monotonic()
        how = "completed"
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            how = self.finish = "cancelled"
        elif kind is not None:
            how, self.finish = "failed", "error"
        reused = self._cached
        timings = RequestTimings(
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
        self._counters.end(timings, how)
