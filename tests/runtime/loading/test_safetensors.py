"""Safetensors files with wrong headers or contents: refused in one line, before any library reads weights from them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime.errors import ModelLoadError
from runtime.loading.model_folder import open_folder
from runtime.loading.safetensors import check_safetensors
from tests.runtime.loading.safetensors_files import GOOD, bad_files, entry, packed
from tests.tiny_models import tiny_path

BAD = bad_files()

CHECK_ALL = """
import resource, sys
from pathlib import Path
from runtime.errors import ModelLoadError
from runtime.loading.safetensors import check_safetensors
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (0 if sys.platform == "linux" else 10)  # KiB
first, *others = sorted(Path(sys.argv[1]).iterdir())
check_safetensors(first)
before = peak()
for path in others:
    try:
        check_safetensors(path)
    except ModelLoadError:
        continue
    print("taken", path.name)
print("KiB", peak() - before)
"""


@pytest.fixture
def model(shelf: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_path("llama"), tmp_path / "tiny-llama"))


def test_there_are_at_least_36_damaged_safetensors_files() -> None:
    assert len(BAD) >= 36


@pytest.mark.parametrize("what", BAD)
def test_a_damaged_safetensors_file_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    # given
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD[what])
    # when
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: ") as refused:
        check_safetensors(path)
    # then
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("what", ["overlapping tensors", "tensor twice", "complex numbers"])
def test_a_folder_with_a_damaged_file_is_refused(what: str, model: Path) -> None:
    (model / "model.safetensors").write_bytes(BAD[what])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors: "):
        open_folder(model)


@pytest.mark.parametrize(
    "header",
    [
        {"a": entry()},
        {"__metadata__": {"format": "pt"}, "a": entry()},
        {"b": entry(shape=(4,), offsets=(16, 32)), "a": entry(shape=(4,), offsets=(0, 16))},
        {"a": entry(shape=(), offsets=(0, 4)), "b": entry(shape=(7,), offsets=(4, 32))},
        {"a": entry(shape=(0,), offsets=(0, 0)), "b": entry()},
        {"a": entry("F8_E4M3", (4, 8))},
    ],
)
def test_a_sound_file_is_accepted(header: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(packed(header))
    assert check_safetensors(tmp_path / "model.safetensors") == len(header.keys() - {"__metadata__"})


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "dangling", "loop"])
def test_weights_that_are_no_regular_file_are_refused(kind: str, model: Path) -> None:
    # given
    path = model / "model.safetensors"
    path.unlink()
    makers: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(path),
        "device": lambda: path.symlink_to("/dev/zero"),
        "folder": path.mkdir,
        "dangling": lambda: path.symlink_to(model / "gone"),
        "loop": lambda: path.symlink_to(path),
    }
    makers[kind]()
    # when, then: without blocking
    with pytest.raises(ModelLoadError, match="no weights"):
        open_folder(model)


def test_a_link_to_a_sound_file_is_accepted(model: Path, tmp_path: Path) -> None:
    """The cache of huggingface_hub consists of such links."""
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    assert open_folder(model).weights == (model / "model.safetensors",)


def test_checking_damaged_files_takes_little_memory(tmp_path: Path) -> None:
    # given
    (tmp_path / "0").write_bytes(GOOD)
    for number, data in enumerate(BAD.values()):
        (tmp_path / f"1-{number}").write_bytes(data)
    with (tmp_path / "1-sparse").open("wb") as stream:  # a sparse file of 1 TB
        stream.write(packed({"a": entry(shape=(1 << 38,), offsets=(0, 1 << 40))}))
        stream.truncate(1 << 40)
    # when
    done = subprocess.run([sys.executable, "-c", CHECK_ALL, str(tmp_path)], capture_output=True, text=True, timeout=100)
    # then
    assert done.returncode == 0, done.stderr
    *taken, peak = done.stdout.splitlines()
    assert taken == []  # the sparse one is shorter than its header says
    assert int(peak.removeprefix("KiB ")) < 64 << 10


PART = "model.layers.1.mlp.up_proj.weight"
FOREIGN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a tensor missing": lambda tensors: {name: value for name, value in tensors.items() if name != PART},
    "a tensor misspelled": lambda tensors: {name.replace("1.mlp.up", "1.mlp.op"): value for name, value in tensors.items()},
    "a row missing": lambda tensors: {**tensors, PART: tensors[PART][:-1]},
    "rows for columns": lambda tensors: {**tensors, PART: np.ascontiguousarray(tensors[PART].T)},
    "NaN": lambda tensors: {**tensors, PART: tensors[PART] * np.float32("nan")},
}


@pytest.mark.parametrize("backend", ["hf", "mlx"])
@pytest.mark.parametrize(
    "what", [name if name == "a tensor missing" else pytest.param(name, marks=pytest.mark.slow) for name in FOREIGN]
)
def test_weights_with_missing_misshapen_or_nan_tensors_are_refused(what: str, backend: str, model: Path) -> None:
    """Transformers alone would fill missing tensors with random numbers."""
    from runtime import load

    path = model / "model.safetensors"
    save_file(FOREIGN[what](load_file(path)), path, metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match="tiny-llama"):
        load(model, backend=backend)
