"""Turns that cannot be compared, engines that end half-way, searches that are stopped: reported, and nothing is lost."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from runtime import ModelMissingError, UnsupportedFeatureError
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, alternative, own_tokens, until
from tests.app.workbench.similar_scene import Embedding, looked, running, talked
from ui import ModelRefusal, Refusal


async def first(s: Scene, session_id: int) -> int:
    return next(turn.node_id for turn in (await s.view(session_id)).turns if turn.role == "user")


def test_a_stopped_search_keeps_the_vectors_computed_so_far(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.compare.similar_vectors.BATCH_TURNS", 2)
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        node_id = await first(s, session_id)
        told: list[tuple[str, int, int]] = []

        def hold(*news: object) -> None:
            told.append(news)  # type: ignore[arg-type]  # three of them
            if news[1] == 2:
                engine.waits = asyncio.Event()

        look = asyncio.create_task(s.workbench.similar.find(session_id, node_id, "mean", hold))
        await until(lambda: len(engine.batches) == 2)
        look.cancel()
        with pytest.raises(asyncio.CancelledError):
            await look
        # then the first batch is cached, and the engine has no more work for it
        assert told[-1] == ("comparing turns", 2, 6)
        await until(lambda: running(s).metrics().requests_active == 0)
        engine.waits = None
        again = await looked(s, session_id, node_id)
        assert len(again.rows) == 5
        assert sum(map(len, engine.batches[2:])) == 4

    play(scene, engine=engine)


def test_an_engine_that_dies_half_way_is_restarted_by_the_next_search(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.workbench.compare.similar_vectors.BATCH_TURNS", 2)
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        node_id = await first(s, session_id)
        engine.dies_at = 1
        with pytest.raises(Refusal, match="the engine stopped; 2 of 6 turns are done and remembered"):
            await looked(s, session_id, node_id)
        assert s.workbench.services.supervisor.running is None
        found = await looked(s, session_id, node_id)
        assert (engine.starts, len(found.rows)) == (2, 5)
        # the same model again: its vectors are still cached
        assert sum(map(len, engine.batches[1:])) == 4

    play(scene, engine=engine)


def test_a_search_during_which_the_model_changes_is_refused(play: Play) -> None:
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        node_id = await first(s, session_id)
        engine.waits = asyncio.Event()
        look = asyncio.create_task(looked(s, session_id, node_id))
        await until(lambda: engine.batches)
        await s.workbench.services.supervisor.change(source="another")
        engine.waits.set()
        with pytest.raises(Refusal, match="the model was changed; try again"):
            await look
        assert len((await looked(s, session_id, node_id)).rows) == 5

    play(scene, engine=engine)


def test_another_model_is_offered_if_this_one_is_missing_or_has_no_embeddings(play: Play) -> None:
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await talked(s)
        node_id = await first(s, session_id)
        engine.fault = UnsupportedFeatureError("no hidden states of this architecture")
        with pytest.raises(ModelRefusal, match="no hidden states"):
            await looked(s, session_id, node_id)
        engine.fault = None
        await s.workbench.services.supervisor.change(source="nobody/nothing")
        engine.refuses.append(ModelMissingError("get it", "nobody/nothing"))
        with pytest.raises(ModelRefusal, match="nothing is not on this computer"):
            await looked(s, session_id, node_id)

    play(scene, engine=engine)


def test_a_turn_too_long_for_the_kv_budget_is_refused_with_numbers(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await talked(s, ["where to?", "a long question " * 20])
        node_id = await first(s, session_id)
        await running(s).set_kv_budget_async(20_000)
        with pytest.raises(Refusal, match=r"^a turn is too long to be compared: 320 tokens need [\d,]+ bytes of KV"):
            await looked(s, session_id, node_id)

    play(scene, engine=Embedding())


def test_turns_without_text_and_unknown_turns_are_refused(play: Play) -> None:
    engine = Embedding()

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        engine.loading = asyncio.Event()
        # given a question whose answer never began: no other turn has text, and no engine is needed
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "where to?"))
        await until(lambda: engine.starts)
        question, answer = (await s.view(session_id)).turns[-2:]
        with pytest.raises(Refusal, match="still being written"):
            await looked(s, session_id, answer.node_id)
        with pytest.raises(Refusal, match="no other turn has words yet: send a message"):
            await looked(s, session_id, question.node_id)
        s.workbench.answers.stop(session_id)
        engine.loading.set()
        await sending
        await s.workbench.services.supervisor.model()
        with pytest.raises(Refusal, match="no words to compare"):
            await looked(s, session_id, (await s.last(session_id)).node_id)
        for ask in (looked(s, session_id, 10_000), s.workbench.branches.show_turn(session_id, 10_000)):
            with pytest.raises(Refusal, match="not part of this session"):
                await ask

    play(scene, engine=engine)


def test_a_running_answer_is_left_out(play: Play) -> None:
    engine = Embedding()

    async def scene(s: Scene) -> None:
        # given a running answer that branches off inside another one, and so has text already
        session_id = await talked(s)
        node_id, answer = await first(s, session_id), await s.last(session_id)
        engine.holds_after = 3
        index = own_tokens(answer)[4]
        branching = asyncio.create_task(
            s.workbench.answers.branch(session_id, answer.node_id, index, alternative(answer, index))
        )
        before = s.arrived(session_id)
        await until(lambda: s.arrived(session_id) > before)
        found = await looked(s, session_id, node_id)
        assert len(found.rows) == 5
        s.workbench.answers.stop(session_id)
        await branching
        assert len((await looked(s, session_id, node_id)).rows) == 6

    play(scene, engine=engine)


def test_damaged_turns_are_left_out_and_counted(play: Play, path: Path) -> None:
    kept: list[int] = []

    async def first_evening(s: Scene) -> None:
        kept.append(await talked(s))

    async def second_evening(s: Scene) -> None:
        (session_id,) = kept
        damaged, sound = [turn.node_id for turn in (await s.view(session_id)).turns if turn.role == "user"][1:]
        found = await looked(s, session_id, sound)
        assert found.damaged == 1
        assert damaged not in [row.node_id for row in found.rows]
        assert len(found.rows) == 4
        with pytest.raises(Refusal, match="damaged"):
            await looked(s, session_id, damaged)

    play(first_evening, engine=Embedding())
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("update nodes set text = 'somebody else wrote this' where text = 'where to go?'")
    play(second_evening, engine=Embedding())
