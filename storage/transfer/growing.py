"""A tree that comes in node by node and range by range: whatever does not fit to what came before is refused."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, get_args

from storage import columns
from storage.errors import InvalidRowError, StoreError
from storage.records import MAX_TOKENS
from storage.rows import Columns, Role, Status
from storage.transfer.known import check_known
from storage.transfer.parts import EndPart, NodePart, TokensPart

MOST_NODES: Final = 1 << 24
_ROLES, _STATUSES = get_args(Role), frozenset(get_args(Status)) - {"open"}

Fault = Callable[[str], StoreError]  # makes an error that names the place


class GrowingTree:
    """What must be known of a session's nodes while it is read: a few numbers of each.

    Nodes are named by keys of the file's own; inside they count from 0.
    """

    def __init__(self) -> None:
        self._places: dict[int, int] = {}  # key -> number
        self._counts = array("q")  # tokens that each has
        self._held = array("q")  # of which so many were read
        self._lengths = array("q")  # bytes of its text
        self._goes_on = bytearray()  # whether something goes on from its end
        self._models: list[str | None] = []
        self._others: dict[tuple[int, str], int] = {}  # tokens under other models

    def __len__(self) -> int:
        return len(self._counts)

    def place(self, key: int | None, fault: Fault, what: str) -> int | None:
        """The number of a node that was read; None stays None."""
        if key is None:
            return None
        if key not in self._places:
            raise fault(f"{what} {key} is not among the nodes before it: an orphan, a circle, or in the wrong order")
        return self._places[key]

    def add(self, key: int, node: NodePart, fault: Fault) -> None:
        """Takes a node in."""
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
        """Whether a node goes on where its parent ends; refuses a place that the parent does not have."""
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
        """The tree is whole.

        Args:
            current: The key of the node that is shown.
            fault: Makes an error that names the place.
        """
        for key, number in self._places.items():
            if self._held[number] != self._counts[number]:
                raise fault(f"node {key} has {self._held[number]:,} of its {self._counts[number]:,} tokens")
        return EndPart(self.place(current, fault, "the shown node"), self._goes_on.count(0))
