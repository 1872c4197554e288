"""Messages on an asyncio transport: groups in, groups out, never a blocking write."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from runtime.errors import RuntimeFault
from runtime.transport.frames import FrameParser, encode_group

_log = logging.getLogger(__name__)
_HIGH_WATER = 4 << 20  # bytes waiting to be sent above which `drained` waits


class Connection(asyncio.Protocol):
    """One end of the pipe. Everything here runs on its loop's thread.

    Args:
        on_group: Gets the payloads of each group that arrived. A `RuntimeFault` it raises ends the connection.
        on_lost: Called once when the pipe is closed, with the fault that ended it or None.
    """

    def __init__(self, on_group: Callable[[list[bytearray]], None], on_lost: Callable[[RuntimeFault | None], None]) -> None:
        self._on_group, self._on_lost = on_group, on_lost
        self._parser = FrameParser()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[bytes | memoryview] = deque()
        self._waiting_bytes = 0
        self._paused = False
        self._fault: RuntimeFault | None = None
        self._room = asyncio.Event()
        self._room.set()

    def post(self, payloads: Sequence[bytes]) -> None:
        """Sends encoded messages (none: nothing) as one group; after the pipe was closed they vanish.

        Raises:
            FrameError: One of them is too large.
        """
        if not payloads:
            return
        pieces = list(encode_group(payloads))
        if self._transport is None or self._transport.is_closing():
            return
        self._waiting.extend(pieces)
        self._waiting_bytes += sum(len(piece) for piece in pieces)
        self._pump()

    async def drained(self) -> None:
        """Returns when little enough waits to be sent: producers of streams call it between chunks."""
        await self._room.wait()

    def close(self) -> None:
        """Closes the pipe; `on_lost` follows."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # a stream socket's
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for group in self._parser.feed(data):
                self._on_group(group)
        except RuntimeFault as fault:
            _log.exception("the pipe carried something unreadable")
            self._fault = fault
            self.close()

    def eof_received(self) -> None:
        if not self._parser.idle:
            _log.warning("the pipe ended in the middle of a message")

    def connection_lost(self, exc: Exception | None) -> None:
        _log.debug("the pipe is closed: %r", exc)
        self._waiting.clear()
        self._room.set()
        self._on_lost(self._fault)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def _pump(self) -> None:
        while self._waiting and not self._paused and self._transport is not None:
            piece = self._waiting.popleft()
            self._waiting_bytes -= len(piece)
            self._transport.write(piece)  # may call pause_writing
        if self._waiting_bytes > _HIGH_WATER:
            self._room.clear()
        else:
            self._room.set()
