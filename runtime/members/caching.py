"""What is remembered: filling it, emptying it, its budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from runtime.adapters.uses import Adapters
from runtime.info import OnProgress


class CacheMembers(Protocol):
    """Members of `LanguageModel` that fill and empty what it remembers."""

    def cache_kv(self, ids: Sequence[int], *, adapters: Adapters = None) -> None:
        """Computes and keeps the KV of `ids`, for later calls under these adapters that begin with them. Blocking."""

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        """`cache_kv`, awaited; `on_progress` as in `score`, but for a path that is all there, which needs none."""

    def clear_cache(self) -> None:
        """Drops kept next-token vectors and KV; what running requests hold goes when they end. Blocking."""

    async def clear_cache_async(self) -> None:
        """`clear_cache`, awaited."""

    def clear_kv_cache(self) -> None:
        """Drops kept KV alone; next-token vectors stay. Blocking."""

    async def clear_kv_cache_async(self) -> None:
        """`clear_kv_cache`, awaited."""

    def reset_async_queries(self) -> None:
        """Drops log-probability queries that were not answered yet: their waiters get CancelledError. Blocking."""

    async def reset_async_queries_async(self) -> None:
        """`reset_async_queries`, awaited."""

    def set_kv_budget(self, budget_bytes: int) -> None:
        """Changes how many bytes of KV are kept; evicts at once if there is more. Blocking.

        Raises:
            MemoryBudgetError: Running requests hold more than that.
        """

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        """`set_kv_budget`, awaited."""
