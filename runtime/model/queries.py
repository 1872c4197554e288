"""Next-token log-probabilities and scores of given tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from runtime.adapters.stacks import TokenStacks, stack_of
from runtime.adapters.uses import Adapters
from runtime.aio import Reply
from runtime.errors import InvalidRequestError
from runtime.info import OnProgress
from runtime.language_model import PrefixMatch
from runtime.members.scoring import ScoringMembers
from runtime.model.core import Core, some
from runtime.numerics.scoring import log_softmax
from runtime.options.checking import check_callback, check_value, is_whole, plain_number, shown
from runtime.options.generation import ALTERNATIVES
from runtime.options.priority import Priority, check_priority
from runtime.records import Float32, Int32, Origin, Scores, TokenRun
from runtime.scheduler.jobs import CallJob, QueryJob, Rows, ScoreJob, Waiter, settle
from runtime.text.utf8 import texts_of


def _held(warm: int, tokens: int) -> PrefixMatch:
    if tokens > warm:
        return PrefixMatch(tokens, "disk", warm)
    return PrefixMatch(tokens, "warm" if tokens else "cold")


def _pass_on(done: Future[None], answer: Future[PrefixMatch]) -> None:
    """What kept a call from being made is told to whoever waits for what it would have found."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        settle(answer, error=error)


class QueryMembers(Core, ScoringMembers):
    """`next_token_logprobs` and its kin, `prefix_match`, `score`; see `LanguageModel`."""

    async def next_token_logprobs(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """``(vocab,)``."""
        return await self._asked(ids, adapters)

    async def batch_next_token_logprobs(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        """``(n, vocab)``."""
        reply: Reply[Float32] = Reply(self._mailbox())
        for job in self._queries_of(batch, reply, adapters):
            self._submit_with_turn(job)
        return await self._replied(reply)

    def next_token_logprobs_sync(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """Blocking."""
        answer: Future[Float32] = Future()
        self._engine.submit([self._query(ids, answer, adapters)])
        return answer.result()

    def batch_next_token_logprobs_sync(self, batch: Sequence[Sequence[int]], *, adapters: Adapters = None) -> Float32:
        """Blocking."""
        answer: Future[Float32] = Future()
        self._engine.submit(self._queries_of(batch, answer, adapters))
        return answer.result()

    def next_token_logprobs_uncached(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """By the library's own forward, blocking."""
        return self._uncached(ids, adapters).result()

    async def next_token_logprobs_uncached_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> Float32:
        """By the library's own forward."""
        return await asyncio.wrap_future(self._uncached(ids, adapters))

    def cache_kv(self, ids: Sequence[int], *, adapters: Adapters = None) -> None:
        """Blocking."""
        answer: Future[Float32] = Future()
        job = self._query(ids, answer, adapters)
        self._engine.submit([self._insist(job), job])
        answer.result()

    async def cache_kv_async(
        self, ids: Sequence[int], *, adapters: Adapters = None, on_progress: OnProgress | None = None
    ) -> None:
        """Awaited."""
        await self._asked(ids, adapters, insist=True, on_progress=on_progress)

    def prefix_match(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """Blocking."""
        return self._match(ids, adapters).result()

    async def prefix_match_async(self, ids: Sequence[int], *, adapters: Adapters = None) -> PrefixMatch:
        """Awaited."""
        return await asyncio.wrap_future(self._match(ids, adapters))

    def _query(self, ids: Sequence[int] | Int32, waiter: Waiter, adapters: Adapters = None) -> QueryJob:
        checked = self._check(ids)
        namespace, before = self._route(checked, adapters)
        return QueryJob(checked, namespace, before=before, waiters=[waiter])

    def _queries_of(self, batch: Sequence[Sequence[int]], waiter: Waiter, adapters: Adapters) -> list[QueryJob]:
        """A job for each row; all are checked before any is sent."""
        waiters = Rows(waiter, len(some(batch))).waiters
        return [self._query(ids, row, adapters) for ids, row in zip(batch, waiters, strict=True)]

    def _insist(self, job: QueryJob) -> CallJob:
        """To be submitted before the job: no remembered answer may stand in for KV that is not (or no longer) held."""

        def look() -> None:
            cache = self._engine.scheduler.cache
            with cache.trie.lookup(job.spans(job.ids)) as lease:
                if lease.length < len(job.ids):
                    cache.vectors.drop(job.key)

        return CallJob(np.empty(0, np.int32), None, call=look)

    async def _asked(
        self,
        ids: Sequence[int] | Int32,
        adapters: Adapters = None,
        *,
        insist: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Float32:
        reply: Reply[Float32] = Reply(self._mailbox())
        job = self._query(ids, reply, adapters)
        check_callback(on_progress)
        if on_progress is not None:
            job.on_progress = lambda progress: reply.mailbox.post(partial(on_progress, progress))
        if insist:
            self._submit_with_turn(self._insist(job))
        self._submit_with_turn(job)
        return await self._replied(reply)

    async def _replied(self, reply: Reply[Float32]) -> Float32:
        try:
            return await reply.future
        except asyncio.CancelledError:
            self._engine.nudge()
            raise

    def _uncached(self, ids: Sequence[int], adapters: Adapters = None) -> Future[Float32]:
        checked = self._check(ids)
        namespace, before = self._route(checked, adapters)
        job = QueryJob(checked, namespace, before=before)
        parts = [(stack_of(name), len(part)) for name, part in job.spans(checked)]
        stacks = None
        if any(stack for stack, _ in parts):
            of = np.repeat(np.arange(len(parts)), [length for _, length in parts])
            stacks = TokenStacks(of, tuple(stack for stack, _ in parts))

        return self._engine.call(lambda: log_softmax(self._engine.backend.logits_uncached(checked.tolist(), stacks)[None])[0])

    def _match(self, ids: Sequence[int], adapters: Adapters = None) -> Future[PrefixMatch]:
        checked = self._check(ids)
        namespace, before = self._route(checked, adapters)
        job = QueryJob(checked, namespace, before=before)

        answer: Future[PrefixMatch] = Future()

        def look() -> None:
            scheduler = self._engine.scheduler
            warm = scheduler.cache.reusable(job)
            depth: Future[int] = Future()
            depth.add_done_callback(lambda done: settle(answer, _held(warm, done.result())))
            scheduler.blocks.depth(job, warm, depth)

        self._engine.call(look).add_done_callback(lambda done: _pass_on(done, answer))
        return answer

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
        """Columns."""
        job = self._score(ids, top_k, start, adapters, priority)
        check_callback(on_progress)
        if on_progress is not None:
            mailbox = self._mailbox()
            job.on_progress = lambda progress: mailbox.post(partial(on_progress, progress))
        self._submit_with_turn(job)
        try:
            scores = await asyncio.wrap_future(job.future)
        finally:
            self._cancel(job)
        return self._scored_run(job.ids, start, scores)

    def _score_window_sync(
        self, ids: Sequence[int], top_k: int, start: int, *, adapters: Adapters, priority: Priority
    ) -> TokenRun:
        """Columns, blocking."""
        job = self._score(ids, top_k, start, adapters, priority)
        self._engine.submit([job])
        try:
            scores = job.future.result()
        finally:  # Ctrl-C, as a rule
            self._cancel(job)
        return self._scored_run(job.ids, start, scores)

    def _score(self, ids: Sequence[int], top_k: int, start: int, adapters: Adapters, priority: Priority) -> ScoreJob:
        checked = self._check(ids)
        if not is_whole(plain_number(start), 0, len(checked) - 1):
            raise InvalidRequestError(f"start must lie within 0 and {len(checked) - 1}, not {shown(start)}")
        check_value("top_k", top_k, ALTERNATIVES)
        namespace, before = self._route(checked, adapters)
        return ScoreJob(checked, namespace, check_priority(priority), before=before, start=start, k=top_k)

    def _scored_run(self, ids: Int32, start: int, scores: Scores) -> TokenRun:
        own = ids[start:]
        token_bytes = tuple(self._byte_vocab[t] for t in own.tolist())
        nan = np.full(len(own), np.nan, np.float32)
        return TokenRun(
            ids=own,
            token_bytes=token_bytes,
            texts=texts_of(token_bytes),
            logprob=scores.logprob,
            rank=scores.rank,
            entropy=scores.entropy,
            top_ids=scores.top_ids,
            top_logprobs=scores.top_logprobs,
            covered_mass=scores.covered_mass,
            origin=np.full(len(own), int(Origin.TYPED), np.uint8),
            finish=np.zeros(len(own), np.uint8),
            draw=nan,
        )
