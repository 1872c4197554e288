"""The engine process: requests in, a model's answers out.

The main thread runs the loop that reads, calls and writes; the model computes on threads of its own. Therefore beats are sent
while the model loads or steps, and the end of the pipe is noticed while the model is busy.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NoReturn

import msgspec

from runtime.api.language_model import LanguageModel
from runtime.backends.registry import register_backend
from runtime.branches import Branches
from runtime.dotted import resolve
from runtime.errors import InvalidRequestError, RuntimeFault
from runtime.loading.progress import LoadProgress, OnLoad, progress_listener
from runtime.options.checking import nearest
from runtime.records import TokenRun
from runtime.transport.arrays import ArrayError, pack_pieces, pack_run
from runtime.transport.frames import MAX_PAYLOAD, FrameConnection
from runtime.transport.messages import (
    EXIT_PROTOCOL,
    LOAD_ID,
    Beat,
    CallMessage,
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
    Result,
    Shutdown,
    StepMessage,
    decode_requests,
    encode,
    pack_fault,
)
from runtime.transport.methods import LARGE, METHODS

_log = logging.getLogger(__name__)
PUSH_SECONDS = 0.1  # between two pushes of counters while a call runs
_GROUP_BYTES = 1 << 20  # bytes of messages that are sent as one group
_ORPHAN_SECONDS = 0.5  # for the model to close when the parent has ended
_PARENT_SECONDS = 1.0  # between two checks whether the parent has ended
_SHUTDOWN_SECONDS = 1.5  # for the model to close when the parent asks; the parent's own limit is shorter


async def serve(pipe: socket.socket) -> NoReturn:
    """Serves one model over a connected socket; ends the process when the pipe closes."""
    loop = asyncio.get_running_loop()
    server = EngineServer(gc.freeze)  # full passes over the objects of torch and transformers would pause streams for 0.2 s
    await loop.create_connection(lambda: server.connection, sock=pipe)
    watch = loop.create_task(server.watch_parent(os.getppid()))  # a forked child of the parent may hold the pipe open
    code, grace = await server.over
    watch.cancel()
    await server.close_model(grace)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(code)  # at once, even if the owner thread is in a native library


class EngineServer:
    """Serves one model over one pipe. All members run on the loop's thread.

    Args:
        on_loaded: Called when the model is loaded, before the parent is told.
    """

    def __init__(self, on_loaded: Callable[[], None] = lambda: None) -> None:
        self._on_loaded = on_loaded
        self.connection = FrameConnection(self._on_group, self._on_lost)
        self.over: asyncio.Future[tuple[int, float]] = asyncio.get_running_loop().create_future()  # exit code, grace
        self._model: LanguageModel | None = None
        self._loading = False
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._branches: dict[int, Branches[TokenRun]] = {}  # by call, while they are read
        self._dropped: dict[int, set[int]] = {}  # branches that were dropped before they were read, by call
        self._background: set[asyncio.Task[None]] = set()
        self._outbox: list[bytes] = []
        self._news_due = False  # the outbox holds an answer, or the first chunk of a stream: counters must precede it
        self._pushed: Push | None = None
        self._pusher: asyncio.Task[None] | None = None

    async def watch_parent(self, parent: int) -> None:
        """Ends this process when the parent has ended, even if another process holds its end of the pipe."""
        while True:
            if os.getppid() != parent:
                self._end(0, _ORPHAN_SECONDS)
                return
            await asyncio.sleep(_PARENT_SECONDS)

    async def close_model(self, grace: float) -> None:
        """Closes the model, for `grace` seconds at most."""
        if self._model is None:
            return
        try:
            await asyncio.wait_for(asyncio.to_thread(self._model.close), grace)
        except TimeoutError:
            _log.warning("the model did not close within %.1f s", grace)
        except Exception:  # noqa: BLE001  # the border: nothing may keep this process alive
            _log.exception("the model could not be closed")

    # ---- incoming --------------------------------------------------------------------------------------------

    def _on_group(self, payloads: list[bytearray]) -> None:
        for request in decode_requests(payloads):
            match request:
                case Load():
                    if self._loading or self._model is not None:
                        raise MessageError("a second Load: one engine process serves one model")
                    self._loading = True
                    self._keep(asyncio.create_task(self._load(request)))
                    self._keep(asyncio.create_task(self._beat(request.beat_seconds)))
                case CallMessage():
                    if request.id in self._calls:
                        raise MessageError(f"a second call with id {request.id}")
                    answer = self._calls[request.id] = asyncio.create_task(self._answer(request))
                    answer.add_done_callback(partial(self._forget, request.id))  # runs even if it is cancelled at once
                    if self._pusher is None:
                        self._pusher = asyncio.create_task(self._push_while_busy())
                case Cancel():
                    if task := self._calls.get(request.id):
                        task.cancel()
                case Drop():
                    if branches := self._branches.get(request.id):
                        branches.drop(request.branch)
                    elif request.id in self._calls:
                        self._dropped.setdefault(request.id, set()).add(request.branch)
                case Shutdown():
                    self._end(0, _SHUTDOWN_SECONDS)

    def _on_lost(self, fault: RuntimeFault | None) -> None:
        self._end(EXIT_PROTOCOL if fault else 0, _ORPHAN_SECONDS)

    def _end(self, code: int, grace: float) -> None:
        if not self.over.done():
            self.over.set_result((code, grace))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- work ------------------------------------------------------------------------------------------------

    async def _load(self, request: Load) -> None:
        loop = asyncio.get_running_loop()

        def report(progress: LoadProgress) -> None:
            loop.call_soon_threadsafe(self._post, encode(Loading(progress)))

        try:
            model = await asyncio.to_thread(make_model, request, report)
            loaded = encode(await asyncio.to_thread(describe, model))
            self._on_loaded()
        except BaseException as error:  # noqa: BLE001  # the border: a Rust panic is a BaseException; the caller gets it all
            if not isinstance(error, RuntimeFault):  # the message of a RuntimeFault suffices, and goes to the caller
                _log.warning("loading %r failed", request.source, exc_info=error)
            self._post(encode(Failure(LOAD_ID, pack_fault(error))))
        else:
            self._model = model
            self._post(loaded)
        finally:
            self._loading = False

    async def _answer(self, call: CallMessage) -> None:
        try:
            payload = await self._perform(call)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            assert task is not None  # this runs in one
            if task.cancelling():  # cancelled by the caller, which waits no longer
                return
            payload = encode(Failure(call.id, pack_fault(error)))  # cancelled by the model: `reset_async_queries`
        except BaseException as error:  # noqa: BLE001  # the border: a Rust panic is a BaseException; the caller gets it all
            if not isinstance(error, RuntimeFault):
                _log.warning("%s failed", call.method, exc_info=error)
            payload = encode(Failure(call.id, pack_fault(error)))
        self._post(payload, news=True)

    def _forget(self, call: int, _: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._dropped.pop(call, None)

    async def _perform(self, call: CallMessage) -> bytes:
        method = METHODS.get(call.method)
        if method is None:
            raise InvalidRequestError(f"the engine has no method {call.method!r}: {nearest(call.method, METHODS)}")
        if self._model is None:
            raise InvalidRequestError(f"{call.method} was called before the model was loaded")
        try:
            arguments = method.read_arguments(call.arguments)
        except (MessageError, ArrayError) as mismatch:
            raise InvalidRequestError(f"{call.method}: {mismatch}") from mismatch
        if method.progresses:
            arguments["on_progress"] = lambda progress: self._post(encode(ProgressMessage(call.id, progress)))
        if method.steps and arguments.pop("watched"):
            arguments["on_step"] = lambda step: self._post(encode(StepMessage(call.id, step)))
        transport = self._model.transport
        if method.streams:
            await self._send_runs(call.id, transport.stream(call.method, **arguments))
            return encode(End(call.id))
        pieces = method.write_answer(await transport.call(call.method, **arguments))
        nbytes = sum(map(len, pieces))
        if nbytes > MAX_PAYLOAD:
            raise InvalidRequestError(
                f"the answer of {call.method} takes {nbytes:,} bytes, more than the {MAX_PAYLOAD:,} that cross the "
                "pipe at once; ask for fewer rows"
            )
        if nbytes <= LARGE:
            return encode(Result(call.id, msgspec.Raw(pieces[0])))
        for piece in pieces:
            for at in range(0, len(piece), LARGE):
                self._post(encode(PartMessage(call.id, piece[at : at + LARGE])))
                self._flush()
                await self.connection.drained()  # other calls are answered in between: a GiB takes seconds
        return encode(Result(call.id, msgspec.Raw(encode(None))))

    async def _send_runs(self, call: int, branches: Branches[TokenRun]) -> None:
        for branch in self._dropped.pop(call, ()):
            branches.drop(branch)
        self._branches[call] = branches
        first = True
        try:
            async with aclosing(branches):
                async for branch, run in branches:
                    chunk = ChunkMessage(call, pack_run(run), branch)
                    self._post(encode(chunk), news=first)  # counters of the prompt precede the first chunk
                    first = False
                    await self.connection.drained()
        finally:
            del self._branches[call]

    # ---- outgoing --------------------------------------------------------------------------------------------

    def _post(self, payload: bytes, *, news: bool = False) -> None:
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(payload)
        self._news_due |= news

    def _flush(self) -> None:
        """Sends the messages of one turn of the loop; new counters precede an answer and the beginning of a stream."""
        payloads, self._outbox = self._outbox, []
        if self._news_due:
            self._news_due = False
            payloads[:0] = self._news()
        for group in _groups(payloads):
            self.connection.post(group)

    def _news(self) -> list[bytes]:
        """The snapshots that changed since they were last pushed, as one message or none."""
        model = self._model
        if model is None:
            return []
        try:
            state = model.transport.state
            now = Push(state.info, state.metrics, state.cache)
            before, self._pushed = self._pushed, now
            changed = {name: new for name, new in msgspec.structs.asdict(now).items() if new != getattr(before, name, None)}
            return [encode(Push(**changed))] if changed else []
        except Exception:  # noqa: BLE001  # the border: counters are no reason to lose an answer
            _log.exception("the counters could not be read")
            return []

    async def _push_while_busy(self) -> None:
        busy = True
        while busy or self._calls:  # a call that arrives during the last round does not start another pusher
            busy = bool(self._calls)  # one more round after the last answer, for counters that change after it
            await asyncio.sleep(PUSH_SECONDS)
            self.connection.post(self._news())
        self._pusher = None

    async def _beat(self, seconds: float) -> None:
        while True:
            phase = "loading" if self._loading else "idle"
            beat = Beat(0, phase) if self._model is None else Beat(*self._model.transport.heartbeat())
            self.connection.post([encode(beat)])
            await asyncio.sleep(seconds)


def _groups(payloads: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Splits messages into groups of about `_GROUP_BYTES`, so that the reader need not buffer much before it has a group."""
    group: list[bytes] = []
    held = 0
    for payload in payloads:
        if group and held + len(payload) > _GROUP_BYTES:
            yield group
            group, held = [], 0
        group.append(payload)
        held += len(payload)
    yield group


def make_model(request: Load, on_progress: OnLoad | None = None) -> LanguageModel:
    """Loads the model by dotted names, in seconds to minutes; on a worker thread. `on_progress` is called on another thread."""
    for name, dotted in request.backends.items():
        register_backend(name, dotted)
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in request.options.items()}
    with progress_listener(on_progress):  # a loader of another package needs no parameter for it
        model: LanguageModel = resolve(request.loader)(request.source, request.backend, **options)
    return model


def describe(model: LanguageModel) -> Loaded:
    """The facts about a model that the parent process keeps, so that it need not ask again."""
    state, text = model.transport.state, model.transport.text
    return Loaded(
        info=state.info,
        metrics=state.metrics,
        cache=state.cache,
        eos_token_ids=text.eos_token_ids,
        chat_template=text.chat_template,
        byte_vocab=pack_pieces(text.byte_vocab),
        str_vocab=pack_pieces([piece.encode("utf-8", "surrogatepass") for piece in text.str_vocab()]),
        own_options=text.own_options,
        own_ends=text.own_ends,
    )
