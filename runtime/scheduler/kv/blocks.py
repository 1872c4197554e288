"""The owner thread's side of the block file: saves, restores, and faults of the file."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import TypeVar

from runtime.dotted import resolve
from runtime.errors import BlockFileError
from runtime.info import BlocksSaved, PrefixMatch
from runtime.kv.store import BlockStore
from runtime.kv.thread import BlockThread, Urgency, one_line
from runtime.options.load import BlockOptions
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.kv.prefix_cache import PrefixCache
from runtime.scheduler.kv.restoring import Restores, reach
from runtime.scheduler.kv.saving import Savings
from runtime.scheduler.metrics import EngineCounters

log = logging.getLogger(__name__)
T = TypeVar("T")
CONTENDED_SECONDS = 0.015  # per step, while other requests wait for tokens
ALONE_SECONDS = 0.05  # per step otherwise
CLOSE_SECONDS = 0.5  # for pending writes when the model is closed


class Blocks:
    """Saves and restores of one model. Owner thread only, unless a method says "any thread".

    Args:
        options: Options of the block file; None: there is none.
        cache: Source of saves and target of restores.
        counters: Counts the work done.

    Attributes:
        asked: Whether the model was loaded with a block file; without one there is nothing to do.
        thread: The block thread, as long as the file can be used.
    """

    def __init__(self, options: BlockOptions | None, cache: PrefixCache, counters: EngineCounters) -> None:
        self._cache, self._backend = cache, cache.backend
        self._arrived: deque[Callable[[], None]] = deque()  # appended to by the block thread
        self.wake: Callable[[], None] = lambda: None  # wakes the owner thread; called by the block thread
        self._reported: set[str] = set()
        self.asked = options is not None and cache.enabled
        self.thread: BlockThread | None = None
        self._fault = ""  # why the file could not be opened
        if options is not None and self.asked:
            self.thread = BlockThread(partial(_open, options), lambda fault: self.post(partial(self._opened, fault)))
        self.restores = Restores(cache, counters, self.ask, self.failed)
        self._savings = Savings(cache, counters, self.ask, self.failed)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do; the work of the block thread does not count."""
        return bool(self._arrived) or self._savings.due or self.restores.due

    def post(self, act: Callable[[], None]) -> None:
        """Schedules a call on the owner thread; any thread."""
        self._arrived.append(act)
        self.wake()

    def ask(self, urgency: Urgency, act: Callable[[BlockStore], T], then: Callable[[Future[T]], None]) -> None:
        """Runs `act` on the block thread, then `then` with its result on the owner thread."""
        assert self.thread is not None
        self.thread.ask(urgency, act).add_done_callback(lambda done: self.post(partial(then, done)))

    def step(self, *, contended: bool) -> None:
        """Handles answers of the block thread, and gives it more to write."""
        self.restores.step()
        until = time.monotonic() + (CONTENDED_SECONDS if contended else ALONE_SECONDS)
        while self._arrived:
            self._arrived.popleft()()
            if time.monotonic() >= until:
                return
        self._savings.step(until)

    def save(self, job: Job, future: Future[BlocksSaved], replaces: int | None = None) -> None:
        """Begins to save a path, in place of its first `replaces` tokens; settles the future when it is written."""
        if self.thread is None:
            settle(future, error=self._refusal())
        else:
            self._savings.begin(job, future, replaces)

    def write(self, act: Callable[[BlockStore], T]) -> Future[T]:
        """Runs `act` on the block thread, after all reads; any thread."""
        if (thread := self.thread) is not None:  # which the owner thread may clear meanwhile
            return thread.ask(Urgency.WRITE, act)
        refused: Future[T] = Future()
        refused.set_exception(self._refusal())
        return refused

    def match(self, job: Job, future: Future[PrefixMatch]) -> None:
        """Settles the future with the leading tokens of a path that are in memory or in the file.

        The last token of an answer gets its KV only with the next turn: the file is not read only for that token.
        """
        warm = self._cache.reusable(job)
        if self.thread is None or warm >= len(job.ids) - 1 > 0:
            settle(future, PrefixMatch.of(warm, warm))
            return
        spans, recurrent = job.spans(job.ids), self._cache.recurrent

        def look(store: BlockStore) -> int:
            links = reach(store, spans, recurrent=recurrent, beyond=warm)
            return links[-1].stop if links else warm

        found = self.thread.ask(Urgency.READ, look)
        found.add_done_callback(lambda done: settle(future, PrefixMatch.of(warm, warm if done.exception() else done.result())))

    def failed(self, error: BaseException) -> None:
        """Logs and reports an error of the block file, each text once; the model works on without the file."""
        if self.thread is None:  # reported when it could not be opened
            return
        text = f"the block file: {one_line(error)}; conversations reopen by computing them again"
        if text in self._reported:
            return
        self._reported.add(text)
        log.warning(text, exc_info=None if isinstance(error, OSError) else error)  # no traceback for a disk fault
        self._backend.info = replace(self._backend.info, warnings=(*self._backend.info.warnings, text))

    def close(self) -> None:
        """Ends the block thread; pending writes have `CLOSE_SECONDS`, finished ones are counted."""
        while self._arrived:
            self._arrived.popleft()()
        self._savings.fail_all()
        if self.thread is not None:
            self.thread.close(CLOSE_SECONDS)

    def _refusal(self) -> BlockFileError:
        return BlockFileError(f"the block file cannot be used: {self._fault}")

    def _opened(self, fault: Exception | None) -> None:
        if fault is not None:
            self.failed(fault)
            self._fault = one_line(fault)
            thread, self.thread = self.thread, None
            assert thread is not None
            thread.close(0.0)


def _open(options: BlockOptions) -> BlockStore:
    factory = resolve(options.factory)
    store: BlockStore = factory(options.path, budget=options.budget)
    return store
