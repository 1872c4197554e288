"""Stacks of adapters: which stack applies to each token of a request, and of a forward."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from runtime.adapters.uses import Uses
from runtime.kv.trie import Span
from runtime.records import Float32, Int32

Stack = tuple[tuple[str, float], ...]  # (digest, scale), in order; () is the base
Int64 = npt.NDArray[np.int64]


def namespaced(fingerprint: str, stack: Stack) -> Hashable:
    """The namespace of KV computed under a stack; for the base it is the fingerprint alone."""
    return (fingerprint, stack) if stack else fingerprint


def salted(fingerprint: str, salt: str) -> str:
    """The first part of the namespaces of salted requests, whose KV no other salt finds; the fingerprint without a salt."""
    return f"{fingerprint} {hashlib.sha256(salt.encode()).hexdigest()}" if salt else fingerprint


def stack_of(namespace: Hashable) -> Stack:
    """The stack of a namespace."""
    if isinstance(namespace, tuple) and len(namespace) == 2:
        stack: Stack = namespace[1]
        return stack
    return ()


@dataclass(frozen=True, slots=True, eq=False)
class TokenStacks:
    """The stack of each token of a forward."""

    of: Int64  # ``(n,)`` indices into `table`
    table: tuple[Stack, ...]  # the distinct stacks

    def part(self, tokens: Int64 | slice) -> TokenStacks:
        return TokenStacks(self.of[tokens], self.table)

    def runs(self) -> list[tuple[int, int]]:
        """(start, stop) of each run of tokens under one stack."""
        edges = [0, *(np.flatnonzero(np.diff(self.of)) + 1).tolist(), len(self.of)]
        return list(itertools.pairwise(edges))

    @classmethod
    def uniform(cls, stack: Stack, n: int) -> TokenStacks:
        return cls(np.zeros(n, np.int64), (stack,))


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One adapter in one forward."""

    digest: str  # of the adapter's numbers
    rows: Int64 | None  # ``(k,)`` indices of its tokens; None: all tokens
    scale: float | Float32  # one scale for all tokens, or ``(k,)`` scales of the rows


def uses(stacks: TokenStacks | None) -> list[Use]:
    """The adapters of a forward in the order of the stacks; empty if all tokens are the base's."""
    if stacks is None:
        return []
    present = np.unique(stacks.of).tolist()
    table = {number: stacks.table[number] for number in present}
    depth = max((len(stack) for stack in table.values()), default=0)
    found: list[Use] = []
    for place in range(depth):
        at_place = {number: stack[place] for number, stack in table.items() if len(stack) > place}
        for digest in dict.fromkeys(digest for digest, _ in at_place.values()):
            scales = {number: scale for number, (name, scale) in at_place.items() if name == digest}
            found.append(_use(stacks.of, digest, scales, whole=len(scales) == len(present)))
    return found


def _use(of: Int64, digest: str, scales: dict[int, float], *, whole: bool) -> Use:
    same_scale = len(set(scales.values())) == 1
    scale = next(iter(scales.values()))
    if whole and same_scale:
        return Use(digest, None, scale)
    rows = np.flatnonzero(np.isin(of, list(scales)))
    if same_scale:
        return Use(digest, rows, scale)
    return Use(digest, rows, np.array([scales[number] for number in of[rows].tolist()], np.float32))


class Tags:
    """Numbers namespaces, so that one integer holds a token id and its namespace.

    Owner thread only. The base has number 0: its tokens are plain ids. A number is never reused.

    Attributes:
        base: The namespace whose number is 0.
        several: Whether a namespace other than the base's has occurred.
    """

    SHIFT = 32  # bits of the token id, below the namespace's number
    LEAST = 1024  # namespaces; with fewer, `shrink` removes none

    def __init__(self, base: Hashable) -> None:
        self.base = base
        self._numbers: dict[Hashable, int] = {base: 0}
        self._stacks: dict[int, Stack] = {0: ()}
        self._fresh = itertools.count(1)
        self._most = 0
        self.several = False

    def shrink(self, used: Callable[[], set[int]]) -> None:
        """Removes namespaces whose numbers `used` does not return, once there are twice as many as after the last removal."""
        if len(self._numbers) < max(self.LEAST, self._most):
            return
        numbers = used() | {0}
        self._numbers = {namespace: number for namespace, number in self._numbers.items() if number in numbers}
        self._stacks = {number: self._stacks[number] for number in numbers}
        self._most = 2 * len(numbers)

    def tag(self, namespace: Hashable) -> int:
        """The number added to the ids of a namespace's tokens."""
        number = self._numbers.get(namespace)
        if number is None:
            number = self._numbers[namespace] = next(self._fresh)
            self._stacks[number] = stack_of(namespace)
            self.several = True
        return number << self.SHIFT

    def untag(self, tokens: Sequence[int]) -> tuple[Int64, TokenStacks | None]:
        """Plain ids, and the stacks of the tokens (None if all tokens are the base's)."""
        tagged = np.array(tokens, np.int64)
        numbers = tagged >> self.SHIFT
        if not numbers.any():
            return tagged, None
        kinds, of = np.unique(numbers, return_inverse=True)
        table = tuple(self._stacks[number] for number in kinds.tolist())
        if not any(table):
            return tagged & ((1 << self.SHIFT) - 1), None
        return tagged & ((1 << self.SHIFT) - 1), TokenStacks(of.astype(np.int64), table)


Route = tuple[Hashable, tuple[tuple[int, Hashable], ...]]  # a path's last namespace, and (end, namespace) of its earlier parts


@dataclass(frozen=True, slots=True)
class Routing:
    """The adapters of one request, fixed when it is made."""

    fingerprint: str  # of the model's KV, `salted` for the request; the first part of namespaces
    uses: Uses = ()  # the adapters in the stack's order
    plain: Route | None = field(init=False)  # the route of every path; None if an adapter has to be activated

    def __post_init__(self) -> None:
        stack = tuple((digest, scale) for digest, scale, _ in self.uses)
        object.__setattr__(self, "plain", None if self.invocations else (namespaced(self.fingerprint, stack), ()))

    @property
    def invocations(self) -> tuple[tuple[int, ...], ...]:
        """Token sequences that activate adapters."""
        return tuple(invocation for _, _, invocation in self.uses if invocation)

    def uses_adapter(self, digest: str) -> bool:
        """Whether an adapter applies, or may still be activated."""
        return any(digest == each for each, _, _ in self.uses)

    def route(self, ids: Int32) -> Route:
        """Namespaces of the KV of a path.

        An activated adapter begins at the last occurrence of its invocation sequence in `ids`; without an occurrence it does
        not apply (as in peft).
        """
        if self.plain is not None:
            return self.plain
        begins = [(digest, scale, _begin(ids, invocation)) for digest, scale, invocation in self.uses]
        edges = sorted({0, *(begin for _, _, begin in begins if begin is not None)})
        names: list[Hashable] = []
        for edge in edges:
            active = tuple((digest, scale) for digest, scale, begin in begins if begin is not None and begin <= edge)
            names.append(namespaced(self.fingerprint, active))
        return names[-1], tuple(zip(edges[1:], names, strict=False))

    def spans(self, ids: Int32) -> list[Span]:
        """A path split by namespace; no part is empty."""
        last, before = self.route(ids)
        edges = [0, *(end for end, _ in before), len(ids)]
        names = [*(name for _, name in before), last]
        parts = zip(names, itertools.pairwise(edges), strict=True)
        return [(name, ids[start:end]) for name, (start, end) in parts if start < end]


def _begin(ids: Int32, invocation: tuple[int, ...]) -> int | None:
    """The first token that an adapter applies to: 0, or the start of its last invocation; None if `ids` has none."""
    if not invocation:
        return 0
    found = np.flatnonzero(ids[: max(len(ids) - len(invocation) + 1, 0)] == invocation[0])
    for place, token in enumerate(invocation[1:], 1):
        found = found[ids[found + place] == token]
    return int(found[-1]) if len(found) else None
