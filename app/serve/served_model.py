"""The served model, which is restarted after its process ended, with admission by the KV budget."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from app.serve.errors import ApiError
from app.serve.schemas import Usage
from runtime import LanguageModel, Priority

BUDGETS_IN_FLIGHT: Final = 2  # KV budgets that requests may need together: one runs, one waits
TOKENS_AHEAD: Final = 512  # the most tokens of an answer that admission counts


class ServedModel:
    """The model and the requests in flight. All members belong to one event loop.

    Args:
        start: Loads the model; called again after the engine process ended.
        name: The name for clients; None: the model's own name.
        shared: Whether the model belongs to a window, whose requests go first: `start` gives it at each request, and it
            stays loaded when the server ends.
    """

    def __init__(self, start: Callable[[], Awaitable[LanguageModel]], name: str | None = None, *, shared: bool = False) -> None:
        self._start, self._given_name, self._shared = start, name, shared
        self._model: LanguageModel | None = None
        self._starting = asyncio.Lock()
        self.needed = 0  # bytes of KV that the requests in flight may hold
        self.created = int(time.time())
        self.counts: Counter[str] = Counter()  # for /metrics
        self.responses: Counter[tuple[str, int]] = Counter()  # by path and status

    def priority(self, asked: int | None) -> Priority:
        """One of three priorities for vLLM's number, of which smaller ones go first.

        Raises:
            ApiError: The model is shared: all requests have the lowest priority.
        """
        if not self._shared:
            return Priority.INSPECTOR if not asked else Priority.CHAT if asked < 0 else Priority.BACKGROUND
        if asked:
            raise ApiError(
                "priority is not supported here: this server has the model of a window, whose own requests go first",
                param="priority",
            )
        return Priority.BACKGROUND

    @property
    def name(self) -> str:
        """The model's name for clients."""
        assert self._model is not None  # started before the port is open
        return self._given_name or self._model.info.name

    @property
    def loaded(self) -> LanguageModel | None:
        """The model, even if its process ended; None before the first start."""
        return self._model

    async def model(self) -> LanguageModel:
        """The model, restarted if its process ended.

        Raises:
            ModelLoadError, EngineDiedError: It cannot be restarted.
        """
        if self._shared:
            self._model = await self._start()
        elif self._model is None or self._model.ended is not None:
            async with self._starting:
                if self._model is not None and self._model.ended is not None:
                    self.counts["engine_restarts"] += 1
                    await self._model.close_async()
                    self._model = await self._start()
                elif self._model is None:
                    self._model = await self._start()
        return self._model

    async def close(self) -> None:
        """Ends the engine, unless it is shared."""
        if self._model is not None and not self._shared:
            await self._model.close_async()

    async def model_for(self, name: str | None) -> LanguageModel:
        """The model, if a request names it or none.

        Raises:
            ApiError: 404, another name.
        """
        model = await self.model()
        if name is not None and name not in (self.name, model.info.name):
            raise ApiError(
                f"the model {name[:100]!r} is not served; the one that is: {self.name!r}",
                404,
                param="model",
                code="model_not_found",
            )
        return model

    def count(self, usage: Usage) -> None:
        """Adds the tokens of an ended request to the counters."""
        self.counts["prompt_tokens"] += usage.prompt_tokens
        self.counts["cached_tokens"] += usage.prompt_tokens_details.cached_tokens
        self.counts["generation_tokens"] += usage.completion_tokens

    @contextmanager
    def admitted(self, model: LanguageModel, tokens: int) -> Iterator[None]:
        """Counts a request's KV while it is in flight.

        Args:
            model: The model.
            tokens: Whose KV it may hold: each prompt once, and at most `TOKENS_AHEAD` of each answer.

        Raises:
            ApiError: 429, the requests in flight and this one need more than `BUDGETS_IN_FLIGHT` KV budgets. A single request
                is always admitted: the engine refuses what can never fit.
        """
        given = model.info.options.get("kv_cache_bytes") or 0  # the metrics have no budget before the first step
        budget = (model.metrics().kv_budget or given) * BUDGETS_IN_FLIGHT
        need = tokens * model.info.kv_bytes_per_token
        if budget and self.needed and self.needed + need > budget:
            self.counts["rejected"] += 1
            raise ApiError(
                f"busy: the requests in flight may need {self.needed:,} bytes of KV and this one {need:,}, together more than "
                f"the {budget:,} that are accepted; try again",
                429,
                code="kv_budget_busy",
                retry_after=1 + int(model.metrics().queue_latency.p95 or 0),
            )
        self.needed += need
        try:
            yield
        finally:
            self.needed -= need
