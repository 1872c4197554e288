"""A comparison with a second model that fails, is stopped, has no room, or nothing to compare."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from app.workbench.compare import comparison, comparison_engine
from app.workbench.compare.comparison_choices import comparison_choices
from runtime import (
    Fit,
    LanguageModel,
    ModelLoadError,
    ModelShelf,
)
from storage import SessionStore
from tests.app.workbench.comparison_scene import SAME, Engines, Told, compared
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import OPTIONS, Scene, answered, until
from tests.exits import running
from tests.tiny_models import tiny_path
from ui import AdapterChoice, BackendChoice, ComparisonChoice, LoadChoice, NoRoomRefusal, Refusal, WeightsForm


def test_a_second_model_that_cannot_be_loaded_is_reported_and_removed(play: Play) -> None:
    engine = Engines(gone=ModelLoadError("gone: not on the shelf"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        with pytest.raises(Refusal, match="Gone could not be loaded: gone: not on the shelf"):
            await compared(s, session_id, ComparisonChoice("gone", "hf", "Gone"))
        with pytest.raises(Refusal, match="mlx is not here"):
            await compared(s, session_id, ComparisonChoice("x", "mlx", "x on mlx", problem="mlx is not here"))
        await s.workbench.answers.send(session_id, "and now?")  # the first one still works

    play(scene, engine=engine)


def test_a_second_engine_that_dies_during_a_comparison_is_reported(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.dies = True
        with pytest.raises(Refusal, match="the engine of x on fake stopped; compare again"):
            await compared(s, session_id, SAME)
        assert engine.open == []
        engine.dies = False
        assert (await compared(s, session_id, SAME)).read

    play(scene, engine=engine)


def test_a_stopped_comparison_leaves_no_running_work(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.waits = asyncio.Event()
        work = asyncio.create_task(compared(s, session_id, SAME))
        await until(lambda: engine.open)
        told = Told()
        after = asyncio.create_task(compared(s, session_id, SAME, told))
        await until(lambda: told)
        assert told == [("waiting for another comparison to end", 0, 0)]
        engine.waits.set()  # the second one does not wait for it
        engine.waits = None
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        assert (await after).read
        assert engine.open == []

    play(scene, engine=engine)


def test_a_comparison_can_be_stopped_during_the_load(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.loading = asyncio.Event()
        work = asyncio.create_task(compared(s, session_id, SAME))
        await until(lambda: len(engine.started) == 2)
        work.cancel()
        await asyncio.wait([work])
        engine.loading.set()
        assert work.cancelled()
        assert engine.open == []

    play(scene, engine=engine)


def test_the_app_can_be_closed_during_a_comparison(play: Play) -> None:
    engine = Engines()
    works = []

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        engine.waits = asyncio.Event()
        works.append(asyncio.create_task(compared(s, session_id, SAME)))
        await until(lambda: engine.open)
        await s.workbench.close()
        assert engine.open == []
        works[0].cancel()
        await asyncio.wait(works)

    play(scene, engine=engine)


def test_a_comparison_is_refused_without_confirmation_if_memory_is_short(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engines()
    asked = []

    def room_for(choice: ComparisonChoice, tokens: int) -> Fit:
        asked.append((choice, tokens))
        return Fit("fake", tokens, 1, 4_200_000_000, 1, 1, 1, 8_000_000_000, 1_100_000_000, 0)

    monkeypatch.setattr(comparison, "room_for", room_for)

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        with pytest.raises(NoRoomRefusal, match=r"about 4\.2 GB beside the model in use; 1\.1 GB are free"):
            await compared(s, session_id, SAME)
        assert len(engine.started) == 1
        assert asked == [(SAME, len(await s.path_ids(session_id)))]
        assert (await compared(s, session_id, SAME, anyway=True)).read

    play(scene, engine=engine)


def test_the_memory_of_a_second_model_is_estimated_from_the_shelf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    entry = ModelShelf().add(tiny_path("llama"), "local/tiny")
    fit = comparison_engine.room_for(ComparisonChoice(entry.name, "hf", "Tiny"), 100)
    assert fit is not None
    assert (fit.backend, fit.context) == ("hf", 100)
    assert fit.weights > 100_000
    assert comparison_engine.room_for(ComparisonChoice("nowhere", "hf", "?"), 100) is None


def test_a_path_without_tokens_cannot_be_compared(play: Play) -> None:
    async def scene(s: Scene) -> None:
        session_id = await s.new()
        with pytest.raises(Refusal, match="no model has read this path yet"):
            await compared(s, session_id, SAME)

    play(scene, engine=Engines())


def test_turns_without_tokens_are_left_out_of_a_comparison(play: Play) -> None:
    engine = Engines()

    async def scene(s: Scene) -> None:
        session_id, answer = await answered(s)
        read = len(await s.path_ids(session_id))
        engine.dies_after = 0
        await s.workbench.answers.send(session_id, "more?")
        view = await s.view(session_id)
        found = await compared(s, session_id, SAME)
        assert found.read >= read
        assert answer.node_id in found.spans
        for turn in view.turns:
            assert len(found.spans.get(turn.node_id, turn.run.ids)) == len(turn.run)

    play(scene, engine=engine)


def test_a_session_of_another_tokenizer_is_refused(play: Play) -> None:
    engine = Engines(tiny=tiny_path("llama"))

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        await s.workbench.services.supervisor.change(source="tiny", backend="hf")
        with pytest.raises(Refusal, match="was written with another tokenizer"):
            await compared(s, session_id, SAME)

    play(scene, engine=engine)


def test_the_choices_are_other_engines_precisions_and_models_of_the_shelf(
    play: Play, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    ModelShelf().add(tiny_path("llama"), "local/tiny")

    async def scene(s: Scene) -> None:
        session_id, _ = await answered(s)
        choices = await s.workbench.comparison.choices(session_id)
        labels = [choice.label for choice in choices]
        assert ("x on hf" in labels, "x on mlx" in labels) == (False, True)  # hf runs it now
        assert "x in bfloat16" in labels
        tiny = next(choice for choice in choices if choice.source == "local/tiny")
        assert (tiny.problem, tiny.adapters, tiny.same_engine) == ("", None, False)
        assert tiny.backend in ("hf", "mlx")
        # one with its own form of weights is compared with it, and labelled so
        await s.workbench.settings.own.keep("local/tiny", LoadChoice(None, "int8"))
        tiny = next(each for each in await s.workbench.comparison.choices(session_id) if each.source == "local/tiny")
        assert (tiny.weights, tiny.label.endswith("with int8 weights")) == ("int8", True)

    play(scene, engine=Engines())


def test_the_choices_are_other_weights_adapters_engines_and_precisions() -> None:
    backends = [BackendChoice("hf", "", True), BackendChoice("mlx", "mlx is not here", False)]
    stack = [AdapterChoice("/a", "A"), AdapterChoice("/b", "B", 0.5, on=False)]
    forms = [WeightsForm("float32"), WeightsForm("int8", "20.2, float32 20 (+1.0 %)")]
    held = comparison_choices("m", backends, [], stack, dtype="float32", weights="int8", forms=forms)
    assert [(each.weights, each.label) for each in held if each.weights] == [("float32", "m with float32 weights")]
    plain = comparison_choices("m", backends, [], stack, dtype="float32", weights="float32", forms=forms)
    assert [each.detail for each in plain if each.weights] == ["perplexity 20.2, float32 20 (+1.0 %)"]
    choices = comparison_choices("m", backends, [], stack, dtype="float32")
    assert [(choice.label, choice.adapters, choice.problem) for choice in choices] == [
        ("m with no adapters", (), ""),
        ("m with the adapters B × 0.5", (AdapterChoice("/b", "B", 0.5),), ""),
        ("m on mlx", (stack[0],), "mlx is not here"),
        ("m in bfloat16", (stack[0],), ""),
    ]
    assert choices[-1].dtype == "bfloat16"
    assert not any(choice.dtype for choice in comparison_choices("m", backends, [], [], dtype=""))


@pytest.mark.slow
def test_two_real_engines_are_compared_and_a_killed_one_is_reported(path: Path) -> None:
    async def play() -> None:
        store = SessionStore.open(path)
        workbench = AppWorkbench(Services(store, Supervisor("x", "fake"), OPTIONS))
        try:
            session_id = (await workbench.sessions.new()).session_id
            await workbench.answers.send(session_id, "where to?")
            found = await workbench.comparison.compare(session_id, SAME, lambda *_: None)
            assert np.abs(found.found.difference[1:]).max() == 0.0
            await workbench.comparison.keep_model(True)
            killed: list[int] = []
            first = workbench.services.supervisor.running
            assert isinstance(first, LanguageModel)

            def kill(words: str, _done: int, _total: int) -> None:
                if words != "comparing" or killed:
                    return
                killed.extend(child.pid for child in running("runtime.transport") if child.pid != first.pid)
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)

            with pytest.raises(Refusal, match="the engine of x on fake stopped"):
                await workbench.comparison.compare(session_id, SAME, kill)
            assert killed
            await workbench.answers.send(session_id, "the first one lives")
            assert (await workbench.comparison.compare(session_id, SAME, lambda *_: None)).read > found.read
        finally:
            await workbench.close()

    asyncio.run(play())
