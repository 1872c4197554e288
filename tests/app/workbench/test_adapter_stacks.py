"""A session's own stack of adapters: its answers use it, and stale numbers are marked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from runtime import GenerationOptions, SamplingOptions
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, own_tokens, until
from tests.runtime.adapters.toys import toy_adapter
from ui import AdapterChoice, Guess, Refusal

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0))  # a regenerated answer is the same


def test_a_session_has_its_own_stack_of_adapters(play: Play, tmp_path: Path) -> None:
    folders = [str(toy_adapter(tmp_path / name, seed)) for name, seed in (("a/pirate", 1), ("b/pirate", 2))]

    async def scene(s: Scene) -> None:
        plain, dressed = await s.asked("hi"), await s.new()
        for folder in folders:
            setup = await s.workbench.setup.add_adapter(dressed, folder)
        assert [(line.choice.name, line.loaded) for line in setup.adapters] == [("pirate", True), ("pirate", True)]
        assert "rank 2" in setup.adapters[0].detail
        # then its answers use them, those of other sessions do not, and both stay warm
        await s.workbench.answers.send(dressed, "hi")
        own, other = await s.last(dressed), await s.last(plain)
        assert own.run.text != other.run.text
        assert own.tier == other.tier == "warm"
        again = await s.asked("hi")
        assert (await s.last(again)).run.text == other.run.text
        assert await s.path_ids(again) == await s.path_ids(plain)
        # another order and scales are another stack; off is the base alone
        line = [AdapterChoice(f, "pirate") for f in reversed(folders)]
        await s.workbench.setup.set_adapters(dressed, [line[0], AdapterChoice(folders[0], "pirate", 0.5, False)])
        await s.workbench.setup.set_adapters(dressed, [AdapterChoice(f, "pirate", 1.0, False) for f in folders])
        await s.workbench.answers.regenerate(dressed, own.node_id)
        assert (await s.last(dressed)).run.text == other.run.text
        # a deleted one frees its memory
        await s.workbench.setup.set_adapters(dressed, [AdapterChoice(folders[0], "pirate")])
        model = s.workbench.services.supervisor.running
        assert model is not None
        await until(lambda: sum(adapter.loaded for adapter in model.info.adapters) == 1)

    play(scene, options=GREEDY)


def test_numbers_under_another_stack_name_the_stack_in_use(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))

    async def scene(s: Scene) -> None:
        session_id = await s.asked("hi")
        turn, model = await s.last(session_id), s.workbench.services.supervisor.running
        assert model is not None
        at = own_tokens(turn)[2]

        async def stale() -> str:
            drawing = await s.workbench.drawings.find(session_id, turn.node_id, at)
            assert drawing is not None
            assert drawing.can_ask == (drawing.stale == "")
            return drawing.stale

        # given an answer of the base: when the session gets an adapter
        await s.workbench.setup.add_adapter(session_id, folder)
        assert await stale() == f"{model.info.name} with the adapters pirate × 1"
        await s.workbench.setup.set_adapters(session_id, [AdapterChoice(folder, "pirate", 0.25)])
        assert await stale() == f"{model.info.name} with the adapters pirate × 0.25"
        # then an answer under it is stale when it is off
        await s.workbench.answers.regenerate(session_id, turn.node_id)
        turn = await s.last(session_id)
        assert await stale() == ""
        await s.workbench.setup.set_adapters(session_id, [AdapterChoice(folder, "pirate", 0.25, False)])
        assert await stale() == f"{model.info.name} with no adapters"

    play(scene)


def test_an_unusable_adapter_is_refused_and_not_added(play: Play, tmp_path: Path) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        (tmp_path / "empty").mkdir()
        pickled = tmp_path / "pickled"
        pickled.mkdir()
        (pickled / "adapter_model.bin").write_bytes(b"x")
        (pickled / "adapter_config.json").write_text("{}")
        for folder in ("nowhere", "empty", "pickled"):
            with pytest.raises(Refusal):
                await s.workbench.setup.add_adapter(session_id, str(tmp_path / folder))
        good = str(toy_adapter(tmp_path / "good", 1))
        await s.workbench.setup.add_adapter(session_id, good)
        with pytest.raises(Refusal, match="already"):
            await s.workbench.setup.add_adapter(session_id, good)
        with pytest.raises(Refusal, match="finite"):
            await s.workbench.setup.set_adapters(session_id, [AdapterChoice(good, "good", float("inf"))])
        assert [line.choice.scale for line in (await s.workbench.setup.view(session_id)).adapters] == [1.0]

    play(scene)


def test_adapters_are_loaded_again_after_a_restart_of_the_engine(play: Play, tmp_path: Path) -> None:
    folder = str(toy_adapter(tmp_path / "pirate", 1))
    held: list[tuple[int, str]] = []

    async def first(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.setup.add_adapter(session_id, folder)
        await s.workbench.answers.send(session_id, "hi")
        held.append((session_id, (await s.last(session_id)).run.text))

    async def second(s: Scene) -> None:
        session_id, text = held[0]
        turns = (await s.view(session_id)).turns
        await s.workbench.answers.regenerate(session_id, turns[-1].node_id)
        assert (await s.last(session_id)).run.text == text
        await s.workbench.setup.set_guess(session_id, Guess.PROMPT_LOOKUP)
        await s.workbench.answers.regenerate(session_id, turns[-1].node_id)
        assert (await s.last(session_id)).run.text == text
        with pytest.raises(Refusal, match="draft"):
            await s.workbench.setup.set_guess(session_id, Guess.DRAFT)

    play(first, options=GREEDY)
    play(second, engine=Engine(), options=GREEDY)


@pytest.mark.parametrize("taken_off", [False, True])
def test_a_change_during_the_load_of_an_adapter_is_kept(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_off: bool
) -> None:
    folders = [str(toy_adapter(tmp_path / name, seed)) for name, seed in (("pirate", 1), ("judge", 2))]

    async def scene(s: Scene) -> None:
        session_id, supervisor = await s.new(), s.workbench.services.supervisor
        for folder in folders:
            await s.workbench.setup.add_adapter(session_id, folder)
        pirate, judge = (line.choice for line in (await s.workbench.setup.view(session_id)).adapters)
        await s.workbench.setup.set_adapters(session_id, [pirate, replace(judge, on=False)])
        # given a new engine, which has to load the one that is switched on
        await supervisor.close()
        model = await supervisor.model()
        load, begun, gate = model.load_adapter_async, asyncio.Event(), asyncio.Event()

        async def load_later(name: str) -> Any:
            begun.set()
            await gate.wait()
            return await load(name)

        monkeypatch.setattr(model, "load_adapter_async", load_later)
        switching = asyncio.create_task(s.workbench.setup.set_adapters(session_id, [pirate, judge]))
        await begun.wait()
        await s.workbench.setup.set_option(session_id, "temperature", 0.3)
        fainter = replace(pirate, scale=0.5)
        await s.workbench.setup.set_adapters(session_id, [pirate] if taken_off else [replace(judge, on=False), fainter])
        gate.set()
        if taken_off:
            with pytest.raises(Refusal, match="the adapters have changed"):
                await switching
        else:
            await switching
        setup = await s.workbench.setup.view(session_id)
        assert [line.choice for line in setup.adapters] == ([pirate] if taken_off else [judge, fainter])
        assert next(option.own for option in setup.options if option.name == "temperature") == 0.3

    play(scene)
