"""The views that other tools query, through a plain connection of Python's own sqlite3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from storage import NewNode, SessionStore
from tests.storage.helpers import chat, chunk, sql, with_store


@pytest.fixture
def tree(path: Path) -> tuple[int, int, int, int]:
    async def make(store: SessionStore) -> tuple[int, int, int, int]:
        session, user, answer = await chat(store, tokens=6)
        await store.rescore(answer, chunk(2, 2, logprob=-2.0))
        branch = NewNode(session, answer, "assistant", "rainy", at_token=3, turn_start=False)
        sibling = await store.add_node(branch, chunk(0, 2, logprob=None))
        hidden, *_ = await chat(store, "hidden")
        await store.trash_session(hidden)
        return session, user, answer, sibling

    return with_store(path, make)


def test_the_turns_view_lists_the_turns_of_untrashed_sessions(path: Path, tree: tuple[int, int, int, int]) -> None:
    session, user, answer, sibling = tree
    rows = sql(path, "SELECT session_id, title, node_id, parent_id, at_token, role, turn_start, text FROM turns ORDER BY seq")
    assert rows == [
        (session, "Paris", user, None, None, "user", 1, "Where should we go?"),
        (session, "Paris", answer, user, None, "assistant", 1, "answer in Paris"),
        (session, "Paris", sibling, answer, 3, "assistant", 0, "rainy"),
    ]


def test_the_tokens_view_lists_the_current_scores(path: Path, tree: tuple[int, int, int, int]) -> None:
    _, _, answer, sibling = tree
    query = "SELECT position, token_id, text, logprob, rank, entropy, own FROM tokens WHERE node_id = ? ORDER BY position"
    rows = sql(path, query, answer)
    assert rows == [(i, i, f"w{i} ", -2.0 if i in (2, 3) else -1.25, 1, 0.5, 1) for i in range(6)]
    assert sql(path, query, sibling) == [(i, i, f"w{i} ", None, None, None, 1) for i in range(2)]
    assert sql(path, "SELECT count(*) FROM tokens") == [(4 + 6 + 2,)]
    [(bits,)] = sql(path, "SELECT surprisal_bits FROM tokens WHERE node_id = ? AND position = 2", answer)
    assert bits == pytest.approx(2.885390, abs=1e-5)


def test_the_branches_view_lists_each_path_with_its_cuts(path: Path, tree: tuple[int, int, int, int]) -> None:
    session, user, answer, sibling = tree
    rows = sql(path, "SELECT tip_id, node_id, upto FROM branches WHERE session_id = ? ORDER BY tip_id, steps_from_tip", session)
    assert rows == [
        (answer, answer, None), (answer, user, None),
        (sibling, sibling, None), (sibling, answer, 3), (sibling, user, None),
    ]  # fmt: skip
    query = """SELECT count(*), sum(surprisal_bits) FROM branches JOIN tokens USING (node_id)
               WHERE tip_id = ? AND (upto IS NULL OR position < upto)"""
    count, bits = sql(path, query, sibling)[0]
    assert (count, round(bits, 3)) == (2 + 3 + 4, round((2 * 1.25 + 2.0 + 4 * 1.25) / 0.6931471805599453, 3))


def test_a_cycle_of_parents_does_not_make_the_branches_view_endless(path: Path, tree: tuple[int, int, int, int]) -> None:
    _, user, answer, sibling = tree
    sql(path, "UPDATE nodes SET parent_id = ? WHERE id = ?", answer, user)
    rows = sql(path, "SELECT count(*) FROM branches WHERE tip_id = ? AND steps_from_tip < 10", sibling)
    assert rows == [(10,)]


def test_the_example_of_the_docstring_runs(path: Path, tree: tuple[int, int, int, int]) -> None:
    import storage.tables.views

    example = (storage.tables.views.__doc__ or "").split("::\n")[1].strip()
    assert sql(path, example) == [
        (tree[2], pytest.approx((4 * 1.25 + 2 * 2.0) / 6 / 0.6931471805599453, abs=1e-4)),
        (tree[3], None),
    ]


@pytest.mark.parametrize("view", ["turns", "tokens", "branches"])
def test_the_sql_page_names_every_column(path: Path, tree: tuple[int, int, int, int], view: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{view}` |"))
    assert re.findall(r"`(\w+)`", row.rsplit("|", 2)[1]) == [
        name for (name,) in sql(path, f"SELECT name FROM pragma_table_info('{view}')")
    ]


def test_the_example_of_the_sql_page_runs(path: Path, tree: tuple[int, int, int, int]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
    query = page.partition('mode=ro" "')[2].partition('"\n')[0]
    assert [node for node, _ in sql(path, query)] == sorted(tree[2:])
