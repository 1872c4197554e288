"""`RemoteTransport`: carries a `LanguageModel`'s operations to a server over HTTP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from runtime.aio import LoopThread, RunStream, Turns, settled
from runtime.beams import OnStep
from runtime.branches import Branches
from runtime.errors import ForkedError, RuntimeFault, SessionClosedError, UnsupportedFeatureError
from runtime.info import OnProgress, PromptProgress
from runtime.options.checking import check_callback
from runtime.records import TokenRun
from runtime.remote.http import HttpClient
from runtime.remote.operations import BranchTasks, RemoteOperations
from runtime.transport.base import TextFacts

T = TypeVar("T")


class RemoteTransport:
    """Runs requests on a loop of its own, so that callers on any loop, and blocked threads, share one client.

    A cancelled call and a closed stream close their socket, and the server stops within a second.
    """

    def __init__(self, thread: LoopThread, client: HttpClient, operations: RemoteOperations) -> None:
        self._thread, self._client = thread, client
        self.state = self._operations = operations
        self.capabilities = operations.capabilities
        self._turns: Turns[None] = Turns(lambda _: None)  # used only for its inboxes
        self.text: TextFacts = operations.text.facts
        self.pid = os.getpid()
        self._ending: RuntimeFault | None = None
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def ended(self) -> RuntimeFault | None:
        """The reason why the connection is unusable: closed, or of another process. An unreachable server is not one."""
        if os.getpid() != self.pid:
            return ForkedError.of(self.pid)
        return self._ending

    def _check(self) -> None:
        if (ended := self.ended) is not None:
            raise ended

    async def call(
        self, method: str, *, on_progress: OnProgress | None = None, on_step: OnStep | None = None, **arguments: Any
    ) -> Any:
        """The answer of one operation."""
        check_callback(on_progress)
        check_callback(on_step, "on_step")
        self._check()
        operation = self._operations.calls.get(method)
        if operation is None:
            raise self._lacks(method)
        future = self._thread.submit(self._run(operation(**arguments)))
        try:
            answer = await settled(future)
        except BaseException:
            future.cancel()  # also after Ctrl-C in a blocked thread
            raise
        if on_progress is not None:
            total = sum(map(len, arguments.get("paths") or [arguments.get("ids", ())]))
            on_progress(PromptProgress(total, total, None, None))
        return answer

    def stream(self, method: str, *, on_progress: OnProgress | None = None, **arguments: Any) -> Branches[TokenRun]:
        """Token runs by branch as they arrive. Closing the stream closes its sockets."""
        dropped: set[int] = set()
        tasks = BranchTasks()

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            self._check()
            stream = RunStream(self._turns.inbox(), on_progress=on_progress, dropped=dropped)
            operation = self._operations.streams[method]
            future = self._thread.submit(self._run(_streamed(operation, stream, tasks, arguments)))
            try:
                async for item in stream.runs():
                    yield item
            finally:
                stream.left = True
                future.cancel()

        def drop(branch: int) -> None:
            dropped.add(branch)
            self._thread.post(tasks.drop, branch)

        return Branches(read(), drop)

    def post(self, method: str, **arguments: Any) -> None:
        """Refused: a server has no operation without an answer."""
        del arguments
        raise self._lacks(method)

    def _lacks(self, method: str) -> UnsupportedFeatureError:
        what = _WORDS.get(method, f"{method!r}")
        return UnsupportedFeatureError(f"{self.state.info.name} is on a server, which has no {what}")

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs the work on the transport's loop; closing the connection ends it with `SessionClosedError`."""
        task = asyncio.current_task()
        assert task is not None  # a coroutine that a loop runs
        self._running.add(task)
        try:
            return await work
        except asyncio.CancelledError:
            if self._ending is not None:
                raise self._ending from None
            raise
        finally:
            self._running.discard(task)

    def close(self) -> None:
        """Closes the connections; waiting callers get `SessionClosedError`."""
        if (closing := self._begin_to_close()) is not None:
            closing.result()
            self._thread.join()

    async def close_async(self, within: float | None) -> None:
        """`close`, awaited; it continues if the wait is cancelled."""
        del within
        if (closing := self._begin_to_close()) is not None:
            await settled(closing, shielded=True)

    def _begin_to_close(self) -> Future[None] | None:
        if self.ended is not None:
            return None
        self._ending = SessionClosedError(f"the connection to {self.state.info.name} was closed")
        return self._thread.submit(self._shut())

    async def _shut(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        try:
            await asyncio.gather(*running, return_exceptions=True)
            await self._client.close()
            self._operations.text.close()
        finally:
            self._thread.stop()

    def finalize(self) -> None:
        if self.ended is None:
            self._operations.text.close()
            end_soon(self._thread, self._client)

    def heartbeat(self) -> tuple[int, str, int]:
        """Reports idle: only requests can hang, and they have time limits."""
        return 0, "idle", 0


def end_soon(thread: LoopThread, client: HttpClient) -> None:
    """Closes the connections on their loop, then ends the loop. Callable from any thread."""

    async def end() -> None:
        await client.close()
        thread.stop()

    thread.submit(end())


async def _streamed(operation: Any, stream: RunStream, tasks: BranchTasks, arguments: dict[str, Any]) -> None:
    """Runs an operation. An error before its first answer also ends the stream."""
    try:
        await operation(stream, tasks, **arguments)
    except asyncio.CancelledError:
        stream.end(SessionClosedError("the connection was closed"))
        raise
    except Exception as error:  # noqa: BLE001  # the reader raises it
        stream.end(error)


_WORDS = {
    "logprobs_uncached": "second, plain way to compute: its numbers are compared with those of a local model instead",
    "beam_generate": "beam search that can be followed here: sample with continue_many, or search on this machine",
}
