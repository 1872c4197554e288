"""Turns of a session similar to one of them: their order, the computed and cached vectors, and the turns left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.workbench.compare.similar import SimilarSearch
from app.workbench.compare.similar_vectors import VectorCache
from runtime import Pooling
from tests.app.workbench.comparison_scene import everything
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, alternative, own_tokens, rows
from tests.app.workbench.similar_scene import QUESTIONS, Embedding, Told, cosines, looked, running, talked
from tests.fakes import settled_report
from ui import SimilarTurns


def order(found: SimilarTurns) -> list[int]:
    return [row.node_id for row in found.rows]


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "last", "max"])
def test_turns_are_in_the_order_of_the_cosine_of_their_vectors(play: Play, path: Path, pooling: Pooling) -> None:
    async def scene(s: Scene) -> None:
        # given three questions and their answers
        session_id = await talked(s)
        before = everything(path)
        turns = [turn for turn in (await s.view(session_id)).turns if turn.role != "system"]
        texts = dict(rows(path, "select id, text from nodes where role != 'system'"))
        # when similar turns of one are requested
        told = Told()
        found = await looked(s, session_id, turns[0].node_id, pooling, told)
        # then all others are in the order of numpy's cosines of vectors computed alone
        others = [turn.node_id for turn in turns[1:]]
        expected = await cosines(s, QUESTIONS[0], [texts[i] for i in others], pooling)
        assert order(found) == [others[i] for i in np.argsort(-expected, kind="stable")]
        by_node = {row.node_id: row.similarity for row in found.rows}
        np.testing.assert_allclose([by_node[i] for i in others], expected, atol=1e-5)
        assert (found.words, found.pooling, found.poolings) == (QUESTIONS[0], pooling, ("mean", "last", "max"))
        assert {row.role for row in found.rows} == {"user", "assistant"}
        assert [row.words for row in found.rows if row.role == "user"] != []
        # and the progress counts turns, and nothing is stored or left running
        assert told[-1] == ("comparing turns", 6, 6)
        assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
        assert everything(path) == before

    play(scene, engine=Embedding())


def test_a_second_request_computes_nothing(play: Play) -> None:
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        first, *_, last = [turn for turn in (await s.view(session_id)).turns if turn.role != "system"]
        one = await looked(s, session_id, first.node_id)
        assert one.computed > 0
        spent, asked = running(s).metrics().tokens_computed, len(engine.batches)
        # when the same is requested once more, and for another turn
        again, other = await looked(s, session_id, first.node_id), await looked(s, session_id, last.node_id)
        # then no token goes through the model
        assert (again.computed, other.computed) == (0, 0)
        assert (running(s).metrics().tokens_computed, len(engine.batches)) == (spent, asked)
        assert again.rows == one.rows
        # when there is a new turn, then only that is read
        await s.workbench.answers.send(session_id, "and why?")
        *_, question, answer = (await s.view(session_id)).turns
        new = await looked(s, session_id, first.node_id)
        assert {text for batch in engine.batches[asked:] for text in batch} >= {"and why?"}
        assert sum(map(len, engine.batches[asked:])) == 2
        assert {question.node_id, answer.node_id} <= set(order(new))
        # and another pooling has vectors of its own
        assert (await looked(s, session_id, first.node_id, "max")).computed > 0

    play(scene, engine=engine)


def test_turns_of_all_branches_are_compared_and_pruned_ones_are_not(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        # given an answer, one that leaves it inside, and another question beside the first
        session_id = await talked(s, ["where to?"])
        question, answer = (await s.view(session_id)).turns[-2:]
        index = own_tokens(answer)[3]
        await s.workbench.answers.branch(session_id, answer.node_id, index, alternative(answer, index))
        branch = await s.last(session_id)
        await s.workbench.answers.send(session_id, "where else?", replaces=question.node_id)
        shown = [turn.node_id for turn in (await s.view(session_id)).turns]
        found = {row.node_id: row for row in (await looked(s, session_id, shown[-2])).rows}
        # then all of them are listed, with the branch of those that are not shown
        assert {question.node_id, answer.node_id, branch.node_id} <= found.keys()
        assert [found[i].on_path for i in (question.node_id, answer.node_id, branch.node_id, shown[-1])] == [False] * 3 + [True]
        names = {row.node_id: row.name for row in (await s.view(session_id)).branches}
        assert found[branch.node_id].branch == names[branch.node_id]
        assert found[answer.node_id].branch != found[branch.node_id].branch
        # and an answer that branches off another is read completely: the shared part, and its own words
        texts = dict(rows(path, "select id, text from nodes"))
        shared = rows(path, "select at_byte from nodes where id = ?", branch.node_id)[0][0]
        whole = (texts[answer.node_id].encode()[:shared] + texts[branch.node_id].encode()).decode(errors="replace")
        expected = await cosines(s, "where else?", [whole])
        assert found[branch.node_id].similarity == pytest.approx(float(expected[0]), abs=1e-5)
        # when its branch is pruned, then it is left out
        await s.workbench.branches.prune(session_id, branch.node_id, 0, True)
        left = order(await looked(s, session_id, shown[-2]))
        assert branch.node_id not in left
        assert answer.node_id in left

    play(scene, engine=Embedding())


def test_a_turn_of_another_branch_is_shown(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await talked(s, ["where to?"])
        question, answer = (await s.view(session_id)).turns[-2:]
        await s.workbench.answers.send(session_id, "where else?", replaces=question.node_id)
        # when a turn of the path is chosen, the path stays; of another branch, that branch is shown
        here = [turn.node_id for turn in (await s.view(session_id)).turns]
        for node_id, end in ((here[-2], here[-1]), (question.node_id, answer.node_id), (here[-1], here[-1])):
            view = await s.workbench.branches.show_turn(session_id, node_id)
            assert view.turns[-1].node_id == end
            assert (await s.view(session_id)).turns[-1].node_id == end

    play(scene, engine=Embedding())


def test_the_beginning_of_a_long_turn_is_compared(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.compare.similar_vectors.LONGEST", 40)
    engine = Embedding()

    async def scene(s: Scene) -> None:
        long = "a long story about a ship and the sea, 日本 🐈 " * 5
        session_id = await talked(s, ["where to?", long])
        turns = [turn for turn in (await s.view(session_id)).turns if turn.role != "system"]
        found = await looked(s, session_id, turns[0].node_id)
        row = next(row for row in found.rows if row.node_id == turns[2].node_id)
        tokens = len(await running(s).tokenize_async(long))
        # then the limit is reported, and its vector is that of the beginning
        assert (found.limit, row.tokens) == (40, tokens)
        (sent,) = [text for batch in engine.batches for text in batch if text.startswith("a long")]
        assert long.startswith(sent)
        assert 30 <= len(await running(s).tokenize_async(sent)) <= 40
        # and it is cached like any other, also if it is the chosen one
        again = await looked(s, session_id, turns[2].node_id)
        assert (again.computed, again.tokens) == (0, tokens)

    play(scene, engine=engine)


def test_nothing_is_left_in_the_kv_cache(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        held = await settled_report(running(s))
        await looked(s, session_id, (await s.view(session_id)).turns[-1].node_id)
        after = await settled_report(running(s))
        assert (after.tokens, after.bytes, after.pins) == (held.tokens, held.bytes, held.pins)

    play(scene, engine=Embedding())


def test_old_vectors_are_evicted_for_newer_ones(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        turn = (await s.view(session_id)).turns[-1]
        vectors, each = VectorCache(3 * 4 * running(s).info.hidden_size), s.workbench.services
        search = SimilarSearch(each.store, each.supervisor, each.sessions, each.adapters, vectors)
        found = await search.find(session_id, turn.node_id, "mean", lambda *_: None)
        assert len(found.rows) == 5  # the result itself is complete
        assert len(vectors) == 3
        assert (await search.find(session_id, turn.node_id, "mean", lambda *_: None)).computed > 0

    play(scene, engine=Embedding())
