"""Adapters on the shelf: checked when imported, found by their ids wherever an adapter is named, never fetched."""

from __future__ import annotations

import asyncio
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import (
    AdapterError,
    LanguageModel,
    ModelLoadError,
    ModelShelf,
    Progress,
    ShelvedAdapter,
    import_adapter,
    import_model,
    is_adapter_folder,
    list_models,
    list_shelf_adapters,
    load,
    spawn,
)
from runtime.adapters.convert import convert_adapter
from tests.fakes import fake_model
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path

IDS = [1, 2, 3, 44, 7, 5]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_adapter(tmp_path / "toy", 1)


def names(shelf: Path) -> list[str]:
    return sorted(path.name for path in shelf.iterdir() if path.name not in (".lock", ".digests"))


# ---- onto the shelf ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["peft", "mlx"])
def test_an_import_copies_only_the_files_of_an_adapter(layout: str, shelf: Path, toy: Path, tmp_path: Path) -> None:
    # given an adapter among unrelated files
    source = toy if layout == "peft" else convert_adapter(toy, tmp_path / "mlx", "mlx")
    for other in ("adapter_model.bin", "optimizer.pt", "README.md", "tokenizer.json"):
        (source / other).write_bytes(b"\x80\x04never opened")
    reports: list[Progress] = []
    # when
    got = import_adapter(source, "org/mine@v1", reports.append)
    # then
    weights = WEIGHTS if layout == "peft" else "adapters.safetensors"
    assert {file.name for file in got.path.iterdir()} == {CONFIG, weights, "elsewise.json"}
    assert got.path == shelf / "org--mine@v1"
    assert (got.path.stat().st_mode & 0o777, (got.path / weights).stat().st_mode & 0o777) == (0o700, 0o600)
    assert (got.name, got.layout, got.kind, got.problem) == ("org/mine@v1", layout, "lora", "")
    assert got.parameters == 2 * (16 + 16) + 2 * (16 + 259)
    assert list_shelf_adapters() == [got]
    assert list_models() == []  # it is not a model
    assert reports[-1].done == reports[-1].total > 0
    ModelShelf().verify("org/mine@v1")
    ModelShelf().verify("org/mine")  # its only revision
    # and a second import does nothing
    assert import_adapter(source, "org/mine@v1", reports.clear) == got  # type: ignore[arg-type]  # would fail if it were called


def test_an_adapter_of_the_same_name_gets_a_suffix_and_a_given_name_is_not_overwritten(
    shelf: Path, toy: Path, tmp_path: Path
) -> None:
    first = import_adapter(toy)
    other = toy_adapter(tmp_path / "other" / "toy", 2)
    second = import_adapter(other)
    assert (first.name, second.name.startswith("toy-")) == ("toy", True)
    with pytest.raises(ModelLoadError, match=r"another adapter is called 'toy' \(from toy\)"):
        import_adapter(other, "toy")
    with pytest.raises(ModelLoadError, match="another adapter is called 'toy'"):
        import_model(tiny_path("llama"), "toy")
    assert len(names(shelf)) == 2


def test_folders_put_on_the_shelf_by_hand_are_not_replaced(shelf: Path, toy: Path) -> None:
    # given folders without an import
    by_hand = toy_adapter(shelf / "org--mine", 3)
    shutil.copytree(tiny_path("llama"), shelf / "tiny")
    before = {path: path.read_bytes() for path in shelf.rglob("*") if path.is_file()}
    # when, then
    with pytest.raises(ModelLoadError, match=r"another adapter is called 'org/mine' \(put there by hand\)"):
        import_adapter(toy, "org/mine")
    with pytest.raises(ModelLoadError, match=r"another model is called 'tiny' \(put there by hand\)"):
        import_model(tiny_path("qwen3"), "tiny")
    assert {path: path.read_bytes() for path in before} == before
    # but a folder may be imported in place
    assert import_adapter(by_hand, "org/mine").path == by_hand
    assert (by_hand / "elsewise.json").is_file()


def spoilt(folder: Path, act: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    act(tensors)
    save_file(tensors, folder / WEIGHTS)


def as_pickle(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (folder / "sprung",))

    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Trap()))


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (as_pickle, r"adapter_model\.bin, which is never opened"),
        (lambda f: (f / WEIGHTS).unlink(), "is missing; fetch the adapter again"),
        (lambda f: (f / WEIGHTS).write_bytes((f / WEIGHTS).read_bytes()[:-8]), "damaged safetensors"),
        (lambda f: spoilt(f, lambda t: t.update({next(iter(t)): np.full((2, 16), np.nan, np.float32)})), "NaN or infinity"),
        (lambda f: (f / CONFIG).write_text('{"peft_type": "IA3"}'), "only LORA adapters"),
        (lambda f: (f / CONFIG).write_text("[1"), "not readable as JSON"),
    ],
    ids=["pickle", "no weights", "cut short", "NaN", "another kind", "no JSON"],
)
def test_an_unsound_adapter_is_refused_and_leaves_nothing(
    act: Callable[[Path], Any], says: str, shelf: Path, toy: Path
) -> None:
    act(toy)
    assert is_adapter_folder(toy)
    with pytest.raises(AdapterError, match=says):
        import_adapter(toy)
    assert not (toy / "sprung").exists()
    assert not shelf.exists() or names(shelf) == []


def test_a_cancelled_import_leaves_nothing(shelf: Path, toy: Path) -> None:
    class Cancelled(Exception):
        pass

    for stage in ("copy", "check"):  # also in the check of the copy
        told: list[str] = []

        def cancel(progress: Progress, stage: str = stage, told: list[str] = told) -> None:
            told.append(progress.stage)
            if stage == progress.stage and "copy" in told:
                raise Cancelled

        with pytest.raises(Cancelled):
            import_adapter(toy, progress=cancel)
        assert names(shelf) == []


def test_an_adapter_changed_on_the_shelf_is_listed_as_damaged_and_refused(shelf: Path, toy: Path) -> None:
    got = import_adapter(toy, "org/mine")
    spoilt(got.path, lambda t: t.update({name: 2 * array for name, array in t.items()}))
    (listed,) = list_shelf_adapters()
    assert "is damaged or was changed" in listed.problem
    with fake_model() as model, pytest.raises(AdapterError, match=r"remove the model \(org/mine\) and import toy again"):
        model.push_lora("org/mine")
    assert import_adapter(toy, "org/mine").problem == ""  # importing it again repairs it


def test_an_adapter_cannot_be_loaded_or_imported_as_a_model(shelf: Path, toy: Path) -> None:
    import_adapter(toy, "org/mine")
    for source in ("org/mine", str(toy)):
        with pytest.raises(ModelLoadError, match=r"an adapter, no model; .* \(`--adapter`, `push_lora`\)"):
            load(source, "hf")
    with pytest.raises(ModelLoadError, match="an adapter, no model"):
        import_model(toy)


# ---- by id ------------------------------------------------------------------------------------------------------------


def loaded_by_hand(folder: Path) -> Any:
    with load("anything", backend="fake") as model:
        model.push_lora(str(folder), 0.5)
        return model.next_token_logprobs_sync(IDS)


def name_it(model: LanguageModel, way: str, said: str) -> str:
    """Uses an adapter of the shelf in one of three ways; returns its full name."""
    if way == "push":
        model.push_lora(said, 0.5)
        return model.lora_stack[0][0]
    if way == "add":
        name = model.add_adapter(said)
        model.load_adapter(said)
        return name
    model.load_adapter(said)
    return model.info.adapters[0].name


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["peft", "mlx"])
@pytest.mark.parametrize("way", ["add", "load", "push"])
@pytest.mark.parametrize("said", ["org/mine", "org/mine@v1"])
def test_an_id_is_found_with_and_without_its_revision(
    said: str, way: str, layout: str, shelf: Path, toy: Path, tmp_path: Path
) -> None:
    source = toy if layout == "peft" else convert_adapter(toy, tmp_path / "mlx", "mlx")
    import_adapter(source, "org/mine@v1")
    with fake_model() as model:
        assert name_it(model, way, said) == "org/mine@v1"
        assert [entry.name for entry in model.info.adapters] == ["org/mine@v1"]  # registered once under its full name
        expected = loaded_by_hand(toy)
        for each in ("org/mine", "org/mine@v1"):
            got = model.next_token_logprobs_sync(IDS, adapters=[(each, 0.5)])
            np.testing.assert_allclose(got, expected, atol=1e-6, rtol=0)
        model.clear_loras()
        model.unload_adapter(said)
        assert model.list_adapters() == []


@pytest.mark.slow
def test_an_engine_process_finds_adapters_on_the_shelf(shelf: Path, toy: Path) -> None:
    import_adapter(toy, "org/mine@v1")

    async def scenario() -> None:
        async with await spawn("anything", backend="fake", adapters=[("org/mine", 0.5)]) as model:
            assert model.lora_stack == (("org/mine@v1", 0.5),)
            np.testing.assert_array_equal(await model.next_token_logprobs(IDS), loaded_by_hand(toy))
            await model.clear_loras_async()
            await model.push_lora_async("org/mine", 0.5)
            np.testing.assert_array_equal(await model.next_token_logprobs(IDS), loaded_by_hand(toy))
            with pytest.raises(AdapterError, match=r"no adapter is called 'org/none': .*on the shelf: org/mine@v1"):
                await model.load_adapter_async("org/none")

    asyncio.run(scenario())


def test_ambiguous_revisions_are_refused_by_name(shelf: Path) -> None:
    for seed, revision in enumerate(("v1", "v2")):
        toy_adapter(shelf / f"org--mine@{revision}", seed)
    with fake_model() as model:
        with pytest.raises(AdapterError, match="here in 2 revisions; choose one: org/mine@v1, org/mine@v2"):
            model.add_adapter("org/mine")
        for revision in ("v1", "v2"):
            model.load_adapter(f"org/mine@{revision}")
        with pytest.raises(AdapterError, match="'org/mine' is two adapters: org/mine@v1_lora and org/mine@v2_lora"):
            model.next_token_logprobs_sync(IDS, adapters=["org/mine"])


def test_the_error_for_an_unknown_id_lists_the_shelf_and_the_command(shelf: Path, toy: Path) -> None:
    do = "elsewise models import FOLDER"
    with fake_model() as model:
        for act in (model.load_adapter, model.push_lora):
            with pytest.raises(AdapterError, match=f"no adapter is called 'org/none': .*on the shelf: none; `{do}"):
                act("org/none")
        import_adapter(toy, "org/mine")
        with pytest.raises(
            AdapterError, match=rf"org/none is not in {shelf} \(adapters there: org/mine\); .*{do} --name org/none"
        ):
            model.add_adapter("org/none")
        for act in (model.load_adapter, model.push_lora, model.unload_adapter):
            with pytest.raises(AdapterError, match=f"no adapter is called 'org/none': .*on the shelf: org/mine; `{do}"):
                act("org/none")
        # a request loads nothing: the error names the call that does
        with pytest.raises(AdapterError, match=r"org/mine is on the shelf, and not loaded; load_adapter\('org/mine'\)"):
            model.next_token_logprobs_sync(IDS, adapters=["org/mine"])
        assert model.info.adapters == ()
        assert model.metrics().tokens_computed == 0
    with pytest.raises(AdapterError, match="org/none"):
        load("anything", backend="fake", adapters=["org/none"])


def test_a_long_list_of_adapters_is_shortened_in_the_error(shelf: Path) -> None:
    for seed in range(10):
        toy_adapter(shelf / f"a{seed}", seed)
    toy_adapter(shelf / ".importing-half", 11)
    with fake_model() as model, pytest.raises(AdapterError, match=r"on the shelf: a0, a1, a2, a3, a4, a5, a6, a7 and 2 more;"):
        model.push_lora("b")


def test_an_entry_has_its_base_model_or_its_problem(shelf: Path, toy: Path) -> None:
    told = json.loads((toy / CONFIG).read_text()) | {"base_model_name_or_path": "org/Base-1B"}
    (toy / CONFIG).write_text(json.dumps(told))
    assert import_adapter(toy).base == "org/Base-1B"
    (toy_adapter(shelf / "by-hand", 2) / WEIGHTS).write_bytes(b"")
    broken, sound = list_shelf_adapters()
    assert isinstance(broken, ShelvedAdapter)
    assert (broken.name, sound.name) == ("by-hand", "toy")
    assert "damaged safetensors" in broken.problem
