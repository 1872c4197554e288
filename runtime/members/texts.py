"""Between text and ids: the vocabulary, tokenising, conversations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates take them


class TextMembers(Protocol):
    """Members of `LanguageModel` that compute nothing of the model's."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text, in the order of the model's configuration."""

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template in force; None where there are no roles."""

    @property
    def byte_vocab(self) -> list[bytes]:
        """The exact bytes of every id, ``vocab_size`` entries; empty bytes where an id has none (padding)."""

    @property
    def str_vocab(self) -> list[str]:
        """The text of every id, ``vocab_size`` entries; bytes that are not UTF-8 alone show as U+FFFD."""

    def tokenize(self, text: str) -> list[int]:
        """The ids of `text`; special strings in it stay plain text. Blocking."""

    async def tokenize_async(self, text: str) -> list[int]:
        """`tokenize`, awaited."""

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. Never blocks."""

    async def detokenize_async(self, ids: Sequence[int]) -> str:
        """`detokenize`, awaited."""

    def decode_token(self, token_id: int) -> bytes:
        """The exact bytes of one id; never blocks."""

    def is_eos(self, token_id: int) -> bool:
        """Whether the id ends a text; never blocks."""

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The ids of a conversation by the chat template in force (`LoadOptions.chat_format`). Blocking.

        Content never becomes control tokens, whatever it spells.

        Args:
            messages: Each with a role (system, user, assistant, tool) and content. An assistant's may have `tool_calls`, as
                `ToolCalls.message` makes them; the results follow as messages of the role tool.
            tools: Definitions: ``{"type": "function", "function": {"name": ..., "parameters": <JSON schema>}}``.
            add_generation_prompt: Whether the header of the answer follows.

        Raises:
            UnsupportedFeatureError: There is no chat template, or tools are given and it would drop them.
            InvalidRequestError: A message or tool of the wrong shape; the template refuses them, or took too long.
        """

    async def render_chat_async(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """`render_chat`, awaited."""
