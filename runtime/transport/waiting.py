"""Where answers arrive: at a coroutine on any event loop, or at a thread that blocks.

Members of a model are written once, as coroutines. `blocking` makes the twin that blocks: it runs the coroutine in a mode in
which the waits below block the thread instead of suspending, so that it ends in one go, without an event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence, Set
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from runtime.aio import Mailbox
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import check_callback
from runtime.records import TokenRun

P = ParamSpec("P")
T = TypeVar("T")


class _Mode(threading.local):
    """Each thread's own."""

    blocking = False  # whether it runs a blocking twin


_mode = _Mode()


def run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that waits by the functions of this module alone; a running loop of this thread is held up."""
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
    """Gives a blocking twin its name (``x_async`` blocks as ``x``, ``x`` as ``x_sync``), parameters and documentation."""
    functools.update_wrapper(twin, member)
    for attribute in ("__name__", "__qualname__"):
        name: str = getattr(member, attribute)
        setattr(twin, attribute, name.removesuffix("_async") if name.endswith("_async") else f"{name}_sync")
    twin.__doc__ = f"Blocking twin of `{member.__name__}`. {member.__doc__}"
    if inspect.isasyncgenfunction(member):  # what it returns is another type
        signature = inspect.signature(member)
        answer = signature.return_annotation.removeprefix("Async")
        twin.__signature__ = signature.replace(return_annotation=answer)  # type: ignore[attr-defined]  # `inspect` reads it
    return twin


async def settled(future: Future[T], *, shielded: bool = False) -> T:
    """The result of a future of another thread; a cancelled wait cancels it, unless it is shielded."""
    if _mode.blocking:
        return future.result()
    wrapped = asyncio.wrap_future(future)
    return await (asyncio.shield(wrapped) if shielded else wrapped)


async def off_loop(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Runs what takes a while: on a worker thread, or here where this thread blocks anyway."""
    return function(*arguments, **named) if _mode.blocking else await asyncio.to_thread(function, *arguments, **named)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The running event loop of this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Reader:
    """What waits for other threads' callbacks; they run on its loop, or in its blocked thread while it waits.

    Args:
        mailbox: Of the loop; None for a thread that blocks.
        given_up: Called where the wait ends without what was waited for.

    Attributes:
        post: Runs a callback at the reader soon; from any thread, in order.
    """

    def __init__(self, mailbox: Mailbox | None, given_up: Callable[[], object] | None = None) -> None:
        self._mailbox, self._given_up = mailbox, given_up
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.post: Callable[[Callable[[], object]], None] = self._queue.put if mailbox is None else mailbox.post
        self._waiter: asyncio.Future[None] | None = None
        self.left = False  # it reads no more

    def cancelled(self) -> bool:
        """Whether nothing is read any more: the reader has left, its loop was closed, or its wait cancelled."""
        if self.left or self._mailbox is None:
            return self.left
        return self._mailbox.loop.is_closed() or (self._waiter is not None and self._waiter.cancelled())

    def _wake(self) -> None:
        """Ends the wait on a loop; called by callbacks."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _wait(self) -> None:
        """Returns after a callback, which may have brought what was waited for."""
        if self._mailbox is None:
            self._queue.get()()
        else:
            self._waiter = self._mailbox.loop.create_future()
            await self._waiter


class Call(Reader, Generic[T]):
    """One answer on its way. The producing side sees the parts of a `concurrent.futures.Future` that it needs."""

    _settled = False
    _value: T | None = None
    _error: BaseException | None = None

    async def answer(self) -> T:
        """Waits for it."""
        try:
            while not self._settled:
                await self._wait()
        except BaseException:
            self.left = True
            if self._given_up is not None:
                self._given_up()
            raise
        finally:
            self._given_up = None  # it may refer to what holds this: a cycle would be freed late
        self.left = True
        if self._error is not None:
            raise _raisable(self._error)
        return self._value  # type: ignore[return-value]  # settled without an error

    # ---- the producer ----------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether it was settled, or is not waited for."""
        return self._settled or self.cancelled()

    def set_result(self, value: T) -> None:
        """The answer."""
        self.post(partial(self._settle, value, None))

    def set_exception(self, error: BaseException) -> None:
        """The failure."""
        self.post(partial(self._settle, None, error))

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        if not self._settled:
            self._settled, self._value, self._error = True, value, error
            self._wake()


class Stream(Reader):
    """Runs of tokens on their way, by branch; a plain stream is branch 0 alone.

    Args:
        mailbox: Of the reader's loop; None for a thread that blocks.
        on_progress: Hears how far the prompt is, at the reader.
        dropped: Branches of which nothing is wanted; may grow.
        resumed: Called in a blocked thread before it goes on after a run: it may have been forked meanwhile.
    """

    def __init__(
        self, mailbox: Mailbox | None, on_progress: OnProgress | None, dropped: Set[int], resumed: Callable[[], None]
    ) -> None:
        if on_progress is not None:
            check_callback(on_progress)
        super().__init__(mailbox)
        self._on_progress, self._dropped, self._resumed = on_progress, dropped, resumed
        self._arrived: dict[int, list[TokenRun]] = {}  # by branch, in the order of first arrivals
        self._over = False
        self._error: BaseException | None = None

    async def runs(self) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """What arrived since it was last asked, one run for each branch; an error follows all that came before it."""
        try:
            while self._arrived or not self._over:
                if not self._arrived:
                    await self._wait()
                arrived, self._arrived = self._arrived, {}
                for branch, runs in arrived.items():
                    if branch not in self._dropped:
                        yield branch, runs[0] if len(runs) == 1 else TokenRun.concat(runs)
                        if self._mailbox is None:
                            self._resumed()
        finally:
            self.left = True
        if self._error is not None:
            raise _raisable(self._error)

    # ---- the producer ----------------------------------------------------------------------------------------

    def chunk(self, run: TokenRun, branch: int = 0) -> None:
        """Some more tokens."""
        self.post(partial(self._arrive, branch, run))

    def progress(self, progress: PromptProgress) -> None:
        """How far the prompt is."""
        if self._on_progress is not None:
            self.post(partial(self._on_progress, progress))

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows."""
        self.post(partial(self._end, error))

    def _arrive(self, branch: int, run: TokenRun) -> None:
        self._arrived.setdefault(branch, []).append(run)
        self._wake()

    def _end(self, error: BaseException | None) -> None:
        self._over, self._error = True, error
        self._wake()


class Turns(Generic[T]):
    """Gives `send` what one turn of an event loop asks for as one batch; what a blocked thread asks for at once.

    Args:
        send: Takes the batch, on the asking thread; it tells the waiters of what it cannot send.
    """

    def __init__(self, send: Callable[[Sequence[T]], None]) -> None:
        self._send = send
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._pending: dict[asyncio.AbstractEventLoop, list[T]] = {}

    def mailbox(self) -> Mailbox | None:
        """Of whatever runs now; all of one loop share a wake-up. None for a thread that blocks."""
        if _mode.blocking:
            return None
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            for known in [known for known in list(self._mailboxes) if known.is_closed()]:
                self._mailboxes.pop(known, None)
            mailbox = self._mailboxes[loop] = Mailbox(loop)
        return mailbox

    def submit(self, *items: T) -> None:
        """Sends them with what else this turn asks for."""
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
        """Sends now what the running loop's turn has asked for so far."""
        loop = running_loop()
        if loop is not None:
            self._end_turn(loop)

    def pending(self) -> list[T]:
        """What was asked for and has not been sent; any thread."""
        return [item for loop, items in list(self._pending.items()) if not loop.is_closed() for item in list(items)]

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        items = self._pending.get(loop)
        if items:
            self._send(items)  # sent before it is forgotten: at no moment is a request nowhere
            self._pending.pop(loop, None)


def _raisable(error: BaseException) -> BaseException:
    """A blocked thread is no task: what asyncio calls cancelled is an ordinary error there."""
    if _mode.blocking and isinstance(error, asyncio.CancelledError):
        return concurrent.futures.CancelledError(*error.args)
    return error
