"""Files of JSON as parts of an import: our own format, and lists of messages as OpenAI's API takes them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from resources.files import open_regular
from storage.errors import InvalidFileError, StoreNewerError
from storage.records import MAX_TOKENS
from storage.text import clean
from storage.text import to_json as text_of_json
from storage.transfer import numbers
from storage.transfer.fields import Fields
from storage.transfer.folders import travelling
from storage.transfer.growing import GrowingTree
from storage.transfer.messages import Messages
from storage.transfer.nodes import node_part, session_part
from storage.transfer.parts import (
    FORMAT,
    NODE_FIELDS,
    SESSION_FIELDS,
    VERSION,
    ModelPart,
    NodePart,
    Part,
    SetupPart,
    TokensPart,
)
from storage.transfer.scanner import Piece, Scanner

_SESSION: Final = {*SESSION_FIELDS, "current", "setup", "more"}
STREAMED: Final = ("models", "nodes", "tokens", "messages")


class JsonFile:
    """A file of JSON that is read once, part by part.

    Args:
        path: Where it is; its name is the title of messages that have no other.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._stem = path.stem
        self._file = open_regular(path)
        self.total = os.fstat(self._file.fileno()).st_size  # bytes
        self._scanner = Scanner(self._file, self._name, STREAMED)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    @property
    def done(self) -> int:
        """Bytes that were read."""
        return self._scanner.done

    def parts(self) -> Iterator[Part]:
        """Everything in it, in the order in which it is to be written.

        Raises:
            InvalidFileError: It is not what it should be; the line and the node or message are named.
            StoreNewerError: Our own format, of a newer version.
        """
        pieces = self._scanner.pieces()
        messages: Messages | None = None  # of lines that are a message each
        found = False
        for piece in pieces:
            inner = piece if piece.kind == "list" else next(pieces)
            if messages is None and inner.kind == "list":
                yield from self._list(pieces)
            elif messages is None and inner.kind == "member" and inner.key == "format":
                yield from self._ours(inner, pieces)
            else:
                message = self._head(inner, pieces, started=messages is not None)
                if isinstance(message, dict):
                    messages = messages or Messages(self._name, self._stem)
                    yield from messages.take(message, piece.line)
                else:
                    yield from message
            found = True
        if messages is not None:
            yield from messages.end(None)
        if not found:
            raise InvalidFileError(self._name, "it is empty: there is nothing to import")

    # ---- messages -----------------------------------------------------------------------------------------------------

    def _list(self, pieces: Iterator[Piece]) -> Iterator[Part]:
        messages, piece = Messages(self._name, self._stem), None
        for piece in pieces:
            if piece.kind == "end":
                break
            yield from messages.take(piece.value, piece.line)
        yield from messages.end(piece.line if piece else None)

    def _head(self, first: Piece, pieces: Iterator[Piece], *, started: bool) -> dict[str, Any] | Iterator[Part]:
        """An object that is not in our format: one message (as it is), or an object with messages (as parts)."""
        members: dict[str, Any] = {}
        piece = first
        while piece.kind == "member":
            members[piece.key] = piece.value
            piece = next(pieces)
        if piece.kind == "items" and piece.key == "messages" and not started:
            return self._conversation(members.get("title"), pieces)
        if piece.kind == "end" and "role" in members:
            return members
        line, what = piece.line, "it is no session of ours ('format' comes first), no message and no object with messages"
        raise InvalidFileError(self._name, what, line=line)

    def _conversation(self, title: Any, pieces: Iterator[Piece]) -> Iterator[Part]:
        messages = Messages(self._name, self._stem, title=title if isinstance(title, str) else "")
        for piece in pieces:
            if piece.kind == "element" and piece.key == "messages":
                yield from messages.take(piece.value, piece.line)
            elif piece.kind == "end":
                yield from messages.end(piece.line)
                return

    # ---- our own format -----------------------------------------------------------------------------------------------

    def _ours(self, first: Piece, pieces: Iterator[Piece]) -> Iterator[Part]:
        if first.value != FORMAT:
            raise InvalidFileError(self._name, f"the format {first.value!r:.60} is not known, only {FORMAT!r}", line=first.line)
        self._check_version(next(pieces))
        tree, shown, begun, piece = GrowingTree(), None, False, first
        for piece in pieces:
            fields = Fields(piece.value if piece.kind == "element" else {}, self._name, piece.line, _place(piece))
            match piece.kind, piece.key:
                case "member", "session" if not begun:
                    fields = Fields(piece.value, self._name, piece.line, "the session", _SESSION)
                    shown, begun = fields.maybe_whole("current"), True
                    yield session_part(fields)
                    if setup := travelling(fields.mapping("setup")):  # whoever uses it takes what makes sense
                        yield SetupPart(text_of_json(setup))
                case "element", "models" if begun:
                    yield ModelPart(clean(fields.text("kv_fingerprint")), text_of_json(fields.mapping("info")))
                case "element", "nodes" if begun:
                    yield self._node(piece, tree)
                case "element", "tokens" if begun:
                    yield self._tokens(fields, tree)
                case ("items", "models" | "nodes" | "tokens") if begun:
                    pass
                case "end", _ if begun:
                    yield tree.end(shown, fields.fault)
                    return
                case "end", _:
                    raise InvalidFileError(self._name, "the session itself is missing", line=piece.line)
                case _:
                    raise InvalidFileError(self._name, f"{piece.key!r:.60} is not expected here", line=piece.line)

    def _check_version(self, piece: Piece) -> None:
        version = piece.value
        if piece.kind != "member" or piece.key != "version" or type(version) is not int or version < 1:
            raise InvalidFileError(self._name, "after the format comes its version, a number", line=piece.line)
        if version > VERSION:
            raise StoreNewerError(
                f"{self._name} has version {version!s:.20} of the format, this Elsewise reads up to {VERSION}; update the app"
            )

    def _node(self, piece: Piece, tree: GrowingTree) -> NodePart:
        fields = Fields(piece.value, self._name, piece.line, _place(piece), {*NODE_FIELDS, "id", "parent", "more"})
        key = fields.whole("id")
        named = Fields(piece.value, self._name, piece.line, f"node {key}")
        node = node_part(named, tree)
        tree.add(key, node, named.fault)
        return node

    def _tokens(self, fields: Fields, tree: GrowingTree) -> TokensPart:
        node = tree.place(fields.whole("node"), fields.fault, "node")
        assert node is not None  # it is a number
        try:
            found = numbers.from_json(fields.mapping("columns"))
        except ValueError as wrong:
            raise fields.fault(str(wrong)) from wrong
        first, count = fields.whole("first", 0, MAX_TOKENS), fields.whole("count", 1, MAX_TOKENS)
        return tree.tokens(node, clean(fields.text("kv_fingerprint")), first, count, found, fields.fault)


def _place(piece: Piece) -> str:
    return f"{piece.key} {piece.index + 1:,}" if piece.kind == "element" else ""
