"""Several continuations of one place: saved as siblings as they stream, kept one by one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from app.workbench.answers.streaming import STARTING
from runtime import GenerationOptions, ModelLoadError, SamplingOptions, replay_draw
from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import arrived, last_columns
from tests.app.workbench.scene import OPTIONS, Engine, Scene, answered, assert_same_run, own_tokens, rows, until
from ui import AnswerFormat, ColumnKind, ColumnsChanged, ColumnTokens, FormatKind, Guess, Refusal


def test_continuations_of_a_token_are_siblings_that_share_the_prefix(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        before = await s.path_ids(session_id)
        computed = s.workbench.services.supervisor.running.metrics().tokens_computed  # type: ignore[union-attr]  # it runs
        await s.workbench.continuations.continue_many(session_id, old.node_id, at, 4)
        columns = last_columns(s)

        # then there are four, each with its tokens and their joint probability
        assert (columns.kind, columns.wanted, columns.running) == (ColumnKind.DRAWS, 4, False)
        assert len(columns.columns) == 4
        for column in columns.columns:
            assert len(column.run) == 12
            assert column.logprob == pytest.approx(float(np.nansum(column.run.logprob)), abs=1e-4)
            assert column.note == ""  # they end at a length limit on purpose: the kept one can be continued
        assert len({tuple(c.run.ids.tolist()) for c in columns.columns}) > 1
        # the prefix was not computed again, except at most the token before the place
        model = s.workbench.services.supervisor.running
        assert model is not None
        assert model.metrics().tokens_computed - computed <= 4 * 12 + 1
        # the shown path is the same, and the columns are among its variants
        view = await s.view(session_id)
        assert await s.path_ids(session_id) == before
        assert view.turns[-1].variants == (old.node_id, *(c.node_id for c in columns.columns))
        # each was reported while it streamed, and all of it is saved
        for column in columns.columns:
            told = [e.run for e in s.events if isinstance(e, ColumnTokens) and e.node_id == column.node_id]
            assert sum(map(len, told)) == 12
            stored = await s.store.load_tokens([column.node_id])
            assert np.concatenate([c.columns["ids"] for c in stored[column.node_id]]).tolist() == column.run.ids.tolist()
        # when one is kept
        kept = columns.columns[2]
        shown = await s.workbench.branches.select(session_id, kept.node_id)
        assert shown.turns[-1].node_id == kept.node_id
        assert shown.turns[-1].run.ids.tolist() == [*old.run.ids[:at].tolist(), *kept.run.ids.tolist()]
        # then it can be continued like any answer
        await s.workbench.answers.continue_turn(session_id, kept.node_id)
        assert len(own_tokens(await s.last(session_id))) == 4 + 12 + 12

    play(scene)


def test_a_column_equals_a_stream_of_its_own(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.continuations.continue_many(session_id, old.node_id, at, 2)
        model, prompt = s.workbench.services.supervisor.running, s.engine.prompts[-1]
        assert model is not None
        for branch, column in enumerate(last_columns(s).columns):
            (stats,) = [n.stats for n in (await s.store.load_session(session_id)).nodes if n.id == column.node_id]
            options = GenerationOptions.from_mapping(stats["made"]["options"])
            assert (options.branch, options.seed) == (1 + branch, OPTIONS.seed)  # the answer itself is branch 0
            alone = [record.token_id async for record in model.generate(prompt, options)]
            assert alone == column.run.ids.tolist()
            # and its provenance draws it again from a whole row
            await s.workbench.branches.select(session_id, column.node_id)
            drawing = await s.workbench.drawings.find(session_id, column.node_id, at + 3)
            assert drawing is not None
            assert drawing.sampling is not None
            assert drawing.can_ask
            row = await s.workbench.drawings.whole_row(session_id, column.node_id, at + 3)
            found = replay_draw(
                row, drawing.sampling, seed=drawing.seed, position=drawing.position, branch=drawing.branch,
                history=drawing.history,
            )  # fmt: skip
            assert found.token == column.run.ids[3]

    play(scene)


def test_from_the_end_of_an_answer_the_shown_path_stays_one_of_the_variants(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)  # ended by its limit, not by the model
        await s.workbench.continuations.continue_many(session_id, old.node_id, None, 2)
        columns = last_columns(s)
        turn = await s.last(session_id)
        assert turn.node_id == old.node_id
        assert turn.variants == (old.node_id, *(c.node_id for c in columns.columns))
        shown = await s.workbench.branches.select(session_id, columns.columns[0].node_id)
        assert shown.turns[-1].variants == tuple(c.node_id for c in columns.columns)
        assert shown.turns[-1].run.ids[: len(old.run)].tolist() == old.run.ids.tolist()
        # and back to the path as it was, not to its continuation
        back = await s.workbench.branches.select(session_id, old.node_id, as_before=True)
        assert (back.turns[-1].node_id, len(back.turns[-1].run)) == (old.node_id, len(old.run))

    play(scene)


def test_a_session_with_speculation_has_continuations_too(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.setup.set_guess(session_id, Guess.PROMPT_LOOKUP)
        await s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[4], 2)
        columns = last_columns(s)
        assert [len(column.run) for column in columns.columns] == [12, 12]
        # and each is stored as drawn without speculation: regenerated exactly it is the same
        for column in columns.columns:
            (stats,) = [n.stats for n in (await s.store.load_session(session_id)).nodes if n.id == column.node_id]
            assert stats["made"]["options"]["speculative"] is None
        await s.workbench.branches.select(session_id, columns.columns[1].node_id)
        await s.workbench.answers.regenerate_exactly(session_id, columns.columns[1].node_id)
        assert "the same, token for token" in (await s.last(session_id)).note

    play(scene)


def test_the_provenance_of_columns_is_known_while_they_stream(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after, at = 20, own_tokens(old)[2]
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, at, 3))
        await until(lambda: arrived(s) >= 20)
        columns = last_columns(s).columns
        live = [await s.workbench.drawings.find(session_id, column.node_id, at) for column in columns]
        s.workbench.answers.stop(session_id)
        await work
        ended = [await s.workbench.drawings.find(session_id, column.node_id, at) for column in columns]
        known = [(one, other) for one, other in zip(live, ended, strict=True) if one is not None and other is not None]
        assert len(known) >= 2  # a column may be shorter yet
        for one, other in known:
            assert one.seed is not None
            assert one.sampling is not None
            assert one.sampling.temperature == 0.8
            assert (one.seed, one.branch, one.sampling) == (other.seed, other.branch, other.sampling)
        assert len({one.branch for one, _ in known}) == len(known)

    play(scene, engine=engine)


@pytest.mark.parametrize("place", [0, 4])
def test_continuations_under_a_chosen_seed_differ(play: Play, place: int) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_option(session_id, "seed", 7)
        await s.workbench.answers.send(session_id, "where to?")
        old = await s.last(session_id)
        at = own_tokens(old)[place]
        said = [old.run.ids[at:].tolist()]
        for _ in range(2):  # the second time equals the first
            await s.workbench.continuations.continue_many(session_id, old.node_id, at, 2)
            said += [column.run.ids.tolist() for column in last_columns(s).columns]
        # then no two are equal, although all share the seed
        beginnings = {tuple(ids[: 12 - place]) for ids in said}
        assert len(beginnings) == len(said) == 5
        made = [n.stats["made"]["options"] for n in (await s.store.load_session(session_id)).nodes if "made" in n.stats]
        assert [(options["seed"], options["branch"]) for options in made] == [(7, branch) for branch in range(5)]

    play(scene, options=GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=1.5)))


def test_a_preview_is_the_greedy_continuation_and_stores_nothing(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        token = next(int(t) for t in old.run.top_ids[at] if t != old.run.ids[at])
        before = rows(s.path, "select count(*), (select count(*) from token_chunks) from nodes")
        words = await s.workbench.drawings.preview(session_id, old.node_id, at, token, 5)
        model = s.workbench.services.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        greedy = GenerationOptions(max_tokens=5, sampling=SamplingOptions(temperature=0.0), resolve=False)
        expected = [r async for r in model.generate([*prompt, token], greedy)]
        assert list(words) == [r.token_bytes for r in expected if r.finish_reason != "eos"]
        assert rows(s.path, "select count(*), (select count(*) from token_chunks) from nodes") == before
        after = await s.last(session_id)
        assert (after.node_id, after.variants, after.note) == (old.node_id, old.variants, old.note)
        assert_same_run(after.run, old.run)

    play(scene)


def test_without_a_model_stored_facts_are_shown_and_the_others_name_the_way_out(play: Play) -> None:
    async def first(s: Scene) -> None:
        await answered(s)

    async def second(s: Scene) -> None:
        session_id = (await s.store.sessions())[0].id
        turn = await s.last(session_id)
        at = own_tokens(turn)[2]
        with pytest.raises(Refusal, match="no model runs"):
            await s.workbench.drawings.whole_row(session_id, turn.node_id, at)
        # but the options of the draw are known, and the model of the numbers
        drawing = await s.workbench.drawings.find(session_id, turn.node_id, at)
        assert drawing is not None
        assert drawing.model
        assert (drawing.stale, drawing.can_ask) == ("", False)
        assert drawing.seed == OPTIONS.seed
        assert drawing.sampling is not None
        assert drawing.sampling.temperature == 0.8
        assert drawing.history.tolist() == (await s.path_ids(session_id))[: drawing.position]
        assert s.engine.starts == 1
        # a preview starts the engine, or is refused with the reason
        s.engine.refuses.append(ModelLoadError("the folder is gone"))
        with pytest.raises(Refusal, match="the folder is gone"):
            await s.workbench.drawings.preview(session_id, turn.node_id, at, 5, 3)
        assert len(await s.workbench.drawings.preview(session_id, turn.node_id, at, 5, 3)) <= 3
        assert s.engine.starts == 3

    engine = Engine()
    play(first, engine=engine)
    play(second, engine=engine)


def test_continuations_and_beams_have_the_form_of_the_session(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[0]
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{3}"))
        await s.workbench.setup.set_guess(session_id, Guess.PROMPT_LOOKUP)  # for one stream; several do without
        for work in (s.workbench.continuations.continue_many, s.workbench.continuations.beams):
            await work(session_id, old.node_id, at, 2)
            columns = last_columns(s)
            assert [column.note for column in columns.columns] == ["", ""]
            for column in columns.columns:
                assert column.run.text[:3].isdigit(), column.run.text
                assert len(column.run.text) == 3

    play(scene)


def test_a_form_set_during_a_load_does_not_affect_waiting_continuations(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        model = s.workbench.services.supervisor.running
        assert model is not None
        gate = s.engine.loading = asyncio.Event()
        await s.workbench.services.supervisor.died(model)
        work = asyncio.create_task(s.workbench.continuations.continue_many(session_id, old.node_id, own_tokens(old)[3], 2))
        await until(lambda: any(isinstance(e, ColumnsChanged) and e.view and e.view.note == STARTING for e in s.events))
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{3}"))
        gate.set()
        await work
        assert all(not column.run.text[:3].isdigit() for column in last_columns(s).columns)

    play(scene)
