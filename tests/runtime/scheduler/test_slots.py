"""The tree of a workspace's slots: lookups find the first of equal slots that are left, whatever was removed."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.backends.base import ROOT
from runtime.scheduler.kv.workspace import SlotPaths

Left = dict[int, tuple[int, int]]  # the slots that are left, each with its parent and its token
TOKENS = 3


def naive_walk(left: Left, ids: list[int]) -> list[int]:
    found, slot = list[int](), ROOT
    for token in ids:
        equal = [other for other, place in left.items() if place == (slot, token)]
        if not equal:
            break
        slot = min(equal)
        found.append(slot)
    return found


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_path_is_found_after_any_removals(rng: random.Random) -> None:
    paths, left, computed = SlotPaths(), Left(), 0
    for _ in range(12):
        size = len(paths.parents)
        match rng.choice(["add", "add", "cut", "drop", "renumber"]):
            case "add":
                for _ in range(rng.randint(1, 6)):
                    slot, token = rng.choice([ROOT, *left, *[*left][-1:] * 6]), rng.randrange(TOKENS)
                    left[paths.add(slot, token)] = slot, token
            case "cut":
                size = rng.randint(0, size)
                paths.cut(size)
                computed, left = min(computed, size), {slot: place for slot, place in left.items() if slot < size}
            case act:
                computed = size if act == "renumber" else rng.randint(computed, size)
                reserved = [slot for slot in left if slot >= computed]
                ends = [rng.choice([*left]) for _ in range(rng.randint(0, 2)) if left]
                kept, _ = paths.below(computed, [*ends, *reserved])
                paths.find_only(kept, computed)
                left = {slot: left[slot] for slot in [*kept, *reserved]}
                if act == "renumber":
                    numbers = {slot: slot for slot in [ROOT, *kept]} | paths.renumber(kept)
                    left = {numbers[slot]: (numbers[parent], token) for slot, (parent, token) in left.items()}
                    computed = len(kept)
                    assert sorted(left) == list(range(computed))
        for _ in range(4):
            ids = [rng.randrange(TOKENS) for _ in range(rng.randint(0, 7))]
            assert paths.walk(np.array(ids, np.int32)) == naive_walk(left, ids)
