"""Several continuations of one place: saved as siblings as they stream, stopped together, kept one by one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.workbench.answers import STARTING
from runtime import BeamOptions, Finish, GenerationOptions, ModelLoadError, SamplingOptions, replay_draw
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Engine, Scene, own_tokens, rows, until
from tests.runtime.adapters.test_changes import toy_adapter
from ui import (
    AnswerFormat,
    ColumnKind,
    Columns,
    ColumnsChanged,
    ColumnTokens,
    FormatKind,
    Guess,
    Refusal,
    TurnStatus,
    TurnView,
)


def last_columns(s: Scene) -> Columns:
    view = [event.view for event in s.events if isinstance(event, ColumnsChanged)][-1]
    assert view is not None
    return view


def arrived(s: Scene) -> int:
    return sum(len(event.run) for event in s.events if isinstance(event, ColumnTokens))


async def answered(s: Scene) -> tuple[int, TurnView]:
    session_id = await s.asked("where to?")
    return session_id, await s.last(session_id)


def test_continuations_of_a_token_are_siblings_that_share_the_prefix(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        before = await s.path_ids(session_id)
        computed = s.workbench.supervisor.running.metrics().tokens_computed  # type: ignore[union-attr]  # it runs
        await s.workbench.continue_many(session_id, old.node_id, at, 4)
        columns = last_columns(s)

        # then there are four, each with its tokens and their joint probability
        assert (columns.kind, columns.wanted, columns.running) == (ColumnKind.DRAWS, 4, False)
        assert len(columns.columns) == 4
        for column in columns.columns:
            assert len(column.run) == 12
            assert column.logprob == pytest.approx(float(np.nansum(column.run.logprob)), abs=1e-4)
            assert column.note == ""  # they are cut at a length on purpose: the one that is kept can go on
        assert len({tuple(c.run.ids.tolist()) for c in columns.columns}) > 1
        # the prefix was not computed again, but for the token in front of the place at most
        model = s.workbench.supervisor.running
        assert model is not None
        assert model.metrics().tokens_computed - computed <= 4 * 12 + 1
        # the path that is shown stayed, and the columns are among its variants
        view = await s.view(session_id)
        assert await s.path_ids(session_id) == before
        assert view.turns[-1].variants == (old.node_id, *(c.node_id for c in columns.columns))
        # each was told as it streamed, and all of it is on the disk
        for column in columns.columns:
            told = [e.run for e in s.events if isinstance(e, ColumnTokens) and e.node_id == column.node_id]
            assert sum(map(len, told)) == 12
            stored = await s.store.load_tokens([column.node_id])
            assert np.concatenate([c.columns["ids"] for c in stored[column.node_id]]).tolist() == column.run.ids.tolist()
        # when one is kept
        kept = columns.columns[2]
        shown = await s.workbench.select(session_id, kept.node_id)
        assert shown.turns[-1].node_id == kept.node_id
        assert shown.turns[-1].run.ids.tolist() == [*old.run.ids[:at].tolist(), *kept.run.ids.tolist()]
        # then it can go on as any answer does
        await s.workbench.continue_turn(session_id, kept.node_id)
        assert len(own_tokens(await s.last(session_id))) == 4 + 12 + 12

    play(scene)


def test_a_column_says_what_a_stream_of_its_own_would_say(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.continue_many(session_id, old.node_id, at, 2)
        model, prompt = s.workbench.supervisor.running, s.engine.prompts[-1]
        assert model is not None
        for branch, column in enumerate(last_columns(s).columns):
            (stats,) = [n.stats for n in (await s.store.load_session(session_id)).nodes if n.id == column.node_id]
            options = GenerationOptions.from_mapping(stats["made"]["options"])
            assert (options.branch, options.seed) == (1 + branch, OPTIONS.seed)  # the answer itself is branch 0
            alone = [record.token_id async for record in model.generate(prompt, options)]
            assert alone == column.run.ids.tolist()
            # and what is known of how it was drawn draws it again from a whole row
            await s.workbench.select(session_id, column.node_id)
            drawing = await s.workbench.drawing(session_id, column.node_id, at + 3)
            assert drawing is not None
            assert drawing.sampling is not None
            assert drawing.can_ask
            row = await s.workbench.whole_row(session_id, column.node_id, at + 3)
            found = replay_draw(
                row, drawing.sampling, seed=drawing.seed, position=drawing.position, branch=drawing.branch,
                history=drawing.history,
            )  # fmt: skip
            assert found.token == column.run.ids[3]

    play(scene)


def test_from_the_end_of_an_answer_the_shown_path_stays_one_of_the_variants(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)  # cut by its limit: not at an end of its own
        await s.workbench.continue_many(session_id, old.node_id, None, 2)
        columns = last_columns(s)
        turn = await s.last(session_id)
        assert turn.node_id == old.node_id
        assert turn.variants == (old.node_id, *(c.node_id for c in columns.columns))
        shown = await s.workbench.select(session_id, columns.columns[0].node_id)
        assert shown.turns[-1].variants == tuple(c.node_id for c in columns.columns)
        assert shown.turns[-1].run.ids[: len(old.run)].tolist() == old.run.ids.tolist()

    play(scene)


def test_a_session_that_guesses_ahead_has_continuations_too(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        await s.workbench.set_guess(session_id, Guess.PROMPT_LOOKUP)
        await s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[4], 2)
        columns = last_columns(s)
        assert [len(column.run) for column in columns.columns] == [12, 12]
        # and what is stored of each says that nobody guessed for it: made again exactly it is the same
        for column in columns.columns:
            (stats,) = [n.stats for n in (await s.store.load_session(session_id)).nodes if n.id == column.node_id]
            assert stats["made"]["options"]["speculative"] is None
        await s.workbench.select(session_id, columns.columns[1].node_id)
        await s.workbench.regenerate_exactly(session_id, columns.columns[1].node_id)
        assert "the same, token for token" in (await s.last(session_id)).note

    play(scene)


def test_stop_stops_all_and_keeps_what_was_said(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after = 9
        work = asyncio.create_task(s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 3))
        await until(lambda: arrived(s) >= 9)
        # meanwhile nothing else is written here
        with pytest.raises(Refusal, match="stop it first"):
            await s.workbench.send(session_id, "and?")
        s.workbench.stop(session_id)
        await work
        columns = last_columns(s)
        assert not columns.running
        assert sum(len(c.run) for c in columns.columns) == 9
        assert {c.note for c in columns.columns} == {"stopped"}
        for column in columns.columns:
            assert rows(s.path, "select status, finish_reason, length(text) from nodes where id = ?", column.node_id) == [
                ("partial", "cancelled", len(column.run.text))
            ]
        # and the session is free again
        engine.holds_after = None
        await s.workbench.send(session_id, "and?")

    play(scene, engine=engine)


def test_while_columns_stream_it_is_known_how_they_are_drawn(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after, at = 20, own_tokens(old)[2]
        work = asyncio.create_task(s.workbench.continue_many(session_id, old.node_id, at, 3))
        await until(lambda: arrived(s) >= 20)
        columns = last_columns(s).columns
        live = [await s.workbench.drawing(session_id, column.node_id, at) for column in columns]
        s.workbench.stop(session_id)
        await work
        ended = [await s.workbench.drawing(session_id, column.node_id, at) for column in columns]
        known = [(one, other) for one, other in zip(live, ended, strict=True) if one is not None and other is not None]
        assert len(known) >= 2  # one may not have said so much yet
        for one, other in known:
            assert one.seed is not None
            assert one.sampling is not None
            assert one.sampling.temperature == 0.8
            assert (one.seed, one.branch, one.sampling) == (other.seed, other.branch, other.sampling)
        assert len({one.branch for one, _ in known}) == len(known)

    play(scene, engine=engine)


@pytest.mark.parametrize("place", [0, 4])
def test_under_a_chosen_seed_continuations_are_no_copies(play: Play, place: int) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.set_option(session_id, "seed", 7)
        await s.workbench.send(session_id, "where to?")
        old = await s.last(session_id)
        at = own_tokens(old)[place]
        said = [old.run.ids[at:].tolist()]
        for _ in range(2):  # the second time as the first
            await s.workbench.continue_many(session_id, old.node_id, at, 2)
            said += [column.run.ids.tolist() for column in last_columns(s).columns]
        # then none says what another one says, although all share the seed
        beginnings = {tuple(ids[: 12 - place]) for ids in said}
        assert len(beginnings) == len(said) == 5
        made = [n.stats["made"]["options"] for n in (await s.store.load_session(session_id)).nodes if "made" in n.stats]
        assert [(options["seed"], options["branch"]) for options in made] == [(7, branch) for branch in range(5)]

    play(scene, options=GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=1.5)))


@pytest.mark.parametrize("stops", [1, 3])
def test_stop_while_nodes_are_added_leaves_none_behind(play: Play, monkeypatch: pytest.MonkeyPatch, stops: int) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        add, waits, goes_on = s.store.add_node, asyncio.Event(), asyncio.Event()

        async def slow(*what: Any, **how: Any) -> int:
            node_id = await add(*what, **how)  # it stands on the disk
            waits.set()
            await goes_on.wait()
            return node_id

        monkeypatch.setattr(s.store, "add_node", slow)
        work = asyncio.create_task(s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 3))
        await waits.wait()
        for _ in range(stops):
            s.workbench.stop(session_id)
            await asyncio.sleep(0.01)
        goes_on.set()
        await work
        assert (await s.last(session_id)).variants == (old.node_id,)
        assert rows(s.path, "select max(id) from nodes") == [(old.node_id,)]
        assert [event.view for event in s.events if isinstance(event, ColumnsChanged)][-1] is None

    async def later(s: Scene) -> None:
        session_id = (await s.workbench.sessions())[0].session_id
        assert len((await s.last(session_id)).variants) == 1

    play(scene)
    play(later)


def test_the_engine_dies_and_the_text_stays(play: Play) -> None:
    engine = Engine()

    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.dies_after = 6
        await s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        columns = last_columns(s)
        assert "engine stopped" in columns.note
        assert sum(len(c.run) for c in columns.columns) == 6
        # a next one starts the engine again
        await s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert engine.starts == 2
        assert len(last_columns(s).columns) == 2

    play(scene, engine=engine)


def test_what_was_said_before_the_app_ended_is_there_afterwards(play: Play) -> None:
    engine = Engine()
    made: dict[str, list[int]] = {}

    async def evening(s: Scene) -> None:
        session_id, old = await answered(s)
        engine.holds_after = 8
        work = asyncio.create_task(s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 2))
        await until(lambda: arrived(s) >= 8)
        made["nodes"] = [c.node_id for c in last_columns(s).columns]
        made["session"] = [session_id]
        await s.workbench.close()
        await work

    async def morning(s: Scene) -> None:
        view = await s.view(made["session"][0])
        assert set(made["nodes"]) <= set(view.turns[-1].variants)
        shown = await s.workbench.select(view.session_id, made["nodes"][0])
        assert shown.turns[-1].status is TurnStatus.PARTIAL
        assert len(own_tokens(shown.turns[-1])) > 2  # what stood in front, and its own

    play(evening, engine=engine)
    engine.holds_after = None
    play(morning, engine=engine)


def test_beams_are_the_runtimes_own_best_first(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s)
        model = s.workbench.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        expected = await model.beam_generate(prompt, BeamOptions(width=3, max_tokens=32))
        assert columns.kind is ColumnKind.BEAMS
        assert [c.run.ids.tolist() for c in columns.columns] == [h.ids for h in expected]
        for column, hypothesis in zip(columns.columns, expected, strict=True):
            assert (column.logprob, column.score) == (hypothesis.logprob, hypothesis.score)
            assert column.node_id > 0
        assert [c.score for c in columns.columns] == sorted((c.score or 0 for c in columns.columns), reverse=True)
        # while it searched, the beams were shown best first, under numbers that are no nodes
        live = [e.view for e in s.events if isinstance(e, ColumnsChanged) and e.view and e.view.running and e.view.columns]
        assert any(all(c.node_id < 0 for c in view.columns) for view in live)
        for view in live:
            assert [c.logprob for c in view.columns] == sorted((c.logprob or 0 for c in view.columns), reverse=True)
        # and they are on the disk with their score
        for column in columns.columns:
            (stats,) = [n.stats for n in (await s.store.load_session(session_id)).nodes if n.id == column.node_id]
            assert stats["score"] == column.score
            assert stats["beams"] == 3

    play(scene)


def test_what_a_search_found_says_so(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))
    held: list[tuple[int, int]] = []

    async def first(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.add_adapter(session_id, folder)
        await s.workbench.set_option(session_id, "stop", ["zq"])
        await s.workbench.send(session_id, "where to?")
        old = await s.last(session_id)
        await s.workbench.beams(session_id, old.node_id, own_tokens(old)[4], 3)
        node_id = last_columns(s).columns[1].node_id
        await s.workbench.select(session_id, node_id)
        held.append((session_id, node_id))
        await check(s)

    async def check(s: Scene) -> None:
        session_id, node_id = held[0]
        turn = await s.last(session_id)
        # then how it was made is known: the search, its options and who said them, the adapters; and no seed
        made = s.workbench.how_made(session_id, node_id)
        assert made is not None
        assert made.facts["found by"] == "a beam search of 3 beams"
        assert "seed" not in made.facts
        assert made.facts["adapters"].startswith("the adapters pirate")
        assert float(made.facts["score"]) < 0
        settings = {setting.name: (setting.value, setting.source) for setting in made.settings}
        assert settings["width"] == ("3", "call")
        assert settings["stop"] == ("zq", "session")
        assert (settings["length_penalty"], settings["max_tokens"]) == (("1", "default"), ("32", "default"))
        assert "temperature" not in settings
        # and the Why tab says that nothing was drawn
        drawing = await s.workbench.drawing(session_id, node_id, len(turn.run) - 1)
        assert drawing is not None
        assert (drawing.beams, drawing.sampling, drawing.seed) == (3, None, None)
        # nor can it be drawn again
        assert not turn.can_repeat
        with pytest.raises(Refusal, match="found by a beam search"):
            await s.workbench.regenerate_exactly(session_id, node_id)

    async def second(s: Scene) -> None:
        await s.view(held[0][0])
        await check(s)

    play(first)
    play(second)


def test_beams_have_the_form_of_the_sessions_answers_and_go_on(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{40}"))
        await s.workbench.send(session_id, "a number")
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        # when beams leave it after three digits
        await s.workbench.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s)
        texts = [column.run.text for column in columns.columns]
        assert [(text.isdigit(), len(text)) for text in texts] == [(True, 32)] * 3
        # then the one that is kept goes on to the end of that form
        await s.workbench.select(session_id, columns.columns[1].node_id)
        await s.workbench.continue_turn(session_id, columns.columns[1].node_id)
        whole = await s.last(session_id)
        digits = "".join(whole.run.texts[i] for i in own_tokens(whole))
        assert (len(digits), digits.isdigit(), whole.note) == (40, True, "")

    play(scene)


def test_beams_end_where_the_sessions_answers_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.beams(session_id, old.node_id, at, 3)
        free = last_columns(s).columns[0].run.text
        stop = free[5:7]
        # when the session stops at what stood in the best beam
        await s.workbench.set_option(session_id, "stop", [stop])
        await s.workbench.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s).columns
        assert all(stop not in column.run.text for column in columns)
        assert Finish.STOP in {Finish(int(column.run.finish[-1])) for column in columns}
        # and where the call says that another token ends an answer, it ends a beam
        model = s.workbench.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        expected = await model.beam_generate(
            prompt, BeamOptions(width=3, max_tokens=32, stop=(stop,), eos_token_ids=(ord("e"),))
        )
        s.workbench._answers._call = {"eos_token_ids": [ord("e")]}
        await s.workbench.beams(session_id, old.node_id, at, 3)
        assert [c.run.ids.tolist() for c in last_columns(s).columns] == [h.ids for h in expected]

    play(scene)


@pytest.mark.parametrize("n", [0, 1, 17])
def test_numbers_that_make_no_sense_are_refused(play: Play, n: int) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        with pytest.raises(Refusal, match=f"{n} continuations: ask for 2 to 16"):
            await s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], n)
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
            (user.node_id, None, "no answer to go on from"),
        ):
            with pytest.raises(Refusal, match=words):
                await s.workbench.continue_many(session_id, node_id, index, 2)
        assert s.workbench.status.reason == ""
        assert (await s.last(session_id)).variants == (old.node_id,)

    play(scene)


def test_a_complete_answer_is_not_continued_from_its_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        model = s.workbench.supervisor.running
        assert model is not None
        eos = model.eos_token_ids[0]
        await s.workbench.branch(session_id, old.node_id, own_tokens(old)[3], eos)
        ended = await s.last(session_id)
        assert int(ended.run.finish[-1]) == Finish.EOS
        with pytest.raises(Refusal, match="the answer is complete"):
            await s.workbench.continue_many(session_id, ended.node_id, None, 2)

    play(scene)


def test_draws_at_temperature_zero_are_refused_with_the_way_out(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        with pytest.raises(Refusal, match=r"all would say the same\. Ask for beams"):
            await s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[2], 2)
        assert [e.view for e in s.events if isinstance(e, ColumnsChanged)][-1] is None
        assert (await s.last(session_id)).variants == (old.node_id,)
        await s.workbench.beams(session_id, old.node_id, own_tokens(old)[2], 2)
        assert len(last_columns(s).columns) == 2

    play(scene, options=GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0)))


def test_a_preview_is_what_greedy_would_say_and_leaves_no_trace(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        token = next(int(t) for t in old.run.top_ids[at] if t != old.run.ids[at])
        before = rows(s.path, "select count(*), (select count(*) from token_chunks) from nodes")
        words = await s.workbench.preview(session_id, old.node_id, at, token, 5)
        model = s.workbench.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        greedy = GenerationOptions(max_tokens=5, sampling=SamplingOptions(temperature=0.0), resolve=False)
        expected = [r async for r in model.generate([*prompt, token], greedy)]
        assert list(words) == [r.token_bytes for r in expected if r.finish_reason != "eos"]
        assert rows(s.path, "select count(*), (select count(*) from token_chunks) from nodes") == before
        assert await s.last(session_id) == old or (await s.last(session_id)).node_id == old.node_id

    play(scene)


def test_without_a_model_what_is_stored_is_told_and_the_rest_says_what_to_do(play: Play) -> None:
    async def first(s: Scene) -> None:
        await answered(s)

    async def second(s: Scene) -> None:
        session_id = (await s.store.sessions())[0].id
        turn = await s.last(session_id)
        at = own_tokens(turn)[2]
        with pytest.raises(Refusal, match="no model runs"):
            await s.workbench.whole_row(session_id, turn.node_id, at)
        # but how it was drawn is known, and whose numbers they are
        drawing = await s.workbench.drawing(session_id, turn.node_id, at)
        assert drawing is not None
        assert drawing.model
        assert (drawing.stale, drawing.can_ask) == ("", False)
        assert drawing.seed == OPTIONS.seed
        assert drawing.sampling is not None
        assert drawing.sampling.temperature == 0.8
        assert drawing.history.tolist() == (await s.path_ids(session_id))[: drawing.position]
        assert s.engine.starts == 1
        # a preview starts the engine, or says why it cannot
        s.engine.refuses.append(ModelLoadError("the folder is gone"))
        with pytest.raises(Refusal, match="the folder is gone"):
            await s.workbench.preview(session_id, turn.node_id, at, 5, 3)
        assert len(await s.workbench.preview(session_id, turn.node_id, at, 5, 3)) <= 3
        assert s.engine.starts == 3

    engine = Engine()
    play(first, engine=engine)
    play(second, engine=engine)


def test_continuations_and_beams_have_the_form_that_the_session_asks_for(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[0]
        await s.workbench.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{3}"))
        await s.workbench.set_guess(session_id, Guess.PROMPT_LOOKUP)  # for one stream; several go without
        for work in (s.workbench.continue_many, s.workbench.beams):
            await work(session_id, old.node_id, at, 2)
            columns = last_columns(s)
            assert [column.note for column in columns.columns] == ["", ""]
            for column in columns.columns:
                assert column.run.text[:3].isdigit(), column.run.text
                assert len(column.run.text) == 3

    play(scene)


def test_what_is_set_while_a_model_is_loaded_is_for_the_next_ones(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        model = s.workbench.supervisor.running
        assert model is not None
        gate = s.engine.loading = asyncio.Event()
        await s.workbench.supervisor.died(model)
        work = asyncio.create_task(s.workbench.continue_many(session_id, old.node_id, own_tokens(old)[3], 2))
        await until(lambda: any(isinstance(e, ColumnsChanged) and e.view and e.view.note == STARTING for e in s.events))
        await s.workbench.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{3}"))
        gate.set()
        await work
        assert all(not column.run.text[:3].isdigit() for column in last_columns(s).columns)

    play(scene)
