"""*Continue* uses the options of the answer, and names those that were changed since."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runtime import SamplingOptions
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Engine, Scene, own_tokens
from ui import AnswerFormat, FormatKind, TurnView

DRAWN = replace(OPTIONS, seed=None, sampling=SamplingOptions(temperature=1.5))


async def made(s: Scene, session_id: int, turn: TurnView) -> dict[str, Any]:
    """The stored provenance of an answer."""
    nodes = (await s.store.load_session(session_id)).nodes
    stored: dict[str, Any] = next(node.stats["made"] for node in nodes if node.id == turn.node_id)
    return stored


async def stopped(s: Scene) -> tuple[int, TurnView]:
    """A session whose answer was stopped after three tokens."""
    s.engine.holds_after = 3
    session_id = await s.stopped_after(3)
    s.engine.holds_after = None
    return session_id, await s.last(session_id)


def ids(turn: TurnView) -> list[int]:
    return [int(turn.run.ids[at]) for at in own_tokens(turn)]


def test_a_stopped_answer_continues_as_if_it_had_not_been_stopped(play: Play) -> None:
    """Also after a restart, and with a fresh seed."""
    kept: dict[str, Any] = {}

    async def first(s: Scene) -> None:
        session_id, turn = await stopped(s)
        kept.update(id=session_id, node=turn.node_id, seed=(await made(s, session_id, turn))["options"]["seed"])

    async def second(s: Scene) -> None:
        await s.view(kept["id"])
        await s.workbench.answers.continue_turn(kept["id"], kept["node"])
        turn = await s.last(kept["id"])
        assert turn.note == "reached the length limit"
        assert (await made(s, kept["id"], turn))["options"]["seed"] == kept["seed"]
        assert all("seed" not in names for names in (await made(s, kept["id"], turn))["sources"].values())
        await s.workbench.setup.set_option(kept["id"], "seed", kept["seed"])
        await s.workbench.setup.set_option(kept["id"], "max_tokens", 15)
        question = (await s.view(kept["id"])).turns[-2]
        await s.workbench.answers.send(kept["id"], "hello", question.node_id)
        assert ids(await s.last(kept["id"])) == ids(turn)

    play(first, options=DRAWN)
    play(second, options=DRAWN)


def test_a_preset_that_was_changed_since_does_not_affect_it(play: Play) -> None:
    kept: dict[str, Any] = {}

    async def first(s: Scene) -> None:
        session_id, turn = await stopped(s)
        kept.update(id=session_id, node=turn.node_id)

    async def second(s: Scene) -> None:
        await s.view(kept["id"])
        await s.workbench.answers.continue_turn(kept["id"], kept["node"])
        turn = await s.last(kept["id"])
        stored = await made(s, kept["id"], turn)
        assert stored["options"]["sampling"]["temperature"] == 1.5
        assert "sampling.temperature" in stored["sources"]["preset"]
        assert turn.note == "reached the length limit"
        # a new answer uses the current options
        await s.workbench.answers.regenerate(kept["id"], turn.node_id)
        assert (await made(s, kept["id"], await s.last(kept["id"])))["options"]["sampling"]["temperature"] == 0.25

    play(first, options=DRAWN)
    play(second, options=replace(DRAWN, sampling=SamplingOptions(temperature=0.25)))


def test_an_option_set_for_the_session_since_applies_and_is_named(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        seed = (await made(s, session_id, turn))["options"]["seed"]
        await s.workbench.setup.set_option(session_id, "temperature", 0.5)
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        on = await s.last(session_id)
        assert on.note == "continued with temperature 0.5 (was 1.5) · reached the length limit"
        options = (await made(s, session_id, on))["options"]
        assert (options["sampling"]["temperature"], options["seed"]) == (0.5, seed)

    play(scene, options=DRAWN)


def test_a_setting_that_the_current_model_lacks_is_left_out_and_named(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        model = s.workbench.services.supervisor.running
        assert model is not None
        assert (await made(s, session_id, turn))["options"]["sampling"]["min_p"] == 0.05
        with monkeypatch.context() as patch:  # of a server, with other settings
            patch.setattr(type(model.transport), "capabilities", model.transport.capabilities - {"min_p"})
            await s.workbench.answers.continue_turn(session_id, turn.node_id)
            on = await s.last(session_id)
        assert on.note == "continued with min_p 0 (was 0.05) · reached the length limit"
        sampling = (await made(s, session_id, on))["options"]["sampling"]
        assert (sampling["temperature"], sampling["min_p"]) == (1.5, 0.0)

    play(scene, options=replace(DRAWN, sampling=SamplingOptions(temperature=1.5, min_p=0.05)))


def test_an_option_reset_for_the_session_since_is_named_too(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.set_option(session_id, "top_k", 3)
        await s.workbench.setup.set_option(session_id, "seed", 7)
        await s.workbench.answers.send(session_id, "hello")
        turn = await s.last(session_id)
        await s.workbench.setup.set_option(session_id, "top_k", None)
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        on = await s.last(session_id)
        assert on.note == "continued with top_k 0 (was 3) · reached the length limit"
        assert (await made(s, session_id, on))["options"]["seed"] == 7

    play(scene, options=DRAWN)


def test_another_preset_chosen_for_the_session_applies(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        await s.workbench.setup.set_option(session_id, "temperature", 0.25)
        await s.workbench.setup.save_preset(session_id, "cold")
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        on = await s.last(session_id)
        assert "continued with temperature 0.25 (was 1.5)" in on.note

    play(scene, options=DRAWN)


def test_another_form_is_named(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        await s.workbench.setup.set_format(session_id, AnswerFormat(FormatKind.REGEX, "(.|\n)*"))
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        assert "continued with the output format" in (await s.last(session_id)).note

    play(scene, options=DRAWN)


def test_two_continuations_of_one_place_differ(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        said = []
        for _ in range(2):
            await s.workbench.answers.continue_turn(session_id, turn.node_id)
            said.append(ids(await s.last(session_id)))
        assert said[0][:3] == said[1][:3]
        assert said[0] != said[1]

    play(scene, options=DRAWN)


def test_an_answer_without_provenance_continues_with_the_current_options(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id, turn = await stopped(s)
        session = s.workbench.services.sessions.opened(session_id)
        node = session.tree.nodes[turn.node_id]
        session.tree.put(replace(node, stats={name: value for name, value in node.stats.items() if name != "made"}))
        await s.workbench.answers.continue_turn(session_id, turn.node_id)
        assert (await s.last(session_id)).note == "reached the length limit"

    play(scene, engine=Engine(), options=DRAWN)
