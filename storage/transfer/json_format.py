"""Sessions as JSON: the export, and the import of our own format (see `storage.transfer`) and of OpenAI's lists of messages."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from resources.files import open_regular
from storage.errors import InvalidFileError, StoreNewerError
from storage.files import written
from storage.tables.text import clean, to_json
from storage.transfer import json_columns
from storage.transfer.import_tree import Fields, ImportTree, node_part, session_part, tokens_part
from storage.transfer.json_scanner import ScanEvent, Scanner
from storage.transfer.parts import (
    FORMAT,
    NODE_FIELDS,
    NODE_MORE,
    SESSION_FIELDS,
    SESSION_MORE,
    VERSION,
    EndPart,
    ImportPart,
    ModelPart,
    NodePart,
    SessionPart,
    SetupPart,
    portable_setup,
    without_folders,
)
from storage.transfer.session_reader import OnProgress, Row, StoredSession, stored_session

_SESSION: Final = {*SESSION_FIELDS, "current", "setup", "more"}
STREAMED: Final = ("models", "nodes", "tokens", "messages")
_USED: Final = frozenset({"title", "role", "content", "tool_calls"})  # members of other formats that are read
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
MOST_MEMBERS: Final = 1_000  # of an object of another format, before its messages
TITLE_CHARACTERS: Final = 60


def export_json(store: Path, session_id: int, path: Path, progress: OnProgress) -> None:
    """Writes a whole session. Blocking; callable from any thread.

    Args:
        store: The sessions file.
        session_id: The session.
        path: The target; replaced only by a complete export.
        progress: Called with nodes done and in all; each node counts twice, for itself and its tokens.

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of the session is damaged.
        StoreFullError, StoreReadOnlyError: `path` cannot be written.
    """
    with stored_session(store, session_id) as session:
        session.require_whole()
        with written(path) as file:
            file.write(f'{{"format": "{FORMAT}", "version": {VERSION},\n"session": '.encode())
            setup = portable_setup(session.setup())
            file.write(msgspec.json.encode(session_record(session.row) | ({"setup": setup} if setup else {})))
            _list(file, "models", map(model_record, session.models()))
            _list(file, "nodes", map(node_record, session.counted_nodes(progress)))
            _list(file, "tokens", _tokens(session, progress))
            file.write(b"}\n")


def session_record(row: Row) -> dict[str, Any]:
    """A row of the store as an object of the format."""
    return {
        "title": row["title"],
        "created": row["created"],
        "updated": row["updated"],
        "pinned": bool(row["pinned"]),
        "current": row["current_node"],
        "more": {name: row[name] for name in sorted(SESSION_MORE)},
    }


def model_record(row: Row) -> dict[str, Any]:
    """A row of the store as an object of the format."""
    return {"kv_fingerprint": row["kv_fingerprint"], "info": msgspec.json.decode(row["info"])}


def node_record(row: Row) -> dict[str, Any]:
    """A row of the store as an object of the format."""
    record = {"id": row["id"], "parent": row["parent_id"], **{name: row[name] for name in NODE_FIELDS}}
    return record | {
        "turn_start": bool(row["turn_start"]),
        "kv_fingerprint": row["kv_fingerprint"] if row["token_count"] else None,
        "stats": without_folders(msgspec.json.decode(row["stats"])),
        "more": {name: row[name] for name in sorted(NODE_MORE)},
    }


def _tokens(session: StoredSession, progress: OnProgress) -> Iterator[dict[str, Any]]:
    for row in session.counted_nodes(progress, session.node_count):
        for fingerprint, first, count, columns in session.ranges(row["id"]):
            head = {"node": row["id"], "kv_fingerprint": fingerprint, "first": first, "count": count}
            yield {**head, "columns": json_columns.to_json(columns)}


def _list(file: BinaryIO, name: str, records: Iterable[Any]) -> None:
    """Writes a member whose value is a list, one element per line."""
    file.write(f',\n"{name}": ['.encode())
    for number, record in enumerate(records):
        file.write(b",\n" if number else b"\n")
        file.write(msgspec.json.encode(record))
    file.write(b"]")


class JsonFile:
    """Reads a JSON file once, part by part.

    Args:
        path: The path of the file; its stem is the default title for messages.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._stem = path.stem
        self._file = open_regular(path)
        self.total = os.fstat(self._file.fileno()).st_size  # bytes
        self._scanner = Scanner(self._file, self._name, STREAMED)

    def close(self) -> None:
        self._file.close()

    @property
    def done(self) -> int:
        """Bytes read."""
        return self._scanner.done

    def parts(self) -> Iterator[ImportPart]:
        """All parts, in the order in which they are to be written.

        Raises:
            InvalidFileError: The file is invalid; the message has the line and the node or message.
            StoreNewerError: The file has our own format of a newer version.
        """
        events = self._scanner.events()
        messages: Messages | None = None  # for files with a message per line
        found = False
        for event in events:
            inner = event if event.kind == "list" else next(events)
            if messages is None and inner.kind == "list":
                yield from self._conversation(events)
            elif messages is None and inner.kind == "member" and inner.key == "format":
                yield from self._ours(inner, events)
            else:
                message = self._head(inner, events, started=messages is not None)
                if isinstance(message, dict):
                    messages = messages or Messages(self._name, self._stem)
                    yield from messages.take(message, event.line)
                else:
                    yield from message
            found = True
        if messages is not None:
            yield from messages.end(None)
        if not found:
            raise InvalidFileError(self._name, "it is empty: there is nothing to import")

    # ---- messages -----------------------------------------------------------------------------------------------------

    def _head(self, first: ScanEvent, events: Iterator[ScanEvent], *, started: bool) -> dict[str, Any] | Iterator[ImportPart]:
        """Reads an object of another format: returns a message as it is, or the parts of an object with messages."""
        members: dict[str, Any] = {}
        event, count = first, 0
        while event.kind == "member" and count < MOST_MEMBERS:
            count += 1
            if event.key in _USED:  # other members may be of any length
                members[event.key] = event.value
            event = next(events)
        if event.kind == "items" and event.key == "messages" and not started:
            return self._conversation(events, members.get("title"))
        if event.kind == "end" and "role" in members:
            return members
        line, what = event.line, "it is no session of ours ('format' comes first), no message and no object with messages"
        raise InvalidFileError(self._name, what, line=line)

    def _conversation(self, events: Iterator[ScanEvent], title: Any = None) -> Iterator[ImportPart]:
        """The session of a list of messages, or of the messages of an object."""
        messages = Messages(self._name, self._stem, title=title if isinstance(title, str) else "")
        for event in events:
            if event.kind == "element" and event.key in ("", "messages"):
                yield from messages.take(event.value, event.line)
            elif event.kind == "end":
                yield from messages.end(event.line)
                return

    # ---- our own format -----------------------------------------------------------------------------------------------

    def _ours(self, first: ScanEvent, events: Iterator[ScanEvent]) -> Iterator[ImportPart]:
        if first.value != FORMAT:
            raise InvalidFileError(self._name, f"the format {first.value!r:.60} is not known, only {FORMAT!r}", line=first.line)
        self._check_version(next(events))
        tree, shown, begun = ImportTree(), None, False
        for event in events:
            fields = Fields(event.value if event.kind == "element" else {}, self._name, event.line, _place(event))
            match event.kind, event.key:
                case "member", "session" if not begun:
                    fields = Fields(event.value, self._name, event.line, "the session", _SESSION)
                    shown, begun = fields.maybe_whole("current"), True
                    yield session_part(fields)
                    if setup := portable_setup(fields.mapping("setup")):  # validated where it is used
                        yield SetupPart(to_json(setup))
                case "element", "models" if begun:
                    yield ModelPart(fields.text("kv_fingerprint"), to_json(fields.mapping("info")))
                case "element", "nodes" if begun:
                    yield self._node(event, tree)
                case "element", "tokens" if begun:
                    yield tokens_part(fields, tree, partial(json_columns.from_json, fields.mapping("columns")))
                case ("items", "models" | "nodes" | "tokens") if begun:
                    pass
                case "end", _ if begun:
                    yield tree.end(shown, fields.fault)
                    return
                case "end", _:
                    raise InvalidFileError(self._name, "the session itself is missing", line=event.line)
                case _:
                    raise InvalidFileError(self._name, f"{event.key!r:.60} is not expected here", line=event.line)

    def _check_version(self, event: ScanEvent) -> None:
        version = event.value
        if event.kind != "member" or event.key != "version" or type(version) is not int or version < 1:
            raise InvalidFileError(self._name, "after the format comes its version, a number", line=event.line)
        if version > VERSION:
            raise StoreNewerError(
                f"{self._name} has version {version!s:.20} of the format, this Elsewise reads up to {VERSION}; update the app"
            )

    def _node(self, event: ScanEvent, tree: ImportTree) -> NodePart:
        fields = Fields(event.value, self._name, event.line, _place(event), {*NODE_FIELDS, "id", "parent", "more"})
        return node_part(Fields(event.value, self._name, event.line, f"node {fields.whole('id')}"), tree)


def _place(event: ScanEvent) -> str:
    return f"{event.key} {event.index + 1:,}" if event.kind == "element" else ""


class Messages:
    """Builds a session from a conversation, message by message.

    Args:
        name: The name of the file, for error messages.
        stem: The title of a session without a user message.
        title: The title of the session; empty: the first words of the user.
    """

    def __init__(self, name: str, stem: str, *, title: str = "") -> None:
        self._name, self._stem, self._title = name, stem, clean(title).strip()
        self._count = 0
        self._waiting: list[NodePart] = []  # nodes that wait until the title of the session is known

    def take(self, message: Any, line: int) -> Iterator[ImportPart]:
        self._count += 1
        fields = Fields(message, self._name, line, f"message {self._count:,}")
        role = fields.text("role")
        if role not in _ROLES:
            raise fields.fault(f"role {role!r:.40} cannot be kept, only {', '.join(_ROLES)}")
        if fields.any("tool_calls"):
            raise fields.fault("tool calls cannot be kept: leave them out")
        text = clean(_text(fields))
        node = NodePart(None if self._count == 1 else self._count - 2, _ROLES[role], text)
        if self._count == len(self._waiting) + 1:  # no part was yielded yet
            self._waiting.append(node)
            if node.role == "user" or self._title or len(self._waiting) > 1:
                yield from self._begin()
        else:
            yield node

    def end(self, line: int | None) -> Iterator[ImportPart]:
        if not self._count:
            raise InvalidFileError(self._name, "there is no message in it", line=line)
        if self._waiting:
            yield from self._begin()
        yield EndPart(self._count - 1, 1)

    def _begin(self) -> Iterator[ImportPart]:
        words = next((" ".join(node.text.split()) for node in self._waiting if node.role == "user"), "")
        yield SessionPart(self._title or words[:TITLE_CHARACTERS].strip() or clean(self._stem))
        yield from self._waiting
        self._waiting = []


def _text(fields: Fields) -> str:
    """The content of a message: a text, or the texts among its parts, joined."""
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
