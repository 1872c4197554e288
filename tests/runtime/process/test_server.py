"""The engine process's side, spoken to in its own messages."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest

from runtime.host import server as server_module
from runtime.host.server import Server
from runtime.wire.connection import Connection
from runtime.wire.frames import FrameParser, encode_group
from runtime.wire.messages import (
    EXIT_PROTOCOL,
    Beat,
    Call,
    Cancel,
    Chunk,
    End,
    Failure,
    Load,
    Loaded,
    Push,
    Reply,
    Result,
    Shutdown,
    decode_replies,
    encode,
)
from tests.runtime.process.conftest import LOADER, eventually, is_running

LOAD = Load("ready", "auto", {}, LOADER, {}, 0.05)


def _call(number: int, method: str, **arguments: Any) -> Call:
    return Call(number, method, msgspec.Raw(encode(arguments)))


class _Peer:
    """The caller's end of the pipe."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.lost = asyncio.Event()
        self.connection = Connection(lambda group: self.replies.extend(decode_replies(group)), lambda fault: self.lost.set())

    def send(self, *messages: object) -> None:
        self.connection.post([encode(message) for message in messages])

    async def until(self, kind: type, number: int | None = None) -> Any:
        """The first reply of that kind and number."""
        found: list[Reply] = []

        def look() -> bool:
            found[:] = [r for r in self.replies if isinstance(r, kind) and number in (None, getattr(r, "id", None))]
            return bool(found)

        await eventually(look)
        return found[0]


@asynccontextmanager
async def _server() -> AsyncIterator[tuple[Server, _Peer]]:
    """A server on this loop; nothing ends this process."""
    ours, theirs = socket.socketpair()
    server, peer = Server(), _Peer()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: server.connection, sock=theirs)
    await loop.create_connection(lambda: peer.connection, sock=ours)
    yield server, peer
    peer.connection.close()
    server.connection.close()
    await server.over


@contextmanager
def _process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A real engine process and the socket to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "runtime.host", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as process:
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()


def _say(pipe: socket.socket, *messages: object) -> None:
    pipe.sendall(b"".join(encode_group([encode(message) for message in messages])))


def _hear(pipe: socket.socket, kind: type) -> Any:
    parser = FrameParser()
    while data := pipe.recv(1 << 16):
        for group in parser.feed(data):
            for reply in decode_replies(group):
                if isinstance(reply, kind):
                    return reply
    raise AssertionError(f"no {kind.__name__} came")


def test_beats_say_what_goes_on() -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(Load("slow", "auto", {"context_length": 300}, LOADER, {}, 0.02))
            assert await peer.until(Beat) == Beat(0, "loading")
            await peer.until(Loaded)
            peer.send(_call(1, "complete", prompt="step", options=None))
            await eventually(lambda: Beat(7, "step") in peer.replies)

    asyncio.run(scenario())


def test_a_call_is_answered_with_its_number_and_the_counters_come_first() -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(_call(5, "next_token_logprobs", ids=[1]), _call(6, "tokenize_async", text="b"))
            assert msgspec.msgpack.decode((await peer.until(Result, 6)).value) == [1]
            kinds = [type(reply) for reply in peer.replies if not isinstance(reply, Beat)]
            assert kinds == [Loaded, Push, Result, Result]
            push = next(reply for reply in peer.replies if isinstance(reply, Push))
            assert push.metrics is not None
            assert push.metrics.queries == 1

    asyncio.run(scenario())


def test_counters_that_did_not_change_are_not_sent_again() -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            for number in range(1, 5):
                peer.send(_call(number, "tokenize_async", text="b"))
                await peer.until(Result, number)
            assert sum(isinstance(reply, Push) for reply in peer.replies) == 1

    asyncio.run(scenario())


def test_a_stream_is_chunks_then_counters_then_its_end() -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(_call(9, "generate_runs", ids=[0], options=None))
            await peer.until(End, 9)
            assert sum(isinstance(reply, Chunk) for reply in peer.replies) == 8
            kinds = [type(reply) for reply in peer.replies if not isinstance(reply, Beat)]
            last_push = max(place for place, kind in enumerate(kinds) if kind is Push)
            last_push_message = [reply for reply in peer.replies if isinstance(reply, Push)][-1]
            assert last_push < kinds.index(End)
            assert last_push_message.metrics is not None
            assert last_push_message.metrics.tokens_computed == 8

    asyncio.run(scenario())


def test_a_cancelled_call_gets_no_answer() -> None:
    async def scenario() -> None:
        async with _server() as (server, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(_call(1, "generate_runs", ids=[3], options=None))
            await peer.until(Chunk, 1)
            peer.send(Cancel(1), Cancel(77))
            await eventually(lambda: not server._calls)
            peer.send(_call(2, "complete", prompt="state", options=None))
            state = json.loads(msgspec.msgpack.decode((await peer.until(Result, 2)).value))
            assert state["cancelled"] == 1
            assert not [reply for reply in peer.replies if isinstance(reply, End | Failure)]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (_call(1, "close"), "no method 'close'"),
        (_call(1, "__class__"), "no method '__class__'"),
        (_call(1, "tokenise_async", text="a"), "did you mean 'tokenize_async'"),
        (_call(1, "tokenize_async", text=5), "text"),
        (_call(1, "tokenize_async"), "text"),
        (_call(1, "tokenize_async", text="a", more=1), "more"),
        (_call(1, "next_token_logprobs", ids=["a"]), "ids"),
        (_call(1, "generate_runs", ids=[1], options={"sampling": 5}), "sampling"),
    ],
)
def test_what_is_not_on_the_list_cannot_be_called(call: Call, reason: str) -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(call)
            fault = (await peer.until(Failure, 1)).fault
            assert fault.kind == "InvalidRequestError"
            assert reason in fault.message

    asyncio.run(scenario())


def test_a_call_before_the_load_is_refused() -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(_call(1, "tokenize_async", text="a"))
            assert "before the model was loaded" in (await peer.until(Failure, 1)).fault.message

    asyncio.run(scenario())


@pytest.mark.parametrize("loader", ["no colon", "missing.module:load", "runtime:missing", ":", "json:"])
def test_a_loader_that_is_not_there_is_told(loader: str) -> None:
    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(msgspec.structs.replace(LOAD, loader=loader))
            fault = (await peer.until(Failure, 0)).fault
            assert fault.kind == "InvalidRequestError"
            assert repr(loader) in fault.message

    asyncio.run(scenario())


def test_an_answer_too_large_for_the_pipe_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_PAYLOAD", 1000)

    async def scenario() -> None:
        async with _server() as (_, peer):
            peer.send(LOAD)
            await peer.until(Loaded)
            peer.send(_call(1, "complete", prompt="large 2000", options=None))
            fault = (await peer.until(Failure, 1)).fault
            assert fault.kind == "InvalidRequestError"
            assert "more than the 1,000 that cross the pipe at once; ask for fewer rows" in fault.message

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "messages",
    [
        [LOAD, LOAD],
        [_call(1, "complete", prompt="hold", options=None), _call(1, "complete", prompt="hold", options=None)],
        [Beat(1, "idle")],
    ],
    ids=["second load", "same number twice", "a reply"],
)
def test_a_caller_that_breaks_the_protocol_is_left(messages: list[object]) -> None:
    async def scenario() -> None:
        async with _server() as (server, peer):
            peer.send(*messages)
            assert (await server.over)[0] == EXIT_PROTOCOL
            await peer.lost.wait()

    asyncio.run(scenario())


def test_shutdown_and_a_closed_pipe_end_without_a_fault() -> None:
    async def scenario() -> None:
        async with _server() as (server, peer):
            peer.send(Shutdown())
            assert (await server.over)[0] == 0
        async with _server() as (server, peer):
            peer.connection.close()
            assert (await server.over)[0] == 0

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"E\xff\xff\xff\xff",
        b"E\x00\x00\x00\x03abc",
        b"E\x00\x00\x00\x00",
        b"".join(encode_group([encode({"type": "load"})])),
    ],
    ids=["http", "4 GiB", "no msgpack", "empty", "fields missing"],
)
def test_garbage_ends_the_process_with_a_code_of_its_own(data: bytes) -> None:
    with _process() as (process, pipe):
        pipe.sendall(data)
        assert process.wait(30) == EXIT_PROTOCOL


@pytest.mark.parametrize("busy", ["idle", "streaming", "step", "loading", "stubborn", "truncated"])
def test_the_process_ends_with_its_parent(busy: str) -> None:
    with _process() as (process, pipe):
        if busy == "loading":
            _say(pipe, msgspec.structs.replace(LOAD, source="hang"))
            assert _hear(pipe, Beat).phase == "loading"
        else:
            _say(pipe, LOAD)
            _hear(pipe, Loaded)
        if busy == "streaming":
            _say(pipe, _call(1, "generate_runs", ids=[3], options=None))
            _hear(pipe, Chunk)
        elif busy in ("step", "stubborn"):
            _say(pipe, _call(1, "complete", prompt=busy, options=None))
            _hear(pipe, Beat)
        elif busy == "truncated":
            pipe.sendall(b"E\x00\x00\x10\x00abc")
        pipe.close()
        assert process.wait(30) == 0


def test_the_process_ends_when_its_parent_is_killed() -> None:
    """Given a program with an engine, when the program is killed, then no engine stays behind."""
    program = (
        "import asyncio; from runtime.client import spawn\n"
        f"client = asyncio.run(spawn('ready', loader={LOADER!r}))\n"
        "print(client.pid, flush=True)\n"
        "for record in client.generate_sync([3]): pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        assert is_running(engine)
        parent.send_signal(signal.SIGKILL)
        parent.wait(30)
    asyncio.run(eventually(lambda: not is_running(engine)))


def test_by_hand_it_says_how_it_is_started() -> None:
    done = subprocess.run([sys.executable, "-m", "runtime.host"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "started by runtime.spawn" in done.stderr
