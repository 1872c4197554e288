"""Event loops and threads: a loop on a thread of its own, and the delivery of answers to coroutines and blocked threads.

Members of a model are written once, as coroutines. `blocking` makes the blocking twin of a coroutine function: it runs the
coroutine to its end without an event loop, in a mode in which the waits below block the thread instead of suspending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import os
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from runtime.errors import ForkedError
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import check_callback
from runtime.records import TokenRun

P = ParamSpec("P")
N = TypeVar("N")
T = TypeVar("T")


class LoopThread:
    """A daemon thread that runs an event loop until `stop`. `post` and `submit` may be called from any thread."""

    def __init__(self, name: str) -> None:
        self._gate = threading.RLock()  # reentrant: a finaliser may post while this thread posts
        self._open = True
        self._stop = asyncio.Event()
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.loop = started.result()

    def post(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Runs `callback` on the loop soon. False: the loop has been stopped, and it never runs."""
        with self._gate:
            if self._open:
                self.loop.call_soon_threadsafe(callback, *arguments)
            return self._open

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop; returns a future for any thread.

        Raises:
            RuntimeError: The loop has been stopped.
        """
        with self._gate:
            if not self._open:
                coroutine.close()
                raise RuntimeError(f"the thread {self._thread.name} has ended")
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self) -> None:
        """Ends the thread after the callbacks posted before, and cancels running tasks. Does not wait."""
        with self._gate:
            if self._open:
                self._open = False
                self.loop.call_soon_threadsafe(self._stop.set)

    def join(self) -> None:
        """Waits for the thread's end (not on that thread itself)."""
        self._thread.join()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:
            started.set_result(runner.get_loop())
            runner.run(self._stop.wait())


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end and returns its result, also where a loop is already running, as in a notebook cell.

    The coroutine runs on a loop in a thread of its own. The caller waits, and Ctrl-C there cancels the coroutine.
    """
    thread = LoopThread("run-sync")
    try:
        return thread.submit(coroutine).result()
    finally:
        thread.stop()  # cancels the coroutine if it is running
        thread.join()


class _Mode(threading.local):
    """The mode of a thread."""

    blocking = False  # whether the thread runs a blocking twin


_mode = _Mode()


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits only by this module's functions; a loop running in this thread is blocked meanwhile."""
    before, _mode.blocking = _mode.blocking, True
    try:
        coroutine.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    finally:
        _mode.blocking = before
    coroutine.close()
    raise RuntimeError("a coroutine that was to block awaited something of an event loop")


def blocking(member: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The blocking twin of a coroutine function."""

    def twin(*arguments: P.args, **named: P.kwargs) -> T:
        return run_blocking(member(*arguments, **named))

    return twin_of(member, twin)


def blocking_iterator(member: Callable[P, AsyncGenerator[T, None]]) -> Callable[P, Generator[T, None, None]]:
    """The blocking twin of an async generator function."""

    def twin(*arguments: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        source = member(*arguments, **named)
        try:
            while True:
                try:
                    item = run_blocking(source.asend(None))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            run_blocking(source.aclose())

    return twin_of(member, twin)


def twin_of(member: Callable[..., Any], twin: Callable[P, T]) -> Callable[P, T]:
    """Gives a blocking twin its name (``x`` for ``x_async``, ``x_sync`` for ``x``), parameters and documentation."""
    functools.update_wrapper(twin, member)
    for attribute in ("__name__", "__qualname__"):
        name: str = getattr(member, attribute)
        setattr(twin, attribute, name.removesuffix("_async") if name.endswith("_async") else f"{name}_sync")
    twin.__doc__ = f"Blocking twin of `{member.__name__}`. {member.__doc__}"
    if inspect.isasyncgenfunction(member):  # the twin returns another type
        signature = inspect.signature(member)
        answer = signature.return_annotation.removeprefix("Async")
        twin.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]  # `inspect` reads it
    return twin


async def settled(future: Future[T], *, shielded: bool = False) -> T:
    """The result of another thread's future. Cancelling the wait cancels the future, unless it is shielded."""
    if _mode.blocking:
        return future.result()
    wrapped = asyncio.wrap_future(future)
    return await (asyncio.shield(wrapped) if shielded else wrapped)


async def gathered(*waits: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all coroutines, in order. After an error the others are cancelled; it is raised when they have ended."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            if not task.cancelling():
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def off_loop(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Runs a slow function on a worker thread, or on this thread in a blocking twin."""
    return function(*arguments, **named) if _mode.blocking else await asyncio.to_thread(function, *arguments, **named)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop of this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_posting = threading.local()  # `held`: the mailboxes that this thread wakes at the end of `together`


@contextmanager
def together() -> Iterator[None]:
    """Delays the wake-ups for callbacks that this thread posts inside the block to its end, one wake-up per loop.

    An early wake-up would let another thread compete for the interpreter with the caller, which has more to post. A nested
    block ends with the outer one.
    """
    if getattr(_posting, "held", None) is not None:
        yield
        return
    held: dict[Mailbox, None] = {}
    _posting.held = held
    try:
        yield
    finally:
        _posting.held = None
        for mailbox in held:
            mailbox.wake()


class Mailbox:
    """A queue of callbacks from any thread for one loop; a wake-up runs all waiting callbacks, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: deque[Callable[[], object]] = deque()
        self._woken = False

    def put(self, callback: Callable[[], object]) -> None:
        """Runs `callback` on the loop soon, unless the loop is closed."""
        self._waiting.append(callback)
        held: dict[Mailbox, None] | None = getattr(_posting, "held", None)
        if held is None:
            self.wake()
        else:
            held[self] = None

    def wake(self) -> None:
        """Wakes the loop, unless a wake-up is under way."""
        if self._woken:
            return  # the reader resets the flag before it empties the queue, and will find this callback
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._run)
        except RuntimeError:  # closed
            self._waiting.clear()
            self._woken = False

    def _run(self) -> None:
        self._woken = False
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:  # callbacks after one that raised still run
            if self._waiting:
                self.wake()


Inbox = Mailbox | queue.SimpleQueue[Callable[[], object]]  # of a loop, or of a blocked thread


def ignore(*_: object) -> None:
    """The default of a callback."""


class FutureLike(Protocol):
    """The receiver of one answer or error, on any thread: a `concurrent.futures.Future` or a reader of this module."""

    def cancelled(self) -> bool:
        """Whether no caller waits any more."""

    def set_result(self, value: Any, /) -> None:
        """Delivers the answer; None at the end of a stream."""

    def set_exception(self, error: Any, /) -> None:
        """Delivers an error; a `CancelledError` if the model cancelled the call."""


@dataclass(eq=False)
class InboxReader(Generic[T]):
    """Waits for callbacks from other threads and runs them on the reader's loop, or in its blocked thread.

    Args:
        inbox: Takes callbacks from any thread; they run in order.
        given_up: Called when the wait ends without an answer.
        left: Whether the reader has stopped reading.
    """

    inbox: Inbox
    given_up: Callable[[], object] | None = None
    left: bool = False
    _arrived: deque[T] = field(default_factory=deque, init=False)
    _waiter: asyncio.Future[None] | None = field(default=None, init=False)
    _raised: Exception | None = field(default=None, init=False)  # by a listener
    _process: int = field(default_factory=os.getpid, init=False)

    def cancelled(self) -> bool:
        """Whether the reader has stopped: it has left, its loop was closed, or its wait was cancelled."""
        if self.left or not isinstance(self.inbox, Mailbox):
            return self.left
        return self.inbox.loop.is_closed() or (self._waiter is not None and self._waiter.cancelled())

    def report(self, listener: Callable[[N], object], news: N) -> None:
        """Calls a listener on the reader's loop or thread; its exception ends the wait."""
        self.inbox.put(partial(self._hear, listener, news))

    def _hear(self, listener: Callable[[N], object], news: N) -> None:
        if self._raised is not None:
            return
        try:
            listener(news)
        except Exception as error:  # noqa: BLE001  # the border: the reader raises it
            self._raised = error
            self._receive()

    def _receive(self, *items: T) -> None:
        """Adds arrived items (none after a listener's exception) and ends the wait."""
        self._arrived.extend(items)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Waits for a callback, which may have added an item.

        Raises:
            Exception: A listener's exception.
            ForkedError: A blocked thread in a forked process, where no callback arrives.
        """
        if self._raised is None:
            if isinstance(self.inbox, Mailbox):
                self._waiter = self.inbox.loop.create_future()
                await self._waiter
            elif os.getpid() != self._process:
                raise ForkedError.of(self._process)
            else:
                self.inbox.get()()
        if self._raised is not None:
            raise self._raised


class AwaitedAnswer(InboxReader[tuple[Any, BaseException | None]], Generic[T]):
    """One awaited answer: the first that arrives. The producer uses it like a `concurrent.futures.Future`."""

    async def answer(self) -> T:
        try:
            while not self._arrived:
                await self._wait()
        except BaseException:
            self.left = True
            if self.given_up is not None:
                self.given_up()
            raise
        finally:
            self.given_up = None  # breaks a reference cycle, which would be freed late
        self.left = True
        value, error = self._arrived[0]
        if error is not None:
            raise _raisable(error)
        answer: T = value
        return answer

    # ---- the producer ----------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether the answer has arrived, or is no longer awaited."""
        return bool(self._arrived) or self.cancelled()

    def set_result(self, value: T) -> None:
        self.inbox.put(partial(self._receive, (value, None)))

    def set_exception(self, error: BaseException) -> None:
        self.inbox.put(partial(self._receive, (None, error)))


@dataclass(eq=False, kw_only=True)
class RunStream(InboxReader[tuple[int, TokenRun | BaseException | None]]):
    """A stream of token runs by branch; a plain stream has only branch 0.

    Args:
        inbox: As for `InboxReader`.
        on_progress: Called with the progress of the prompt, on the reader's loop or thread.
        dropped: Branches whose runs are discarded; may grow.
    """

    on_progress: OnProgress | None
    dropped: Set[int]

    def __post_init__(self) -> None:
        if self.on_progress is not None:
            check_callback(self.on_progress)

    async def runs(self) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Yields the arrived tokens, one run per branch; an error is raised after the runs that arrived before it."""
        over, error = False, None
        try:
            while not over:
                while not self._arrived:
                    await self._wait()
                arrived: dict[int, list[TokenRun]] = {}  # by branch, in the order of first arrivals
                while self._arrived:
                    branch, item = self._arrived.popleft()
                    if isinstance(item, TokenRun):
                        arrived.setdefault(branch, []).append(item)
                    else:
                        over, error = True, item
                for branch, runs in arrived.items():
                    if branch not in self.dropped:
                        yield branch, runs[0] if len(runs) == 1 else TokenRun.concat(runs)
        finally:
            self.left = True
        error = error or self._raised
        if error is not None:
            raise _raisable(error)

    # ---- the producer ----------------------------------------------------------------------------------------

    def chunk(self, run: TokenRun, branch: int = 0) -> None:
        """Delivers more tokens."""
        self.inbox.put(partial(self._receive, (branch, run)))

    def progress(self, progress: PromptProgress) -> None:
        """Reports the progress of the prompt."""
        if self.on_progress is not None:
            self.report(self.on_progress, progress)

    def end(self, error: BaseException | None = None) -> None:
        self.inbox.put(partial(self._receive, (0, error)))

    def set_result(self, _: object) -> None:
        self.end()

    def set_exception(self, error: BaseException) -> None:
        self.end(error)


class Turns(Generic[T]):
    """Collects the requests of one turn of an event loop into one batch; a blocked thread's requests are sent at once.

    Args:
        send: Takes the batch, on the requesting thread; passes an error to the waiters of requests that it cannot send.
    """

    def __init__(self, send: Callable[[Sequence[T]], None]) -> None:
        self._send = send
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._pending: dict[asyncio.AbstractEventLoop, list[T]] = {}

    def inbox(self) -> Inbox:
        """The inbox of the running loop, which its callers share, or a new one of a blocked thread."""
        if _mode.blocking:
            return queue.SimpleQueue()
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            for known in [known for known in list(self._mailboxes) if known.is_closed()]:
                self._mailboxes.pop(known, None)
            mailbox = self._mailboxes[loop] = Mailbox(loop)
        return mailbox

    def submit(self, *items: T) -> None:
        """Adds items to the batch of this turn; in a blocked thread, sends them at once."""
        if _mode.blocking:
            if self._pending:
                self.flush()
            self._send(items)
            return
        loop = asyncio.get_running_loop()
        pending = self._pending.setdefault(loop, [])
        if not pending:
            loop.call_soon(self._end_turn, loop)
        pending.extend(items)

    def flush(self) -> None:
        """Sends the items of the running loop's turn now."""
        loop = running_loop()
        if loop is not None:
            self._end_turn(loop)

    def pending(self) -> list[T]:
        """The items that are not sent yet. Callable from any thread."""
        return [item for loop, items in list(self._pending.items()) if not loop.is_closed() for item in list(items)]

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        items = self._pending.get(loop)
        if items:
            self._send(items)  # before the removal, so that `pending` misses no request
            self._pending.pop(loop, None)


def _raisable(error: BaseException) -> BaseException:
    """The error to raise. In a blocked thread, where no task runs, asyncio's CancelledError becomes that of `concurrent`."""
    if _mode.blocking and isinstance(error, asyncio.CancelledError):
        return concurrent.futures.CancelledError(*error.args)
    return error
