"""Nodes and sessions as fields of a file, turned into parts of an import."""

from __future__ import annotations

from typing import Any

from storage.records import MAX_TOKENS
from storage.text import clean
from storage.text import to_json as text_of_json
from storage.transfer.fields import Fields
from storage.transfer.folders import without_folders
from storage.transfer.growing import GrowingTree
from storage.transfer.parts import NODE_MORE, SESSION_MORE, NodePart, SessionPart


def session_part(fields: Fields) -> SessionPart:
    """The session's own fields."""
    return SessionPart(
        title=clean(fields.text("title")),
        created=fields.real("created"),
        updated=fields.real("updated"),
        pinned=fields.flag("pinned"),
        more=_more(fields, SESSION_MORE),
    )


def node_part(fields: Fields, tree: GrowingTree) -> NodePart:
    """A node that stands behind its parent; it is not in the tree yet.

    Raises:
        InvalidFileError: A field is missing or wrong, or there is no such place in the tree.
    """
    parent = tree.place(fields.maybe_whole("parent"), fields.fault, "its parent")
    at_token, at_byte = fields.maybe_whole("at_token", 0, MAX_TOKENS), fields.maybe_whole("at_byte")
    return NodePart(
        parent=parent,
        role=fields.text("role"),
        text=clean(fields.text("text")),
        at_token=at_token,
        at_byte=at_byte,
        at_end=tree.leaves_at_end(parent, at_token, at_byte, fields.fault),
        turn_start=fields.flag("turn_start"),
        status=fields.text("status"),
        finish_reason=_cleaned(fields.maybe_text("finish_reason")),
        token_count=fields.whole("token_count", 0, MAX_TOKENS),
        kv_fingerprint=_cleaned(fields.maybe_text("kv_fingerprint")),
        stats=text_of_json(without_folders(fields.mapping("stats"))),  # nor does another machine name folders of this one
        created=fields.real("created"),
        more=_more(fields, NODE_MORE),
    )


def _more(fields: Fields, known: frozenset[str]) -> dict[str, Any]:
    """Plain values of columns that this version knows beside those with a name in the format; others are left out."""
    found = {name: value for name, value in fields.mapping("more").items() if name in known}
    for name, value in found.items():
        if not isinstance(value, str | int | float | None):
            raise fields.fault(f"{name} in 'more' is no plain value")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise fields.fault(f"{name} in 'more' is too large a number")
    return {name: clean(value) if isinstance(value, str) else value for name, value in found.items()}


def _cleaned(text: str | None) -> str | None:
    return None if text is None else clean(text)
