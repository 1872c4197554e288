"""The connection to one engine process: an I/O thread starts it, exchanges messages with it, watches it and ends it."""

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
from typing import Any

import msgspec

from runtime.aio import FutureLike, LoopThread, ignore
from runtime.beams import OnStep
from runtime.errors import EngineDiedError, ForkedError, RuntimeFault, SessionClosedError
from runtime.info import OnProgress
from runtime.loading.progress import OnLoad
from runtime.records import TokenRun
from runtime.transport.arrays import unpack_run
from runtime.transport.child import EngineLimits, EngineProcess, Watchdog
from runtime.transport.frames import MAX_PAYLOAD, FrameConnection
from runtime.transport.messages import (
    LOAD_ID,
    Beat,
    Cancel,
    ChunkMessage,
    Drop,
    End,
    Failure,
    Load,
    Loaded,
    Loading,
    MessageError,
    PartMessage,
    ProgressMessage,
    Push,
    Reply,
    Result,
    Shutdown,
    StepMessage,
    decode_replies,
    encode,
    unpack_fault,
)
from runtime.transport.methods import Method

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.01  # between two checks whether the child has ended
EXIT_SECONDS = 0.5  # for the end of a child whose pipe is closed, or that was killed
_TERM_SECONDS = 0.2  # between SIGTERM and SIGKILL


@dataclass(frozen=True, slots=True)
class Ticket:
    """One call: its message, and the receivers of the messages that answer it, which are called on the I/O thread.

    Attributes:
        answer: Receives the answer or the error, once, as the last.
        on_run: Receives tokens of a stream with their branch.
        on_progress: Receives the progress of the prompt.
        on_step: Receives the beams after each step of a search.
        received: The bytes of a large answer so far.
    """

    id: int
    payload: bytes
    method: Method
    answer: FutureLike
    on_run: Callable[[TokenRun, int], None] = ignore
    on_progress: OnProgress = ignore
    on_step: OnStep = ignore
    received: bytearray = field(default_factory=bytearray, init=False)


class EngineLink:
    """One engine process. Public methods may be called from any thread; the others run on the I/O thread.

    Args:
        make_load: Makes the first message, on the I/O thread; `loaded` receives its exceptions.
        loaded: Receives the loaded model, or the error.
        threads: Threads of the engine's numeric libraries; None leaves the choice to them.
        log_path: File for the standard error of the engine process; None shares this process's.
        limits: When the engine counts as hung.
        on_load: Called on the I/O thread with the progress of the load, before `loaded` has its result.
    """

    def __init__(
        self,
        make_load: Callable[[], Load],
        loaded: FutureLike,
        *,
        threads: int | None,
        log_path: Path | None,
        limits: EngineLimits,
        on_load: OnLoad | None = None,
    ) -> None:
        self.state: Loaded | None = None  # the latest snapshots; replaced as a whole, read by any thread
        self._make_load, self._on_load = make_load, on_load
        self._loaded: FutureLike | None = loaded
        self._threads, self._log_path, self._limits = threads, log_path, limits
        self._numbers = itertools.count(LOAD_ID + 1)
        self._waiting: dict[int, Ticket] = {}
        self._child: EngineProcess | None = None
        self._connection = FrameConnection(self._on_group, self._on_lost)
        self._watchdog: Watchdog | None = None
        self._kill_reason: str | None = None  # why the process was killed
        self._end_error: Callable[[], RuntimeFault] | None = None  # makes the error of later calls
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
    def ended(self) -> RuntimeFault | None:
        """The error that new calls get; None while the engine lives."""
        if self.forked:
            return ForkedError.of(self._pid)
        return self._end_error() if self._end_error else None

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the engine's parent, which lacks the I/O thread and may find any lock held."""
        return os.getpid() != self._pid

    def next_id(self) -> int:
        return next(self._numbers)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Sends calls as one group."""
        if self.forked:
            for ticket in tickets:
                ticket.answer.set_exception(ForkedError.of(self._pid))
        elif not self._thread.post(self._send, tickets):
            for ticket in tickets:
                ticket.answer.set_exception(_closed_error())

    def cancel(self, number: int) -> None:
        """Cancels a call; does nothing if it was answered already."""
        if not self.forked:
            self._thread.post(self._cancel, number)

    def drop(self, number: int, branch: int) -> None:
        """Ends one branch of a submitted call."""
        if not self.forked:
            self._thread.post(self._drop, number, branch)

    def close_soon(self, *, grace: float | None = None) -> Future[None]:
        """Ends the engine without waiting; returns the same future every time.

        Args:
            grace: Seconds for the engine to end by itself, at most `EngineLimits.close_seconds`.
        """
        if self.forked:  # the engine belongs to the other process and goes on
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
            self._watchdog = Watchdog(self._limits, self._limits.for_loading(load.source))
            await asyncio.get_running_loop().create_connection(lambda: self._connection, sock=child.pipe)
        except Exception as refused:  # noqa: BLE001  # the border: callers that wait for the model get the error
            cause = (
                refused if isinstance(refused, RuntimeFault) else EngineDiedError(f"the engine cannot be started: {refused}")
            )
            self._end_all(lambda: cause)
        else:
            self._connection.post([payload])
            self._keep(self._watch(child, self._watchdog))

    async def _watch(self, child: EngineProcess, watchdog: Watchdog) -> None:
        """Kills a hung engine, and closes the pipe of an ended one (a child of the engine may hold it open)."""
        interval, before, ended_before = self._limits.beat_seconds, time.monotonic(), False
        while self._end_error is None:
            await asyncio.sleep(interval)
            now = time.monotonic()
            elapsed, before = min(now - before, 2 * interval), now  # after a longer gap the engine may have been suspended too
            if child.ended():
                if ended_before:  # everything that it wrote has been read meanwhile
                    self._connection.close()
                ended_before = True
            elif (reason := watchdog.elapse(elapsed)) is not None and self._kill_reason is None:
                _log.warning("the engine process %d is ended: %s", child.pid, reason)
                self._kill_reason = reason
                child.kill()

    def _on_lost(self, fault: RuntimeFault | None) -> None:
        if fault is not None and self._kill_reason is None:
            self._kill_reason = f"it sent something unreadable ({fault})"
        self._keep(self._wait_and_fail_calls())

    async def _wait_and_fail_calls(self) -> None:
        child = self._child
        assert child is not None  # the pipe that was lost was the child's
        if not await wait_for_end(child, EXIT_SECONDS):
            self._kill_reason = self._kill_reason or "it closed its pipe and went on"
            child.kill()
            await wait_for_end(child, EXIT_SECONDS)
        self._end_all(lambda: EngineDiedError(child.end_message(self._kill_reason)))

    async def _close(self, grace: float) -> None:
        self._end_all(_closed_error)
        await asyncio.wrap_future(self._begun)
        child = self._child
        try:
            if child is not None and not child.ended():
                self._connection.post([encode(Shutdown())])
                if not await wait_for_end(child, grace):
                    child.terminate()
                    if not await wait_for_end(child, min(grace, _TERM_SECONDS)):
                        child.kill()
                        if not await wait_for_end(child, EXIT_SECONDS):
                            child.reap_later()
            self._connection.close()
            if child is not None:
                child.pipe.close()  # in case it never became a connection
        finally:
            self._thread.stop()

    def _end_all(self, make_error: Callable[[], RuntimeFault]) -> None:
        """Fails all waiting calls, and all later ones."""
        self._end_error = self._end_error or make_error
        waiting, self._waiting = self._waiting, {}
        for ticket in waiting.values():
            ticket.answer.set_exception(make_error())
        if self._loaded is not None:
            self._loaded.set_exception(make_error())
            self._loaded = None

    # ---- messages --------------------------------------------------------------------------------------------

    def _send(self, tickets: Sequence[Ticket]) -> None:
        wanted = [ticket for ticket in tickets if not ticket.answer.cancelled()]
        if self._end_error is not None:
            for ticket in wanted:
                ticket.answer.set_exception(self._end_error())
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
        assert self._watchdog is not None  # made before the connection
        self._watchdog.message_received()
        for reply in decode_replies(payloads):
            self._on_reply(reply, self._watchdog)

    def _on_reply(self, reply: Reply, watchdog: Watchdog) -> None:
        match reply:
            case Beat():
                watchdog.beat(reply.steps, reply.phase, reply.progress)
            case Push():
                self._on_push(reply)
            case Loading():
                watchdog.load(reply.progress.done)
                if self._on_load is not None and self._loaded is not None:
                    self._on_load(reply.progress)
            case Loaded():
                self.state = reply
                watchdog.beat(0, "idle")
                if self._loaded is not None:
                    self._loaded.set_result(reply)
                    self._loaded = None
            case Failure() if reply.id == LOAD_ID:
                if self._loaded is not None:
                    self._loaded.set_exception(unpack_fault(reply.fault))
                    self._loaded = None
            case _:
                if (ticket := self._waiting.get(reply.id)) is not None:  # otherwise the call was cancelled meanwhile
                    self._on_call_reply(ticket, reply)

    def _on_push(self, news: Push) -> None:
        if self.state is not None:
            changed = {name: new for name, new in msgspec.structs.asdict(news).items() if new is not None}
            self.state = msgspec.structs.replace(self.state, **changed)

    def _on_call_reply(
        self, ticket: Ticket, reply: ChunkMessage | PartMessage | ProgressMessage | StepMessage | Result | End | Failure
    ) -> None:
        match reply:
            case ChunkMessage():
                try:
                    ticket.on_run(unpack_run(reply.columns), reply.branch or 0)
                except RuntimeFault as unreadable:
                    self._cancel(reply.id)
                    ticket.answer.set_exception(unreadable)
            case PartMessage():
                if len(ticket.received) + reply.data.nbytes > MAX_PAYLOAD:
                    raise MessageError(f"an answer of more than {MAX_PAYLOAD:,} bytes")
                ticket.received.extend(reply.data)
            case ProgressMessage():
                ticket.on_progress(reply.progress)
            case StepMessage():
                ticket.on_step(reply.step)
            case Result() if ticket.received:
                self._keep(self._read_large(ticket))
            case Result():
                del self._waiting[reply.id]
                try:
                    ticket.answer.set_result(ticket.method.read_answer(reply.value))
                except (RuntimeFault, ValueError) as unreadable:  # msgspec's errors are ValueErrors
                    ticket.answer.set_exception(_unread(unreadable))
            case End():
                del self._waiting[reply.id]
                ticket.answer.set_result(None)
            case Failure():
                del self._waiting[reply.id]
                ticket.answer.set_exception(unpack_fault(reply.fault))

    async def _read_large(self, ticket: Ticket) -> None:
        """Decodes an answer in parts, on another thread so that other messages need not wait for the copy of a GiB."""
        finish: Callable[[], None]
        try:
            answer = await asyncio.to_thread(ticket.method.read_answer, msgspec.Raw(ticket.received))
            finish = partial(ticket.answer.set_result, answer)
        except (RuntimeFault, ValueError) as unreadable:
            finish = partial(ticket.answer.set_exception, _unread(unreadable))
        if self._waiting.pop(ticket.id, None) is not None:
            finish()

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _unread(error: Exception) -> RuntimeFault:
    return RuntimeFault(f"the engine's answer cannot be read: {error}")


async def end_link(link: EngineLink, *, grace: float | None = None) -> None:
    """Ends the engine without blocking the loop; the engine ends even if this coroutine is cancelled."""
    await asyncio.shield(asyncio.wrap_future(link.close_soon(grace=grace)))
    link.join()  # returns at once: the thread has nothing left to do


async def wait_for_end(child: EngineProcess, seconds: float) -> bool:
    """Whether the process ended within that time."""
    deadline, late = time.monotonic() + seconds, False
    while not child.ended():
        if late:  # checked once more after the deadline: the loop may have been delayed
            return False
        await asyncio.sleep(_POLL_SECONDS)
        late = time.monotonic() > deadline
    return True


def _closed_error() -> SessionClosedError:
    return SessionClosedError("the model was closed; load it again")


def grace_within(seconds: float) -> float:
    """Seconds for an engine to end by itself, so that it has certainly ended after `seconds`."""
    return max(seconds - _TERM_SECONDS - EXIT_SECONDS, 0.0)
