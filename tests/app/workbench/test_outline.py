"""The tree as an outline: rows named by the words with which they part."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.workbench.tree.outline import branch_name, outline
from app.workbench.tree.tree import Tree
from app.workbench.tree.turn_rows import turn_rows
from storage import NodeRow
from tests.app.workbench.test_tree import damaged_rows
from tests.app.workbench.trees import chat, node, run
from ui import BranchRow


def test_a_session_without_branches_is_one_row_without_a_name_of_its_branch() -> None:
    rows = outline(chat(), 3)
    assert [(r.node_id, r.depth, r.before, r.name, r.on_path, r.current) for r in rows] == [(2, 0, "", "where to?", True, True)]
    assert branch_name(rows) == ""


def test_a_branch_inside_an_answer_shows_the_words_before_and_the_words_that_differ() -> None:
    answer = "we could visit Lisbon when it rains"
    byte = len("we could visit ")
    tree = Tree(
        [
            node(1, None, "system"),
            node(2, 1, "user", "where to?"),
            node(3, 2, text=answer, token_count=7),
            run(4, 3, at=3, byte=byte, text="Rome in spring", stats={"logprob": -1.5}),
        ]
    )
    rows = outline(tree, 4)
    assert [(r.node_id, r.depth, r.before, r.name, r.on_path, r.current) for r in rows] == [
        (2, 0, "", "where to?", True, False),
        (3, 1, "… could visit", "Lisbon when it rains", False, False),
        (4, 1, "… could visit", "Rome in spring", True, True),
    ]
    assert rows[2].logprob == -1.5
    assert rows[0].logprob is None
    assert branch_name(rows) == "Rome in spring"
    assert [r.on_path for r in outline(tree, 3)] == [True, True, False]


def test_answers_beside_each_other_and_questions_beside_each_other_are_rows() -> None:
    tree = chat(node(4, 2, text="four five"), node(5, 1, "user", "where from?"), node(6, 5, text="six"))
    rows = outline(tree, 6)
    assert [(r.node_id, r.depth, r.current) for r in rows] == [(2, 0, False), (3, 1, False), (4, 1, False), (5, 0, True)]


def test_an_empty_branch_has_a_sign_for_a_name() -> None:
    rows = outline(chat(run(4, 3, at=2, byte=8)), 4)
    assert rows[-1].name == "…"


def test_characters_of_several_bytes_are_not_cut() -> None:
    text = "naïve 😀 café"
    byte = len("naïve 😀 ".encode())
    tree = Tree(
        [
            node(1, None, "user", "q"),
            node(2, 1, text=text, token_count=9),
            run(3, 2, at=4, byte=byte, text="thé"),
            run(4, 2, at=4, byte=byte - 3, text="!"),  # inside the emoji
        ]
    )
    rows = outline(tree, 2)
    assert rows[1].name == "café"
    assert all("\ufffd" not in r.name + r.before for r in rows)


@pytest.mark.slow
@given(damaged_rows())
def test_any_tree_has_an_outline_with_one_current_row_on_its_path(rows: list[NodeRow]) -> None:
    tree = Tree(rows)
    for row in rows:
        shown = outline(tree, tree.leaf(row.id))
        assert sum(r.current for r in shown) == any(r.on_path for r in shown)
        assert all(r.on_path for r in shown if r.current)
        assert {r.node_id for r in shown} <= set(tree.nodes)


def test_branches_that_begin_alike_are_named_from_where_they_differ() -> None:
    alike = "The light there is soft and slow in the "
    texts = (alike + "morning.", alike + "evening, always.", "Because of the trams.", alike + "morning.")
    tree = Tree([node(1, None, "user", "Why?"), *(node(i, 1, text=text) for i, text in enumerate(texts, 2))])
    rows = outline(tree, 2)[1:]
    assert [(row.before, row.name) for row in rows] == [
        ("… in the", "morning."),
        ("… in the", "evening, always."),
        ("", "Because of the trams."),
        ("… in the", "morning. (2)"),
    ]
    assert [row.text for row in rows][1] == "evening, always."


def parts_at(texts: list[str], own: str) -> int:
    """Where a branch among others is named from: pair by pair, as plainly as it can be said."""
    alike = [text for text in texts if text != own and text.split()[:6] == own.split()[:6]]
    common = max((sum(text.startswith(own[:end]) for end in range(1, len(own) + 1)) for text in alike), default=0)
    return len(re.sub(r"\S{0,20}\Z", "", own[:common]).rstrip())


def numbers(rows: list[BranchRow]) -> None:
    """Rows that look alike are numbered in their order."""
    seen = Counter[tuple[str, str]]()
    for row in rows:
        name, _, number = row.name.partition(" (")
        seen[row.before, name] += 1
        assert number == ("" if seen[row.before, name] == 1 else f"{seen[row.before, name]})")


WORDS = st.lists(st.sampled_from(["one", "two", "猫", "naïve"]), min_size=5, max_size=12)


@given(st.lists(WORDS.map(" ".join), min_size=2, max_size=12))
def test_any_branches_of_one_place_are_named_from_where_they_differ(texts: list[str]) -> None:
    tree = Tree([node(1, None, "user", "q"), *(node(i, 1, text=text) for i, text in enumerate(texts, 2))])
    rows = list(outline(tree, 2)[1:])
    assert [row.text for row in rows] == [text[parts_at(texts, text) :].strip() for text in texts]
    numbers(rows)


def test_many_long_branches_that_begin_alike_are_each_named() -> None:
    alike = "and so on " * 2_000
    texts = [f"{alike}{number}" for number in range(1_000)]
    tree = Tree([node(1, None, "user", "q"), *(node(i, 1, text=text) for i, text in enumerate(texts, 2))])
    assert [row.name for row in outline(tree, 2)[1:]] == list(map(str, range(1_000)))


def test_a_word_that_differs_in_its_middle_is_named_whole() -> None:
    texts = ("one two three four five six seventeen", "one two three four five six seventy")
    tree = Tree([node(1, None, "user", "q"), *(node(i, 1, text=text) for i, text in enumerate(texts, 2))])
    assert [row.name for row in outline(tree, 2)[1:]] == ["seventeen", "seventy"]


def test_no_two_rows_of_one_place_look_alike() -> None:
    """Of 300 turns with 60 branches: said again, differing late, in scripts without spaces, in spaces alone, or nothing yet."""
    said = [
        "海浪轻轻拍打着礁石" * 8,
        "A cat and the sea, " * 9,
        "https://example.org/" + "a" * 70,
        "one  two",
        "one two",
        "",
        "",
        "soft",
    ]
    rng = random.Random(3)
    rows, answers = [node(1, None, "user", "q")], list[NodeRow]()
    tip = rows[0]
    for node_id in range(2, 302):
        text = rng.choice(said)
        text += rng.choice(("", "!", "猫", "猫和海", " and so on")) if text else ""
        if node_id % 5 == 0 and answers:  # leaves an earlier answer in its middle, or stands beside it
            left = rng.choice(answers[-3:])
            byte = len(left.text[: len(left.text) // 2].encode())
            rows.append(run(node_id, left.id, 1, byte, text) if node_id % 2 else node(node_id, left.parent_id, text=text))
        else:
            tip = node(node_id, tip.id, "assistant" if tip.role == "user" else "user", text)
            rows.append(tip)
            answers += [tip] if tip.role == "assistant" else []
    tree = Tree(rows)
    place, seen, branches = list[int](), set[object](), outline(tree, tree.leaf(1))
    assert len(branches) > 60
    for at, row in enumerate(branches):
        place[row.depth :] = [at]
        seen.add((*place[:-1], row.before, row.name))
    assert len(seen) == len(branches)
    full = [row for row in turn_rows(tree, tree.leaf(1)) if row.name]
    assert len({(row.parent, row.before, row.name) for row in full if row.beside}) == len([row for row in full if row.beside])
