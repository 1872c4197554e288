"""What is remembered, over the pipe."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.adapters.uses import Adapters
from runtime.client.arguments import plain_query
from runtime.client.calls import Calls
from runtime.info import OnProgress


class CacheCalls:
    """See `runtime.members.caching`."""

    _calls: Calls

    def cache_kv(self, ids: Sequence[int], *, adapters: Adapters = None) -> None:
        self._calls.call_sync("cache_kv_async", **plain_query(ids, adapters))

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        await self._calls.call("cache_kv_async", on_progress=on_progress, **plain_query(ids, adapters))

    def clear_cache(self) -> None:
        self._calls.call_sync("clear_cache_async")

    async def clear_cache_async(self) -> None:
        await self._calls.call("clear_cache_async")

    def clear_kv_cache(self) -> None:
        self._calls.call_sync("clear_kv_cache_async")

    async def clear_kv_cache_async(self) -> None:
        await self._calls.call("clear_kv_cache_async")

    def reset_async_queries(self) -> None:
        self._calls.call_sync("reset_async_queries_async")

    async def reset_async_queries_async(self) -> None:
        await self._calls.call("reset_async_queries_async")

    def set_kv_budget(self, budget_bytes: int) -> None:
        self._calls.call_sync("set_kv_budget_async", budget_bytes=budget_bytes)

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        await self._calls.call("set_kv_budget_async", budget_bytes=budget_bytes)
