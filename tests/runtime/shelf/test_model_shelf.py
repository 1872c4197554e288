"""The shelf's entries for its models; verifying and removing models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from runtime import load
from runtime.errors import ModelLoadError
from runtime.loading.paths import models_dir
from runtime.loading.progress import Progress
from runtime.shelf.importing import import_model
from runtime.shelf.model_shelf import ModelShelf
from runtime.shelf.source import resolve
from tests.runtime.conftest import left_behind
from tests.tiny_models import tiny_path

LOADER = "import sys; from runtime import load; m = load(sys.argv[1], 'hf'); print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def tiny(shelf: Path) -> Path:
    return import_model(tiny_path("llama"), "org/tiny@v1").path


def by_hand(name: str, **config: object) -> Path:
    """A folder put on the shelf without an import."""
    folder = models_dir() / name
    shutil.copytree(tiny_path("llama"), folder)
    kept = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(kept | config))
    return folder


def test_an_entry_describes_the_model(tiny: Path) -> None:
    found = ModelShelf().find("org/tiny")  # its only revision
    assert (found.name, found.path, found.architecture, found.context) == ("org/tiny@v1", tiny, "llama", 4096)
    assert (found.dtype, found.quantisation, found.backends) == ("F32", None, ("hf", "mlx"))
    assert found.parameters is not None
    assert 0 < found.bytes - found.parameters * 4 < 200_000  # the rest is headers, config and tokenizer
    assert found.fingerprint == resolve("org/tiny").weights_digest


def test_the_fingerprint_of_a_folder_put_there_by_hand_is_known_after_its_first_read(shelf: Path) -> None:
    by_hand("mine")
    [entry] = ModelShelf().models()
    assert (entry.complete, entry.fingerprint) == (True, None)
    read = resolve("mine").weights_digest
    [entry] = ModelShelf().models()
    assert entry.fingerprint == read


@pytest.mark.parametrize(
    ("config", "quantisation", "backends"),
    [
        ({"quantization": {"group_size": 64, "bits": 4}}, "4 bit (mlx)", ("mlx",)),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq", ()),
        ({"quantization_config": {"quant_method": "awq"}}, "awq", ()),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes", ()),
        ({"model_type": "nobody_knows_it"}, None, ()),
        ({"model_type": "../llama"}, None, ()),
        ({"model_type": 7}, None, ()),
        ({"model_type": "a" * 300}, None, ()),
    ],
)
def test_the_backends_of_a_model_follow_from_its_config(
    config: dict[str, object], quantisation: str | None, backends: tuple[str, ...], shelf: Path
) -> None:
    by_hand("mine", **config)
    [entry] = ModelShelf().models()
    assert (entry.quantisation, entry.backends) == (quantisation, backends)


def test_packed_weights_are_counted_as_single_parameters(shelf: Path) -> None:
    # given 8 rows of 64 numbers with 4 bits, in words of 32 bits, with a scale for each group of 32
    folder = by_hand("packed", quantization={"group_size": 32, "bits": 4})
    packed: dict[str, Any] = {"a.weight": np.zeros((8, 8), np.uint32), "a.scales": np.zeros((8, 2), np.float16)}
    packed["norm.weight"] = np.zeros(64, np.float16)
    save_file(packed, folder / "model.safetensors")
    # then
    found = ModelShelf().find("packed")
    assert (found.parameters, found.dtype) == (8 * 64 + 64, "U32")


def test_layers_with_different_bits_are_counted_by_their_own_bits(shelf: Path) -> None:
    # given 8 rows of 64 numbers: with 4 bits and a scale per 32, with 5 bits and one per 64, and unpacked
    layers: dict[str, Any] = {"b": {"group_size": 64, "bits": 5}, "c": False}
    folder = by_hand("packed", quantization={"group_size": 32, "bits": 4, **layers})
    packed: dict[str, Any] = {"a.weight": np.zeros((8, 8), np.uint32), "a.scales": np.zeros((8, 2), np.float16)}
    packed |= {"b.weight": np.zeros((8, 10), np.uint32), "b.scales": np.zeros((8, 1), np.float16)}
    packed |= {f"{layer}.biases": packed[f"{layer}.scales"] for layer in "ab"}
    packed["c.weight"] = np.zeros((8, 64), np.float32)
    save_file(packed, folder / "model.safetensors")
    # then
    found = ModelShelf().find("packed")
    assert (found.parameters, found.quantisation) == (3 * 8 * 64, "4 and 5 bit (mlx)")


def test_the_time_of_last_use_is_noted_at_load(tiny: Path) -> None:
    shelf, before = ModelShelf(), time.time() - 1
    assert shelf.find("org/tiny").last_used is None
    load("org/tiny", "hf").close()
    used = shelf.find("org/tiny").last_used
    assert used is not None
    assert before <= used <= time.time() + 1


def test_verification_reports_every_byte_once(tiny: Path) -> None:
    steps: list[Progress] = []
    ModelShelf().verify("org/tiny@v1", steps.append)
    size = sum(file.stat().st_size for file in tiny.iterdir() if file.name != "elsewise.json")
    assert (steps[-1].stage, steps[-1].done, steps[-1].total) == ("verify", size, size)
    assert [step.done for step in steps] == sorted({step.done for step in steps})


def test_a_folder_put_there_by_hand_is_verified_against_its_first_read(shelf: Path) -> None:
    # given a folder that was read once, and bytes that changed without a change of size and time
    path = by_hand("mine") / "model.safetensors"
    ModelShelf().verify("mine")
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    # then
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is damaged or was changed.*put the file there again"):
        ModelShelf().verify("mine")


def test_overlong_file_names_do_not_break_the_list(tiny: Path) -> None:
    # given
    shards = by_hand("mine") / "model.safetensors.index.json"
    shards.write_text(json.dumps({"weight_map": {"a": f"{300 * 'a'}.safetensors"}}))
    manifest = json.loads((tiny / "elsewise.json").read_text())
    manifest["files"]["a" * 300] = manifest["files"]["config.json"]
    (tiny / "elsewise.json").write_text(json.dumps(manifest))
    # when, then
    assert [(entry.complete, "is missing" in entry.problem) for entry in ModelShelf().models()] == [(False, True)] * 2
    for name in ("mine", "org/tiny"):
        with pytest.raises(ModelLoadError, match="is missing"):
            resolve(name)
        with pytest.raises(ModelLoadError, match="is missing"):
            ModelShelf().verify(name)


def test_a_file_replaced_during_its_verification_is_read_again(shelf: Path) -> None:
    # given
    path = by_hand("mine") / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1

    def swap(_step: Progress) -> None:
        new = path.with_name("new")
        new.write_bytes(data)
        os.utime(new, (1, 1))
        new.replace(path)

    # when
    ModelShelf().verify("mine", swap)
    # then
    shutil.copytree(path.parent, models_dir() / "same")
    assert resolve("mine").weights_digest == resolve("same").weights_digest


def test_removing_a_model_returns_the_freed_bytes_and_leaves_nothing(tiny: Path, shelf: Path) -> None:
    size = sum(file.stat().st_size for file in tiny.iterdir())
    assert ModelShelf().remove("org/tiny") == size
    assert left_behind(shelf) == []
    assert ModelShelf().models() == []
    with pytest.raises(ModelLoadError, match="not on the shelf"):
        ModelShelf().remove("org/tiny")


def test_a_folder_can_be_added_without_copying_it(shelf: Path, tmp_path: Path) -> None:
    # given
    own = shutil.copytree(tiny_path("llama"), tmp_path / "My Llama")
    # when
    entry = ModelShelf().add(own)
    # then it is on the shelf, and nothing was copied
    assert (entry.name, entry.format, entry.source, entry.complete) == ("My-Llama", "link", str(own), True)
    assert resolve("My-Llama").weights_digest == resolve(own).weights_digest
    assert ModelShelf().find("My-Llama").parameters == ModelShelf().find("My-Llama").weights // 4
    ModelShelf().verify("My-Llama")
    assert ModelShelf().add(own) == ModelShelf().models()[0]  # adding it again changes nothing
    # and removing it removes only the link, once it is not loaded
    with load("My-Llama", "hf"), pytest.raises(ModelLoadError, match="is loaded"):
        ModelShelf().remove("My-Llama")
    assert ModelShelf().remove("My-Llama") == 0
    assert (own / "model.safetensors").is_file()
    assert (ModelShelf().models(), left_behind(shelf)) == ([], [])


def test_an_invalid_folder_or_name_cannot_be_added(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no config\.json"):
        ModelShelf().add(tmp_path)
    with pytest.raises(ModelLoadError, match="is on the shelf already"):
        ModelShelf().add(tiny, "twice")
    own = shutil.copytree(tiny_path("llama"), tmp_path / "own")
    with pytest.raises(ModelLoadError, match=r"another model is called 'org/tiny@v1'; choose another name"):
        ModelShelf().add(own, "org/tiny@v1")
    with pytest.raises(ModelLoadError, match="cannot be a model's name"):
        ModelShelf().add(own, "../up")
    ModelShelf().add(own, "mine")
    shutil.rmtree(own)  # a missing folder is reported, and its name can be removed
    assert [(entry.name, entry.problem) for entry in ModelShelf().models()] == [
        ("mine", f"{own} is not there"),
        ("org/tiny@v1", ""),
    ]
    with pytest.raises(ModelLoadError, match="mine"):
        resolve("mine")
    with pytest.raises(ModelLoadError, match="another model is called 'mine'"):
        ModelShelf().add(tiny_path("llama"), "mine")
    assert ModelShelf().remove("mine") == 0
    assert ModelShelf().add(tiny_path("llama"), "mine").complete


def test_a_loaded_model_is_not_removed(tiny: Path) -> None:
    shelf = ModelShelf()
    with load("org/tiny", "hf"):
        with pytest.raises(ModelLoadError, match=r"org/tiny@v1 is loaded \(here or in another process\); unload it"):
            shelf.remove("org/tiny")
        assert (tiny / "model.safetensors").is_file()
    assert shelf.remove("org/tiny") > 0


def test_a_failed_load_does_not_block_removal(tiny: Path) -> None:
    with pytest.raises(ModelLoadError, match="not one torch knows"):
        load("org/tiny", "hf", device="toaster")
    assert ModelShelf().remove("org/tiny") > 0


@pytest.mark.slow
def test_a_model_can_be_removed_after_the_process_that_loaded_it_was_killed(tiny: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LOADER, "org/tiny"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "up\n"
        with pytest.raises(ModelLoadError, match="is loaded"):
            ModelShelf().remove("org/tiny")
        other.kill()
        other.wait()
        assert ModelShelf().remove("org/tiny") > 0
