"""The engine's pipe without a client: a server on the test's own event loop, or a process with a bare socket."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import numpy as np

from runtime.transport.arrays import Array, pack_array
from runtime.transport.frames import FrameConnection, FrameParser, encode_group
from runtime.transport.messages import (
    CallMessage,
    Load,
    Reply,
    decode_replies,
    encode,
)
from runtime.transport.server import EngineServer
from tests.runtime.process.conftest import LOADER, eventually

LOAD = Load("ready", "auto", {}, LOADER, {}, 0.05)


def call(number: int, method: str, **arguments: Any) -> CallMessage:
    return CallMessage(number, method, msgspec.Raw(encode(arguments)))


def ids(*tokens: int) -> Array:
    """Token ids in their form on the pipe."""
    return pack_array(np.array(tokens, np.int32))


def told(number: int, command: str) -> CallMessage:
    """A command to the fake model."""
    messages = [{"role": "command", "content": command}]
    return call(number, "render_chat", messages=messages, tools=None, add_generation_prompt=True)


class Peer:
    """The caller's end of the pipe."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.lost = asyncio.Event()
        self.connection = FrameConnection(
            lambda group: self.replies.extend(decode_replies(group)), lambda fault: self.lost.set()
        )

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
async def serving() -> AsyncIterator[tuple[EngineServer, Peer]]:
    """A server on this event loop, which does not end this process."""
    ours, theirs = socket.socketpair()
    server, peer = EngineServer(), Peer()
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: server.connection, sock=theirs)
    await loop.create_connection(lambda: peer.connection, sock=ours)
    yield server, peer
    peer.connection.close()
    server.connection.close()
    await server.over


@contextmanager
def engine_process() -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A real engine process and the socket to it."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-P", "-m", "runtime.transport", str(theirs.fileno())]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as process:
        theirs.close()
        try:
            yield process, ours
        finally:
            process.kill()


def say(pipe: socket.socket, *messages: object) -> None:
    pipe.sendall(b"".join(encode_group([encode(message) for message in messages])))


def hear(pipe: socket.socket, kind: type) -> Any:
    parser = FrameParser()
    while data := pipe.recv(1 << 16):
        for group in parser.feed(data):
            for reply in decode_replies(group):
                if isinstance(reply, kind):
                    return reply
    raise AssertionError(f"no {kind.__name__} came")
