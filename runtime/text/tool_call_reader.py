"""Reads tool calls in a streamed answer: returns a call when it is complete, and text that cannot be part of one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, get_args

from runtime.errors import InvalidRequestError, ToolCallError
from runtime.options.checking import nearest
from runtime.text.strict_json import JsonError, ValueSpan, read_strictly
from runtime.text.tool_calls import CallFormat, ToolCall, ToolCalls, definitions_of, fault_of

_OPENERS = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
_CLOSE = "</tool_call>"
_NAMED = re.compile(r"\s*([^\s\[{]+)\s*(?:\[CALL_ID\]([^\[{]*))?(?:\[ARGS\])?\s*(?=\{)")  # mistral from 2025 on
_MAX_HEAD = 512  # characters between [TOOL_CALLS] and the arguments
_SHOWN = 200  # characters of a bad call that an error quotes
_MAX_NAME = 256  # characters
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALL = ("{", '"name"', ":", None, ",", ('"parameters"', '"arguments"'), ":")  # None: any string
_HEADS = (_CALL, ("{", '"type"', ":", '"function"', ",", *_CALL[1:]))


class ToolCallReader:
    """Splits an answer into text and calls while it streams.

    The formats: hermes ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` (Qwen, Hermes, SmolLM2 and 3), llama3
    ``{"name": ..., "parameters": {...}}`` as the whole answer or after ``<|python_tag|>``, several separated by ``;``; mistral
    ``[TOOL_CALLS] [{"name": ..., "arguments": {...}}]`` and ``[TOOL_CALLS]name[ARGS]{...}``. "auto" recognises each by its
    opening; an answer that begins with a brace but not like a call is text.

    Args:
        format: One of these, or "auto".
        tools: The definitions of the offered tools; a call that does not match them is an error.

    Attributes:
        begun: Where the open or malformed call begins, as an index of the characters fed.

    Raises:
        InvalidRequestError: The format is unknown, or definitions have another shape.
    """

    def __init__(self, format: CallFormat = "auto", *, tools: Sequence[Mapping[str, Any]] | None = None) -> None:  # noqa: A002  # the word callers expect
        if format not in get_args(CallFormat):
            raise InvalidRequestError(f"no tool call format {format!r}: {nearest(str(format), get_args(CallFormat))}")
        self._format = format
        self._definitions = None if tools is None else definitions_of(tools)
        self._openers = {o: name for name, o in _OPENERS.items() if format in ("auto", name)}
        self._bare = format in ("auto", "llama3")  # a brace may open a call
        self._state: Callable[[], bool] = self._start
        self._kind = ""  # format of the open call
        self._named: tuple[str, str | None] | None = None  # mistral's name and id before the arguments
        self._rest = ""
        self._fed = 0  # characters fed so far
        self.begun = 0
        self._gap: list[str] = []
        self._span = ValueSpan()
        self._text: list[str] = []
        self._calls: list[ToolCall] = []
        self._number = 1

    def feed(self, piece: str) -> ToolCalls:
        """Takes a piece of the answer; returns the text that is not part of a call, and the complete calls.

        Raises:
            ToolCallError: A call is malformed; the message has its number, the fault and a quotation.
        """
        self._rest += piece
        self._fed += len(piece)
        while self._state():
            pass
        return self.certain()

    def finish(self) -> ToolCalls:
        """Ends the answer; returns the rest of its text.

        Raises:
            ToolCallError: A call is not complete.
        """
        if self._state in (self._begin, self._value, self._close):
            self._fail("the answer ends before the call does")
        self._text += [*self._gap, self._rest]
        self._gap, self._rest = [], ""
        return self.certain()

    def certain(self) -> ToolCalls:
        """The text and calls that were not returned yet; after a `ToolCallError` those before the malformed call."""
        made = ToolCalls("".join(self._text), tuple(self._calls))
        self._text, self._calls = [], []
        return made

    # ---- states: each returns whether to run the next state on the rest ---------------------------------------

    def _start(self) -> bool:
        """At the start of the answer: only white space so far."""
        self._skip_space(self._text)
        if not self._rest:
            return False
        opens = is_call(self._rest) if self._bare and self._rest[0] == "{" else False
        if opens is None and self._format == "auto" and len(self._rest) <= _MAX_HEAD:
            return False
        if opens or (self._format == "llama3" and self._rest[0] == "{"):
            self._open("bare")
        else:
            self._state = self._outside
        return True

    def _outside(self) -> bool:
        """In text, outside calls."""
        found = min(((at, o) for o in self._openers if (at := self._rest.find(o)) >= 0), default=None)
        if found is None:
            held = max((_overlap(self._rest, opener) for opener in self._openers), default=0)
            cut = len(self._rest) - held
            self._text.append(self._rest[:cut])
            self._rest = self._rest[cut:]
            return False
        at, opener = found
        self._text.append(self._rest[:at])
        self._rest = self._rest[at + len(opener) :]
        self._open(self._openers[opener])
        return True

    def _open(self, kind: str) -> None:
        """Begins a call, whose opening (if it has one) was removed from the rest."""
        self.begun = self._fed - len(self._rest) - len(_OPENERS.get(kind, ""))
        self._kind, self._named, self._span, self._state = kind, None, ValueSpan(), self._begin

    def _begin(self) -> bool:
        """Between an opening and the JSON: white space, and mistral's name."""
        self._skip_space(None)
        if not self._rest:
            return False
        if self._kind == "mistral" and self._rest[0] not in "[{" and not self._head():
            return False
        if self._rest[0] != "{" and not (self._kind == "mistral" and self._rest[0] == "["):
            self._fail("a JSON object must follow", self._rest)
        self._state = self._value
        return True

    def _head(self) -> bool:
        """Reads mistral's name before the arguments; False while it is incomplete."""
        found = _NAMED.match(self._rest[: _MAX_HEAD + 1])
        if found is None:
            if len(self._rest) > _MAX_HEAD or "{" in self._rest:
                self._fail("neither a JSON list nor a name and arguments follow", self._rest)
            return False
        self._named = found[1], (found[2] or "").strip() or None
        self._rest = self._rest[found.end() :]
        return True

    def _value(self) -> bool:
        """Within the JSON of a call."""
        try:
            end = self._span.take(self._rest)
        except JsonError as fault:
            self._fail(str(fault), self._span.text + self._rest[:_SHOWN])
        if end is None:
            self._rest = ""
            return False
        self._rest = self._rest[end:]
        self._state = self._close if self._kind == "hermes" else self._complete
        return True

    def _close(self) -> bool:
        """Between hermes's JSON and its closing tag."""
        self._skip_space(None)
        if len(self._rest) < len(_CLOSE) and _CLOSE.startswith(self._rest):
            return False
        if not self._rest.startswith(_CLOSE):
            self._fail(f"{_CLOSE} must follow its JSON, not {self._rest[:20]!r}", self._span.text)
        self._rest = self._rest[len(_CLOSE) :]
        return self._complete()

    def _complete(self) -> bool:
        """Parses the complete JSON."""
        text = self._span.text
        try:
            value = read_strictly(text)
        except JsonError as fault:
            self._fail(str(fault), text)
        if self._named is not None:
            self._add({"name": self._named[0], "arguments": value, "id": self._named[1]}, text)
        else:
            for item in value if isinstance(value, list) else [value]:
                self._add(item, text)
        self._state = self._between if self._kind in ("bare", "llama3") else self._outside
        return True

    def _between(self) -> bool:
        """After a call of Llama 3: another call, or text."""
        self._skip_space(self._gap, also=";")
        if not self._rest:
            return False
        if self._rest[0] == "{":
            self._gap = []
            self._open("bare")
        else:
            self._text += self._gap
            self._gap, self._state = [], self._outside
        return True

    # ---- parts -----------------------------------------------------------------------------------------------

    def _skip_space(self, into: list[str] | None, also: str = "") -> None:
        """Removes white space, and the characters of `also`, from the rest; adds them to `into`."""
        after = self._rest.lstrip(f" \t\r\n{also}")
        if into is not None and len(after) < len(self._rest):
            into.append(self._rest[: len(self._rest) - len(after)])
        self._rest = after

    def _add(self, item: Any, text: str) -> None:
        if not isinstance(item, Mapping):
            self._fail(f"a call is an object with name and arguments, not a {type(item).__name__}", text)
        inner = item.get("function")
        function = inner if isinstance(inner, Mapping) else item
        name, arguments = function.get("name"), function.get("arguments", function.get("parameters"))
        if not isinstance(name, str) or not name.strip():
            self._fail("it has no name", text)
        if isinstance(arguments, str):  # JSON text, as in OpenAI's interface
            arguments = self._inner(arguments, text)
        if not isinstance(arguments, dict):
            what = "no arguments" if arguments is None else f"arguments that are a {type(arguments).__name__}, not an object"
            self._fail(f"{name[:60]} has {what}", text)
        given = item.get("id")
        made = hashlib.sha256(f"{self._number} {text}".encode()).hexdigest()[:9]
        span = self.begun, self._fed - len(self._rest)
        call = ToolCall(name, arguments, given if isinstance(given, str) and given else made, span)
        fault = None if self._definitions is None else fault_of(call, self._definitions)
        if fault is not None:
            self._fail(fault, text)
        self._calls.append(call)
        self._number += 1

    def _inner(self, arguments: str, text: str) -> Any:
        span = ValueSpan()
        stripped = arguments.strip()
        try:
            if stripped[:1] != "{" or span.take(stripped) != len(stripped):
                raise JsonError("the text given as arguments is no JSON object")
            return read_strictly(stripped)
        except JsonError as fault:
            self._fail(str(fault), text)

    def _fail(self, what: str, text: str | None = None) -> NoReturn:
        shown = (self._span.text + self._rest) if text is None else text
        quoted = f"{shown[:_SHOWN]!r}{' ...' if len(shown) > _SHOWN else ''}"
        error = ToolCallError(f"tool call {self._number}: {what}; the model wrote {quoted}")

        def again() -> NoReturn:
            raise error

        self._state = again
        self._calls = [call for call in self._calls if call.span[0] < self.begun]  # drops the earlier calls of the same list
        raise error


def parse_tool_calls(
    text: str,
    format: CallFormat = "auto",  # noqa: A002  # the word callers expect
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> ToolCalls:
    """The calls in a whole answer, and its text without them. Executes nothing.

    Args:
        text: The answer.
        format: How the model writes calls: "hermes", "llama3", "mistral", or "auto"; see `ToolCallReader`.
        tools: The definitions of the offered tools: a call of an unknown tool, or without a required argument, is an error.

    Raises:
        ToolCallError: A call is malformed, incomplete, or does not match `tools`; the message has its number, the fault and a
            quotation.
        InvalidRequestError: The format is unknown, definitions have another shape, or the answer is not a string.
    """
    if not isinstance(text, str):
        raise InvalidRequestError(f"an answer is a text, not {type(text).__name__}")
    reader = ToolCallReader(format, tools=tools)
    first, last = reader.feed(text), reader.finish()
    return ToolCalls(first.text + last.text, (*first.calls, *last.calls))


def _overlap(text: str, opener: str) -> int:
    """The number of characters at the text's end that could begin the opener."""
    longest = min(len(text), len(opener) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(opener[:n])), 0)


def is_call(text: str) -> bool | None:
    """Whether the text begins like ``{"name": ..., "parameters":``; None while it is too short to decide."""
    answers = [_follows(text, head) for head in _HEADS]
    if True in answers:
        return True
    return None if None in answers else False


def _follows(text: str, head: tuple[str | tuple[str, ...] | None, ...]) -> bool | None:
    at = 0
    for part in head:
        while at < len(text) and text[at].isspace():
            at += 1
        rest = text[at : at + _MAX_NAME]
        if part is None:
            string = _STRING.match(rest)
            if string is None:
                return None if rest[:1] in ("", '"') and len(rest) < _MAX_NAME else False
            at += string.end()
            continue
        options = (part,) if isinstance(part, str) else part
        found = next((option for option in options if rest.startswith(option)), None)
        if found is None:
            return None if any(option.startswith(rest) for option in options) else False
        at += len(found)
    return True
