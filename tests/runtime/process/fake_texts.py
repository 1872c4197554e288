"""Text of the model that computes nothing: a letter is a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runtime import Message
from tests.runtime.process.fake_answers import EOS, VOCAB


class FakeTexts:
    """What a chat becomes are four numbers that say what was asked for."""

    def tokenize(self, text: str) -> list[int]:
        return [ord(letter) - 97 for letter in text]

    async def tokenize_async(self, text: str) -> list[int]:
        return self.tokenize(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return b"".join(VOCAB[token] for token in ids).decode(errors="replace")

    async def detokenize_async(self, ids: Sequence[int]) -> str:
        return self.detokenize(ids)

    def decode_token(self, token_id: int) -> bytes:
        return VOCAB[token_id]

    def is_eos(self, token_id: int) -> bool:
        return token_id == EOS

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        return [len(messages), len(tools or []), int(add_generation_prompt), len(messages[0]["content"])]

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        return self.render_chat(messages, tools=tools, add_generation_prompt=add_generation_prompt)
