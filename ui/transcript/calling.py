"""A call of a tool that is being written: where it begins, and what can be read of it so far. Nothing is ever executed."""

from __future__ import annotations

import re

OPENERS = ("<tool_call>", "<|python_tag|>", "[TOOL_CALLS]")  # of hermes, llama3, mistral
_NAME = re.compile(r'"name"\s*:\s*"([^"\\]{1,200})"')


def open_call(text: str) -> int | None:
    """Where in an answer that is being written its first call begins; None where nothing looks like one yet.

    An answer that begins with a brace is one, and so is the beginning of an opener at the end.
    """
    begin = len(text) - len(text.lstrip())
    if text[begin : begin + 1] == "{":
        return begin
    found = [at for opener in OPENERS if (at := text.find(opener)) >= 0]
    if found:
        return min(found)
    for opener in OPENERS:
        for length in range(min(len(opener) - 1, len(text)), 1, -1):
            if text.endswith(opener[:length]):
                return len(text) - length
    return None


def called_name(text: str) -> str:
    """The name in the last call of a text; "" where it was not written yet."""
    names = _NAME.findall(text)
    return str(names[-1]) if names else ""
