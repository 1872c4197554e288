"""Which token follows which in a workspace: slots by their path, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backends.base import ROOT
from runtime.trie.node import common_prefix

Tagged = npt.NDArray[Any]  # (n,) token ids, int32; int64 where some carry the number of an adapter stack
NOTHING: Tagged = np.empty(0, np.int32)


class SlotPaths:
    """Slots numbered as they come, each with the one it follows and its token.

    A slot that says what another says at the same place already (a *twin*) is not found by its path: the first one is.
    """

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._trail: list[int] = []  # the path that was found last: its slots
        self._trail_ids: Tagged = NOTHING  # and its tokens

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, slot: int, token: int) -> int:
        """The next slot: `token` after `slot` (or ROOT)."""
        fresh = len(self._parents)
        self._children.setdefault((slot, token), fresh)
        self._parents.append(slot)
        self._tokens.append(token)
        return fresh

    def child(self, slot: int, token: int) -> int | None:
        """The slot of `token` after `slot`, if there is one."""
        return self._children.get((slot, token))

    def parent(self, slot: int) -> int:
        """The slot that `slot` follows, or ROOT."""
        return self._parents[slot]

    def above(self, slot: int, count: int) -> int:
        """The slot `count` tokens before `slot` on its path."""
        for _ in range(count):
            slot = self._parents[slot]
        return slot

    def walk(self, ids: Tagged) -> list[int]:
        """The slots along a path, as far as it is there. Not to be changed."""
        if not len(ids) or (ROOT, int(ids[0])) not in self._children:
            return []
        same = common_prefix(self._trail_ids, ids)  # particles and chats ask for nearly the same path again and again
        trail = self._trail[:same]
        slot = trail[-1] if same else ROOT
        for token in ids[same:].tolist():
            found = self._children.get((slot, token))
            if found is None:
                break
            trail.append(found)
            slot = found
        self._trail, self._trail_ids = trail, ids[: len(trail)]
        return trail

    def below(self, computed: int, places: Iterable[int]) -> tuple[list[int], set[int]]:
        """The slots below number `computed` on the paths to `places`, ascending, and where those paths end among them."""
        kept: set[int] = set()
        tips: set[int] = set()
        for place in places:
            slot = place
            while slot >= computed:
                slot = self._parents[slot]
            if slot != ROOT:
                tips.add(slot)
            while slot != ROOT and slot not in kept:
                kept.add(slot)
                slot = self._parents[slot]
        return sorted(kept), tips

    def cut(self, size: int) -> None:
        """Forgets the slots from number `size` on."""
        for slot in range(size, len(self._parents)):
            place = self._parents[slot], self._tokens[slot]
            if self._children.get(place) == slot:
                del self._children[place]
        del self._parents[size:], self._tokens[size:]
        self._forget_trail()

    def find_only(self, kept: Iterable[int], computed: int) -> None:
        """From now on only `kept` are found, and those from number `computed` on; the others keep their numbers."""
        there = set(kept)
        self._children = {key: slot for key, slot in self._children.items() if slot in there or slot >= computed}
        self._forget_trail()

    def renumber(self, kept: Iterable[int]) -> dict[int, int]:
        """Numbers `kept` (ascending, with all their ancestors) from 0 on, in their order, and forgets the others."""
        numbers = {slot: number for number, slot in enumerate(kept)}
        numbers[ROOT] = ROOT
        parents = [numbers[self._parents[slot]] for slot in numbers if slot != ROOT]
        tokens = [self._tokens[slot] for slot in numbers if slot != ROOT]
        found = {slot: key for key, slot in self._children.items() if slot in numbers}
        self._children = {(numbers[slot], token): numbers[child] for child, (slot, token) in found.items()}
        self._parents, self._tokens = parents, tokens
        self._forget_trail()
        return numbers

    def _forget_trail(self) -> None:
        self._trail, self._trail_ids = [], NOTHING
