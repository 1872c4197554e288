"""What the owner thread says of several generations, read by one generator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial

from runtime.aio import Mailbox
from runtime.branches import joint_error, merged
from runtime.records import TokenRun
from runtime.scheduler.jobs import GenerateJob


class Gathering:
    """Runs of several jobs by number, until all have ended. All members run on the loop that reads.

    Args:
        what: The jobs, in an error's words.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._jobs: Mapping[int, GenerateJob] = {}
        self._open: set[int] = set()  # that have not ended
        self._dropped: set[int] = set()
        self._arrived: deque[tuple[int, TokenRun]] = deque()
        self._failures: dict[int, BaseException] = {}
        self._news = asyncio.Event()
        self._nudge: Callable[[], None] = _nothing
        self._on_end: Callable[[], None] = _nothing

    def begin(
        self,
        mailbox: Mailbox,
        jobs: Mapping[int, GenerateJob],
        nudge: Callable[[], None],
        on_end: Callable[[], None] | None = None,
    ) -> None:
        """Listens to the jobs, before they are submitted.

        Args:
            mailbox: Carries what they say to this loop.
            jobs: By number.
            nudge: The owner thread is to look at what was cancelled.
            on_end: Called once for each job that has ended.
        """
        self._jobs, self._open, self._nudge, self._on_end = jobs, set(jobs), nudge, on_end or _nothing
        for number, job in jobs.items():
            job.on_run = partial(self._tell, mailbox, self._run, number)
            job.on_end = partial(self._tell, mailbox, self._end, number)
        for number in self._dropped & self._open:
            jobs[number].cancelled = True

    async def runs(self) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Whatever has arrived, until all have ended; then the error, if some failed."""
        while self._open or self._arrived:
            await self._news.wait()
            self._news.clear()
            arrived, self._arrived = self._arrived, deque()
            for number, run in merged(arrived):
                if number not in self._dropped:
                    yield number, run
        if self._failures:
            raise joint_error(self._failures, self._what)

    def drop(self, number: int) -> None:
        """Stops one; nothing of it comes any more."""
        self._dropped.add(number)
        self._failures.pop(number, None)
        if (job := self._jobs.get(number)) is not None:
            job.cancelled = True
            self._nudge()

    def cancel(self) -> None:
        """Stops all."""
        for job in self._jobs.values():
            job.cancelled = True
        self._nudge()

    def _tell(self, mailbox: Mailbox, hear: Callable[..., None], number: int, item: TokenRun | BaseException | None) -> None:
        """On the owner thread."""
        mailbox.post(partial(hear, number, item))
        if mailbox.loop.is_closed():  # nobody listens any more
            self._jobs[number].cancelled = True

    def _run(self, number: int, run: TokenRun) -> None:
        self._arrived.append((number, run))
        self._news.set()

    def _end(self, number: int, error: BaseException | None) -> None:
        if number not in self._open:
            return
        self._open.remove(number)
        if error is not None and number not in self._dropped:
            self._failures[number] = error
        self._news.set()
        self._on_end()


def _nothing() -> None:
    """Nobody listens."""
