"""`EngineClient`: a `LanguageModel` whose model lives in an engine process."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, closing
from types import TracebackType
from typing import Any, Self, cast

from runtime.adapters.uses import Adapters
from runtime.client.adapters import AdapterCalls
from runtime.client.arguments import plain_adapters, plain_batch, plain_ids, plain_messages, plain_query
from runtime.client.blocks import BlockCalls
from runtime.client.branching import BranchingMembers
from runtime.client.caching import CacheCalls
from runtime.client.calls import Calls
from runtime.client.link import EngineLink, grace_within
from runtime.client.pins import PinCalls
from runtime.client.texts import TextCalls
from runtime.client.vectors import VectorCalls
from runtime.completion import Completion
from runtime.errors import RuntimeFault
from runtime.info import CacheReport, Metrics, ModelInfo, OnProgress
from runtime.language_model import Message, PrefixMatch
from runtime.members.resolving import ResolvingMembers
from runtime.members.scoring import ScoringMembers
from runtime.options.generation import GenerationOptions, given
from runtime.options.priority import Priority, check_priority
from runtime.options.resolution import AnswerEnds
from runtime.records import Float32, TokenRecord, TokenRun
from runtime.session.opening import OpensSessions
from runtime.text.utf8 import clean_text
from runtime.wire.messages import Loaded


class EngineClient(
    TextCalls,
    CacheCalls,
    AdapterCalls,
    BlockCalls,
    BranchingMembers,
    VectorCalls,
    PinCalls,
    OpensSessions,
    ResolvingMembers,
    ScoringMembers,
):
    """A model in an engine process, made by `spawn`. Every member is described by `LanguageModel`.

    Once the process has ended, whoever waits and whoever asks gets `EngineDiedError`; `spawn` makes another one.
    """

    def __init__(self, link: EngineLink, loaded: Loaded) -> None:
        super().__init__(Calls(link), loaded)
        self._link = link
        finaliser = weakref.finalize(self, link.close_soon, grace=0.0)  # forgotten without close: no engine stays behind
        finaliser.atexit = False  # at exit the pipe closes, which is enough

    # ---- state: the last snapshots that were pushed ----------------------------------------------------------

    @property
    def _state(self) -> Loaded:
        return self._link.state or self._first

    @property
    def info(self) -> ModelInfo:
        return self._state.info

    @property
    def own_options(self) -> GenerationOptions:
        return self._first.own_options

    @property
    def own_ends(self) -> AnswerEnds:
        return self._first.own_ends

    @property
    def pid(self) -> int:
        """The engine's process id."""
        assert self._link.pid is not None  # it has loaded a model
        return self._link.pid

    @property
    def ended(self) -> RuntimeFault | None:
        """Why nothing can be asked any more (`EngineDiedError`, or closed); None while the engine lives."""
        return self._link.ending

    def metrics(self) -> Metrics:
        return self._state.metrics

    def cache_report(self) -> CacheReport:
        return self._state.cache

    # ---- next-token log-probabilities ------------------------------------------------------------------------

    async def next_token_logprobs(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", await self._calls.call("next_token_logprobs", **plain_query(ids, adapters)))

    async def batch_next_token_logprobs(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", await self._calls.call("batch_next_token_logprobs", **_queries(batch, adapters)))

    def next_token_logprobs_sync(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", self._calls.call_sync("next_token_logprobs", **plain_query(ids, adapters)))

    def batch_next_token_logprobs_sync(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", self._calls.call_sync("batch_next_token_logprobs", **_queries(batch, adapters)))

    def next_token_logprobs_uncached(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", self._calls.call_sync("next_token_logprobs_uncached_async", **plain_query(ids, adapters)))

    async def next_token_logprobs_uncached_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        return cast("Float32", await self._calls.call("next_token_logprobs_uncached_async", **plain_query(ids, adapters)))

    def prefix_match(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        return cast("PrefixMatch", self._calls.call_sync("prefix_match_async", **plain_query(ids, adapters)))

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        return cast("PrefixMatch", await self._calls.call("prefix_match_async", **plain_query(ids, adapters)))

    # ---- scores ----------------------------------------------------------------------------------------------

    async def _score_window(
        self,
        ids: Sequence[int],
        top_k: int,
        start: int,
        *,
        adapters: Adapters,
        priority: Priority,
        on_progress: OnProgress | None,
    ) -> TokenRun:
        asked = {"top_k": top_k, "start": start, "priority": check_priority(priority), **plain_query(ids, adapters)}
        return cast("TokenRun", await self._calls.call("score_run", on_progress=on_progress, **asked))

    def _score_window_sync(
        self, ids: Sequence[int], top_k: int, start: int, *, adapters: Adapters, priority: Priority
    ) -> TokenRun:
        asked = {"top_k": top_k, "start": start, "priority": check_priority(priority), **plain_query(ids, adapters)}
        return cast("TokenRun", self._calls.call_sync("score_run", **asked))

    # ---- generation ------------------------------------------------------------------------------------------

    async def generate(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> AsyncGenerator[TokenRecord, None]:
        async with aclosing(self.generate_runs(ids, given(options, named), on_progress=on_progress)) as runs:
            async for run in runs:
                for record in run:
                    yield record

    async def generate_runs(
        self, ids: Sequence[int], options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRun, None]:
        stream = self._calls.stream(
            "generate_runs", on_progress=on_progress, ids=plain_ids(ids), options=options and given(options)
        )
        async with aclosing(stream) as runs:
            async for run in runs:
                yield run

    def generate_sync(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> Iterator[TokenRecord]:
        stream = self._calls.stream_sync(
            "generate_runs", on_progress=on_progress, ids=plain_ids(ids), options=given(options, named)
        )
        with closing(stream) as runs:
            for run in runs:
                yield from run

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[int]:
        answer = await self._calls.call(
            "sample",
            prompt_token_ids=plain_ids(prompt_token_ids),
            max_tokens=max_tokens,
            eos_token_ids=plain_ids(eos_token_ids),
            temperature=temperature,
            seed=seed,
            adapters=plain_adapters(adapters),
        )
        return cast("list[int]", answer)

    async def batch_sample(
        self,
        prompt_token_ids_list: Sequence[Sequence[int]],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[list[int]]:
        answer = await self._calls.call(
            "batch_sample",
            prompt_token_ids_list=plain_batch(prompt_token_ids_list),
            max_tokens=max_tokens,
            eos_token_ids=plain_ids(eos_token_ids),
            temperature=temperature,
            seed=seed,
            adapters=plain_adapters(adapters),
        )
        return cast("list[list[int]]", answer)

    async def complete(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        return cast("Completion", await self._calls.call("complete", **_prompt(prompt, given(options, named))))

    def complete_sync(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        return cast("Completion", self._calls.call_sync("complete", **_prompt(prompt, given(options, named))))

    # ---- end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        self._link.close_soon().result()
        self._link.join()

    async def close_async(self, *, within: float | None = None) -> None:
        await end_link(self._link, grace=None if within is None else grace_within(within))

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


async def end_link(link: EngineLink, *, grace: float | None = None) -> None:
    """Ends the engine without blocking the loop; cancelled, the ending goes on by itself."""
    await asyncio.shield(asyncio.wrap_future(link.close_soon(grace=grace)))
    link.join()  # at once: the thread has nothing left to do


def _prompt(prompt: str | Sequence[Message], options: GenerationOptions) -> dict[str, Any]:
    plain = clean_text(prompt) if isinstance(prompt, str) else plain_messages(prompt)
    return {"prompt": plain, "options": options}


def _queries(batch: Sequence[Sequence[int]], adapters: Adapters) -> dict[str, Any]:
    return {"batch": plain_batch(batch), "adapters": plain_adapters(adapters)}
