"""Adapters of sessions during answers: an adapter in use stays loaded, and an unused one is unloaded."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from app.workbench.setup.session_adapters import engine_name
from runtime import LanguageModel
from runtime.backends.fake import Behaviour
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, alternative, own_tokens, until, words
from tests.fakes import Gate
from tests.runtime.adapters.toys import toy_adapter
from ui import AdapterChoice, ColumnTokens, Refusal, TurnStatus


def running(s: Scene) -> LanguageModel:
    model = s.workbench.services.supervisor.running
    assert model is not None
    return model


def loaded(s: Scene) -> int:
    return sum(adapter.loaded for adapter in running(s).info.adapters)


async def settle() -> None:
    """An unload that takes a while."""
    for _ in range(20):
        await asyncio.sleep(0.005)


async def dressed(s: Scene, folder: str) -> int:
    session_id = await s.new()
    await s.workbench.setup.add_adapter(session_id, folder)
    return session_id


def test_an_answer_keeps_an_adapter_that_is_removed_from_the_stack(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def scene(s: Scene) -> None:
        first = await dressed(s, folder)
        await s.workbench.answers.send(first, "hi")
        expected = (await s.last(first)).run.text
        # given an answer that is about to be requested, while its prompt is rendered
        taken = asyncio.Event()

        def look(what: str) -> None:
            if what == "score" and not taken.is_set():
                taken.set()

        s.engine.on_look = look
        session_id = await dressed(s, folder)
        await s.workbench.setup.set_adapters(first, [])
        sending = asyncio.create_task(s.workbench.answers.send(session_id, "hi"))
        await taken.wait()
        # when the adapter is removed from the stack
        await s.workbench.setup.set_adapters(session_id, [])
        await sending
        # then the answer uses it to its end, and afterwards its memory is free
        turn = await s.last(session_id)
        assert (turn.run.text, turn.note) == (expected, "reached the length limit")
        await until(lambda: loaded(s) == 0)
        # and the next answer is of the base
        await s.workbench.answers.regenerate(session_id, turn.node_id)
        assert (await s.last(session_id)).run.text != expected

    play(scene)


def test_columns_keep_a_removed_adapter_too(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def scene(s: Scene) -> None:
        session_id = await dressed(s, folder)
        await s.workbench.answers.send(session_id, "hi")
        last = await s.last(session_id)
        s.engine.holds_after = 4
        drawing = asyncio.create_task(s.workbench.continuations.continue_many(session_id, last.node_id, None, 2))
        await until(lambda: any(isinstance(event, ColumnTokens) for event in s.events))
        await s.workbench.setup.set_adapters(session_id, [])
        await settle()
        assert loaded(s) == 1
        s.workbench.answers.stop(session_id)
        await drawing
        await until(lambda: loaded(s) == 0)

    play(scene)


def test_an_adapter_is_available_while_another_session_releases_it(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))
    gate = Gate()

    async def scene(s: Scene) -> None:
        first = await dressed(s, folder)
        await s.workbench.answers.send(first, "hi")
        expected = (await s.last(first)).run.text
        # given a use of it other than an answer while it is released
        use = engine_name(AdapterChoice(folder, "pirate"))
        gate.shut()
        query = asyncio.create_task(running(s).next_token_logprobs(words("query"), adapters=((use, 1.0),)))
        await until(gate.reached.is_set)
        await s.workbench.setup.set_adapters(first, [])
        await settle()
        # when another session adds it
        second = await s.new()

        async def take() -> None:
            await s.workbench.setup.add_adapter(second, folder)
            await s.workbench.answers.send(second, "hi")

        taking = asyncio.create_task(take())
        await settle()
        gate.open()
        await query
        await taking
        # then the answers of that session use it
        turn = await s.last(second)
        assert (turn.run.text, turn.status) == (expected, TurnStatus.PARTIAL)
        assert loaded(s) == 1

    play(scene, engine=Engine(source=(Behaviour(before_forward=gate), None)))


def test_an_adapter_loaded_for_one_answer_is_unloaded_after_it(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def scene(s: Scene) -> None:
        session_id = await dressed(s, folder)
        await s.workbench.answers.send(session_id, "hi")
        turn = await s.last(session_id)
        await s.workbench.setup.set_adapters(session_id, [])
        await until(lambda: loaded(s) == 0)
        # when the answer is regenerated exactly
        await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        assert (await s.last(session_id)).run.text == turn.run.text
        # then the memory of its adapter is free again
        await until(lambda: loaded(s) == 0)

    play(scene)


def test_queries_about_a_token_use_its_adapters_also_after_a_restart(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def look(s: Scene, session_id: int) -> tuple[object, ...]:
        turn = await s.last(session_id)
        place = own_tokens(turn)[3]
        drawing = await s.workbench.drawings.find(session_id, turn.node_id, place)
        assert drawing is not None
        row = await s.workbench.drawings.whole_row(session_id, turn.node_id, place)
        words = await s.workbench.drawings.preview(session_id, turn.node_id, place, alternative(turn, place), 3)
        return drawing.stale, drawing.can_ask, row.tolist(), words

    held: list[tuple[int, tuple[object, ...]]] = []

    async def first(s: Scene) -> None:
        session_id = await dressed(s, folder)
        await s.workbench.answers.send(session_id, "hi")
        held.append((session_id, await look(s, session_id)))
        assert held[0][1][:2] == ("", True)

    async def second(s: Scene) -> None:
        session_id, before = held[0]
        await s.view(session_id)
        await s.workbench.services.supervisor.model()  # restarted, without any adapter loaded
        assert await look(s, session_id) == before

    play(first)
    play(second, engine=Engine())


def test_regenerating_exactly_is_refused_when_adapters_of_the_answer_are_missing(play: Play, tmp_path: Path) -> None:
    kept, gone = (toy_adapter(tmp_path / name, seed) for name, seed in (("kept", 1), ("gone", 2)))
    held: list[int] = []

    async def first(s: Scene) -> None:
        session_id = await dressed(s, str(kept))
        await s.workbench.setup.add_adapter(session_id, str(gone))
        await s.workbench.answers.send(session_id, "hi")
        await s.workbench.setup.set_adapters(session_id, [])
        held.append(session_id)

    async def second(s: Scene) -> None:
        shutil.rmtree(gone)
        before = await s.view(held[0])
        # when it is to be regenerated exactly
        with pytest.raises(Refusal, match="gone"):
            await s.workbench.answers.regenerate_exactly(held[0], before.turns[-1].node_id)
        # then there is no sibling, and the adapter that could be loaded is not kept
        after = await s.view(held[0])
        assert [(t.node_id, t.variants) for t in after.turns] == [(t.node_id, t.variants) for t in before.turns]
        await until(lambda: loaded(s) == 0)

    play(first)
    play(second, engine=Engine())


def test_an_answer_with_all_adapters_off_is_regenerated_under_the_base(play: Play, tmp_path: Path) -> None:
    off, own = (str(toy_adapter(tmp_path / name, seed)) for name, seed in (("off", 1), ("own", 2)))

    async def scene(s: Scene) -> None:
        session_id = await dressed(s, off)
        await s.workbench.setup.set_adapters(session_id, [AdapterChoice(off, "off", 1.0, False)])
        await s.workbench.answers.send(session_id, "hi")
        turn = await s.last(session_id)
        # given a model that has a stack of its own by now
        await running(s).push_lora_async(own)
        await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        again = await s.last(session_id)
        assert again.run.text == turn.run.text
        assert "the same, token for token" in again.note
        # and an answer without a choice of adapters uses the model's stack
        free = await s.new()
        await s.workbench.answers.send(free, "hi")
        other = await s.last(free)
        assert other.run.text != turn.run.text
        await s.workbench.answers.regenerate_exactly(free, other.node_id)
        assert "the same, token for token" in (await s.last(free)).note

    play(scene)


@pytest.mark.parametrize("kind", ["json", "portable"])
def test_an_exported_session_names_its_adapters_and_no_folder(play: Play, tmp_path: Path, kind: str) -> None:
    folder = str(toy_adapter(tmp_path / "secret place" / "pirate", 1))
    file = tmp_path / "out.file"

    async def scene(s: Scene) -> None:
        session_id = await dressed(s, folder)
        await s.workbench.answers.send(session_id, "hi")
        turn = await s.last(session_id)
        digest = running(s).info.adapters[0].digest
        assert digest is not None
        # when it is exported
        await s.workbench.transfers.export(session_id, kind, file, lambda _done, _total: None)
        # then the file has the adapter's name and digest but not its folder; the session itself is unchanged
        whole = file.read_bytes()
        assert b"secret place" not in whole
        assert digest.encode() in whole
        await s.workbench.answers.regenerate_exactly(session_id, turn.node_id)
        assert (await s.last(session_id)).run.text == turn.run.text
        # and an import elsewhere reports the missing adapter
        (taken,) = (await s.workbench.transfers.import_file(file, lambda _done, _total: None)).sessions
        view = await s.view(taken)
        with pytest.raises(Refusal, match="made with pirate: add that adapter"):
            await s.workbench.answers.regenerate_exactly(taken, view.turns[-1].node_id)

    play(scene)
