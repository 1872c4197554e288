"""The root of a path: system prompt, tools and pinned files. A root is never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from runtime import InvalidRequestError, RuntimeFault, ToolCallError, ToolCallReader, parse_tool_calls
from storage import NodeRow
from ui import TextFile, ToolCard, translate

TOOLS, FILES, LEFT_OUT, AS_TEXT = "tools", "files", "left_out", "as_text"  # keys in a root's stats


class Beginning(Struct, frozen=True):
    """The contents of a root; equal roots have equal beginnings."""

    system: str = ""
    tools: str = ""  # definitions as JSON
    files: tuple[TextFile, ...] = ()

    @classmethod
    def of(cls, root: NodeRow) -> Beginning:
        """Reads a stored root; invalid parts are left out."""
        tools, files = root.stats.get(TOOLS, ""), root.stats.get(FILES, ())
        return cls(root.text, tools if isinstance(tools, str) else "", tuple(_files(files)))

    @property
    def stats(self) -> dict[str, Any]:
        """The stored statistics of a root with these tools and files."""
        kept: dict[str, Any] = {TOOLS: self.tools} if self.tools.strip() else {}
        return kept | ({FILES: [[file.name, file.text] for file in self.files]} if self.files else {})

    @property
    def content(self) -> str:
        """The system message: the prompt, then the files."""
        return "\n\n".join([self.system] * bool(self.system) + [file_block(file) for file in self.files])


def file_block(file: TextFile) -> str:
    """A file as text for the model."""
    return f"[{file.name}]\n{file.text.rstrip()}\n[end of {file.name}]"


def left_out(stats: Mapping[str, Any]) -> int:
    """The number of turns that were left out before a root."""
    count = stats.get(LEFT_OUT, 0)
    return count if isinstance(count, int) else 0


def as_text(stats: Mapping[str, Any]) -> bool:
    """Whether a root begins a copy of another path as text without tokens."""
    return bool(stats.get(AS_TEXT))


def _files(stored: object) -> Sequence[TextFile]:
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return ()
    return [TextFile(*entry) for entry in stored if isinstance(entry, list) and [type(x) for x in entry] == [str, str]]


OPENERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
MOST_CHARACTERS = 1 << 17


def read_tools(source: str) -> list[dict[str, Any]]:
    """The tool definitions in a JSON list, or a single one; none for blank text.

    Raises:
        InvalidRequestError: It is not JSON, or not of that shape; names the number of the tool.
    """
    if not source.strip():
        return []
    if len(source) > MOST_CHARACTERS:
        words = translate("Workbench", "the definitions have {0:,} characters; at most {1:,} are read")
        raise InvalidRequestError(words.format(len(source), MOST_CHARACTERS))
    try:
        read = json.loads(source)
    except (ValueError, RecursionError) as fault:
        raise InvalidRequestError(translate("Workbench", "the definitions are not JSON: {0}").format(fault)) from fault
    tools = [read] if isinstance(read, Mapping) else read
    ToolCallReader(tools=tools)  # checks their shape
    return [dict(tool) if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def names_of(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of tools."""
    return [str(tool["function"]["name"]) for tool in tools]


def tools_at(root: NodeRow) -> list[dict[str, Any]]:
    """The tools of a stored root; none if they cannot be read."""
    try:
        return read_tools(Beginning.of(root).tools)
    except RuntimeFault:
        return []


def cards(text: str, tools: Sequence[Mapping[str, Any]]) -> tuple[ToolCard, ...]:
    """The tool calls in an answer, or one card with the reason why they cannot be read."""
    if not tools or not (text.lstrip().startswith("{") or any(opener in text for opener in OPENERS)):
        return ()
    try:
        found = parse_tool_calls(text, tools=tools)
    except ToolCallError as fault:
        return (ToolCard("", "", str(fault)),)
    return tuple(
        ToolCard(call.name, json.dumps(call.arguments, indent=2, ensure_ascii=False), span=call.span) for call in found.calls
    )
