"""Adapters fetched from a hub: as models are, and found by their ids wherever an adapter is named."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from runtime import DownloadError, ModelShelf, fetch_adapter, fetch_any, fetch_model, list_shelf_adapters, plan_download
from runtime.adapters.convert import convert_adapter
from runtime.hub.child_protocol import HubId
from runtime.hub.download import RepositoryDownload
from tests.fakes import fake_model
from tests.runtime.adapters.toys import toy_adapter
from tests.runtime.hub.conftest import Fetch
from tests.runtime.hub.local_hub import Files, LocalHub

IDS = [1, 2, 3, 44, 7, 5]
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def content(folder: Path) -> Files:
    """A repository with an adapter, and with files that a download must leave out."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return files | {"README.md": b"# hi", "training_args.bin": b"\x80\x04K\x01.", "tokenizer.json": b"{}"}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return toy_adapter(tmp_path / "toy", 1)


@pytest.mark.parametrize("layout", ["peft", "mlx"])
def test_an_adapter_is_fetched_and_used_by_its_id(layout: str, hub: LocalHub, fetch: Fetch, toy: Path, tmp_path: Path) -> None:
    # given
    source = toy if layout == "peft" else convert_adapter(toy, tmp_path / "mlx", "mlx")
    commit = hub.add("org/mine", content(source))
    # when
    name = fetch("org/mine")
    # then: it is installed at this commit, and no other file came along
    (listed,) = list_shelf_adapters()
    assert listed.name == name == f"org/mine@{commit[:12]}"
    assert (listed.layout, listed.kind, listed.problem) == (layout, "lora", "")
    weights = WEIGHTS if layout == "peft" else "adapters.safetensors"
    assert {path.name for path in listed.path.iterdir() if path.is_file()} == {CONFIG, weights, "elsewise.json"}
    assert set(hub.fetched()) == {CONFIG, weights}
    assert ModelShelf().models() == []
    ModelShelf().verify(name)
    # and it gives the same numbers as the folder
    with fake_model() as model:
        model.push_lora(str(source))
        expected = model.next_token_logprobs_sync(IDS)
        model.pop_lora()
        model.push_lora("org/mine")
        np.testing.assert_array_equal(model.next_token_logprobs_sync(IDS), expected)
    # and a second fetch downloads no weights
    hub.asked.clear()
    assert fetch("org/mine") == name
    assert weights not in hub.fetched()
    # and removing it leaves nothing
    assert ModelShelf().remove(name) >= len((source / weights).read_bytes())
    assert list_shelf_adapters() == []


def test_a_damaged_adapter_is_fetched_again(hub: LocalHub, fetch: Fetch, toy: Path) -> None:
    hub.add("org/mine", content(toy))
    name = fetch("org/mine")
    (listed,) = list_shelf_adapters()
    weights = listed.path / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-8])
    assert fetch("org/mine") == name
    (again,) = list_shelf_adapters()
    assert (again.problem, weights.read_bytes()) == ("", (toy / WEIGHTS).read_bytes())


def without_weights(files: Files) -> None:
    del files[WEIGHTS]
    del files["training_args.bin"]


def pickled(files: Files) -> None:
    files["adapter_model.bin"] = pickle.dumps(files.pop(WEIGHTS))


def of_another_kind(files: Files) -> None:
    files[CONFIG] = b'{"peft_type": "IA3"}'


def no_numbers(files: Files) -> None:
    files[WEIGHTS] = save({name: np.full_like(array, np.nan) for name, array in load(files[WEIGHTS]).items()})


def cut_short(files: Files) -> None:
    files[WEIGHTS] = files[WEIGHTS][:-8]


def no_json(files: Files) -> None:
    files[CONFIG] = b"[1"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_weights, "its weights are missing"),
        (pickled, "adapter_model.bin is never opened because such files can run code"),
        (of_another_kind, "only LORA adapters"),
        (no_numbers, "NaN or infinity"),
        (cut_short, "damaged safetensors"),
        (no_json, "not readable as JSON"),
    ],
)
def test_an_unsound_adapter_is_refused_and_not_listed(
    spoil: Callable[[Files], None], said: str, hub: LocalHub, fetch: Fetch, toy: Path
) -> None:
    files = content(toy)
    spoil(files)
    hub.add("org/mine", files)
    with pytest.raises(DownloadError, match=f"org/mine@main.*{said}") as refused:
        fetch("org/mine")
    assert refused.value.reason == "unsuitable"
    assert list_shelf_adapters() == []
    assert "adapter_model.bin" not in hub.fetched()


def test_a_model_fetched_as_an_adapter_or_the_reverse_is_refused_before_its_weights(
    hub: LocalHub, toy: Path, tiny: Files
) -> None:
    hub.add("org/mine", content(toy))
    hub.add("org/tiny", tiny)
    for wanted, repository, said in (
        ("model", "org/mine", "an adapter, no model"),
        ("adapter", "org/tiny", "a model, no adapter"),
    ):
        with pytest.raises(DownloadError, match=f"{repository}@main: {said}; .*fetch_"):
            RepositoryDownload(HubId.parse(repository), lambda _: None, wanted=wanted, endpoint=hub.address).fetch()  # type: ignore[arg-type]
    assert hub.fetched() == []


def test_a_repository_with_a_model_and_an_adapter_is_fetched_as_a_model(
    hub: LocalHub, fetch: Fetch, toy: Path, tiny: Files
) -> None:
    hub.add("org/both", {**content(toy), **tiny})
    fetch("org/both")
    assert len(ModelShelf().models()) == 1
    assert list_shelf_adapters() == []


@pytest.mark.slow
def test_the_child_process_fetches_adapters(hub: LocalHub, toy: Path) -> None:
    # given
    commit = hub.add("org/mine", content(toy))
    plan = plan_download("org/mine")
    assert (plan.kind, plan.backends, plan.config["peft_type"], plan.here) == ("adapter", ("hf", "mlx"), "LORA", "")
    with pytest.raises(DownloadError, match="an adapter, no model"):
        fetch_model("org/mine")
    # when
    got = fetch_adapter("org/mine")
    # then
    assert (got.name, got.problem) == (f"org/mine@{commit[:12]}", "")
    assert fetch_any("org/mine") == got
    assert plan_download("org/mine").here == got.name
