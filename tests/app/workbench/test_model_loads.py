"""Load options of single models, remembered for each; quantising; the hub's token."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import keyring
import pytest

from app.workbench import AppWorkbench
from runtime import LanguageModel, ModelShelf
from runtime.loading.measurements import keep_perplexities
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, until
from tests.machines import on_a_processor
from tests.runtime.hub.conftest import Keychain
from tests.tiny_models import tiny_path
from ui import EngineState, Event, LoadChoice, ModelsChanged, Refusal, WeightsForm

FORMS = ("float32", "float16", "bfloat16", "int8", "int4")


async def ready(s: Scene) -> None:
    await until(lambda: s.workbench.status.engine is EngineState.READY)


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    on_a_processor(monkeypatch)
    for name in ("one", "two"):
        shutil.copytree(tiny_path("llama"), folder / f"org--{name}")
    return folder


def test_a_load_plan_shows_the_memory_and_the_cost_of_a_choice(play: Play) -> None:
    ModelShelf().verify("org/one")
    digest = ModelShelf().find("org/one").fingerprint
    assert digest is not None
    keep_perplexities(digest, {"float32": 20.0, "int8": 20.2})

    async def scene(s: Scene) -> None:
        plan = await s.workbench.models.load_plan("org/one")
        assert plan.choice == LoadChoice()
        assert plan.fit is not None
        assert (plan.fit.engine, plan.fit.context, plan.most) == ("hf", 4096, 4096)
        assert [form.name for form in plan.forms] == list(FORMS)
        assert plan.forms[3] == WeightsForm("int8", "20.2, float32 20 (+1.0 %)")
        assert plan.forms[1].cost == ""
        short = await s.workbench.models.load_plan("org/one", LoadChoice(1024, "int8"))
        assert short.fit is not None
        assert (short.fit.context, short.fit.fits) == (1024, True)
        assert short.fit.weights != plan.fit.weights
        assert short.fit.kv == plan.fit.kv // 4
        # settings for all models are taken into account too, and weights read from disk have no estimate
        await s.workbench.settings.change("context_length", 512)
        plan = await s.workbench.models.load_plan("org/one")
        assert plan.fit is not None
        assert (plan.fit.context, plan.set_context) == (512, 512)
        await s.workbench.settings.change("offload", "disk")
        assert (await s.workbench.models.load_plan("org/one")).fit is None
        with pytest.raises(Refusal, match="not on the shelf"):
            await s.workbench.models.load_plan("org/none")

    play(scene)


def test_load_options_chosen_for_a_model_are_used_and_remembered(play: Play) -> None:
    engine = Engine()

    async def first(s: Scene) -> None:
        await s.workbench.settings.change("context_length", 2048)
        await s.workbench.models.open("org/one", LoadChoice(1024, "int8"))
        await ready(s)
        assert (
            s.workbench.services.supervisor.options["context_length"],
            s.workbench.services.supervisor.options["weights"],
        ) == (1024, "int8")
        found = {model.name: model.own_load for model in await s.workbench.shelf.list()}
        assert found == {"org/one": "1,024 tokens, int8 weights", "org/two": ""}
        # another model uses the settings for all
        await s.workbench.models.choose("org/two")
        await ready(s)
        assert s.workbench.services.supervisor.options["context_length"] == 2048
        assert "weights" not in s.workbench.services.supervisor.options
        # and the first one uses its own again, however it is opened
        await s.workbench.models.choose("org/one")
        await ready(s)
        assert s.workbench.services.supervisor.options["weights"] == "int8"
        # a change for all does not affect it
        await s.workbench.settings.change("context_length", 4096)
        assert s.workbench.services.supervisor.options["context_length"] == 1024
        with pytest.raises(Refusal, match="int9"):
            await s.workbench.models.open("org/one", LoadChoice(None, "int9"))

    async def second(s: Scene) -> None:
        await s.workbench.settings.load()
        assert (await s.workbench.models.load_plan("org/one")).choice == LoadChoice(1024, "int8")
        await s.workbench.models.choose("org/one")
        await ready(s)
        assert s.workbench.services.supervisor.options["context_length"] == 1024
        await s.workbench.models.grow_context()
        await ready(s)
        assert "context_length" not in s.workbench.services.supervisor.options
        assert (await s.workbench.models.load_plan("org/one")).choice == LoadChoice(None, "int8")
        # deleted with the model
        await s.workbench.models.choose("org/two")
        await ready(s)
        await s.workbench.shelf.remove("org/one")
        assert (await s.workbench.services.store.setting("models")) == {}

    play(first, engine=engine)
    play(second, engine=Engine())


def test_settings_for_all_models_are_optional_and_those_for_one_are_mandatory(play: Play, shelf: Path) -> None:
    mlx = json.loads((shelf / "org--two" / "config.json").read_text()) | {"quantization": {"bits": 4, "group_size": 64}}
    (shelf / "org--two" / "config.json").write_text(json.dumps(mlx))  # only mlx could run it

    async def scene(s: Scene) -> None:
        await s.workbench.settings.change("weights", "int8")
        await s.workbench.settings.change("context_length", 1 << 20)
        await s.workbench.models.choose("org/two")
        await ready(s)
        options = s.workbench.services.supervisor.options
        assert (options["weights"], options["soft_options"]) == ("int8", ["weights", "context_length"])
        plan = await s.workbench.models.load_plan("org/two")
        assert (plan.forms, plan.set_weights) == ([], "int8")
        assert plan.fit is not None
        assert (plan.fit.engine, plan.fit.context) == ("mlx", 4096)  # the model's maximum
        # chosen for one model it is mandatory
        await s.workbench.models.open("org/one", LoadChoice(None, "int8"))
        await ready(s)
        assert s.workbench.services.supervisor.options["soft_options"] == ["context_length"]
        beside = s.workbench.services.supervisor.beside("org/one", "hf", {"weights": "int4"}).options
        assert (beside["weights"], beside["soft_options"]) == ("int4", [])
        # without settings, no soft options
        await s.workbench.settings.change("context_length", None)
        assert "soft_options" not in s.workbench.services.supervisor.options

    play(scene)


def test_every_window_is_notified_of_another_model_while_it_is_loaded(play: Play) -> None:
    async def scene(s: Scene) -> None:
        told: list[Event] = []
        other = AppWorkbench(s.workbench.services)
        other.subscribe(told.append)
        await s.workbench.models.choose("org/two")
        assert ModelsChanged() in told
        assert next(choice.source for choice in await s.workbench.models.list() if choice.loaded) == "org/two"
        await ready(s)
        await other.close()

    play(scene)


def test_a_context_is_remembered_for_a_model_that_is_not_on_the_shelf_yet(play: Play) -> None:
    async def scene(s: Scene) -> None:
        await s.workbench.models.remember_context("org/new@0123", 512)
        assert ModelsChanged() in s.events
        await s.workbench.models.open("org/one", LoadChoice(None, "int8"))
        await ready(s)
        await s.workbench.models.remember_context("org/one", 256)
        assert (await s.workbench.models.load_plan("org/one")).choice == LoadChoice(256, "int8")
        assert s.workbench.services.supervisor.options["context_length"] == 256
        assert (await s.workbench.settings.view()).needs_reload
        assert (await s.workbench.services.store.setting("models"))["org/new@0123"] == {"context_length": 512}
        with pytest.raises(Refusal, match="context_length"):
            await s.workbench.models.remember_context("org/one", 0)

    play(scene)


def test_contexts_of_two_models_that_are_stored_concurrently_are_both_kept(play: Play) -> None:
    async def scene(s: Scene) -> None:
        await s.workbench.settings.load()
        remember = s.workbench.models.remember_context
        await asyncio.gather(remember("org/one", 512), remember("org/two", 256))
        wanted = {"org/one": {"context_length": 512}, "org/two": {"context_length": 256}}
        assert await s.workbench.services.store.setting("models") == wanted

    play(scene)


@pytest.mark.parametrize("held", [7, {"org/one": 3}, {"org/one": {"context_length": -1}}, {"org/one": {"weights": ["int8"]}}])
def test_invalid_stored_load_options_are_ignored(play: Play, held: object) -> None:
    async def scene(s: Scene) -> None:
        await s.workbench.services.store.set_setting("models", held)
        assert (await s.workbench.models.load_plan("org/one")).choice == LoadChoice()

    play(scene)


@pytest.mark.slow
def test_a_quantised_model_is_added_beside_the_original(play: Play) -> None:
    async def scene(s: Scene) -> None:
        assert [model.convertible for model in await s.workbench.shelf.list()] == [True, True]
        steps: list[tuple[int, int]] = []
        made = await s.workbench.shelf.quantise("org/one", 8, lambda done, total: steps.append((done, total)))
        assert made == "org/one-8bit"
        assert ModelsChanged() in s.events
        found = {model.name: model for model in await s.workbench.shelf.list()}
        assert (found[made].form, found[made].convertible) == ("8 bit (mlx), folder", False)
        assert steps
        with pytest.raises(Refusal, match="quantised already"):
            await s.workbench.shelf.quantise(made, 4, lambda _done, _total: None)

    play(scene)


@pytest.mark.slow
def test_quantising_can_be_stopped_and_leaves_nothing(play: Play, shelf: Path) -> None:
    async def scene(s: Scene) -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(s.workbench.shelf.quantise("org/one", 4, lambda _done, _total: begun.set()))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [model.name for model in await s.workbench.shelf.list()] == ["org/one", "org/two"]
        assert list(await asyncio.to_thread(lambda: [*shelf.glob(".*import*"), *shelf.glob("*4bit*")])) == []

    play(scene)


@pytest.fixture
def keychain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Keychain]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    before, own = keyring.get_keyring(), Keychain()
    keyring.set_keyring(own)
    yield own
    keyring.set_keyring(before)


def test_a_token_is_stored_shown_as_present_and_deleted(
    play: Play, keychain: Keychain, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(s: Scene) -> None:
        assert not (await s.workbench.shelf.hub_token()).kept
        view = await s.workbench.shelf.keep_hub_token("hf_secret")
        assert (view.kept, view.variable) == (True, "")
        assert "hf_secret" not in repr(view)
        assert list(keychain.kept.values()) == ["hf_secret"]
        assert not (await s.workbench.shelf.forget_hub_token()).kept
        assert keychain.kept == {}
        with pytest.raises(Refusal, match="this is no token") as refused:
            await s.workbench.shelf.keep_hub_token("two words")
        assert "two words" not in str(refused.value)
        keychain.fault = RuntimeError("locked: hf_other")
        with pytest.raises(Refusal, match="refuses") as refused:
            await s.workbench.shelf.keep_hub_token("hf_other")
        assert "hf_other" not in str(refused.value)
        monkeypatch.setenv("HF_TOKEN", "hf_environment")
        assert (await s.workbench.shelf.hub_token()).variable == "HF_TOKEN"

    play(scene)


class Named(Engine):
    """Its models have a name that a test gives."""

    name = "one"

    async def __call__(self, source: str, backend: str, **how: Any) -> LanguageModel:
        made = await super().__call__(source, backend, **how)
        made.info = replace(made.info, name=self.name)  # type: ignore[misc]  # of the wrapper
        return made


def test_the_model_that_wrote_a_session_is_named_while_another_runs(play: Play) -> None:
    engine = Named()

    async def scene(s: Scene) -> None:
        session_id = await s.new()
        await s.workbench.answers.send(session_id, "hello")
        status = s.workbench.status
        assert (status.model, status.written_by) == ("one", "")
        # when another model is chosen
        engine.name = "two"
        await s.workbench.models.choose("org/two")
        await ready(s)
        status = s.workbench.status
        assert (status.model, status.written_by) == ("two", "one")
        # and no longer once that one has answered
        await s.workbench.answers.send(session_id, "and again")
        assert s.workbench.status.written_by == ""

    play(scene, engine=engine)
