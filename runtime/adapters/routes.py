"""Which stack each token of a request is computed under: where its adapters begin."""

from __future__ import annotations

import itertools
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from runtime.adapters.stacks import namespaced
from runtime.adapters.uses import Uses
from runtime.records import Int32
from runtime.trie import Span

Route = tuple[Hashable, tuple[tuple[int, Hashable], ...]]  # the last namespace, and (end, namespace) of those before it


@dataclass(frozen=True, slots=True)
class Routing:
    """The adapters of one request, as they were when it was made.

    Attributes:
        fingerprint: Of the model's KV, which namespaces begin with.
        uses: The adapters, in the stack's order.
    """

    fingerprint: str
    uses: Uses = ()

    @property
    def invocations(self) -> tuple[tuple[int, ...], ...]:
        """The sequences that begin an adapter, wherever they stand."""
        return tuple(invocation for _, _, invocation in self.uses if invocation)

    def uses_adapter(self, digest: str) -> bool:
        """Whether an adapter takes part, or may yet."""
        return any(digest == each for each, _, _ in self.uses)

    def route(self, ids: Int32) -> Route:
        """What the KV of a path's tokens belongs to.

        An activated adapter begins at the last place where its invocation sequence stands in `ids`; where it stands
        nowhere, the adapter has no part in them (as in peft).
        """
        begins = [(digest, scale, _begin(ids, invocation)) for digest, scale, invocation in self.uses]
        edges = sorted({0, *(begin for _, _, begin in begins if begin is not None)})
        names: list[Hashable] = []
        for edge in edges:
            active = tuple((digest, scale) for digest, scale, begin in begins if begin is not None and begin <= edge)
            names.append(namespaced(self.fingerprint, active))
        return names[-1], tuple(zip(edges[1:], names, strict=False))

    def spans(self, ids: Int32) -> list[Span]:
        """A path by what the KV of its tokens belongs to; none of the parts is empty."""
        last, before = self.route(ids)
        edges = [0, *(end for end, _ in before), len(ids)]
        names = [*(name for _, name in before), last]
        parts = zip(names, itertools.pairwise(edges), strict=True)
        return [(name, ids[start:end]) for name, (start, end) in parts if start < end]


def _begin(ids: Int32, invocation: tuple[int, ...]) -> int | None:
    """Where an adapter begins: at the first token, or at the last invocation sequence; None where there is none."""
    if not invocation:
        return 0
    found = np.flatnonzero(ids[: max(len(ids) - len(invocation) + 1, 0)] == invocation[0])
    for place, token in enumerate(invocation[1:], 1):
        found = found[ids[found + place] == token]
    return int(found[-1]) if len(found) else None
