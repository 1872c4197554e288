"""Pipes, sockets, devices, folders, links and enormous files in place of a file: refused by name, without blocking."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import AdapterError, InvalidRequestError, ModelLoadError, ModelShelf, import_adapter, import_model, load
from tests.tiny_models import tiny_path

pytestmark = pytest.mark.timeout(60)  # a read from a pipe without a writer would block for ever

MODEL_FILES = (
    "config.json",
    "tokenizer_config.json",
    "generation_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors",
    "model-00002-of-00002.safetensors",  # one file more than the model has: a library would open it
    "model.safetensors.index.json",
    "adapter_config.json",  # transformers looks for an adapter beside a model
    "elsewise.json",
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "elsewise.json")


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's name has at most 107 bytes
        try:
            opened.bind(path.name)
        finally:
            os.chdir(here)


def enormous(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "socket": (bound_socket, "a socket"),
    "endless device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
}


@pytest.fixture
def model(shelf: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path("llama"), tmp_path / "tiny"))


@pytest.fixture
def adapter(shelf: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4}))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def put(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_special_file_in_a_model_folder_is_refused_without_blocking(name: str, kind: str, model: Path) -> None:
    # given
    make, said = KINDS[kind]
    put(model / name, make)
    # when it is loaded, imported or added, then it is refused, and the message names the file and its kind
    for act in (
        lambda: load(model, "hf"),
        lambda: load(model, "mlx"),
        lambda: import_model(model),
        lambda: ModelShelf().add(model),
    ):
        with pytest.raises(ModelLoadError) as refused:
            act()
        assert str(model / name) in str(refused.value) or (name == "model.safetensors" and "no weights" in str(refused.value))
        assert said in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [name for name in MODEL_FILES if not name.endswith(".safetensors")])
def test_an_enormous_file_is_not_read(name: str, model: Path) -> None:
    put(model / name, enormous)
    with pytest.raises(ModelLoadError, match="1,099,511,627,776 bytes; at most") as refused:
        load(model, "hf")
    assert str(model / name) in str(refused.value)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_folder_in_place_of_a_file_is_refused(name: str, model: Path) -> None:
    put(model / name, lambda path: path.mkdir())
    with pytest.raises(ModelLoadError, match=rf"{name}: .*Is a directory"):
        load(model, "hf")


@pytest.mark.parametrize("name", [name for name in MODEL_FILES if not name.endswith(".safetensors")])
def test_a_link_out_of_the_folder_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    # given
    secret = tmp_path / "secret"
    secret.write_text("{}")
    put(model / name, lambda path: path.symlink_to(secret))
    # when, then
    for act in (lambda: load(model, "hf"), lambda: import_model(model)):
        with pytest.raises(ModelLoadError, match="outside of the model's folder") as refused:
            act()
        assert f"{model / name}: a link to {secret}" in str(refused.value)


def test_weights_that_are_a_link_out_of_the_folder_are_reported(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(tmp_path / "elsewhere")
    (model / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with load(model, "hf") as loaded:
        assert any(f"a link to {tmp_path / 'elsewhere'}" in warning for warning in loaded.info.warnings)


def test_a_snapshot_in_the_cache_of_huggingface_hub_is_loaded(model: Path, tmp_path: Path) -> None:
    # given a snapshot as huggingface_hub makes it
    blobs = tmp_path / "models--org--tiny" / "blobs"
    snapshot = blobs.parent / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(model.iterdir())):
        file.rename(blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040x}")
    # when, then
    with load(snapshot, "hf") as loaded:
        assert not any("link" in warning for warning in loaded.info.warnings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ADAPTER_FILES)
def test_a_special_file_in_an_adapter_folder_is_refused_without_blocking(name: str, kind: str, adapter: Path) -> None:
    make, said = KINDS[kind]
    put(adapter / name, make)
    with load("mock", "mock") as loaded:
        for act in (lambda: loaded.add_adapter(adapter), lambda: import_adapter(adapter)):
            with pytest.raises(AdapterError, match=said) as refused:
                act()
            assert str(adapter / name) in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_file_given_as_a_model_or_template_is_refused_without_blocking(
    kind: str, shelf: Path, tmp_path: Path
) -> None:
    make, said = KINDS[kind]
    given = tmp_path / "model.gguf"
    make(given)
    for act in (lambda: load(given, "hf"), lambda: import_model(given)):
        with pytest.raises(ModelLoadError, match=said):
            act()
    with pytest.raises(InvalidRequestError, match=said):
        load(tiny_path("llama"), "hf", chat_template_file=given)
