"""What a model asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

CallFormat = Literal["auto", "hermes", "llama3", "mistral"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: data that a model wrote, to be checked before anybody acts on it.

    Attributes:
        name: Of the tool.
        arguments: By name; plain JSON values.
        id: The model's own, or nine hexadecimal digits made from what it wrote (mistral's templates want nine).
        span: Where in the answer it stands with all that belongs to it: its first character, and the one after its last.
            Calls that were written as one list have one span.
    """

    name: str
    arguments: dict[str, Any]
    id: str
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """An answer taken apart.

    Attributes:
        text: What is no part of a call, before, between and after; as the model wrote it.
        calls: In the order written.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """The assistant's message for `render_chat`; the results follow as messages of the role tool."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message
