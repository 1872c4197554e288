"""Beams of one place: the runtime's own search, its form, its ends, and what is known of what it found."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime import BeamOptions, Finish
from tests.app.workbench.conftest import Play
from tests.app.workbench.continuation_scene import last_columns
from tests.app.workbench.scene import Scene, answered, own_tokens
from tests.runtime.adapters.toys import toy_adapter
from ui import AnswerFormat, BeamSearchRules, ColumnKind, ColumnsChanged, FormatKind, Refusal


def test_beams_are_the_runtimes_own_best_first(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.continuations.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s)
        model = s.workbench.services.supervisor.running
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


@pytest.mark.slow
@pytest.mark.parametrize("rules", [BeamSearchRules(-2.0), BeamSearchRules(3.0, True), BeamSearchRules(0.0, "never")])
def test_a_search_goes_by_the_rules_that_were_chosen(play: Play, rules: BeamSearchRules) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.setup.set_option(session_id, "stop", ["e", "a"])  # hypotheses of many lengths
        await s.workbench.continuations.beams(session_id, old.node_id, at, 4, rules)
        columns = last_columns(s).columns
        model = s.workbench.services.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        asked = BeamOptions(4, 32, rules.length_penalty, rules.early_stopping, stop=("e", "a"))
        expected = await model.beam_generate(prompt, asked)
        assert [(c.run.ids.tolist(), c.score) for c in columns] == [(h.ids, h.score) for h in expected]
        # and how each was made says which, and who said so
        made = s.workbench.answers.how_made(session_id, columns[0].node_id)
        assert made is not None
        settings = {setting.name: (setting.value, setting.source) for setting in made.settings}
        assert settings["length_penalty"] == (f"{rules.length_penalty:g}", "call")
        words = {True: "yes", False: "no", "never": "never"}[rules.early_stopping]
        assert settings["early_stopping"] == (words, "default" if rules.early_stopping is False else "call")

    play(scene)


def test_rules_that_make_no_sense_are_refused_and_leave_nothing(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        before = len((await s.store.load_session(session_id)).nodes)
        for rules, words in ((BeamSearchRules(float("nan")), "length_penalty"), (BeamSearchRules(51.0), "length_penalty")):
            with pytest.raises(Refusal, match=words):
                await s.workbench.continuations.beams(session_id, old.node_id, own_tokens(old)[4], 3, rules)
        with pytest.raises(Refusal, match="ask for 2 to 16"):
            await s.workbench.continuations.beams(session_id, old.node_id, own_tokens(old)[4], 17)
        assert len((await s.store.load_session(session_id)).nodes) == before

    play(scene)


def test_what_a_search_found_says_so(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))
    held: list[tuple[int, int]] = []

    async def first(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.add_adapter(session_id, folder)
        await s.workbench.setup.set_option(session_id, "stop", ["zq"])
        await s.workbench.answers.send(session_id, "where to?")
        old = await s.last(session_id)
        await s.workbench.continuations.beams(session_id, old.node_id, own_tokens(old)[4], 3)
        node_id = last_columns(s).columns[1].node_id
        await s.workbench.branches.select(session_id, node_id)
        held.append((session_id, node_id))
        await check(s)

    async def check(s: Scene) -> None:
        session_id, node_id = held[0]
        turn = await s.last(session_id)
        # then how it was made is known: the search, its options and who said them, the adapters; and no seed
        made = s.workbench.answers.how_made(session_id, node_id)
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
        drawing = await s.workbench.drawings.find(session_id, node_id, len(turn.run) - 1)
        assert drawing is not None
        assert (drawing.beams, drawing.sampling, drawing.seed) == (3, None, None)
        # nor can it be drawn again
        assert not turn.can_repeat
        with pytest.raises(Refusal, match="found by a beam search"):
            await s.workbench.answers.regenerate_exactly(session_id, node_id)

    async def second(s: Scene) -> None:
        await s.view(held[0][0])
        await check(s)

    play(first)
    play(second)


def test_beams_have_the_form_of_the_sessions_answers_and_go_on(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.REGEX, "[0-9]{40}"))
        await s.workbench.answers.send(session_id, "a number")
        old = await s.last(session_id)
        at = own_tokens(old)[3]
        # when beams leave it after three digits
        await s.workbench.continuations.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s)
        texts = [column.run.text for column in columns.columns]
        assert [(text.isdigit(), len(text)) for text in texts] == [(True, 32)] * 3
        # then the one that is kept goes on to the end of that form
        await s.workbench.branches.select(session_id, columns.columns[1].node_id)
        await s.workbench.answers.continue_turn(session_id, columns.columns[1].node_id)
        whole = await s.last(session_id)
        digits = "".join(whole.run.texts[i] for i in own_tokens(whole))
        assert (len(digits), digits.isdigit(), whole.note) == (40, True, "")

    play(scene)


def test_beams_end_where_the_sessions_answers_end(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, old = await answered(s)
        at = own_tokens(old)[4]
        await s.workbench.continuations.beams(session_id, old.node_id, at, 3)
        free = last_columns(s).columns[0].run.text
        stop = free[5:7]
        # when the session stops at what stood in the best beam
        await s.workbench.setup.set_option(session_id, "stop", [stop])
        await s.workbench.continuations.beams(session_id, old.node_id, at, 3)
        columns = last_columns(s).columns
        assert all(stop not in column.run.text for column in columns)
        assert Finish.STOP in {Finish(int(column.run.finish[-1])) for column in columns}
        # and where the call says that another token ends an answer, it ends a beam
        model = s.workbench.services.supervisor.running
        assert model is not None
        prompt = (await s.path_ids(session_id))[: -len(old.run) + at]
        expected = await model.beam_generate(
            prompt, BeamOptions(width=3, max_tokens=32, stop=(stop,), eos_token_ids=(ord("e"),))
        )
        s.call["eos_token_ids"] = [ord("e")]
        await s.workbench.continuations.beams(session_id, old.node_id, at, 3)
        assert [c.run.ids.tolist() for c in last_columns(s).columns] == [h.ids for h in expected]

    play(scene)
