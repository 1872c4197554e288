"""The shelf of models in the window, with real folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from runtime import ModelShelf, import_model
from runtime.loading.safetensors import weights_of
from runtime.shelf.model_lock import lock_model
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Engine, Scene, until
from tests.runtime.adapters.toys import toy_adapter
from tests.runtime.loading.gguf_files import small_llama
from tests.runtime.loading.packed import packed
from tests.storage.helpers import sql
from tests.tiny_models import tiny_path
from ui import EngineState, ModelsChanged, Refusal


@pytest.fixture(scope="session")
def tiny() -> Path:
    return tiny_path("llama")


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder


def test_a_model_is_listed_verified_and_removed(play: Play, shelf: Path, tiny: Path) -> None:
    shutil.copytree(tiny, shelf / "org--tiny")
    weights = shelf / "org--tiny" / "model.safetensors"

    async def scene(s: Scene) -> None:
        (model,) = await s.workbench.shelf.list()
        assert (model.name, model.form, model.context, model.engines) == ("org/tiny", "folder", 4096, ("hf", "mlx"))
        assert model.size == sum(file.stat().st_size for file in (shelf / "org--tiny").iterdir())
        fit = (await s.workbench.models.load_plan("org/tiny")).fit
        assert fit is not None
        assert (fit.fits, fit.context, fit.weights) == (True, 4096, weights_of([weights], {}).bytes)  # float32 on a processor
        # verified: the digests are stored, and compared
        steps: list[tuple[int, int]] = []
        await s.workbench.shelf.verify("org/tiny", lambda done, total: steps.append((done, total)))
        assert steps
        assert len((await s.workbench.shelf.list())[0].fingerprint) == 64
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        noted = weights.stat()
        weights.write_bytes(data)
        os.utime(weights, ns=(noted.st_atime_ns, noted.st_mtime_ns))  # damaged: changed without a write
        with pytest.raises(Refusal, match=r"model\.safetensors"):
            await s.workbench.shelf.verify("org/tiny", lambda _done, _total: None)
        # a loaded one is kept
        held = lock_model(shelf / "org--tiny")  # like loading
        with pytest.raises(Refusal, match="is loaded"):
            await s.workbench.shelf.remove("org/tiny")
        held.release()
        assert weights.exists()
        assert await s.workbench.shelf.remove("org/tiny") == model.size
        assert ModelsChanged() in s.events
        assert await s.workbench.shelf.list() == []
        with pytest.raises(Refusal, match="not on the shelf"):
            await s.workbench.shelf.remove("org/tiny")

    play(scene)


def test_a_model_that_is_being_loaded_cannot_be_removed(play: Play, shelf: Path, tiny: Path) -> None:
    shutil.copytree(tiny, shelf / "org--tiny")
    engine = Engine(loading=asyncio.Event())

    async def scene(s: Scene) -> None:
        await s.workbench.models.choose("org/tiny")
        await until(lambda: s.workbench.status.engine is EngineState.STARTING)
        with pytest.raises(Refusal, match="in use here; open another model first"):
            await s.workbench.shelf.remove("org/tiny")
        assert (shelf / "org--tiny").exists()
        engine.loading.set()  # type: ignore[union-attr]  # set above
        await until(lambda: s.workbench.status.engine is EngineState.READY)

    play(scene, engine=engine)


def test_verifying_can_be_stopped(play: Play, shelf: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(tiny, shelf / "org--tiny")
    monkeypatch.setattr("runtime.shelf.model_shelf.sha256_of", _forever)

    async def scene(s: Scene) -> None:
        steps: list[int] = []
        task = asyncio.create_task(s.workbench.shelf.verify("org/tiny", lambda done, _total: steps.append(done)))
        await until(lambda: len(steps) > 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        told = len(steps)
        await s.workbench.shelf.list()
        assert len(steps) == told

    play(scene)  # which checks that no thread is left


def _forever(_file: Path, tell: object) -> str:
    while True:
        tell(1)  # type: ignore[operator]  # it raises after the stop


def test_folders_and_files_are_added_to_the_shelf(play: Play, tmp_path: Path, tiny: Path) -> None:
    gguf = small_llama().write(tmp_path / "small.gguf")
    own = tmp_path / "own"
    shutil.copytree(tiny, own)
    adapter = toy_adapter(tmp_path / "pirate", 1)

    async def scene(s: Scene) -> None:
        assert await s.workbench.shelf.add_folder(own) == "own"
        steps: list[tuple[int, int]] = []
        name = await s.workbench.shelf.import_gguf(gguf, lambda done, total: steps.append((done, total)), keep_quantised=False)
        found = {model.name: model for model in await s.workbench.shelf.list()}
        assert found.keys() == {"own", name}
        assert (found["own"].linked, found[name].linked) == (True, False)
        assert found[name].form == "float32, from GGUF"
        assert await s.workbench.shelf.remove("own") == 0
        assert (own / "model.safetensors").exists()
        for wrong, why in ((adapter, "whole model|config.json|adapter"), (tmp_path, "config.json")):
            with pytest.raises(Refusal, match=why):
                await s.workbench.shelf.add_folder(wrong)
        with pytest.raises(Refusal, match="is not a GGUF file"):
            await s.workbench.shelf.plan_gguf(own)
        assert [entry.name for entry in ModelShelf().models()] == [name]

    play(scene)


@pytest.mark.slow
def test_a_gguf_stays_quantised_on_request(play: Play, tmp_path: Path) -> None:
    path = packed(tiny_path("llama"), lambda name: "Q4_0").write(tmp_path / "one.gguf")

    async def scene(s: Scene) -> None:
        plan = await s.workbench.shelf.plan_gguf(path)
        assert 0 < plan.kept < plan.float32 / 3
        assert (plan.keeps, plan.note) == (False, "")
        names = [
            await s.workbench.shelf.import_gguf(path, lambda _done, _total: None, keep_quantised=keep) for keep in (True, False)
        ]
        assert names == ["one-mlx", "one"]
        found = {model.name: (model.form, tuple(model.engines)) for model in await s.workbench.shelf.list()}
        assert found == {"one": ("float32, from GGUF", ("hf", "mlx")), "one-mlx": ("4 bit (mlx), from GGUF", ("hf", "mlx"))}
        (tmp_path / "bad.gguf").write_bytes(b"GGUF")
        with pytest.raises(Refusal, match=r"bad\.gguf"):
            await s.workbench.shelf.plan_gguf(tmp_path / "bad.gguf")

    play(scene)


def test_proposals_need_no_network(play: Play, shelf: Path, tiny: Path) -> None:
    shutil.copytree(tiny, shelf / "HuggingFaceTB--SmolLM2-135M-Instruct@0123456789ab")

    async def scene(s: Scene) -> None:
        offers = await s.workbench.shelf.offers()
        assert [offer.parameters for offer in offers] == sorted(offer.parameters for offer in offers)
        assert 1 <= sum(offer.best for offer in offers) <= 3
        assert all(offer.fit.fits and not offer.gated for offer in offers if offer.best)
        assert [offer.name for offer in offers if offer.here] == ["SmolLM2 135M"]
        assert all(offer.size > 0 and offer.licence and "/" in offer.wanted for offer in offers)

    play(scene)


def test_an_imported_model_is_not_proposed_again(play: Play, shelf: Path, tiny: Path, tmp_path: Path) -> None:
    """Whatever its name: its file or folder keeps the name of the repository."""
    shutil.copytree(tiny, tmp_path / "SmolLM2-135M-Instruct")
    import_model(tmp_path / "SmolLM2-135M-Instruct", "mine/small")

    async def scene(s: Scene) -> None:
        offers = await s.workbench.shelf.offers()
        assert [offer.name for offer in offers if offer.here] == ["SmolLM2 135M"]
        assert offers[0].name == "SmolLM2 135M"
        assert not offers[0].best

    play(scene)


def test_without_any_model_the_smallest_is_proposed_too(play: Play, shelf: Path) -> None:
    async def scene(s: Scene) -> None:
        offers = await s.workbench.shelf.offers()
        assert not any(offer.here for offer in offers)
        assert (offers[0].name, offers[0].best) == ("SmolLM2 135M", True)
        assert sum(offer.best for offer in offers) <= 4

    play(scene)


def test_hints_are_dismissed_for_good(play: Play) -> None:
    async def first(s: Scene) -> None:
        assert await s.workbench.settings.hints() == {"tokens", "models"}
        once = await asyncio.gather(*(s.workbench.settings.dismiss_hint("tokens") for _window in range(3)))
        assert sorted(once) == [False, False, True]
        assert await s.workbench.settings.hints() == {"models"}

    async def second(s: Scene) -> None:
        assert await s.workbench.settings.hints() == {"models"}
        await s.workbench.settings.dismiss_hint("models")
        assert await s.workbench.settings.hints() == set()
        sql(s.store.path, "UPDATE settings SET value = '0' WHERE key = 'hints'")
        assert await s.workbench.settings.dismiss_hint("tokens")  # damaged settings show the hints once more
        assert await s.workbench.settings.hints() == {"models"}

    play(first)
    play(second)
