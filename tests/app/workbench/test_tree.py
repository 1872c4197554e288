"""Paths, turns and their versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.workbench.tree.outline import hidden_nodes
from app.workbench.tree.tree import Tree, is_hidden
from storage import NodeColumns, NodeRow
from tests.app.workbench.trees import chat, node, run


def path(tree: Tree, tip: int | None) -> list[tuple[int, int | None]]:
    return [(segment.node.id, segment.stop) for segment in tree.path(tip)]


def test_a_path_takes_of_every_node_what_comes_before_the_next() -> None:
    tree = chat(run(4, 3, at=2), run(5, 4), node(6, 5, "user"))
    assert path(tree, 6) == [(1, None), (2, None), (3, 2), (4, None), (5, None), (6, None)]
    assert path(tree, 3) == [(1, None), (2, None), (3, None)]
    assert path(tree, None) == path(tree, 99) == []


def test_runs_in_a_row_are_one_turn_named_by_the_last() -> None:
    tree = chat(run(4, 3, at=2), run(5, 4), node(6, 5, "user"))
    assert [(turn.role, turn.tip.id, len(turn.segments)) for turn in tree.turns(6)] == [
        ("system", 1, 1),
        ("user", 2, 1),
        ("assistant", 5, 3),
        ("user", 6, 1),
    ]
    assert tree.opening(tree.nodes[5]).id == 3


def test_versions_are_siblings_and_runs_that_leave_inside() -> None:
    tree = chat(run(4, 3, at=2), node(5, 2), run(6, 4, at=1), node(7, 2, "user"))
    for each in (3, 4, 5, 6):
        assert tree.variants(tree.nodes[each]) == (3, 4, 5, 6)
    assert tree.variants(tree.nodes[7]) == (7,)


def test_an_answer_that_was_continued_is_one_version_unless_it_was_answered() -> None:
    continued = chat(run(4, 3))
    assert continued.variants(continued.nodes[4]) == (4,)
    answered = chat(node(4, 3, "user"), run(5, 3))
    assert answered.variants(answered.nodes[3]) == (3, 5)
    assert answered.leaf(3, shown=[1, 2, 3, 5]) == 4  # where its turn ends, not what continues it
    assert answered.leaf(5) == 5


def test_the_leaf_is_the_one_shown_last_or_else_the_newest() -> None:
    tree = chat(node(4, 3, "user"), node(5, 3, "user"), node(6, 4), run(7, 3, at=1))
    assert tree.leaf(2) == 5
    assert tree.leaf(2, shown=[1, 2, 3, 4]) == 6
    assert tree.leaf(7) == 7


def test_a_child_at_the_last_token_goes_on_at_the_end() -> None:
    tree = chat(run(4, 3, at=3), run(5, 3, at=2))
    assert tree.leaves_at_end(tree.nodes[4])
    assert not tree.leaves_at_end(tree.nodes[5])
    assert tree.leaf(3) == 4


def test_what_is_read_again_replaces_what_was_known() -> None:
    tree = chat()
    tree.put(node(3, 2, text="longer", token_count=9))
    assert [child.id for child in tree.children(2)] == [3]
    assert tree.nodes[3].text == "longer"


@st.composite
def damaged_rows(draw: st.DrawFn) -> list[NodeRow]:
    """Rows whose parents and places may be anything at all."""
    total = draw(st.integers(1, 12))
    rows = []
    for node_id in range(1, total + 1):
        parent = draw(st.none() | st.integers(-1, total + 1))
        role = draw(st.sampled_from(["system", "user", "assistant"]))
        at = draw(st.none() | st.integers(-1, 4))
        rows.append(
            node(node_id, parent, role, at_token=at, turn_start=draw(st.booleans()), token_count=draw(st.integers(0, 3)))
        )
    return rows


@pytest.mark.slow
@given(damaged_rows())
def test_no_damage_makes_a_walk_endless_or_loses_a_node(rows: list[NodeRow]) -> None:
    tree = Tree(rows)
    for row in rows:
        tree.put(row)  # read again
    reached: set[int] = set()
    for row in rows:
        segments = tree.path(row.id)
        assert segments[-1].node.id == row.id
        assert len({segment.node.id for segment in segments}) == len(segments)
        assert sum(len(turn.segments) for turn in tree.turns(row.id)) == len(segments)
        assert tree.opening(tree.nodes[row.id]).id in {segment.node.id for segment in segments}
        assert tree.leaf(row.id) in tree.nodes
        versions = tree.variants(tree.nodes[row.id])
        assert list(versions) == sorted(set(versions))
    stack = tree.children(None)
    while stack:
        each = stack.pop()
        assert each.id not in reached
        reached.add(each.id)
        stack.extend(tree.children(each.id))
    assert reached == {row.id for row in rows}


@pytest.mark.slow
@given(damaged_rows())
def test_a_tree_of_which_only_the_shape_is_known_is_the_same_tree(rows: list[NodeRow]) -> None:
    shape = NodeColumns(1)
    for row in rows:
        shape.append(row)
    tree, known = Tree(shape), Tree(rows)
    for row in rows:
        assert path(tree, row.id) == path(known, row.id)
        assert [child.id for child in tree.children(row.id)] == [child.id for child in known.children(row.id)]
        assert tree.chain_end(row.id).id == known.chain_end(row.id).id
        assert (tree.leaf(row.id), tree.variants(tree.nodes[row.id])) == (
            known.leaf(row.id),
            known.variants(known.nodes[row.id]),
        )
        turns = known.turns(row.id)
        assert tree.turn_count(row.id) == len(turns)
        for skip in range(len(turns) + 1):
            assert [turn.tip.id for turn in tree.turns(row.id, skip)] == [turn.tip.id for turn in turns[skip:]]
        with pytest.raises(LookupError, match="not read yet"):
            _ = tree.nodes[row.id].text
        with pytest.raises(LookupError, match="not read yet"):
            _ = tree.nodes[row.id].stats
    assert tree.held() == []
    for row in rows:
        tree.put(row)
        assert tree.nodes[row.id] == known.nodes[row.id]


@pytest.mark.slow
@given(damaged_rows(), st.data())
def test_a_node_that_nothing_leaves_can_be_taken_out(rows: list[NodeRow], data: st.DataObject) -> None:
    tree, left = Tree(rows), list(rows)
    while left:
        leaf = data.draw(st.sampled_from([row for row in left if not tree.children(row.id)]))
        tree.remove(leaf.id)
        left.remove(leaf)
        assert leaf.id not in tree.nodes
        assert list(tree.nodes) == [row.id for row in left]
        assert [child.id for child in tree.children(None)] == [r.id for r in left if tree.nodes[r.id].parent_id is None]


def test_nodes_that_come_out_of_order_are_found() -> None:
    tree = chat(node(9, 3, "user"), node(5, 3, "user"), node(12, 5), node(7, 9))
    assert path(tree, 12)[-2:] == [(5, None), (12, None)]
    assert [child.id for child in tree.children(3)] == [9, 5]
    assert [each in tree.nodes for each in (4, 5, 6, 7, 9, 12, 99)] == [False, True, False, True, True, True, False]
    tree.remove(7)
    assert 7 not in tree.nodes
    tree.put(node(7, 5))
    assert [child.id for child in tree.children(5)] == [12, 7]


@pytest.mark.slow
@given(damaged_rows())
def test_the_tip_of_every_turn_shown_is_among_its_versions(rows: list[NodeRow]) -> None:
    tree = Tree([row for row in rows if row.role != "system"])
    for row in tree.nodes.values():
        tip = tree.leaf(row.id)
        last = tree.turns(tip)[-1]
        if last.segments[0].node.turn_start:
            assert last.tip.id in tree.variants(last.tip)


@pytest.mark.slow
@given(damaged_rows())
def test_every_version_of_a_turn_is_named_by_a_node_that_ends_it(rows: list[NodeRow]) -> None:
    tree = Tree(rows)
    ends = set(tree.turn_ends())
    for row in tree.nodes.values():
        assert set(tree.variants(row)) <= ends
        assert tree.ends(row.id) == [turn.tip.id for turn in tree.turns(row.id)]
        assert [segment.node.id for segment in tree.turn(row.id).segments] == [
            segment.node.id for segment in tree.turns(row.id)[-1].segments
        ]


@pytest.mark.slow
@given(damaged_rows(), st.sets(st.tuples(st.integers(1, 12), st.integers(0, 3)), max_size=3))
def test_what_is_out_of_sight_is_found_at_once_or_one_by_one(rows: list[NodeRow], pruned: set[tuple[int, int]]) -> None:
    tree = Tree(rows)
    known = {(node_id, start) for node_id, start in pruned if node_id in tree.nodes}
    assert hidden_nodes(tree, known) == {node_id for node_id in tree.nodes if is_hidden(tree, known, node_id)}
