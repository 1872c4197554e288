"""Between text and ids, over the pipe; what never changes is kept on this side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from runtime.client.arguments import plain_messages
from runtime.client.calls import Calls
from runtime.members.texts import Message
from runtime.text.pieces import PieceMembers
from runtime.text.utf8 import clean_text
from runtime.wire.arrays import unpack_pieces
from runtime.wire.messages import Loaded


class TextCalls(PieceMembers):
    """See `runtime.members.texts`.

    Args:
        calls: The way to the engine.
        loaded: What it said of its model.
    """

    def __init__(self, calls: Calls, loaded: Loaded) -> None:
        self._calls = calls
        self._first = loaded
        self._eos = frozenset(loaded.eos_token_ids)
        self._byte_vocab = unpack_pieces(loaded.byte_vocab)
        self._str_vocab = [text.decode("utf-8", "surrogatepass") for text in unpack_pieces(loaded.str_vocab)]

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._first.eos_token_ids

    @property
    def chat_template(self) -> str | None:
        return self._first.chat_template

    @property
    def str_vocab(self) -> list[str]:
        return list(self._str_vocab)

    def tokenize(self, text: str) -> list[int]:
        return cast("list[int]", self._calls.call_sync("tokenize_async", text=clean_text(text)))

    async def tokenize_async(self, text: str) -> list[int]:
        return cast("list[int]", await self._calls.call("tokenize_async", text=clean_text(text)))

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        return cast("list[int]", self._calls.call_sync("render_chat_async", **_chat(messages, tools, add_generation_prompt)))

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        return cast("list[int]", await self._calls.call("render_chat_async", **_chat(messages, tools, add_generation_prompt)))


def _chat(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, add_generation_prompt: bool
) -> dict[str, Any]:
    return {
        "messages": plain_messages(messages),
        "tools": None if tools is None else plain_messages(tools),
        "add_generation_prompt": add_generation_prompt,
    }
