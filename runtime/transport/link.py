"""The way to one engine process: an I/O thread that starts it, talks to it, watches it and ends it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec

from runtime.aio import LoopThread
from runtime.beams import BeamStep
from runtime.errors import EngineDiedError, ForkedError, RuntimeFault, SessionClosedError
from runtime.info import PromptProgress
from runtime.loading.progress import OnLoad
from runtime.records import TokenRun
from runtime.transport.arrays import unpack_run
from runtime.transport.child import EngineLimits, EngineProcess, Vigil
from runtime.transport.frames import MAX_PAYLOAD, Connection
from runtime.transport.messages import (
    LOAD_ID,
    Beat,
    Cancel,
    Chunk,
    Drop,
    End,
    Failure,
    Load,
    Loaded,
    Loading,
    MessageError,
    Part,
    Progress,
    Push,
    Reply,
    Result,
    Shutdown,
    Step,
    decode_replies,
    encode,
    unpack_fault,
)
from runtime.transport.methods import Method

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.01  # between two looks whether the child has ended
_LAST_WORDS_SECONDS = 0.5  # for a child whose pipe is closed
_TERM_SECONDS = 0.2  # between asking the system to end it and ending it


class Waiter(Protocol):
    """Hears of one call on the I/O thread; of `result` and `fault` one, once, and nothing after it."""

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

    @property
    def abandoned(self) -> bool:
        """Whether nothing waits for it any more."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One call: what is sent, what waits for its answer, and what came of a large one."""

    id: int
    payload: bytes
    method: Method
    waiter: Waiter
    came: bytearray = field(default_factory=bytearray)


class EngineLink:
    """One engine process. `submit`, `cancel`, `close*` from any thread; the rest runs on the I/O thread.

    Args:
        make_load: The first message; called on the I/O thread, what it raises goes to `loaded`.
        loaded: Waits for the model.
        threads: Of the engine's numeric libraries; None leaves the choice to them.
        log_path: Where the process's standard error goes; None shares ours.
        limits: When it counts as hung.
        on_load: Called on the I/O thread with how far the model is, before `loaded` hears.
    """

    def __init__(
        self,
        make_load: Callable[[], Load],
        loaded: Waiter,
        *,
        threads: int | None,
        log_path: Path | None,
        limits: EngineLimits,
        on_load: OnLoad | None = None,
    ) -> None:
        self.state: Loaded | None = None  # the latest snapshots; replaced as a whole, read by any thread
        self._make_load, self._on_load = make_load, on_load
        self._loaded: Waiter | None = loaded
        self._threads, self._log_path, self._limits = threads, log_path, limits
        self._numbers = itertools.count(LOAD_ID + 1)
        self._waiting: dict[int, Ticket] = {}
        self._child: EngineProcess | None = None
        self._connection = Connection(self._on_group, self._on_lost)
        self._vigil: Vigil | None = None
        self._verdict: str | None = None  # why we ended the process
        self._ending: Callable[[], RuntimeFault] | None = None  # makes what later calls get
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = threading.RLock()  # reentrant: a finaliser may run inside
        self._closed: Future[None] | None = None
        self._pid = os.getpid()
        self._thread = LoopThread("elsewise-engine-io")
        self._begun = self._thread.submit(self._begin())

    # ---- for any thread --------------------------------------------------------------------------------------

    @property
    def pid(self) -> int | None:
        """The engine's process id; None before it was started."""
        return self._child.pid if self._child else None

    @property
    def ending(self) -> RuntimeFault | None:
        """Why nothing can be asked any more; None while the engine lives."""
        if self.forked:
            return ForkedError.of(self._pid)
        return self._ending() if self._ending else None

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that has the engine: nothing answers here, any lock may be held."""
        return os.getpid() != self._pid

    def next_id(self) -> int:
        """A number for a call."""
        return next(self._numbers)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Sends calls as one group; each waiter hears of its own."""
        if self.forked:
            for ticket in tickets:
                ticket.waiter.fault(ForkedError.of(self._pid))
        elif not self._thread.post(self._send, tickets):
            for ticket in tickets:
                ticket.waiter.fault(_closed_error())

    def cancel(self, number: int) -> None:
        """A call is not waited for any more; one that was answered already is none."""
        if not self.forked:
            self._thread.post(self._cancel, number)

    def drop(self, number: int, branch: int) -> None:
        """This branch of a call is not wanted any more; after the call was submitted."""
        if not self.forked:
            self._thread.post(self._drop, number, branch)

    def close_soon(self, *, grace: float | None = None) -> Future[None]:
        """Ends the engine without waiting; the same future every time.

        Args:
            grace: Seconds for the engine to end by itself, where the limits do not say less.
        """
        if self.forked:  # the engine goes on: it is the other process's
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        with self._closing:
            if self._closed is None:
                limit = self._limits.close_seconds
                self._closed = self._thread.submit(self._close(limit if grace is None else min(grace, limit)))
            return self._closed

    def join(self) -> None:
        """Waits for the I/O thread, which ends right after the future of `close_soon`."""
        if not self.forked:
            self._thread.join()

    # ---- the life of the process -----------------------------------------------------------------------------

    async def _begin(self) -> None:
        try:
            load = self._make_load()
            payload = encode(load)
            child = self._child = EngineProcess(load.backend, self._threads, self._log_path)
            self._vigil = Vigil(self._limits, self._limits.for_loading(load.source))
            await asyncio.get_running_loop().create_connection(lambda: self._connection, sock=child.pipe)
        except Exception as refused:  # noqa: BLE001  # the border: callers that wait for the model hear what went wrong
            cause = (
                refused if isinstance(refused, RuntimeFault) else EngineDiedError(f"the engine cannot be started: {refused}")
            )
            self._end_all(lambda: cause)
        else:
            self._connection.post([payload])
            self._keep(self._watch(child, self._vigil))

    async def _watch(self, child: EngineProcess, vigil: Vigil) -> None:
        """Ends a hung engine; notices one whose end the pipe does not show (its own child may hold it open)."""
        interval, before, gone = self._limits.beat_seconds, time.monotonic(), False
        while self._ending is None:
            await asyncio.sleep(interval)
            now = time.monotonic()
            elapsed, before = min(now - before, 2 * interval), now  # if we slept longer, so may have the engine
            if child.ended():
                if gone:  # since the last look: what it wrote has been read
                    self._connection.close()
                gone = True
            elif (verdict := vigil.elapse(elapsed)) is not None and self._verdict is None:
                _log.warning("the engine process %d is ended: %s", child.pid, verdict)
                self._verdict = verdict
                child.kill()

    def _on_lost(self, fault: RuntimeFault | None) -> None:
        if fault is not None and self._verdict is None:
            self._verdict = f"it sent something unreadable ({fault})"
        self._keep(self._bury())

    async def _bury(self) -> None:
        child = self._child
        assert child is not None  # a pipe was lost, so there was one
        if not await _wait_for_end(child, _LAST_WORDS_SECONDS):
            self._verdict = self._verdict or "it closed its pipe and went on"
            child.kill()
            await _wait_for_end(child, _LAST_WORDS_SECONDS)
        self._end_all(lambda: EngineDiedError(child.obituary(self._verdict)))

    async def _close(self, grace: float) -> None:
        self._end_all(_closed_error)
        await asyncio.wrap_future(self._begun)
        child = self._child
        try:
            if child is not None and not child.ended():
                self._connection.post([encode(Shutdown())])
                if not await _wait_for_end(child, grace):
                    child.terminate()
                    if not await _wait_for_end(child, min(grace, _TERM_SECONDS)):
                        child.kill()
                        if not await _wait_for_end(child, _LAST_WORDS_SECONDS):
                            child.reap_later()
            self._connection.close()
            if child is not None:
                child.pipe.close()  # where it never became a connection
        finally:
            self._thread.stop()

    def _end_all(self, make_error: Callable[[], RuntimeFault]) -> None:
        """Nothing more comes: waiting callers are told, and so are later ones."""
        self._ending = self._ending or make_error
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.waiter.fault(make_error())
        if self._loaded is not None:
            self._loaded.fault(make_error())
            self._loaded = None

    # ---- messages --------------------------------------------------------------------------------------------

    def _send(self, tickets: Sequence[Ticket]) -> None:
        wanted = [ticket for ticket in tickets if not ticket.waiter.abandoned]
        if self._ending is not None:
            for ticket in wanted:
                ticket.waiter.fault(self._ending())
            return
        self._waiting |= {ticket.id: ticket for ticket in wanted}
        if wanted:
            self._connection.post([ticket.payload for ticket in wanted])

    def _cancel(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self._connection.post([encode(Cancel(number))])

    def _drop(self, number: int, branch: int) -> None:
        if number in self._waiting:
            self._connection.post([encode(Drop(number, branch))])

    def _on_group(self, payloads: list[bytearray]) -> None:
        assert self._vigil is not None  # made before the pipe
        self._vigil.heard()
        for reply in decode_replies(payloads):
            self._on_reply(reply, self._vigil)

    def _on_reply(self, reply: Reply, vigil: Vigil) -> None:
        match reply:
            case Beat():
                vigil.beat(reply.steps, reply.phase, reply.progress)
            case Push():
                self._on_push(reply)
            case Loading():
                vigil.load(reply.progress.done)
                if self._on_load is not None and self._loaded is not None:
                    self._on_load(reply.progress)
            case Loaded():
                self.state = reply
                vigil.beat(0, "idle")
                if self._loaded is not None:
                    self._loaded.result(reply)
                    self._loaded = None
            case Failure() if reply.id == LOAD_ID:
                if self._loaded is not None:
                    self._loaded.fault(unpack_fault(reply.fault))
                    self._loaded = None
            case Chunk():
                self._on_chunk(reply)
            case Part():
                self._on_part(reply)
            case Progress():
                if (ticket := self._waiting.get(reply.id)) is not None:  # else cancelled meanwhile
                    ticket.waiter.progress(reply.progress)
            case Step():
                if (ticket := self._waiting.get(reply.id)) is not None:
                    ticket.waiter.step(reply.step)
            case _:
                self._on_end(reply)

    def _on_push(self, news: Push) -> None:
        state = self.state
        if state is not None:
            changed = {"info": news.info, "metrics": news.metrics, "cache": news.cache}
            self.state = msgspec.structs.replace(state, **{name: new for name, new in changed.items() if new is not None})

    def _on_chunk(self, chunk: Chunk) -> None:
        ticket = self._waiting.get(chunk.id)
        if ticket is None:  # cancelled meanwhile
            return
        try:
            ticket.waiter.chunk(unpack_run(chunk.columns), chunk.branch)
        except RuntimeFault as unreadable:
            self._cancel(chunk.id)
            ticket.waiter.fault(unreadable)

    def _on_part(self, part: Part) -> None:
        ticket = self._waiting.get(part.id)
        if ticket is None:  # cancelled meanwhile
            return
        if len(ticket.came) + part.data.nbytes > MAX_PAYLOAD:
            raise MessageError(f"an answer of more than {MAX_PAYLOAD:,} bytes")
        ticket.came.extend(part.data)

    def _on_end(self, reply: Result | End | Failure) -> None:
        ticket = self._waiting.get(reply.id)
        if ticket is None:  # cancelled meanwhile
            return
        if ticket.came and isinstance(reply, Result):
            self._keep(self._read_large(ticket))
            return
        del self._waiting[reply.id]
        try:
            match reply:
                case Result():
                    ticket.waiter.result(ticket.method.read_answer(reply.value))
                case End():
                    ticket.waiter.result(None)
                case Failure():
                    ticket.waiter.fault(unpack_fault(reply.fault))
        except (RuntimeFault, ValueError) as unreadable:  # msgspec's errors are ValueErrors
            ticket.waiter.fault(_unread(unreadable))

    async def _read_large(self, ticket: Ticket) -> None:
        """Reads what came in parts on another thread: other messages would wait for the copy of a GiB."""
        tell: Callable[[], None]
        try:
            tell = partial(ticket.waiter.result, await asyncio.to_thread(ticket.method.read_answer, msgspec.Raw(ticket.came)))
        except (RuntimeFault, ValueError) as unreadable:
            tell = partial(ticket.waiter.fault, _unread(unreadable))
        if self._waiting.pop(ticket.id, None) is not None:
            tell()

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _unread(error: Exception) -> RuntimeFault:
    return RuntimeFault(f"the engine's answer cannot be read: {error}")


async def end_link(link: EngineLink, *, grace: float | None = None) -> None:
    """Ends the engine without blocking the loop; cancelled, the ending goes on by itself."""
    await asyncio.shield(asyncio.wrap_future(link.close_soon(grace=grace)))
    link.join()  # at once: the thread has nothing left to do


async def _wait_for_end(child: EngineProcess, seconds: float) -> bool:
    """Whether the process ended within that time."""
    deadline, late = time.monotonic() + seconds, False
    while not child.ended():
        if late:  # before that look: one that ended while we did not run has ended in time
            return False
        await asyncio.sleep(_POLL_SECONDS)
        late = time.monotonic() > deadline
    return True


def _closed_error() -> SessionClosedError:
    return SessionClosedError("the model was closed; load it again")


def grace_within(seconds: float) -> float:
    """How long an engine may take to end by itself, when it is to be over after so many seconds in any case."""
    return max(seconds - _TERM_SECONDS - _LAST_WORDS_SECONDS, 0.0)
