"""Tool calls of a model, and their check against the definitions of the offered tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from runtime.errors import InvalidRequestError
from runtime.options.checking import nearest

CallFormat = Literal["auto", "hermes", "llama3", "mistral"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: data that a model wrote, to be checked before it is acted on.

    Attributes:
        name: The tool's name.
        arguments: Its arguments by name; plain JSON values.
        id: The id that the model wrote, or nine hexadecimal digits made from the call's text (mistral's templates want nine).
        span: Its place in the answer, markup included: the index of its first character, and of the one after its last.
            Calls in one list have the same span.
    """

    name: str
    arguments: dict[str, Any]
    id: str
    span: tuple[int, int] = field(default=(0, 0), compare=False)


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """An answer, split into text and calls.

    Attributes:
        text: The text before, between and after the calls, unchanged.
        calls: The calls, in the order written.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()

    def message(self) -> dict[str, Any]:
        """The assistant's message for `render_chat`. Results follow as messages of the role tool."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.calls:
            message["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


Definitions = Mapping[str, Mapping[str, Any]]  # a tool's parameters (JSON schema) by its name


def definitions_of(tools: Sequence[Mapping[str, Any]]) -> Definitions:
    """The tools by name, from ``{"type": "function", "function": {"name": ..., "parameters": ...}}``, or the inner part alone.

    Raises:
        InvalidRequestError: A definition has another shape, or two have one name; the message has the number of the tool.
    """
    found: dict[str, Mapping[str, Any]] = {}
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise InvalidRequestError(f"tools is a list of definitions, not {type(tools).__name__}")
    for number, tool in enumerate(tools, 1):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise InvalidRequestError(f"tool {number} has no name; write {{'type': 'function', 'function': {{'name': ...}}}}")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, Mapping) or not isinstance(parameters.get("required") or [], list | tuple):
            raise InvalidRequestError(f"tool {number} ({name}): parameters is a JSON schema, and its required a list of names")
        if name in found:
            raise InvalidRequestError(f"tool {number}: another one is called {name!r} too")
        found[name] = parameters
    return found


def fault_of(call: ToolCall, definitions: Definitions) -> str | None:
    """Why a call is invalid: an unknown name, or a missing required argument; None for a valid call."""
    if call.name not in definitions:
        return f"there is no tool {call.name[:60]!r}: {nearest(call.name, definitions)}"
    missing = [str(name) for name in definitions[call.name].get("required") or [] if name not in call.arguments]
    if missing:
        given = ", ".join(call.arguments) or "none"
        return f"{call.name} needs {', '.join(missing)} (given: {given[:200]})"
    return None
