"""Answers as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec

from app.serve.errors import api_error
from runtime import RuntimeFault

DONE: Final = b"data: [DONE]\n\n"
Answer = msgspec.Struct | bytes | AsyncGenerator[bytes, None]
encoder: Final = msgspec.json.Encoder()


Chunk = TypeVar("Chunk", bound=msgspec.Struct)


async def events(chunks: AsyncGenerator[Chunk, None], *, done: bool) -> AsyncGenerator[bytes, None]:
    """Each chunk as an event, with ``[DONE]`` at the end if `done`.

    A fault before the first chunk is raised; later it becomes an event with an error, since the status has been sent.
    """
    begun = False
    async with aclosing(chunks) as each:
        try:
            async for chunk in each:
                yield b"data: " + encoder.encode(chunk) + b"\n\n"
                begun = True
        except RuntimeFault as fault:
            if not begun:
                raise
            yield b"data: " + api_error(fault).body() + b"\n\n"
    if done:
        yield DONE
