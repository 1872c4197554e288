"""Messages as OpenAI's chat API takes them, as a session: one path, a node each, no tokens yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from storage.errors import InvalidFileError
from storage.text import clean
from storage.transfer.fields import Fields
from storage.transfer.parts import EndPart, NodePart, Part, SessionPart

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
TITLE_CHARACTERS: Final = 60


class Messages:
    """One conversation that comes in message by message.

    Args:
        name: Of the file, for messages.
        stem: What the session is called where nobody says anything in it.
        title: What it is called; empty: the first words of the user.
    """

    def __init__(self, name: str, stem: str, *, title: str = "") -> None:
        self._name, self._stem, self._title = name, stem, clean(title).strip()
        self._count = 0
        self._waiting: list[NodePart] = []  # before the user has said something, by which the session is called

    def take(self, message: Any, line: int) -> Iterator[Part]:
        """One more."""
        self._count += 1
        fields = Fields(message, self._name, line, f"message {self._count:,}")
        role = fields.text("role")
        if role not in _ROLES:
            raise fields.fault(f"role {role!r:.40} cannot be kept, only {', '.join(_ROLES)}")
        if fields.any("tool_calls"):
            raise fields.fault("tool calls cannot be kept: leave them out")
        text = clean(_text(fields))
        node = NodePart(None if self._count == 1 else self._count - 2, _ROLES[role], text)
        if self._count == len(self._waiting) + 1:  # nothing was handed on yet
            self._waiting.append(node)
            if node.role == "user" or self._title or len(self._waiting) > 1:
                yield from self._begin()
        else:
            yield node

    def end(self, line: int | None) -> Iterator[Part]:
        """No more of them."""
        if not self._count:
            raise InvalidFileError(self._name, "there is no message in it", line=line)
        if self._waiting:
            yield from self._begin()
        yield EndPart(self._count - 1, 1)

    def _begin(self) -> Iterator[Part]:
        words = next((" ".join(node.text.split()) for node in self._waiting if node.role == "user"), "")
        yield SessionPart(self._title or words[:TITLE_CHARACTERS].strip() or clean(self._stem))
        yield from self._waiting
        self._waiting = []


def _text(fields: Fields) -> str:
    """The content: a text, or parts that are texts."""
    content = fields.any("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise fields.fault("its content should be a text, or a list of texts")
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind in ("text", "input_text", "output_text") and isinstance(part, dict) else None
        if not isinstance(text, str):
            raise fields.fault(f"a part of its content is no text but {kind or part!r:.40}: only texts can be kept")
        parts.append(text)
    return "".join(parts)
