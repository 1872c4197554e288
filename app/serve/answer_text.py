"""Splits the streamed text of a chat answer into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runtime import InvalidRequestError, ToolCall, ToolCallError, ToolCallReader, ToolCalls, parse_tool_calls

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
_DATA: Final = frozenset({"const", "enum", "default", "examples"})  # schema keywords whose values are data without references
_NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  # schemas by name


@dataclass(frozen=True, slots=True)
class Delta:
    """The new parts of an answer that are certain: later text cannot change them."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class AnswerReader:
    """Splits an answer while it streams.

    Args:
        tools: The definitions of the offered tools; None: calls stay text.
        thinking: Whether the prompt ends inside reasoning.
        forced: Whether a grammar makes the answer one call as a JSON object.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None, *, thinking: bool, forced: bool) -> None:
        self._reasoning = _ReasoningSplitter(thinking=thinking)
        self._reader = None if tools is None or forced else ToolCallReader(tools=tools)
        self._forced = forced
        self._held: list[str] = []  # text of a forced call
        self._read: list[str] = []  # content that the call reader got
        self._failed = False

    def feed(self, text: str) -> Delta:
        """Adds text of the answer; returns the parts that are certain."""
        reasoning, content = self._reasoning.feed(text)
        return self._parted(reasoning, content, ended=False)

    def finish(self, *, whole: bool) -> Delta:
        """Returns the rest at the end of the answer.

        Args:
            whole: Whether the answer ended by itself.
        """
        reasoning, content = self._reasoning.finish()
        if not self._forced:
            return self._parted(reasoning, content, ended=True)
        text = "".join((*self._held, content))
        if not whole:
            return Delta(reasoning, text)
        try:
            return Delta(reasoning, "", (_call_of(text),))
        except ToolCallError:  # repeated names in free parameters, which no grammar forbids
            return Delta(reasoning, text)

    def _parted(self, reasoning: str, content: str, *, ended: bool) -> Delta:
        if self._forced:
            self._held.append(content)
            return Delta(reasoning)
        if self._reader is None or self._failed:
            return Delta(reasoning, content)
        self._read.append(content)
        found = []
        try:
            found.append(self._reader.feed(content))
            if ended:
                found.append(self._reader.finish())
        except ToolCallError:  # not a valid call: stays text
            self._failed = True
            found += [self._reader.certain(), ToolCalls("".join(self._read)[self._reader.begun :], ())]
        text = "".join(each.text for each in found)
        return Delta(reasoning, text, tuple(call for each in found for call in each.calls))


def _call_of(text: str) -> ToolCall:
    """The call in an answer that a grammar forced, with an id like those of `ToolCallReader`.

    Raises:
        ToolCallError: There is none, or more than one.
    """
    calls = parse_tool_calls(text, "llama3").calls
    if len(calls) != 1:
        raise ToolCallError(f"the answer holds {len(calls)} calls, not one")
    return calls[0]


class _ReasoningSplitter:
    """Splits ``<think>...</think>`` at the beginning of an answer from its content; further on it is content."""

    def __init__(self, *, thinking: bool) -> None:
        self._state = "opened" if thinking else "start"
        self._rest = ""

    def feed(self, text: str) -> tuple[str, str]:
        """Adds text; returns the part that is certain, as (reasoning, content)."""
        if self._state == "content":
            return "", text
        self._rest += text
        if self._state == "start":
            begun = self._rest.lstrip()
            if OPEN.startswith(begun[: len(OPEN)]) and len(begun) < len(OPEN):
                return "", ""
            if not begun.startswith(OPEN):
                return "", self._leave()
            self._state, self._rest = "opened", begun[len(OPEN) :]
        if self._state == "opened":
            self._rest = self._rest.lstrip("\n")
            if not self._rest:
                return "", ""
            self._state = "inside"
        if self._state == "inside":
            before, close, after = self._rest.partition(CLOSE)
            if not close:
                held = next((n for n in range(len(CLOSE) - 1, 0, -1) if before.endswith(CLOSE[:n])), 0)
                self._rest = before[len(before) - held :]
                return before[: len(before) - held], ""
            self._state, self._rest = "gap", after
            return before, self._after_gap()
        return "", self._after_gap()

    def finish(self) -> tuple[str, str]:
        """The text that was held back, as (reasoning, content)."""
        rest, self._rest = self._rest, ""
        return (rest, "") if self._state == "inside" else ("", rest if self._state == "start" else "")

    def _after_gap(self) -> str:
        """The content after the blank lines that follow the reasoning."""
        self._rest = self._rest.lstrip("\n")
        return self._leave() if self._rest else ""

    def _leave(self) -> str:
        self._state = "content"
        rest, self._rest = self._rest, ""
        return rest


def forced_schema(tools: Sequence[Mapping[str, Any]], name: str | None) -> dict[str, Any]:
    """The JSON schema of a call.

    Args:
        tools: Definitions.
        name: The tool that must be called; None: any of them.

    Raises:
        InvalidRequestError: There is no such tool.
    """
    functions = [tool.get("function", tool) for tool in tools]
    offered = [each for each in functions if isinstance(each, dict) and (name is None or each.get("name") == name)]
    if not offered:
        asked = "asks for a function" if name is None else f"names {name!r:.60}"
        raise InvalidRequestError(f"tool_choice {asked}, which is none of the tools")
    forms, parameters = [], {}
    for number, function in enumerate(offered):
        place = f"parameters{number}"
        parameters[place] = _moved(function.get("parameters") or {"type": "object"}, f"#/$defs/{place}")
        properties = {"name": {"const": function.get("name")}, "parameters": {"$ref": f"#/$defs/{place}"}}
        required = ["name", "parameters"]
        forms.append({"type": "object", "properties": properties, "required": required, "additionalProperties": False})
    return {"$defs": parameters, **(forms[0] if len(forms) == 1 else {"anyOf": forms})}


def _moved(schema: Any, root: str) -> Any:
    """A schema for use inside another one, at the place `root`, to which its references are changed."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, Mapping) or not str(schema.get("$id", "#")).startswith("#"):
        return schema  # a schema with its own $id keeps its references
    moved: dict[str, Any] = {}
    for key, each in schema.items():
        if key in _NAMED and isinstance(each, Mapping):
            moved[key] = {name: _moved(one, root) for name, one in each.items()}
        else:
            moved[key] = each if key in _DATA else _moved(each, root)
    reference = moved.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        moved["$ref"] = root + reference[1:]
    return moved
