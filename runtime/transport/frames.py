"""Frames: length-prefixed payloads, delivered in groups.

A frame is a mark byte, the payload's length (4 bytes, big endian) and the payload. The mark says whether more frames of
the same group follow; a group is delivered as a whole, so that calls made together arrive together.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from runtime.errors import RuntimeFault

_HEADER = struct.Struct(">BI")
_MORE, _LAST = 0x65, 0x45  # "e": more frames of this group follow; "E": the last one
MAX_PAYLOAD = 1 << 30  # bytes; the largest valid payload is a batch of full-vocabulary rows
MAX_GROUP = 1 << 17  # frames
PIECE = 1 << 20  # bytes written to the asyncio transport at once


class FrameError(RuntimeFault):
    """The bytes are not frames of this protocol."""


def encode_group(payloads: Iterable[bytes]) -> Iterator[bytes | memoryview]:
    """The bytes of one group (of several, beyond `MAX_GROUP`), in pieces of at most `PIECE`; small payloads share a piece.

    Raises:
        FrameError: A payload is larger than `MAX_PAYLOAD`.
    """
    held = bytearray()
    payloads = list(payloads)
    for i, payload in enumerate(payloads):
        if len(payload) > MAX_PAYLOAD:
            raise FrameError(f"a message of {len(payload):,} bytes cannot be sent, at most {MAX_PAYLOAD:,}; ask for less")
        mark = _LAST if i == len(payloads) - 1 or (i + 1) % MAX_GROUP == 0 else _MORE
        held += _HEADER.pack(mark, len(payload))
        if len(held) + len(payload) <= PIECE:
            held += payload
            continue
        yield bytes(held)
        held.clear()
        view = memoryview(payload)
        yield from (view[at : at + PIECE] for at in range(0, len(payload), PIECE))
    if held:
        yield bytes(held)


class FrameParser:
    """Finds groups in a stream of bytes that arrives in any portions.

    Memory grows with the received bytes, never with an announced length.
    """

    def __init__(self, *, max_payload: int = MAX_PAYLOAD, max_group: int = MAX_GROUP) -> None:
        self._max_payload, self._max_group = max_payload, max_group
        self._head = bytearray()
        self._body = bytearray()
        self._wanted: int | None = None  # payload bytes still to come; None while the header is incomplete
        self._last = False
        self._group: list[bytearray] = []

    def feed(self, data: bytes) -> list[list[bytearray]]:
        """The groups completed by `data`, each a list of payloads.

        Raises:
            FrameError: The bytes follow another protocol, or a payload or group exceeds its limit. The parser cannot be used
                afterwards.
        """
        groups: list[list[bytearray]] = []
        view, at = memoryview(data), 0
        while at < len(data):
            if self._wanted is None:
                take = min(_HEADER.size - len(self._head), len(data) - at)
                self._head += view[at : at + take]
                if len(self._head) == _HEADER.size:
                    self._open_frame()
            else:
                take = min(self._wanted, len(data) - at)
                self._body += view[at : at + take]
                self._wanted -= take
            at += take
            if self._wanted == 0:
                self._close_frame(groups)
        return groups

    @property
    def idle(self) -> bool:
        """Whether no group is incomplete, so that the stream can end here without loss."""
        return not self._head and not self._group and self._wanted is None

    def _open_frame(self) -> None:
        mark, length = _HEADER.unpack(self._head)
        if mark not in (_MORE, _LAST):
            raise FrameError(f"a frame cannot begin with byte 0x{mark:02x}: the other side does not speak this protocol")
        if length > self._max_payload:
            raise FrameError(f"a frame announces {length:,} bytes, more than the {self._max_payload:,} allowed")
        if len(self._group) >= self._max_group:
            raise FrameError(f"a group of more than {self._max_group:,} messages")
        self._last, self._wanted = mark == _LAST, length
        self._head.clear()

    def _close_frame(self, groups: list[list[bytearray]]) -> None:
        self._group.append(self._body)
        self._body, self._wanted = bytearray(), None
        if self._last:
            groups.append(self._group)
            self._group = []


_log = logging.getLogger(__name__)
HIGH_WATER = 4 << 20  # unsent bytes above which `drained` waits


class FrameConnection(asyncio.Protocol):
    """One end of the pipe. All methods run on its loop's thread.

    Args:
        on_group: Called with the payloads of each complete group. If it raises a `RuntimeFault`, the connection ends.
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
        """Sends encoded messages as one group (an empty list sends nothing); drops them if the pipe was closed.

        Raises:
            FrameError: A message is too large.
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
        """Waits until at most `HIGH_WATER` bytes are unsent; producers of streams call it between chunks."""
        await self._room.wait()

    def close(self) -> None:
        """Closes the pipe; `on_lost` is called afterwards."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # the transport of a stream socket
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
        if self._waiting_bytes > HIGH_WATER:
            self._room.clear()
        else:
            self._room.set()
