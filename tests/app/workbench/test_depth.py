"""The layers of the running model at a token: its own numbers, under its adapters; another model's are refused."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, own_tokens
from tests.runtime.adapters.toys import toy_adapter
from ui import Refusal


def test_the_last_layer_equals_the_stored_numbers(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        turn = await s.last(session_id)
        for at in own_tokens(turn)[:3]:
            run = await s.workbench.drawings.depth(session_id, turn.node_id, at)
            record = turn.run.record(at)
            assert run.token_ids[0, 0] == record.token_id
            assert run.ranks[0, -1, 0] == record.rank
            np.testing.assert_allclose(run.logprobs[0, -1, 0], turn.run.logprob[at], atol=1e-5)
            # the stored alternatives are followed beside it
            assert run.token_ids[0, 1:].tolist() == [token for token in record.top_ids if token != record.token_id]
            # and tokens requested by name, before them
            other = next(token for token in range(100) if token not in record.top_ids)
            more = await s.workbench.drawings.depth(session_id, turn.node_id, at, (other, record.token_id))
            assert more.token_ids[0].tolist() == [record.token_id, other, *run.token_ids[0, 1:].tolist()]
            np.testing.assert_array_equal(more.ranks[0, :, 2:], run.ranks[0, :, 1:])
        with pytest.raises(Refusal, match="not part of this session"):
            await s.workbench.drawings.depth(session_id, turn.node_id, 10_000)
        path = (await s.workbench.sessions.open(session_id)).turns
        first = next(turn for turn in path if len(turn.run))
        with pytest.raises(Refusal, match="the first token has nothing before it"):
            await s.workbench.drawings.depth(session_id, first.node_id, 0)

    play(scene)


def _note(told: list[tuple[int, int]], done: int, total: int) -> None:
    told.append((done, total))


@pytest.mark.slow
def test_the_depth_of_a_whole_turn_equals_that_of_each_token(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        await s.workbench.answers.send(session_id, "and then?")
        drawings = s.workbench.drawings
        for turn in (await s.workbench.sessions.open(session_id)).turns:
            told: list[tuple[int, int]] = []
            if not len(turn.run):
                with pytest.raises(Refusal, match="not part of this session"):
                    await drawings.turn_depth_cost(session_id, turn.node_id)
                continue
            cost = await drawings.turn_depth_cost(session_id, turn.node_id)
            assert cost.tokens == len(turn.run)
            assert cost.like_tokens >= cost.tokens
            found = await drawings.turn_depth(session_id, turn.node_id, partial(_note, told))
            assert len(found.leads) == len(turn.run)
            assert told[-1][0] == told[-1][1]
            for at in range(len(turn.run)):
                try:
                    one = await drawings.depth(session_id, turn.node_id, at)
                except Refusal:
                    assert (turn.run.rank[at], found.leads[at]) == (0, -2)  # no token precedes it
                    continue
                assert found.leads[at] == one.leads_from()[0]
                assert found.layers == one.layers
        with pytest.raises(Refusal, match="not part of this session"):
            await drawings.turn_depth(session_id, 10_000, print)

    play(scene)


def test_a_stopped_computation_of_a_turns_depth_leaves_nothing_behind(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        turn, model = await s.last(session_id), s.workbench.services.supervisor.running
        assert model is not None
        begun = asyncio.Event()
        work = asyncio.create_task(s.workbench.drawings.turn_depth(session_id, turn.node_id, lambda *_heard: begun.set()))
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        found = await s.workbench.drawings.turn_depth(session_id, turn.node_id, lambda *_heard: None)
        assert len(found.leads) == len(turn.run)

    play(scene)


def test_another_models_tokens_and_a_model_without_layers_are_refused_with_the_reason(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        turn, model = await s.last(session_id), s.workbench.services.supervisor.running
        assert model is not None
        at = own_tokens(turn)[1]
        # given an answer of the base, when the session gets an adapter
        await s.workbench.setup.add_adapter(session_id, folder)
        with pytest.raises(Refusal, match=r"layers of .* with the adapters pirate × 1, which is in use, did not decide"):
            await s.workbench.drawings.depth(session_id, turn.node_id, at)
        with pytest.raises(Refusal, match="which is in use, did not decide them"):
            await s.workbench.drawings.turn_depth(session_id, turn.node_id, lambda *_heard: None)
        with pytest.raises(Refusal, match="which is in use, did not decide them"):
            await s.workbench.drawings.turn_depth_cost(session_id, turn.node_id)
        # then an answer under it has its layers
        await s.workbench.answers.regenerate(session_id, turn.node_id)
        turn = await s.last(session_id)
        run = await s.workbench.drawings.depth(session_id, turn.node_id, at)
        np.testing.assert_allclose(run.logprobs[0, -1, 0], turn.run.logprob[at], atol=1e-5)
        # and a server without layers is refused with its own message
        transport = model.transport
        monkeypatch.setattr(type(transport), "capabilities", frozenset({"scores"}))
        with pytest.raises(Refusal, match="no layers that can be read from here: it answers with tokens"):
            await s.workbench.drawings.depth(session_id, turn.node_id, at)
        with pytest.raises(Refusal, match="no layers that can be read from here"):
            await s.workbench.drawings.turn_depth(session_id, turn.node_id, lambda *_heard: None)
        # nor can a branch start at a token of a model that reports no ids
        s.workbench.services.windows.refresh_status()
        assert {"beam_generate", "token_ids"} <= s.workbench.status.lacks
        with pytest.raises(Refusal, match="returns no token ids, so a branch cannot start at a token"):
            await s.workbench.answers.branch(session_id, turn.node_id, at, 3)
        with pytest.raises(Refusal, match="returns no token ids"):
            await s.workbench.answers.write(session_id, turn.node_id, at, "other words")
        with pytest.raises(Refusal, match="returns no token ids"):
            await s.workbench.continuations.continue_many(session_id, turn.node_id, at, 2)
        monkeypatch.undo()

    play(scene)
