"""The rows of the full-window tree: every turn of every branch, its text, and the rows that contain some words."""

from __future__ import annotations

import pytest

from app.workbench.setup.values import read_values
from app.workbench.tree.turn_rows import turn_rows
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene
from tests.app.workbench.test_pruning import branched
from tests.app.workbench.trees import chat, node, run
from ui import Refusal, SessionView, TreeRow


def shape(rows: tuple[TreeRow, ...]) -> list[tuple[int, int, int | None, int, int, int]]:
    return [(row.node_id, row.start, row.stop, row.parent, row.depth, row.ways) for row in rows]


def test_the_shown_path_is_not_indented_and_other_branches_are_under_their_forks() -> None:
    # given a question and its answer, with a branch after its second token; a question and two answers follow the old one
    tree = chat(run(4, 3, at=2), node(5, 3, "user"), node(6, 5, "assistant"), node(7, 5, "assistant"), node(8, 4, "user"))
    rows = turn_rows(tree, 7)
    assert shape(rows) == [
        (2, 0, None, -1, 0, 0),  # the question
        (3, 0, 2, -1, 0, 2),  # the common part of its answers
        (4, 0, None, 1, 1, 0),  # the branch
        (8, 0, None, 2, 2, 0),  # and its continuation
        (3, 2, None, -1, 0, 0),  # the rest of the old answer
        (5, 0, None, -1, 0, 2),  # the next question
        (6, 0, None, 5, 1, 0),
        (7, 0, None, -1, 0, 0),
    ]
    assert [row.head for row in rows] == [0, 0, 2, 2, 4, 4, 6, 7]
    assert [row.on_path for row in rows] == [True, True, False, False, True, True, False, True]
    assert [row.node_id for row in rows if row.current] == [7]
    pruned = turn_rows(tree, 7, pruned={(4, 0)})
    assert [row.pruned for row in pruned] == [False, False, True, True, *[False] * 4]
    assert [row.ways for row in pruned] == [0, 1, 0, 0, 0, 2, 0, 0]
    # with the other branch shown, that one is not indented
    assert [(row.node_id, row.start, row.depth) for row in turn_rows(tree, 8)] == [
        (2, 0, 0),
        (3, 0, 0),
        (3, 2, 1),
        (5, 0, 2),
        (7, 0, 3),
        (6, 0, 2),
        (4, 0, 0),
        (8, 0, 0),
    ]


def test_another_root_follows_the_shown_one() -> None:
    tree = chat(node(4, 1, "user"), node(5, 4))
    rows = turn_rows(tree, 3)
    assert [(row.node_id, row.parent, row.depth, row.beside) for row in rows] == [
        (2, -1, 0, False),
        (3, -1, 0, False),
        (4, -1, 0, True),
        (5, 2, 1, False),
    ]
    assert [row.node_id for row in turn_rows(tree, 5)] == [4, 5, 2, 3]
    assert [row.current for row in turn_rows(chat(), None)] == [False, False]


async def row_of(s: Scene, view: SessionView, node_id: int, *, inner: bool = False) -> TreeRow:
    rows = await s.workbench.branches.tree(view.session_id)
    return next(row for row in rows if row.node_id == node_id and (row.start > 0) == inner)


def test_rows_have_the_text_and_the_numbers_of_their_turns(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        rows = await s.workbench.branches.tree(view.session_id)
        texts = [text.run.text for text in await s.workbench.branches.row_texts(view.session_id, rows)]
        question, answer = (turn for turn in view.turns if turn.role != "system")
        said = dict(zip((row.key for row in rows), texts, strict=True))
        rest = await row_of(s, view, old, inner=True)
        # the shown answer consists of the common part, and of its own
        assert said[question.node_id, 0] == "where to?"
        assert [*said[old, 0], *said[new, 0]][-3:] == [*answer.run.text][-3:]
        assert said[old, 0] in answer.run.text
        assert said[rest.key]
        assert said[rest.key] != said[new, 0]
        # and each token has its surprise
        (text,) = await s.workbench.branches.row_texts(view.session_id, [rest])
        assert (text.run.logprob < 0).any()
        assert text.logprob is not None

    play(scene)


def test_words_are_found_in_the_rows_that_contain_them(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        rows = {row.key: row for row in await s.workbench.branches.tree(view.session_id)}
        texts = await s.workbench.branches.row_texts(view.session_id, list(rows.values()))
        for key, text in zip(rows, texts, strict=True):
            words = max(" ".join(text.run.text.split()).upper().split("\ufffd"), key=len)  # without parts of characters
            assert words.strip()
            assert key in await s.workbench.branches.find_rows(view.session_id, words)
        assert await s.workbench.branches.find_rows(view.session_id, "no turn says this") == []
        assert await s.workbench.branches.find_rows(view.session_id, "  ") == []
        await s.workbench.branches.rename(view.session_id, new, 0, "the quiet one")
        assert await s.workbench.branches.find_rows(view.session_id, "QUIET  one") == [(new, 0)]
        assert old != new

    play(scene)


def test_a_turn_can_be_shown_while_a_branch_inside_it_is_shown(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        assert view.turns[-1].node_id == new  # it branches off inside the old answer
        assert (await s.workbench.branches.show_turn(view.session_id, old)).turns[-1].node_id == old
        assert (await s.workbench.branches.show_turn(view.session_id, new)).turns[-1].node_id == new

    play(scene)


def test_bookmarks_are_kept_with_the_session(play: Play) -> None:
    async def scene(s: Scene) -> None:
        view, old, new = await branched(s)
        rest = await row_of(s, view, old, inner=True)
        for key in (rest.key, (new, 0)):
            await s.workbench.branches.bookmark(view.session_id, *key, True)
        assert (await row_of(s, view, old, inner=True)).bookmarked
        await s.workbench.branches.bookmark(view.session_id, new, 0, False)
        assert not (await row_of(s, view, new)).bookmarked
        # they are stored under a key that an earlier version ignores
        setup = await s.store.session_setup(view.session_id)
        assert isinstance(setup, dict)
        assert setup["bookmarks"] == [[old, rest.start]]
        values, notes = read_values({**setup, "bookmarks": [[old, rest.start], "?", [1]]})
        assert values.bookmarks == {rest.key}
        assert len(notes) == 2
        assert read_values({"names": [[old, rest.start, "x"]]})[0].bookmarks == frozenset()  # of an earlier version
        with pytest.raises(Refusal):
            await s.workbench.branches.bookmark(view.session_id, 99_999, 0, True)

    play(scene)
