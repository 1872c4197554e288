"""The cache and the counts of the model that computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from runtime import CacheReport, Metrics, ModelInfo
from runtime.adapters.uses import Adapters
from runtime.info import OnProgress, PromptProgress


class FakeCache:
    """Its counters say what it was asked to forget."""

    info: ModelInfo
    queries: int
    generated: int
    cancelled: int
    held: asyncio.Event | None

    def cache_kv(self, ids: Sequence[int], *, adapters: Adapters = None) -> None:
        self.queries += len(ids)

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        if on_progress is not None:
            on_progress(PromptProgress(len(ids), len(ids), 0, len(ids)))
        self.cache_kv(ids)

    def clear_cache(self) -> None:
        self.queries = 0

    async def clear_cache_async(self) -> None:
        self.clear_cache()

    def clear_kv_cache(self) -> None:
        self.generated = 0

    async def clear_kv_cache_async(self) -> None:
        self.clear_kv_cache()

    def reset_async_queries(self) -> None:
        if self.held is not None:
            self.held.set()
            self.held = None

    async def reset_async_queries_async(self) -> None:
        self.reset_async_queries()

    def set_kv_budget(self, budget_bytes: int) -> None:
        self.info = replace(self.info, options={"kv_cache_bytes": budget_bytes})

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        self.set_kv_budget(budget_bytes)

    def metrics(self) -> Metrics:
        return Metrics(queries=self.queries, tokens_computed=self.generated)

    def cache_report(self) -> CacheReport:
        return CacheReport(0, self.generated, 0, 0, 0, 0, self.cancelled, 0)
