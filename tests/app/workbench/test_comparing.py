"""Two branches of a real session, compared token by token."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from app.workbench.compare.branch_diff import compare
from app.workbench.tree.reading import load_whole
from runtime import Origin, TokenRun
from storage import NewChunk, NewNode, SessionStore
from ui import BranchDiff, Refusal


def run(words: list[str], logprob: float | None = -1.0, rank: int = 1) -> NewChunk:
    made = TokenRun.unscored(range(len(words)), [w.encode() for w in words], words, Origin.SAMPLED)
    columns = made.to_columns()
    if logprob is not None:
        columns["logprob"][:] = logprob
        columns["rank"][:] = rank
    return NewChunk("model", 0, len(words), columns)


def compared(path: Path, *, left: str, right: str, rank: int = 1) -> BranchDiff:
    """A question with an answer, a branch inside it, another answer, and one without tokens; by name."""

    async def play() -> BranchDiff:
        store = SessionStore.open(path)
        try:
            session = await store.create_session("trip")
            user = await store.add_node(NewNode(session, None, "user", "Where to?"), run(["<u>", "Where", " to", "?"], None))
            words = ["<a>", "We", " visit", " Lisbon", " when", " it", " rains", "."]
            said = NewNode(session, user, "assistant", "We visit Lisbon when it rains.")
            answer = await store.add_node(said, run(words, rank=rank))
            inside = NewNode(session, answer, "assistant", " Paris when it rains!", at_token=3, at_byte=8, turn_start=False)
            branch = await store.add_node(inside, run([" Paris", " when", " it", " rains", "!"], -0.5, rank))
            plain = await store.add_node(NewNode(session, user, "assistant", "We visit Rome"))
            await store.set_current(session, answer)
            nodes = {"answer": answer, "branch": branch, "plain": plain, "gone": 999}
            opened = await load_whole(store, session)
            return await compare(store, opened, nodes[left], nodes[right])
        finally:
            await store.close()

    return asyncio.run(play())


@pytest.mark.parametrize("rank", [1, 0])  # a server may report none
def test_two_branches_have_a_common_stem_and_aligned_runs_with_numbers(tmp_path: Path, rank: int) -> None:
    diff = compared(tmp_path / "s.sqlite3", left="answer", right="branch", rank=rank)
    assert (diff.stem.tokens, diff.stem.text, diff.stem.logprob) == (7, "<u>Where to?\n<a>We visit", -3.0)
    found = [(p.same, p.left.text, p.left.logprob, p.right.text, p.right.logprob) for p in diff.parts]
    assert found == [
        (False, " Lisbon", -1.0, " Paris", -0.5),
        (True, " when it rains", -3.0, " when it rains", -1.5),
        (False, ".", -1.0, "!", -0.5),
    ]
    assert (diff.left.tokens, diff.left.logprob) == (5, -5.0)
    assert (diff.right.tokens, diff.right.logprob) == (5, -2.5)
    assert not diff.is_same


def test_a_branch_compared_with_itself_is_equal(tmp_path: Path) -> None:
    diff = compared(tmp_path / "s.sqlite3", left="branch", right="branch")
    assert diff.is_same
    assert (diff.left.tokens, diff.left.logprob) == (0, None)
    assert diff.stem.logprob is not None
    assert math.isclose(diff.stem.logprob, -3.0 - 2.5)


def test_branches_without_tokens_are_compared_word_by_word(tmp_path: Path) -> None:
    diff = compared(tmp_path / "s.sqlite3", left="answer", right="plain")
    assert "Rome" in "".join(part.right.text for part in diff.parts if not part.same)
    assert [part.left.text.strip() for part in diff.parts if part.same] == ["We visit"]
    assert diff.right.logprob is None


def test_a_missing_branch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal):
        compared(tmp_path / "s.sqlite3", left="answer", right="gone")
