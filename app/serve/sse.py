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
    """Each chunk as an event; ``[DONE]`` at the end where `done`.

    A fault after the first chunk is an event with an error, for the status has been sent; before it, it is raised.
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
