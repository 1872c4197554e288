"""The settings of a session: their layers and sources, their storage with the session, and the fallback of invalid values."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import fields
from pathlib import Path

import pytest

from runtime import GenerationOptions, SamplingOptions
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, answered, own_tokens, rows
from tests.runtime.adapters.toys import toy_adapter
from ui import AnswerFormat, Guess, OptionView, Refusal, SessionSetup

PLAIN = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.8, top_p=0.9))


def option(setup: SessionSetup, name: str) -> OptionView:
    return next(view for view in setup.options if view.name == name)


def sampling_of(path: Path, node_id: int) -> str:
    return str(rows(path, "SELECT stats FROM nodes WHERE id = ?", node_id)[0][0])


def test_options_come_from_layers_and_name_their_source(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        first = await s.workbench.setup.view(session_id)
        assert [(option(first, n).value, option(first, n).source) for n in ("temperature", "min_p", "max_tokens")] == [
            (0.8, "preset"), (0.0, "default"), (12, "preset"),
        ]  # fmt: skip
        # when the session sets an option itself
        mine = option(await s.workbench.setup.set_option(session_id, "temperature", 0.1), "temperature")
        assert (mine.value, mine.source, mine.own) == (0.1, "session", 0.1)
        # then an answer is drawn with it
        await s.workbench.answers.send(session_id, "hello")
        assert '"temperature":0.1' in sampling_of(path, (await s.last(session_id)).node_id).replace(" ", "")
        # and choosing a preset removes the session's own value
        greedy = option(await s.workbench.setup.choose_preset(session_id, "greedy"), "temperature")
        assert (greedy.value, greedy.source, greedy.own) == (0.0, "preset", None)
        own = await s.workbench.setup.choose_preset(session_id, "model's own")
        assert option(own, "temperature").source in ("model", "default")
        back = option(await s.workbench.setup.set_option(session_id, "temperature", None), "temperature")
        assert back.own is None

    play(scene, options=PLAIN)


def test_concurrent_changes_of_one_session_all_apply(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        question, answer = (turn.node_id for turn in (await s.view(session_id)).turns[-2:])
        setup, branches = s.workbench.setup, s.workbench.branches
        # when
        await asyncio.gather(
            setup.set_option(session_id, "temperature", 0.1),
            branches.bookmark(session_id, question, 0, True),
            setup.set_option(session_id, "top_p", 0.5),
            branches.bookmark(session_id, answer, 0, True),
            setup.set_guess(session_id, Guess.PROMPT_LOOKUP),
        )
        # then
        now = await setup.view(session_id)
        assert [option(now, name).own for name in ("temperature", "top_p")] == [0.1, 0.5]
        assert now.guess is Guess.PROMPT_LOOKUP
        assert [row.node_id for row in await branches.tree(session_id) if row.bookmarked] == [question, answer]

    play(scene, options=PLAIN)


def test_an_option_set_while_a_preset_is_saved_is_kept(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        setup = s.workbench.setup
        await setup.set_option(session_id, "top_p", 0.5)
        await asyncio.gather(setup.set_option(session_id, "temperature", 0.1), setup.save_preset(session_id, "mine"))
        now = await setup.view(session_id)
        assert now.preset == "mine"
        assert [option(now, name).own for name in ("temperature", "top_p")] == [0.1, None]

    play(scene, options=PLAIN)


RARE = {
    "order": ["bias", "temperature", "top_k"],
    "logit_bias": {"104": 100.0, "105": -2},
    "banned_tokens": [101, 102],
    "xtc_threshold": 0.2,
    "penalty_window": 64,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_range": 512,
    "dry_breakers": ["\n", 13],
}


def test_every_option_of_the_sampler_can_be_set_and_applies_after_a_restart(play: Play) -> None:
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await s.new()
        held.append(session_id)
        shown = {view.name for view in (await s.workbench.setup.view(session_id)).options}
        assert shown >= {field.name for field in fields(SamplingOptions)}
        for name, value in RARE.items():
            said = option(await s.workbench.setup.set_option(session_id, name, value), name)
            assert (said.source, said.own) == ("session", value)
        with pytest.raises(Refusal, match="order without 'dry'"):
            await s.workbench.setup.set_option(session_id, "dry_multiplier", 0.8)
        with pytest.raises(Refusal, match="token id"):
            await s.workbench.setup.set_option(session_id, "banned_tokens", ["Paris"])
        for name, value, label in (("typical_p", 3, "typical"), ("max_tokens", 0, "longest answer")):  # called as by the window
            with pytest.raises(Refusal, match=f"^“{label}” must be a (whole )?number[a-z0-9, ]+, not {value}$"):
                await s.workbench.setup.set_option(session_id, name, value)

    async def second(s: Scene) -> None:
        await s.view(held[0])
        found = await s.workbench.setup.view(held[0])
        assert {name: option(found, name).own for name in RARE} == RARE
        assert found.notes == []
        # and answers are drawn with them: one token is the only choice
        await s.workbench.answers.send(held[0], "hello")
        last = await s.last(held[0])
        assert {int(last.run.ids[i]) for i in own_tokens(last)} == {104}
        # a preset stores them, biases included
        await s.workbench.setup.save_preset(held[0], "mine")
        assert dict(option(await s.workbench.setup.view(held[0]), "logit_bias").value) == {104: 100.0, 105: -2}  # type: ignore[call-overload]  # a mapping

    play(first, options=PLAIN)
    play(second, options=PLAIN)


def test_presets_are_saved_chosen_deleted_and_restored(play: Play) -> None:
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await s.asked()
        held.append(session_id)
        await s.workbench.setup.set_option(session_id, "top_k", 40)
        saved = await s.workbench.setup.save_preset(session_id, "  my  own ")
        assert (saved.preset, saved.presets["my own"]) == ("my own", True)
        assert (option(saved, "top_k").value, option(saved, "top_k").source, option(saved, "top_k").own) == (40, "preset", None)
        assert option(saved, "temperature").value == 0.8  # it includes the options of Elsewise's own preset
        for name in ("greedy", " ", "x" * 61):
            with pytest.raises(Refusal):
                await s.workbench.setup.save_preset(session_id, name)
        await s.workbench.setup.set_option(session_id, "seed", 7)

    async def second(s: Scene) -> None:
        await s.view(held[0])
        found = await s.workbench.setup.view(held[0])
        assert (found.preset, option(found, "top_k").value, option(found, "seed").own) == ("my own", 40, 7)
        # when another session deletes the preset
        other = await s.new()
        await s.workbench.setup.delete_preset(other, "my own")
        # then the first one falls back, with a note
        left = await s.workbench.setup.view(held[0])
        assert (left.preset, option(left, "top_k").source) == ("", "default")
        assert any("my own" in note for note in left.notes)
        with pytest.raises(Refusal):
            await s.workbench.setup.delete_preset(other, "greedy")

    play(first, options=PLAIN)
    play(second, options=PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "hostile",
    [
        "a text",
        [1, 2],
        {"options": "x", "preset": 7, "format": [1], "adapters": {"a": 1}, "guess": "sometimes"},
        {"options": {"temperature": "hot", "order": 3, "top_k": 1e300}, "adapters": [[1, 2], ["f", "n", "x", True]]},
        {"format": ["json_schema", "{"], "options": None, "guess": None},
        {"format": ["regex", "x" * 100_000]},
    ],
)
def test_invalid_stored_values_fall_back_with_a_note(play: Play, hostile: object) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.store.create_session("t")
        await s.store.set_session_setup(session_id, hostile)
        await s.store.set_setting("presets", {"bad": {"temperature": -3}, "worse": 7, "": {}, "greedy": {"top_k": 1}})
        await s.view(session_id)
        found = await s.workbench.setup.view(session_id)
        assert found.notes
        assert (found.preset, found.answer_format, found.adapters, found.guess) == ("", AnswerFormat(), [], Guess.OFF)
        assert [view.own for view in found.options] == [None] * len(found.options)
        await s.workbench.answers.send(session_id, "hello")
        assert (await s.last(session_id)).note in ("", "reached the length limit")

    play(scene)


def test_another_system_prompt_is_another_root(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked("hello")
        old = (await s.view(session_id)).turns
        # when
        setup = await s.workbench.setup.set_system(session_id, " Answer like a pirate. ")
        # then no node was changed: a sibling of the old root is shown
        assert setup.system == "Answer like a pirate."
        view = await s.view(session_id)
        assert [(t.role, t.run.text) for t in view.turns] == [("system", "Answer like a pirate.")]
        assert view.turns[0].variants == (old[0].node_id, view.turns[0].node_id)
        # and the model sees it before the next message
        await s.workbench.answers.send(session_id, "hello")
        prompt = bytes(t for t in s.engine.prompts[-1] if t < 256).decode()
        assert prompt.startswith("system\nAnswer like a pirate.\nuser\nhello")
        # and the old system prompt shows the old conversation
        await s.workbench.setup.set_system(session_id, "")
        assert [t.node_id for t in (await s.view(session_id)).turns] == [t.node_id for t in old]
        # and the same words again give the same root
        await s.workbench.setup.set_system(session_id, "Answer like a pirate.")
        assert len((await s.view(session_id)).turns) == 3

    play(scene)


def test_the_settings_of_the_sample_are_copied(play: Play) -> None:
    async def scene(s: Scene) -> None:
        sample = await s.store.create_session("sample", is_sample=True)
        await s.view(sample)
        await s.workbench.setup.set_option(sample, "temperature", 0.3)
        await s.workbench.answers.send(sample, "hello")
        copy = next(row.session_id for row in await s.workbench.sessions.list() if not row.is_sample)
        assert option(await s.workbench.setup.view(copy), "temperature").own == 0.3

    play(scene)


def test_the_settings_of_a_session_are_deleted_with_it(play: Play, path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.asked()
        await s.workbench.setup.set_option(session_id, "top_k", 3)
        await s.workbench.sessions.trash(session_id)
        assert rows(path, "SELECT count(*) FROM settings WHERE key LIKE 'session/%'") == [(1,)]
        assert await s.store.purge_trash(days=-1) == 1
        assert rows(path, "SELECT count(*) FROM settings WHERE key LIKE 'session/%'") == [(0,)]

    play(scene)


@pytest.mark.parametrize(
    ("guess", "engine", "why"),
    [
        (Guess.DRAFT, Engine(), "no draft model is loaded"),
        (Guess.PROMPT_LOOKUP, Engine(source=(Behaviour(recurrent=True), None)), "recurrent state"),
    ],
)
def test_speculation_that_the_model_lacks_is_left_out_with_a_note(play: Play, guess: Guess, engine: Engine, why: str) -> None:
    async def scene(s: Scene) -> None:
        # given a session in which it was set when another model was loaded
        session_id = await s.new()
        assert (await s.workbench.setup.set_guess(session_id, guess)).notes == []  # no model yet
        # then it is answered all the same
        await s.workbench.answers.send(session_id, "hello")
        last = await s.last(session_id)
        assert last.note in ("", "reached the length limit")
        assert len(own_tokens(last))
        made = await s.store.load_session(session_id)
        assert made.nodes[-1].stats["made"]["options"]["speculative"] is None
        # and the view has the reason, and it cannot be chosen again
        (note,) = (await s.workbench.setup.view(session_id)).notes
        assert why in note
        with pytest.raises(Refusal, match=why):
            await s.workbench.setup.set_guess(session_id, guess)
        assert (await s.workbench.setup.set_guess(session_id, Guess.OFF)).notes == []

    play(scene, engine=engine)


def test_an_answer_is_regenerated_exactly_under_its_adapters(play: Play, tmp_path: Path) -> None:
    folder = toy_adapter(tmp_path / "pirate", 1)
    held: list[tuple[int, int, str]] = []

    async def first(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.add_adapter(session_id, str(folder))
        await s.workbench.answers.send(session_id, "hi")
        turn = await s.last(session_id)
        held.append((session_id, turn.node_id, turn.run.text))
        # when they are no longer on the stack
        await s.workbench.setup.set_adapters(session_id, [])
        await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        again = await s.last(session_id)
        assert again.run.text == turn.run.text
        assert "the same, token for token" in again.note

    async def second(s: Scene) -> None:
        session_id, node_id, text = held[0]
        await s.view(session_id)
        await s.workbench.branches.select(session_id, node_id)
        # and with a restarted engine, in which they are not loaded yet
        await s.workbench.answers.regenerate_exactly(session_id, node_id)
        assert (await s.last(session_id)).run.text == text

    async def third(s: Scene) -> None:
        # and with changed weights it differs, with a note
        session_id, node_id, text = held[0]
        shutil.rmtree(folder)
        toy_adapter(folder, 2)
        await s.view(session_id)
        await s.workbench.branches.select(session_id, node_id)
        await s.workbench.answers.regenerate_exactly(session_id, node_id)
        turn = await s.last(session_id)
        assert "has changed since" in turn.note
        assert turn.run.text != text

    for scene in (first, second, third):
        play(scene)


def test_tokens_can_be_named_by_their_text(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        # before any model was used the texts of tokens are unknown
        with pytest.raises(Refusal, match="only token ids can be entered"):
            await s.workbench.setup.set_option(session_id, "banned_tokens", ["e"])
        assert option(await s.workbench.setup.set_option(session_id, "banned_tokens", [101]), "banned_tokens").own == [101]
        await s.workbench.answers.send(session_id, "hello")
        # the toy's tokens are bytes
        setup = await s.workbench.setup.set_option(session_id, "banned_tokens", ["e", " ", 101, 7])
        assert option(setup, "banned_tokens").own == [101, 32, 7]
        setup = await s.workbench.setup.set_option(session_id, "logit_bias", {'" "': -5, "f": 2, "65": 1, '"7"': 3})
        assert option(setup, "logit_bias").own == {"32": -5, "102": 2, "65": 1, "55": 3}
        # a text that is not one token is refused, with its first token named; nothing is changed
        with pytest.raises(Refusal, match='"hello" is more than one token: it begins with "h"'):
            await s.workbench.setup.set_option(session_id, "banned_tokens", ["hello"])
        with pytest.raises(Refusal, match="the model has no token"):
            await s.workbench.setup.set_option(session_id, "logit_bias", {'""': 1})
        assert option(await s.workbench.setup.view(session_id), "banned_tokens").own == [101, 32, 7]
        # and banned tokens are not drawn
        await s.workbench.setup.set_option(session_id, "logit_bias", None)
        await s.workbench.setup.set_option(session_id, "banned_tokens", [chr(c) for c in range(128) if chr(c) != "x"])
        await s.workbench.answers.send(session_id, "again")
        drawn = await s.last(session_id)
        texts = [drawn.run.texts[i] for i in own_tokens(drawn)]
        assert texts
        assert all(not text.isascii() or text in ("", "x") or text.startswith("<|") for text in texts)

    play(scene)
