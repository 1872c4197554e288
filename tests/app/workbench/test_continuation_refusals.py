"""Places and numbers of continuations that are refused with the reason, and leave nothing behind."""

from __future__ import annotations

import pytest

from runtime import Finish, GenerationOptions, SamplingOptions
from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import last_columns
from tests.app.workbench.scene import Scene, answered, own_tokens
from ui import ColumnsChanged, Refusal


@pytest.mark.parametrize("n", [0, 1, 17])
def test_invalid_numbers_of_continuations_are_refused(play: Play, n: int) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        with pytest.raises(Refusal, match=f"{n} continuations: ask for 2 to 16"):
            await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], n)
        assert len((await s.view(session_id)).turns[-1].variants) == 1

    play(scene)


def test_places_that_cannot_be_continued_are_refused(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        user = (await s.view(session_id)).turns[-2]
        for node_id, index, words in (
            (user.node_id, own_tokens(user)[0], "your own text"),
            (old.node_id, 0, "template"),
            (old.node_id, 10_000, "not part of this session"),
            (9999, None, "not part of this session"),
            (user.node_id, None, "no answer to continue"),
        ):
            with pytest.raises(Refusal, match=words):
                await s.workbench.continuations.continue_many(session_id, node_id, index, 2)
        assert s.workbench.status.reason == ""
        assert (await s.last(session_id)).variants == (old.node_id,)

    play(scene)


def test_a_complete_answer_is_not_continued_from_its_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        model = s.workbench.services.supervisor.running
        assert model is not None
        eos = model.eos_token_ids[0]
        await s.workbench.answers.branch(session_id, old.node_id, own_tokens(old)[3], eos)
        ended = await s.last(session_id)
        assert int(ended.run.finish[-1]) == Finish.EOS
        with pytest.raises(Refusal, match="the answer is complete"):
            await s.workbench.continuations.continue_many(session_id, ended.node_id, None, 2)

    play(scene)


def test_draws_at_temperature_zero_are_refused_with_the_way_out(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        with pytest.raises(Refusal, match=r"all continuations would be the same\. Raise it, or use beams"):
            await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert [e.view for e in s.events if isinstance(e, ColumnsChanged)][-1] is None
        assert (await s.last(session_id)).variants == (old.node_id,)
        await s.workbench.continuations.beams(session_id, old.node_id, own_tokens(old)[2], 2)
        assert len(last_columns(s).columns) == 2

    play(scene, options=GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0)))
