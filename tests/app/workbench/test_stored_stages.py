"""The sampler stages of each draw are stored, and repeat it without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.workbench.tree.runs import GrowingRun
from runtime import Origin, SamplingOptions, TokenRun, replay_draw
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, WAYS, Engine, Scene
from ui import TurnStatus


def sampled(run: TokenRun) -> list[int]:
    return [i for i, origin in enumerate(run.origin.tolist()) if origin == Origin.SAMPLED]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", WAYS, ids=str)
def test_every_draw_is_repeated_from_its_stored_stages(play: Play, sampling: SamplingOptions) -> None:
    shown: list[TokenRun] = []

    async def first(s: Scene) -> None:
        shown.append((await s.last(await s.asked())).run)

    async def second(s: Scene) -> None:
        view = await s.view((await s.workbench.sessions.list())[0].session_id)
        run = view.turns[-1].run
        assert s.engine.starts == 0  # no model
        assert run.stages is not None
        own = sampled(run)
        assert len(own) == OPTIONS.max_tokens
        for i in own:
            record = run.record(i)
            assert len(record.top_ids) >= 64
            assert record.redrawn == record.token_id
            assert replay_draw(record).token == record.token_id
            assert record.stages == shown[0].record(i).stages
            assert record.stages[0].name == "raw"  # type: ignore[index]  # looked at above
        header = next(i for i in range(len(run)) if i not in own)
        assert run.record(header).stages is None

    options = replace(OPTIONS, sampling=sampling)
    play(first, options=options)
    play(second)


def test_an_answer_without_stages_opens_as_before(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file from before stages were stored
    def plain(run: TokenRun) -> dict[str, object]:
        return {name: column for name, column in columns(run).items() if not name.startswith("stage_")}

    columns = TokenRun.to_columns
    monkeypatch.setattr(TokenRun, "to_columns", lambda run, **_: plain(run))

    async def first(s: Scene) -> None:
        await s.asked()

    async def second(s: Scene) -> None:
        session_id = (await s.workbench.sessions.list())[0].session_id
        view = await s.view(session_id)
        run = view.turns[-1].run
        assert run.stages is None
        assert run.record(sampled(run)[0]).logprob is not None
        monkeypatch.undo()
        await s.workbench.answers.continue_turn(session_id, view.turns[-1].node_id)  # the new tokens have them
        joined = (await s.last(session_id)).run
        assert joined.record(sampled(run)[0]).stages is None
        assert joined.record(sampled(joined)[-1]).redrawn == joined.ids[sampled(joined)[-1]]

    play(first, engine=Engine())
    play(second)


def test_invalid_stages_are_ignored_and_the_tokens_kept(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    # given columns that another program wrote
    columns = TokenRun.to_columns

    def strange(run: TokenRun, **how: bool) -> dict[str, Any]:
        return {**columns(run, **how), "stage_names": np.full((len(run), 2), 200, np.uint8)}

    monkeypatch.setattr(TokenRun, "to_columns", strange)
    texts: list[str] = []

    async def first(s: Scene) -> None:
        texts.append((await s.last(await s.asked())).run.text)

    async def second(s: Scene) -> None:
        turn = await s.last((await s.workbench.sessions.list())[0].session_id)
        assert turn.run.text == texts[0]
        assert turn.run.stages is None
        assert turn.status is TurnStatus.DAMAGED

    play(first)
    monkeypatch.undo()
    play(second)


def test_a_stored_token_is_small(play: Play) -> None:
    # given an answer drawn as the window draws
    run: list[TokenRun] = []

    async def scene(s: Scene) -> None:
        run.append((await s.last(await s.asked())).run)

    play(scene, options=replace(OPTIONS, sampling=WAYS[0]))
    own = run[0][sampled(run[0])[0] :]
    assert own.stages is not None
    # then little is stored in addition to the 64 alternatives, and no alternative twice
    columns = own.to_columns(narrow=True)
    stages = sum(column.nbytes for name, column in columns.items() if name.startswith("stage_"))
    assert columns["stage_ids"].size == 0
    assert columns["top_ids"].nbytes + columns["top_logprobs"].nbytes == 6 * 64 * len(own)
    assert stages / len(own) < 200
    again = TokenRun.from_columns(columns)
    assert list(again) == list(own)
    assert again.stages is not None
    assert again.stages.ids.base is not None  # a view of the alternatives: no copy


def test_a_growing_run_keeps_its_stages(play: Play) -> None:
    whole: list[TokenRun] = []

    async def scene(s: Scene) -> None:
        whole.append((await s.last(await s.asked())).run)

    play(scene)
    run = whole[0]
    growing = GrowingRun(run[:3])
    for at in range(3, len(run)):
        growing.append(run[at : at + 1])
        if at % 4 == 0:
            assert list(growing.run) == list(run[: at + 1])
    assert list(growing.run) == list(run)
