"""Calls from any loop and any thread onto one link."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import msgspec

from runtime.aio import Mailbox
from runtime.beams import OnStep
from runtime.branches import Branches
from runtime.client.link import EngineLink
from runtime.client.waiters import LoopBranches, LoopCall, LoopStream, ThreadCall, ThreadStream, Ticket, Waiter
from runtime.info import OnProgress
from runtime.records import TokenRun
from runtime.wire.messages import Call, encode
from runtime.wire.methods import METHODS


class _Caller:
    """One loop that calls: its answers come through one mailbox, its calls of one turn leave as one group."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: EngineLink) -> None:
        self.mailbox = Mailbox(loop)
        self._link = link
        self._turn: list[Ticket] = []

    def submit(self, ticket: Ticket) -> None:
        """Sends it at the end of the turn, with what else the turn calls."""
        if not self._turn:
            self.mailbox.loop.call_soon(self.flush)
        self._turn.append(ticket)

    def flush(self) -> None:
        """Sends what the turn has called so far."""
        tickets, self._turn = self._turn, []
        if tickets:
            self._link.submit(tickets)


class Calls:
    """Makes calls and waits for their answers, as the caller's kind of thread needs it."""

    def __init__(self, link: EngineLink) -> None:
        self._link = link
        self._callers: dict[asyncio.AbstractEventLoop, _Caller] = {}

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        """Awaits the answer; cancelled, it tells the engine."""
        caller = self._caller()
        waiter = LoopCall(caller.mailbox, on_progress, on_step)
        ticket = self._ticket(method, arguments, waiter, waiter.future.done)
        caller.submit(ticket)
        try:
            return await waiter.future
        except asyncio.CancelledError:
            self._link.cancel(ticket.id)
            raise

    async def stream(
        self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any
    ) -> AsyncGenerator[TokenRun, None]:
        """Runs as they arrive; closed early, it tells the engine."""
        caller = self._caller()
        waiter = LoopStream(caller.mailbox, on_progress)
        ticket = self._ticket(method, arguments, waiter, lambda: waiter.closed)
        caller.submit(ticket)
        try:
            async for run in waiter.runs():
                yield run
        finally:
            waiter.closed = True
            self._link.cancel(ticket.id)

    def branches(
        self, method: str, make_arguments: Callable[[], dict[str, Any]], *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        """Runs of several branches as they arrive; the call is made when the first is asked for."""
        dropped: set[int] = set()
        begun: list[Callable[[int], None]] = []  # tells the engine of one more that was dropped

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            caller = self._caller()
            waiter = LoopBranches(caller.mailbox, on_progress, dropped)
            ticket = self._ticket(method, make_arguments(), waiter, lambda: waiter.closed)
            caller.submit(ticket)

            def tell(branch: int) -> None:
                caller.flush()  # the call goes before
                self._link.drop(ticket.id, branch)

            for branch in dropped:
                tell(branch)
            begun.append(tell)
            try:
                async for item in waiter.branch_runs():
                    yield item
            finally:
                begun.clear()
                waiter.closed = True
                self._link.cancel(ticket.id)

        def drop(branch: int) -> None:
            dropped.add(branch)
            for tell in begun:
                tell(branch)

        return Branches(read(), drop)

    def call_sync(self, method: str, **arguments: Any) -> Any:
        """Blocks until the answer is there."""
        waiter = ThreadCall()
        ticket = self._ticket(method, arguments, waiter, _never)
        self._send_now(ticket)
        try:
            return waiter.future.result()
        except KeyboardInterrupt:
            self._link.cancel(ticket.id)
            raise

    def tell(self, method: str, **arguments: Any) -> None:
        """Sends it and waits for nothing; an engine that has ended hears nothing."""
        self._send_now(self._ticket(method, arguments, ThreadCall(), _never))

    def stream_sync(
        self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any
    ) -> Generator[TokenRun, None, None]:
        """Blocks between the runs; closed early, it tells the engine."""
        waiter = ThreadStream(on_progress)
        ticket = self._ticket(method, arguments, waiter, _never)
        self._send_now(ticket)
        try:
            for run in waiter.runs():
                yield run
                self._link.check_process()  # its reader may have been forked meanwhile
        finally:
            self._link.cancel(ticket.id)

    def _ticket(self, method: str, arguments: dict[str, Any], waiter: Waiter, abandoned: Callable[[], bool]) -> Ticket:
        line = METHODS[method]
        number = self._link.next_id()
        payload = encode(Call(number, method, msgspec.Raw(encode(arguments))))
        return Ticket(number, payload, line, waiter, abandoned)

    def _send_now(self, ticket: Ticket) -> None:
        try:
            caller = self._callers.get(asyncio.get_running_loop())
        except RuntimeError:  # no loop in this thread
            caller = None
        if caller is not None:
            caller.flush()  # what this turn called before goes before
        self._link.submit([ticket])

    def _caller(self) -> _Caller:
        loop = asyncio.get_running_loop()
        caller = self._callers.get(loop)
        if caller is None:
            for known in list(self._callers):
                if known.is_closed():
                    self._callers.pop(known, None)
            caller = self._callers[loop] = _Caller(loop, self._link)
        return caller


def _never() -> bool:
    return False
