"""The tree of a session as columns, without texts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, Self

from storage.rows import NodeRow, SessionRow


class NodeKind(NamedTuple):
    """Values that many runs have in common."""

    role: str
    turn_start: bool
    status: str
    finish_reason: str | None
    kv_fingerprint: str | None
    damaged: bool
    has_text: bool


class NodeStub(NodeRow):
    """A run whose text and stats were not read; reading them raises an error."""

    __slots__ = ("_has_text",)
    _has_text: bool

    @property
    def whole(self) -> bool:
        """Always false."""
        return False

    @property
    def has_text(self) -> bool:
        return self._has_text

    @property
    def text(self) -> str:
        """Not read.

        Raises:
            LookupError: Always.
        """
        raise LookupError(f"the text of node {self.id} was not read yet")

    @property
    def stats(self) -> Mapping[str, Any]:
        """Not read.

        Raises:
            LookupError: Always.
        """
        raise LookupError(f"how node {self.id} was made was not read yet")

    @classmethod
    def make(cls, session_id: int, numbers: tuple[int, int | None, int | None, int | None, int, int], kind: NodeKind) -> Self:
        """A run from its columns id, parent, at_token, at_byte, token_count, seq, and its kind."""
        stub = cls.__new__(cls)
        values = (session_id, *numbers, *kind)
        for name, value in zip(_FIELDS, values, strict=True):
            object.__setattr__(stub, name, value)
        return stub


_FIELDS: Final = ("session_id", "id", "parent_id", "at_token", "at_byte", "token_count", "seq", "role", "turn_start", "status",
                  "finish_reason", "kv_fingerprint", "damaged", "_has_text")  # fmt: skip


def _numbers() -> array[int]:
    return array("q")


@dataclass(frozen=True, slots=True)
class NodeColumns:
    """Runs of a session, one row each (some 60 bytes), oldest first."""

    NOTHING: ClassVar[int] = -(1 << 63)  # in a column: no value
    session_id: int
    id: array[int] = field(default_factory=_numbers)
    parent: array[int] = field(default_factory=_numbers)  # a node's id, or NOTHING
    at_token: array[int] = field(default_factory=_numbers)
    at_byte: array[int] = field(default_factory=_numbers)
    token_count: array[int] = field(default_factory=_numbers)
    seq: array[int] = field(default_factory=_numbers)
    kind: array[int] = field(default_factory=lambda: array("i"))  # index into `kinds`
    kinds: list[NodeKind] = field(default_factory=list)
    _known: dict[NodeKind, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.id)

    def append(self, node: NodeRow) -> None:
        """Adds a row."""
        for column in (self.id, self.parent, self.at_token, self.at_byte, self.token_count, self.seq, self.kind):
            column.append(0)
        self.set(len(self) - 1, node)

    def set(self, place: int, node: NodeRow) -> None:
        """Replaces a row. In a damaged row, values that are not whole numbers become `NOTHING`."""
        values = (node.id, node.parent_id, node.at_token, node.at_byte, node.token_count, node.seq)
        columns = (self.id, self.parent, self.at_token, self.at_byte, self.token_count, self.seq)
        for column, value in zip(columns, values, strict=True):
            column[place] = value if isinstance(value, int) else self.NOTHING
        self.kind[place] = self._code(node)

    def stub(self, place: int) -> NodeStub:
        """The run in a row."""
        parent, at_token, at_byte = (
            None if column[place] == self.NOTHING else column[place] for column in (self.parent, self.at_token, self.at_byte)
        )
        numbers = (self.id[place], parent, at_token, at_byte, self.token_count[place], self.seq[place])
        return NodeStub.make(self.session_id, numbers, self.kinds[self.kind[place]])

    def _code(self, node: NodeRow) -> int:
        kind = NodeKind(
            node.role, node.turn_start, node.status, node.finish_reason, node.kv_fingerprint, node.damaged, node.has_text
        )
        code = self._known.setdefault(kind, len(self.kinds))
        if code == len(self.kinds):
            self.kinds.append(kind)
        return code


@dataclass(frozen=True, slots=True)
class SessionShape:
    """A session and the tree of its runs."""

    session: SessionRow
    nodes: NodeColumns
