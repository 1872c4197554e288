"""The `LanguageModel` in this process."""

from __future__ import annotations

import asyncio
import sys
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from types import FrameType, TracebackType
from typing import Self

from runtime.engine import Engine
from runtime.info import CacheReport, Metrics
from runtime.members.resolving import ResolvingMembers
from runtime.model.adapters import AdapterMembers
from runtime.model.blocks import BlockMembers
from runtime.model.branching import BranchingMembers
from runtime.model.pins import PinMembers
from runtime.model.queries import QueryMembers
from runtime.model.text import TextSide
from runtime.model.vectors import VectorMembers
from runtime.options.checking import check_value, whole
from runtime.options.generation import GenerationOptions
from runtime.options.load import LoadOptions
from runtime.options.resolution import AnswerEnds
from runtime.session.opening import OpensSessions
from runtime.shelf.model_lock import ModelLock


class LocalModel(
    BlockMembers,
    QueryMembers,
    BranchingMembers,
    AdapterMembers,
    VectorMembers,
    PinMembers,
    OpensSessions,
    ResolvingMembers,
):
    """A model loaded in this process, made by `load`. Every member is described by `LanguageModel`."""

    def __init__(
        self,
        engine: Engine,
        text: TextSide,
        options: LoadOptions,
        names: tuple[str, ...] | None = None,
        in_use: Sequence[ModelLock] = (),
    ) -> None:
        super().__init__(engine, text, options, names, in_use)
        self._forgotten = weakref.finalize(self, _forget, engine, self._names[0] if self._names else "", *_caller())
        self._forgotten.atexit = False  # the engine ends with the process

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text."""
        return self._text.eos_token_ids

    @property
    def chat_template(self) -> str | None:
        """The template's source."""
        return self._text.template.source if self._text.template else None

    @property
    def str_vocab(self) -> list[str]:
        """The text of every id."""
        return self._text.tokenizer.str_vocab(self.info.vocab_size)

    @property
    def own_options(self) -> GenerationOptions:
        """What its generation_config.json asks for."""
        return self._text.own.options

    @property
    def own_ends(self) -> AnswerEnds:
        """Its eos and what ends a turn of the format."""
        return self._ends

    def metrics(self) -> Metrics:
        """The counters."""
        return self._engine.metrics

    def cache_report(self) -> CacheReport:
        """The cache."""
        return self._engine.report

    def heartbeat(self) -> tuple[int, str, int]:
        """Steps done and the phase, for a supervisor."""
        return self._engine.heartbeat()

    def clear_cache(self) -> None:
        """Blocking."""
        self._clear(vectors=True).result()

    async def clear_cache_async(self) -> None:
        """Awaited."""
        await asyncio.wrap_future(self._clear(vectors=True))

    def clear_kv_cache(self) -> None:
        """Blocking."""
        self._clear(vectors=False).result()

    async def clear_kv_cache_async(self) -> None:
        """Awaited."""
        await asyncio.wrap_future(self._clear(vectors=False))

    def keep_vectors(self, count: int) -> None:
        """At most so many next-token vectors are remembered from now on (genlm's `cache_size`). Blocking."""
        check_value("count", count, whole(0))
        self._engine.call(lambda: self._engine.scheduler.cache.vectors.limit(count)).result()

    def reset_async_queries(self) -> None:
        """Blocking."""
        self._reset().result()

    async def reset_async_queries_async(self) -> None:
        """Awaited."""
        await asyncio.wrap_future(self._reset())

    def set_kv_budget(self, budget_bytes: int) -> None:
        """Blocking."""
        self._set_budget(budget_bytes).result()

    async def set_kv_budget_async(self, budget_bytes: int) -> None:
        """Awaited."""
        await asyncio.wrap_future(self._set_budget(budget_bytes))

    def _clear(self, *, vectors: bool) -> Future[None]:
        return self._engine.call(lambda: self._engine.scheduler.cache.clear(vectors=vectors))

    def _reset(self) -> Future[None]:
        return self._engine.call(lambda: self._engine.scheduler.cancel_queries(asyncio.CancelledError()))

    def _set_budget(self, budget_bytes: int) -> Future[None]:
        check_value("budget_bytes", budget_bytes, whole(1))
        return self._engine.call(lambda: self._engine.scheduler.cache.set_budget(budget_bytes))

    def close(self) -> None:
        """Ends the owner thread and frees the model."""
        self._forgotten.detach()
        self._engine.close()
        self._grammars.close()
        if self._text.template is not None:
            self._text.template.close()
        for each in self._in_use:
            each.release()

    async def close_async(self, *, within: float | None = None) -> None:
        """Off the loop; however long it takes."""
        del within
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _caller() -> tuple[str, int]:
    """The file and the line from which the library was called."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # the documented way to a frame without the whole stack
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "runtime":
        frame = frame.f_back
    return ("<unknown>", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def _forget(engine: Engine, name: str, file: str, line: int) -> None:
    """The model has gone without `close`: its thread and its weights go, too."""
    engine.end()
    message = f"the model {name}, loaded here, was not closed; it is freed now. Use `with load(...) as model`, or close it"
    warnings.warn_explicit(message, ResourceWarning, file, line)
