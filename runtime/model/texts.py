"""Between text and ids, for callers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import UnsupportedFeatureError
from runtime.language_model import Message
from runtime.model.core import Core
from runtime.text.chat import render_chat_ids, wants_bos
from runtime.text.formats import CHAT_FORMATS
from runtime.text.pieces import PieceMembers
from runtime.text.utf8 import clean_text


class TextMembers(Core, PieceMembers):
    """`tokenize`, `render_chat` and their twins; see `LanguageModel`."""

    def tokenize(self, text: str) -> list[int]:
        """Ids; a BOS in front where the model (or `add_bos`) asks for it."""
        tokenizer = self._text.tokenizer
        ids = tokenizer.encode(clean_text(text))
        bos = tokenizer.bos_token_id
        return [bos, *ids] if bos is not None and wants_bos(self._options, tokenizer) and ids[:1] != [bos] else ids

    async def tokenize_async(self, text: str) -> list[int]:
        """Off the loop: a long text takes a while."""
        return await asyncio.to_thread(self.tokenize, text)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Ids of a conversation."""
        if self._text.template is None:
            raise UnsupportedFeatureError(
                f"{self.info.name} has no chat template; load it with one (chat_format='chatml', or another of "
                f"{', '.join(CHAT_FORMATS)}; chat_template_file=...), or continue plain text (generate from tokenize(text))"
            )
        return render_chat_ids(
            self._text.tokenizer, self._text.template, messages, tools=tools, add_generation_prompt=add_generation_prompt
        )

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """Off the loop: the template runs in a child process."""
        return await asyncio.to_thread(self.render_chat, messages, tools=tools, add_generation_prompt=add_generation_prompt)
