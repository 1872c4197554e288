"""Tools that a session offers: definitions as JSON, and the calls a model wrote. Nothing is ever executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from app.workbench.setup.beginning import Beginning
from runtime import InvalidRequestError, RuntimeFault, ToolCallError, ToolCallReader, parse_tool_calls
from storage import NodeRow
from ui import ToolCard, translate

OPENERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
MOST_CHARACTERS = 1 << 17


def read_tools(source: str) -> list[dict[str, Any]]:
    """The definitions in a JSON list (or one alone); none for blank text.

    Raises:
        InvalidRequestError: It is no JSON, or not of that shape; the tool's number is named.
    """
    if not source.strip():
        return []
    if len(source) > MOST_CHARACTERS:
        words = translate("Workbench", "the definitions have {0:,} characters; at most {1:,} are read")
        raise InvalidRequestError(words.format(len(source), MOST_CHARACTERS))
    try:
        read = json.loads(source)
    except (ValueError, RecursionError) as fault:
        raise InvalidRequestError(translate("Workbench", "the definitions are no JSON: {0}").format(fault)) from fault
    tools = [read] if isinstance(read, Mapping) else read
    ToolCallReader(tools=tools)  # which looks at their shape
    return [dict(tool) if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def names_of(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """What they are called."""
    return [str(tool["function"]["name"]) for tool in tools]


def tools_at(root: NodeRow) -> list[dict[str, Any]]:
    """The tools that a stored root offers; none where that cannot be read."""
    try:
        return read_tools(Beginning.of(root).tools)
    except RuntimeFault:
        return []


def cards(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCard, ...]:
    """The calls in an answer; one that cannot be answered says why."""
    if not tools or not (text.lstrip().startswith("{") or any(opener in text for opener in OPENERS)):
        return ()
    try:
        found = parse_tool_calls(text, tools=tools)
    except ToolCallError as fault:
        return (ToolCard("", "", str(fault)),)
    return tuple(
        ToolCard(call.name, json.dumps(call.arguments, indent=2, ensure_ascii=False), span=call.span) for call in found.calls
    )
