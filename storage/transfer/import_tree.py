"""Checks imported records: the fields of a file, and a tree to which nodes and token ranges are added."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Collection
from typing import Any, Final, get_args

import numpy as np

from storage.errors import InvalidFileError, InvalidRowError, StoreDamagedError, StoreError
from storage.rows import Columns, Role, Status
from storage.tables import columns
from storage.tables.text import clean, to_json
from storage.tables.token_chunks import MAX_TOKENS
from storage.transfer.parts import NODE_MORE, SESSION_MORE, EndPart, NodePart, SessionPart, TokensPart, without_folders

MOST_NODES: Final = 1 << 24
MOST_AT_ONCE: Final = 1 << 16  # tokens of one range; exports write shorter ones (`session_reader.PIECE`)
_ROLES, _STATUSES = get_args(Role), frozenset(get_args(Status)) - {"open"}

Fault = Callable[[str], StoreError]  # makes an error that names the place


MOST: Final = (1 << 63) - 1  # SQLite's largest whole number


class Fields:
    """An object of a file, with checked access to its fields.

    Args:
        value: The decoded object.
        name: The name of the file.
        line: The line where the object begins.
        place: Description of the object, for messages.
        known: Allowed names; None: any.
    """

    def __init__(self, value: Any, name: str, line: int | None, place: str, known: Collection[str] | None = None) -> None:
        self._name, self._line, self._place = name, line, place
        if not isinstance(value, dict):
            raise self.fault(f"it should be an object, not {_kind(value)}")
        self._value: dict[str, Any] = value
        unknown = [each for each in value if known is not None and each not in known]
        if unknown:
            raise self.fault(f"{unknown[0]!r:.60} is no field of it")

    def fault(self, what: str) -> InvalidFileError:
        """The error `what`, with the place of the object."""
        return InvalidFileError(self._name, what, line=self._line, place=self._place)

    def text(self, field: str) -> str:
        """A text, cleaned."""
        found = self._need(field)
        if not isinstance(found, str):
            raise self.fault(f"{field} should be a text, not {_kind(found)}")
        return clean(found)

    def maybe_text(self, field: str) -> str | None:
        """A text, or None if missing or null."""
        return None if self._value.get(field) is None else self.text(field)

    def whole(self, field: str, low: int = 0, high: int = MOST) -> int:
        """A whole number within a range."""
        found = self._need(field)
        if isinstance(found, bool) or not isinstance(found, int):
            raise self.fault(f"{field} should be a whole number, not {_kind(found)}")
        if not low <= found <= high:
            shown = str(found) if abs(found) < 10**20 else "a number of more than 20 digits"
            raise self.fault(f"{field} should lie within {low:,} and {high:,}, it is {shown}")
        return found

    def maybe_whole(self, field: str, low: int = 0, high: int = MOST) -> int | None:
        """A whole number within a range, or None if missing or null."""
        return None if self._value.get(field) is None else self.whole(field, low, high)

    def real(self, field: str) -> float:
        """A finite number."""
        found = self._need(field)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.fault(f"{field} should be a number, not {_kind(found)}")
        if abs(found) > 1e300 or not math.isfinite(found):
            raise self.fault(f"{field} is too large a number")
        return float(found)

    def moment(self, field: str) -> float:
        """Seconds since the epoch, clamped to the range from the epoch to now."""
        return min(max(self.real(field), 0.0), time.time())

    def flag(self, field: str) -> bool:
        """True or false."""
        found = self._need(field)
        if not isinstance(found, bool):
            raise self.fault(f"{field} should be true or false, not {_kind(found)}")
        return found

    def mapping(self, field: str) -> dict[str, Any]:
        """An object; empty if missing."""
        found = self._value.get(field, {})
        if not isinstance(found, dict):
            raise self.fault(f"{field} should be an object, not {_kind(found)}")
        return found

    def any(self, field: str) -> Any:
        """Any value; None if missing."""
        return self._value.get(field)

    def _need(self, field: str) -> Any:
        if field not in self._value:
            raise self.fault(f"{field} is missing")
        return self._value[field]


def _kind(value: object) -> str:
    """The kind of a value, in words."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {value!r:.40}"
        case dict():
            return "an object"
        case list():
            return "a list"
        case bytes():
            return "bytes"
    return "a number"


class ImportTree:
    """A few numbers of each node of an imported session, for checks.

    Nodes have keys in the file; the tree numbers them from 0.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # key -> number
        self._counts = array("q")  # tokens of each node
        self._held = array("q")  # tokens of each node that were read
        self._lengths = array("q")  # bytes of each node's text
        self._goes_on = bytearray()  # for each node, whether another node continues it at its end
        self._models: list[str | None] = []
        self._others: dict[tuple[int, str], int] = {}  # tokens under other models

    def __len__(self) -> int:
        return len(self._counts)

    def place(self, key: int | None, fault: Fault, what: str) -> int | None:
        """The number of the node with a key; None stays None."""
        if key is None:
            return None
        if key not in self._places:
            raise fault(f"{what} {key} is not among the nodes before it: an orphan, a circle, or in the wrong order")
        return self._places[key]

    def add(self, key: int, node: NodePart, fault: Fault) -> None:
        if key in self._places:
            raise fault(f"there is another node {key}")
        if len(self) >= MOST_NODES:
            raise fault(f"there are more than {MOST_NODES:,} nodes")
        if node.role not in _ROLES or node.status not in _STATUSES:
            raise fault(f"role {node.role!r:.40} with status {node.status!r:.40} is not one that is known")
        if bool(node.token_count) != (node.kv_fingerprint is not None):
            raise fault(f"{node.token_count} tokens of the model {node.kv_fingerprint!r:.40}: give both or neither")
        if node.parent is not None and node.at_end:
            self._goes_on[node.parent] = 1
        self._places[key] = len(self)
        self._counts.append(node.token_count)
        self._held.append(0)
        self._lengths.append(len(node.text.encode()))
        self._goes_on.append(0)
        self._models.append(node.kv_fingerprint)

    def leaves_at_end(self, parent: int | None, at_token: int | None, at_byte: int | None, fault: Fault) -> bool:
        """Whether a node continues its parent at the parent's end; refuses a place beyond the parent."""
        if parent is None:
            if at_token is not None or at_byte is not None:
                raise fault("a node without a parent leaves none at a token")
            return True
        if at_token is not None and at_token > self._counts[parent]:
            raise fault(f"its parent has {self._counts[parent]:,} tokens, token {at_token:,} is not among them")
        if at_byte is not None and at_byte > self._lengths[parent]:
            raise fault(f"its parent has {self._lengths[parent]:,} bytes, byte {at_byte:,} is not among them")
        return at_token is None or at_token == self._counts[parent]

    def tokens(self, node: int, fingerprint: str, first: int, count: int, found: Columns, fault: Fault) -> TokensPart:
        """A range of tokens, checked and packed."""
        if count < 1 or first + count > MAX_TOKENS:
            raise fault(f"{count:,} tokens from {first:,} are no range (1 to {MAX_TOKENS:,} in a node)")
        own = fingerprint == self._models[node]
        held = self._held[node] if own else self._others.get((node, fingerprint), 0)
        if first > held:
            raise fault(f"tokens {held:,} to {first:,} of the node are missing")
        if own and first + count > self._counts[node]:
            raise fault(f"the node has {self._counts[node]:,} tokens, not {first + count:,}")
        if not own and self._models[node] is None:
            raise fault("the node has no tokens of a model of its own")
        if "ids" not in found:
            raise fault("the column 'ids' is missing")
        try:
            columns.check(found, count)
            check_known(found)
            packed, summary = columns.encode(found), columns.summary(found, count)
        except (InvalidRowError, ValueError, IndexError, OverflowError, MemoryError) as wrong:
            raise fault(str(wrong)) from wrong
        if own:
            self._held[node] = max(held, first + count)
        else:
            self._others[node, fingerprint] = max(held, first + count)
        return TokensPart(node, fingerprint, first, count, packed, summary)

    def end(self, current: int | None, fault: Fault) -> EndPart:
        """Checks that the tree is complete.

        Args:
            current: The key of the shown node.
            fault: Makes an error that names the place.
        """
        for key, number in self._places.items():
            if self._held[number] != self._counts[number]:
                raise fault(f"node {key} has {self._held[number]:,} of its {self._counts[number]:,} tokens")
        return EndPart(self.place(current, fault, "the shown node"), self._goes_on.count(0))


_KNOWN: Final = {  # name -> kinds of numbers, dimensions
    "ids": ("iu", 1),
    "logprob": ("f", 1),
    "rank": ("iu", 1),
    "entropy": ("f", 1),
    "covered_mass": ("f", 1),
    "origin": ("u", 1),
    "finish": ("u", 1),
    "draw": ("f", 1),
    "top_ids": ("iu", 2),
    "top_logprobs": ("f", 2),
    "data": ("u", 1),
    "lengths": ("iu", 1),
    "text_data": ("u", 1),
    "text_lengths": ("iu", 1),
}
MOST_ID: Final = (1 << 31) - 1
_HIGHEST: Final = {  # name -> maximum of its values
    "origin": 5,
    "finish": 11,
    "logprob": 1.0,  # some servers round up from 0
    "top_logprobs": 1.0,
}


def check_known(found: Columns) -> None:
    """Refuses known columns of the wrong kind, shape or range; unknown columns may have any values.

    Raises:
        ValueError: A column is wrong; the message names it.
    """
    for name, (kinds, dimensions) in _KNOWN.items():
        column = found.get(name)
        if column is not None and (column.dtype.kind not in kinds or column.ndim != dimensions):
            raise ValueError(f"column {name!r} should have {dimensions} dimension(s) of kind {kinds!r}, not {column.dtype} "
                             f"of shape {column.shape}")  # fmt: skip
    ids = np.asarray(found["ids"]).astype(np.int64)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= MOST_ID:
        raise ValueError(f"column 'ids' should lie within 0 and {MOST_ID:,}")
    for name, highest in _HIGHEST.items():
        if name in found and np.any(np.greater(found[name], highest)):
            raise ValueError(f"column {name!r} should not exceed {highest}")
    tops, numbers = found.get("top_ids"), found.get("top_logprobs")
    if tops is not None and numbers is not None and tops.shape != numbers.shape:
        raise ValueError(f"columns 'top_ids' and 'top_logprobs' have the shapes {tops.shape} and {numbers.shape}")
    for piece in columns.pieces(found, "text") or ():
        piece.decode()


def session_part(fields: Fields) -> SessionPart:
    """The fields of the session itself."""
    return SessionPart(
        title=fields.text("title"),
        created=fields.moment("created"),
        updated=fields.moment("updated"),
        pinned=fields.flag("pinned"),
        more=_more(fields, SESSION_MORE),
    )


def node_part(fields: Fields, tree: ImportTree) -> NodePart:
    """A node after its parent in the file, added to the tree.

    Raises:
        InvalidFileError: A field is missing or invalid, or the node's place is not in the tree.
    """
    parent = tree.place(fields.maybe_whole("parent"), fields.fault, "its parent")
    at_token, at_byte = fields.maybe_whole("at_token", 0, MAX_TOKENS), fields.maybe_whole("at_byte")
    node = NodePart(
        parent=parent,
        role=fields.text("role"),
        text=fields.text("text"),
        at_token=at_token,
        at_byte=at_byte,
        at_end=tree.leaves_at_end(parent, at_token, at_byte, fields.fault),
        turn_start=fields.flag("turn_start"),
        status=fields.text("status"),
        finish_reason=fields.maybe_text("finish_reason"),
        token_count=fields.whole("token_count", 0, MAX_TOKENS),
        kv_fingerprint=fields.maybe_text("kv_fingerprint"),
        stats=to_json(without_folders(fields.mapping("stats"))),  # folders of another machine mean nothing here
        created=fields.moment("created"),
        more=_more(fields, NODE_MORE),
    )
    tree.add(fields.whole("id"), node, fields.fault)
    return node


def tokens_part(fields: Fields, tree: ImportTree, decode: Callable[[], Columns]) -> TokensPart:
    """A range of tokens after its node in the file; `decode` reads its columns.

    Raises:
        InvalidFileError: A field is missing or invalid, or the range does not belong to the tree.
    """
    node = tree.place(fields.whole("node"), fields.fault, "node")
    assert node is not None  # the key is a number, not None
    first, count = fields.whole("first", 0, MAX_TOKENS), fields.whole("count", 1, MOST_AT_ONCE)
    try:
        found = decode()
    except (StoreDamagedError, TypeError, ValueError) as wrong:
        raise fields.fault(f"its columns cannot be read: {wrong}") from wrong
    return tree.tokens(node, fields.text("kv_fingerprint"), first, count, found, fields.fault)


def _more(fields: Fields, known: frozenset[str]) -> dict[str, Any]:
    """Plain values of columns that this version knows but the format does not; leaves out unknown columns."""
    found = {name: value for name, value in fields.mapping("more").items() if name in known}
    for name, value in found.items():
        if not isinstance(value, str | int | float | None):
            raise fields.fault(f"{name} in 'more' is no plain value")
        if isinstance(value, int) and abs(value) >= 1 << 63:
            raise fields.fault(f"{name} in 'more' is too large a number")
    return {name: clean(value) if isinstance(value, str) else value for name, value in found.items()}
