from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.base import ROOT
from runtime.backends.packs.tree import SlotTree, segments
from runtime.errors import InvalidRequestError


@st.composite
def calls(draw: st.DrawFn) -> list[list[int]]:
    """Several calls' parents: chains, forks, new roots, parents within the call."""
    size, made = 0, []
    for _ in range(draw(st.integers(1, 6))):
        parents: list[int] = []
        for _ in range(draw(st.integers(1, 8))):
            newest = size - 1
            parents.append(newest if draw(st.booleans()) else draw(st.integers(ROOT, newest)))
            size += 1
        made.append(parents)
    return made


def ancestors(parents: list[int], slot: int) -> list[int]:
    found = []
    while slot != ROOT:
        found.append(slot)
        slot = parents[slot]
    return found[::-1]


@given(calls())
def test_paths_depths_and_masks_equal_a_walk_over_the_ancestors(made: list[list[int]]) -> None:
    tree, flat = SlotTree(), [parent for call in made for parent in call]
    for call in made:
        first = tree.size
        tree.append(np.array(call, np.int64))
        visible = tree.visible(first)
        for slot in range(first, tree.size):
            path = ancestors(flat, slot)
            assert np.flatnonzero(visible[slot - first]).tolist() == path
            assert tree.path(slot).tolist() == path
            assert tree.depths[slot] == len(path) - 1
            assert tree.parent(slot) == flat[slot]
            tree.check_chain(np.array(path))


@given(calls(), calls())
def test_a_rollback_leaves_no_trace(kept: list[list[int]], undone: list[list[int]]) -> None:
    # given a tree, when calls are added and taken back, and the same call is made on it and on one that never saw them
    tree, clean = SlotTree(), SlotTree()
    for call in kept:
        tree.append(np.array(call, np.int64))
        clean.append(np.array(call, np.int64))
    undos = []
    for call in undone:
        shifted = [parent if parent == ROOT else parent + clean.size for parent in call]
        undos.append(tree.append(np.array(shifted, np.int64)))
    for undo in reversed(undos):
        tree.rollback(undo)
    # then both answer alike
    assert (tree.size, tree.linear) == (clean.size, clean.linear)
    for each in (tree, clean):
        each.append(np.array([clean.size - 1 if each is clean else tree.size - 1, ROOT], np.int64))
    assert np.array_equal(tree.visible(0), clean.visible(0))


@given(calls())
def test_segments_are_chains_in_an_order_that_can_be_computed(made: list[list[int]]) -> None:
    base = 0
    for call in made:
        parents = np.array(call, np.int64)
        chains = segments(parents, base)
        assert sorted(np.concatenate(chains).tolist()) == list(range(len(call)))
        ended: set[int] = set()
        for chain in chains:
            head = int(parents[chain[0]])
            assert head < base or head in ended  # what it continues is complete
            assert (parents[chain[1:]] == base + chain[:-1]).all()
            ended.add(base + int(chain[-1]))
        base += len(call)


def test_a_window_counts_positions_not_slots() -> None:
    # given two rows that grow in turn
    tree = SlotTree()
    tree.append(np.array([ROOT, ROOT]))
    for at in (0, 2, 4):
        tree.append(np.array([at, at + 1]))
    visible = tree.visible(6)
    assert np.flatnonzero(visible[0]).tolist() == [0, 2, 4, 6]
    assert np.flatnonzero(tree.within(visible, 6, 2)[0]).tolist() == [4, 6]


def test_one_chain_is_known_for_one() -> None:
    tree = SlotTree()
    for parents in ([ROOT, 0, 1], [2], [3, 4]):
        tree.append(np.array(parents))
        assert tree.linear
    undo = tree.append(np.array([1]))
    assert not tree.linear
    tree.append(np.array([6]))
    assert not tree.linear
    tree.truncate(6)
    assert tree.linear
    tree.rollback(undo)
    assert tree.linear


@pytest.mark.parametrize("slots", [[0, 2], [1, 0], [], [2, 3], [-1, 0]])
def test_what_is_no_chain_is_refused(slots: list[int]) -> None:
    tree = SlotTree()
    tree.append(np.array([ROOT, 0, 1]))
    with pytest.raises(InvalidRequestError, match="chain"):
        tree.check_chain(np.array(slots, np.int64))


def test_several_chains_are_checked_at_once() -> None:
    # given a stem of three and two branches of two
    tree = SlotTree()
    tree.append(np.array([ROOT, 0, 1, 2, 3, 2, 5]))
    # then chains that touch one another only in the list are right, and a broken one is named
    tree.check_chains([np.array([3, 4]), np.array([6]), np.array([0, 1, 2, 5])])
    for wrong in ([4, 5], [7], [-1]):
        with pytest.raises(InvalidRequestError, match="chain"):
            tree.check_chains([np.array([0, 1]), np.array(wrong), np.array([6])])
    with pytest.raises(InvalidRequestError, match="chain"):
        tree.check_chains([np.array([0, 1]), np.array([], np.int64)])


def test_a_long_path_and_many_branches() -> None:
    # given a stem of 100,000 slots and 2,000 branches off it, then a tip's path is the stem up to its fork
    tree = SlotTree()
    tree.append(np.arange(-1, 99_999))
    tree.append(np.arange(0, 100_000, 50))
    assert tree.path(100_100).tolist() == [*range(100 * 50 + 1), 100_100]


@given(calls(), st.data())
def test_a_truncated_tree_is_one_that_never_grew(made: list[list[int]], data: st.DataObject) -> None:
    # given a tree cut back to some size, and one that was built no further; both go on alike
    flat = [parent for call in made for parent in call]
    size = data.draw(st.integers(0, len(flat)))
    tree, short = SlotTree(), SlotTree()
    for call in made:
        tree.append(np.array(call, np.int64))
    tree.truncate(size)
    if size:
        short.append(np.array(flat[:size], np.int64))
    more = [data.draw(st.integers(ROOT, size + i - 1)) for i in range(data.draw(st.integers(1, 6)))]
    for each in (tree, short):
        each.append(np.array(more, np.int64))
    assert tree.linear == short.linear
    np.testing.assert_array_equal(tree.visible(0), short.visible(0))
    np.testing.assert_array_equal(tree.depths, short.depths)
    assert tree.path(tree.size - 1).tolist() == short.path(short.size - 1).tolist()
    with pytest.raises(InvalidRequestError):
        tree.truncate(tree.size + 1)
