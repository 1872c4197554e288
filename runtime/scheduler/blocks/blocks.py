"""The owner thread's side of the block file: jobs that wait for it, what it has answered, what goes wrong with it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from runtime.blocks.options import BlockOptions
from runtime.blocks.store import BlockStore
from runtime.blocks.thread import BlockThread, Urgency, one_line
from runtime.dotted import resolve
from runtime.errors import BlockFileError
from runtime.info import BlocksSaved
from runtime.scheduler.blocks.restoring import Restores, reach
from runtime.scheduler.blocks.saving import Savings
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.kv.cache import Cache
from runtime.scheduler.metrics import Counters
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)
T = TypeVar("T")
BESIDE_SECONDS = 0.015  # of a step, while others wait for tokens
ALONE_SECONDS = 0.05
CLOSE_SECONDS = 0.5  # for what is being written when the model is closed


class Blocks:
    """Saves and restores of one model. Owner thread only, but for what is said otherwise.

    Args:
        options: Where the block file is; None: there is none.
        cache: What is saved, and where it is restored to.
        counters: What was done.
        restored: A job whose path was looked for goes on: called with its cursor, which is to be left.

    Attributes:
        asked: Whether a block file was asked for; without one there is never anything to do.
        thread: That works on it, as long as it can be used.
    """

    def __init__(
        self, options: BlockOptions | None, cache: Cache, counters: Counters, restored: Callable[[Prefill], None]
    ) -> None:
        self._cache, self._backend = cache, cache.backend
        self._arrived: deque[Callable[[], None]] = deque()  # appended to by the block thread
        self.wake: Callable[[], None] = lambda: None  # the owner thread, from the block thread
        self._told: set[str] = set()
        self.asked = options is not None and cache.enabled
        self.thread: BlockThread | None = None
        self._fault = ""  # why the file could not be opened
        if options is not None and self.asked:
            self.thread = BlockThread(partial(_open, options), lambda fault: self.post(partial(self._opened, fault)))
        self.restores = Restores(cache, counters, self.ask, self.failed, restored)
        self._savings = Savings(cache, counters, self.ask, self.failed)

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do; what the block thread still works on is nothing to do."""
        return bool(self._arrived) or self._savings.due or self.restores.due

    def post(self, act: Callable[[], None]) -> None:
        """Runs something on the owner thread soon; any thread."""
        self._arrived.append(act)
        self.wake()

    def ask(self, urgency: Urgency, act: Callable[[BlockStore], T], then: Callable[[Future[T]], None]) -> None:
        """Has the block thread do something; `then` hears how it went, on the owner thread."""
        assert self.thread is not None
        self.thread.ask(urgency, act).add_done_callback(lambda done: self.post(partial(then, done)))

    def step(self, *, beside: bool) -> None:
        """Takes what the block thread has answered, and hands it more to write."""
        self.restores.step()
        until = time.monotonic() + (BESIDE_SECONDS if beside else ALONE_SECONDS)
        while self._arrived:
            self._arrived.popleft()()
            if time.monotonic() >= until:
                return
        self._savings.step(until)

    def save(self, job: Job, future: Future[BlocksSaved], replaces: int | None = None) -> None:
        """Begins to save a path, in place of its first `replaces` tokens; the future is settled when it is written."""
        if self.thread is None:
            settle(future, error=self._refusal())
        else:
            self._savings.begin(job, future, replaces)

    def copy(self, keys: Sequence[bytes], path: Path) -> Future[int]:
        """Has the block thread copy blocks into another file, after all that is to be read; any thread."""
        return self._write(keys, lambda store, listed: store.copy_to(path, listed))

    def take(self, keys: Sequence[bytes], path: Path) -> Future[int]:
        """Has it copy blocks out of another file, likewise; any thread."""
        return self._write(keys, lambda store, listed: store.take_from(path, listed))

    def pin(self, name: str, keys: Sequence[bytes]) -> Future[int]:
        """Has it hold these blocks; any thread."""

        def hold(store: BlockStore, listed: list[bytes]) -> int:
            store.pin(name, listed)
            return len(listed)

        return self._write(keys, hold)

    def _write(self, keys: Sequence[bytes], act: Callable[[BlockStore, list[bytes]], int]) -> Future[int]:
        listed, thread = list(keys), self.thread
        if thread is None:
            refused: Future[int] = Future()
            refused.set_exception(self._refusal())
            return refused
        return thread.ask(Urgency.WRITE, lambda store: act(store, listed))

    def depth(self, job: Job, warm: int, future: Future[int]) -> None:
        """Tells how many leading tokens of a path are held, in memory (`warm` of them) or stored.

        The last token of an answer is in memory with the next turn alone: for its sake the disk is not read.
        """
        if self.thread is None or warm >= len(job.ids) - 1 > 0:
            settle(future, warm)
            return
        spans, recurrent = job.spans(job.ids), self._cache.recurrent

        def look(store: BlockStore) -> int:
            links = reach(store, spans, recurrent=recurrent, beyond=warm)
            return links[-1].stop if links else warm

        found = self.thread.ask(Urgency.READ, look)
        found.add_done_callback(lambda done: future.set_result(warm if done.exception() else done.result()))

    def failed(self, error: BaseException) -> None:
        """The store could not do what was asked: said once, and the model goes on without."""
        if self.thread is None:  # that it cannot be opened is said already
            return
        text = f"the block file: {one_line(error)}; conversations reopen by computing them again"
        if text in self._told:
            return
        self._told.add(text)
        log.warning(text, exc_info=None if isinstance(error, OSError) else error)  # a disk is no fault of the program
        self._backend.info = replace(self._backend.info, warnings=(*self._backend.info.warnings, text))

    def close(self) -> None:
        """Ends the block thread; what it has been given is written as far as there is time, what it has done is counted."""
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
