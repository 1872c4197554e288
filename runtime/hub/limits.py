"""Limits on what a hub answers to a question: small, plain, and within minutes. In the child process only.

Files are not asked for by this client: their sizes are known (see `runtime.hub.parts`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx2
from huggingface_hub import get_session

MOST_BYTES = 32 << 20  # the list of a repository's files has some KB for each hundred
MOST_SECONDS = 120.0


def limit_answers() -> None:
    """From now on huggingface_hub's own client gives up, by `ValueError`, on an answer that is endless, packed or too slow."""
    client = get_session()
    hooks = client.event_hooks
    if _limited not in hooks["response"]:
        client.event_hooks = {"request": [*hooks["request"], _plain], "response": [*hooks["response"], _limited]}


def _plain(request: httpx2.Request) -> None:
    request.headers["Accept-Encoding"] = "identity"  # a packed answer has no size before it is unpacked


def _limited(response: httpx2.Response) -> None:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ValueError("it is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.SyncByteStream)
    response.stream = _Limited(response.stream)


class _Limited(httpx2.SyncByteStream):
    """A stream that ends in time."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        done, until = 0, time.monotonic() + MOST_SECONDS
        for chunk in self._stream:
            done += len(chunk)
            if done > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
            if time.monotonic() > until:
                raise ValueError(f"it takes longer than {MOST_SECONDS:g} s")
            yield chunk

    def close(self) -> None:
        self._stream.close()
