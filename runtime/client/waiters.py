"""Who waits for an answer: a coroutine, a blocked thread, or the reader of a stream.

The I/O thread calls `chunk`, `result` and `fault`; the waiting side is on its own loop or thread.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Callable, Generator, Set
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from runtime.aio import Mailbox
from runtime.beams import BeamStep, OnStep
from runtime.branches import merged
from runtime.errors import RuntimeFault
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import check_callback
from runtime.records import TokenRun
from runtime.wire.methods import Method


class Waiter(Protocol):
    """What the I/O thread tells about one call; the last two at most once, and nothing after them."""

    def chunk(self, run: TokenRun, branch: int | None) -> None:
        """Some tokens of a stream, or of one branch of it."""

    def progress(self, progress: PromptProgress) -> None:
        """How far its prompt is."""

    def step(self, step: BeamStep) -> None:
        """The beams of a search after one step."""

    def result(self, value: Any) -> None:
        """The answer; for a stream its end (None)."""

    def fault(self, error: BaseException) -> None:
        """It failed. CancelledError: the model dropped it."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One call: what is sent, and who waits for what."""

    id: int
    payload: bytes
    method: Method
    waiter: Waiter
    abandoned: Callable[[], bool]  # whether its caller has gone already


class LoopCall:
    """A coroutine awaits `future`."""

    def __init__(self, mailbox: Mailbox, on_progress: OnProgress | None = None, on_step: OnStep | None = None) -> None:
        self._mailbox = mailbox
        check_callback(on_progress)
        self._on_progress = on_progress
        check_callback(on_step, "on_step")
        self._on_step = on_step
        self.future: asyncio.Future[Any] = mailbox.loop.create_future()

    def chunk(self, run: TokenRun, branch: int | None) -> None:
        """A call has none."""

    def progress(self, progress: PromptProgress) -> None:
        if self._on_progress is not None:
            self._mailbox.post(partial(self._on_progress, progress))

    def step(self, step: BeamStep) -> None:
        if self._on_step is not None:
            self._mailbox.post(partial(self._on_step, step))

    def result(self, value: Any) -> None:
        self._mailbox.post(partial(_settle, self.future, value))

    def fault(self, error: BaseException) -> None:
        self._mailbox.post(partial(_fail, self.future, error))


class ThreadCall:
    """A blocked thread waits for `future`."""

    def __init__(self) -> None:
        self.future: Future[Any] = Future()

    def chunk(self, run: TokenRun, branch: int | None) -> None:
        """A call has none."""

    def progress(self, progress: PromptProgress) -> None:
        """Nobody asks from a blocked call."""

    def step(self, step: BeamStep) -> None:
        """Nobody asks from a blocked call."""

    def result(self, value: Any) -> None:
        self.future.set_result(value)

    def fault(self, error: BaseException) -> None:
        self.future.set_exception(_for_threads(error))


class LoopStream:
    """An async generator reads; what arrived since it last asked comes as one run."""

    def __init__(self, mailbox: Mailbox, on_progress: OnProgress | None = None) -> None:
        self._mailbox = mailbox
        check_callback(on_progress)
        self._on_progress = on_progress
        self.closed = False  # the reader has gone
        self._runs: list[TokenRun] = []
        self._over = False
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    async def runs(self) -> AsyncGenerator[TokenRun, None]:
        """Runs until the end; an error is raised after everything that arrived before it."""
        while not (self._over and not self._runs):
            await self._news.wait()
            self._news.clear()
            runs, self._runs = self._runs, []
            if runs:
                yield TokenRun.concat(runs)
        if self._error is not None:
            raise self._error

    def chunk(self, run: TokenRun, branch: int | None) -> None:  # noqa: ARG002  # a plain stream has no branches
        self._mailbox.post(partial(self._arrive, run))

    def step(self, step: BeamStep) -> None:
        """A stream has none."""

    def progress(self, progress: PromptProgress) -> None:
        if self._on_progress is not None:
            self._mailbox.post(partial(self._on_progress, progress))

    def result(self, value: Any) -> None:  # noqa: ARG002  # a stream's end carries none
        self._mailbox.post(partial(self._end, None))

    def fault(self, error: BaseException) -> None:
        self._mailbox.post(partial(self._end, error))

    def _arrive(self, run: TokenRun) -> None:
        self._runs.append(run)
        self._news.set()

    def _end(self, error: BaseException | None) -> None:
        self._over, self._error = True, error
        self._news.set()


class LoopBranches(LoopStream):
    """An async generator reads several branches; what arrived of each since it last asked comes as one run."""

    def __init__(self, mailbox: Mailbox, on_progress: OnProgress | None, dropped: Set[int]) -> None:
        super().__init__(mailbox, on_progress)
        self._dropped = dropped  # nothing of these is wanted; may grow
        self._of_branches: list[tuple[int, TokenRun]] = []

    async def branch_runs(self) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Runs until the end; an error is raised after everything that arrived before it."""
        while not (self._over and not self._of_branches):
            await self._news.wait()
            self._news.clear()
            arrived, self._of_branches = self._of_branches, []
            for branch, run in merged(arrived):
                if branch not in self._dropped:
                    yield branch, run
        if self._error is not None:
            raise self._error

    def chunk(self, run: TokenRun, branch: int | None) -> None:
        if branch is None:
            raise RuntimeFault("the engine sent tokens without the number of their branch")
        self._mailbox.post(partial(self._arrive_at, branch, run))

    def _arrive_at(self, branch: int, run: TokenRun) -> None:
        self._of_branches.append((branch, run))
        self._news.set()


class ThreadStream:
    """A blocked thread reads."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        check_callback(on_progress)
        self._on_progress = on_progress
        self._arrived: queue.SimpleQueue[TokenRun | PromptProgress | BaseException | None] = queue.SimpleQueue()

    def runs(self) -> Generator[TokenRun, None, None]:
        """Runs until the end; an error is raised after everything that arrived before it."""
        while (item := self._arrived.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, TokenRun):
                yield item
            elif self._on_progress is not None:
                self._on_progress(item)

    def chunk(self, run: TokenRun, branch: int | None) -> None:  # noqa: ARG002  # a plain stream has no branches
        self._arrived.put(run)

    def step(self, step: BeamStep) -> None:
        """A stream has none."""

    def progress(self, progress: PromptProgress) -> None:
        self._arrived.put(progress)

    def result(self, value: Any) -> None:  # noqa: ARG002  # a stream's end carries none
        self._arrived.put(None)

    def fault(self, error: BaseException) -> None:
        self._arrived.put(_for_threads(error))


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():  # cancelled meanwhile
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)


def _for_threads(error: BaseException) -> BaseException:
    """A blocked thread is no task: what asyncio calls cancelled is an ordinary error there."""
    return CancelledError(*error.args) if isinstance(error, asyncio.CancelledError) else error
