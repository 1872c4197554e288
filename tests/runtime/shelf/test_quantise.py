"""Conversion of a plain folder to mlx with 4 or 8 bits in a child process: results, refusals, leftovers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from runtime import InvalidRequestError, ModelLoadError, ModelShelf, Progress, convert_model, list_models, load
from runtime.loading import child_process
from runtime.loading.integrity import read_manifest
from runtime.shelf import quantise
from tests.runtime.backends.reference import expected, random_ids
from tests.tiny_models import tiny_path

# The largest and the mean |difference| of log-probabilities to the float32 model, in nats; the tiny models' weights are large
OTHERS = (("llama", 8), ("gemma3", 8), ("qwen3", 4))
MOST = {8: (0.6, 0.06), 4: (9.0, 1.0)}


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    shutil.copytree(tiny_path("llama"), tmp_path / "plain")
    return tmp_path / "plain"


def left(shelf: Path) -> list[str]:
    """The entries of the shelf, including hidden folders, without locks and notes."""
    return [path.name for path in shelf.iterdir() if path.name not in (".lock", ".digests", ".used", ".measured")]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits"), [("llama", 4), *OTHERS])
def test_a_converted_model_is_listed_and_stays_close_to_the_plain_one(
    name: str, bits: Any, shelf: Path, tell: Callable[[str], None]
) -> None:
    # when a plain folder is converted
    told: list[Progress] = []
    folder = convert_model(tiny_path(name), bits, progress=told.append)
    # then it is the only entry of the shelf, complete and intact
    [entry] = list_models()
    assert (entry.name, entry.quantisation, entry.complete) == (f"tiny-{name}-{bits}bit", f"{bits} bit (mlx)", True)
    assert entry.backends == ("mlx",)
    assert folder.quantisation == f"{bits} bit (mlx)"
    assert left(shelf) == [entry.name]
    ModelShelf().verify(entry.name)
    assert told[-1].done == told[-1].total > 0
    assert list(dict.fromkeys(step.stage for step in told)) == ["quantise", "check"]
    manifest = read_manifest(folder.path)
    assert manifest is not None
    assert manifest.template_digest == hashlib.sha256((tiny_path(name) / "chat_template.jinja").read_bytes()).hexdigest()
    # and mlx can run it
    ids = random_ids(4, 30)
    with load(entry.name, "mlx", device="cpu") as model:
        rows = np.stack([model.next_token_logprobs_sync(ids[: i + 1].tolist()) for i in range(len(ids))])
        assert model.info.quantisation == f"{bits} bits, groups of 64"
        assert model.info.has_template
        assert model.tokenize("hello") == load_ids(name)
    gaps = np.abs(rows - expected(name, ids.tolist()))
    tell(f"{name} {bits} bits: {gaps.max():.4f} {gaps.mean():.5f}")
    largest, mean = MOST[bits]
    assert 0 < gaps.max() <= largest
    assert gaps.mean() <= mean


def load_ids(name: str) -> list[int]:
    from runtime.shelf.source import resolve
    from runtime.text.tokenizer import Tokenizer

    return list(Tokenizer.from_folder(resolve(tiny_path(name))).encode("hello"))


@pytest.mark.slow
def test_a_model_on_the_shelf_is_converted_by_its_name_and_only_once(plain: Path, shelf: Path) -> None:
    ModelShelf().add(plain, "org/plain")
    first = convert_model("org/plain", 8)
    assert first.path == shelf / "org--plain-8bit"
    made = (first.path / "model.safetensors").stat()
    assert convert_model("org/plain", 8).path == first.path
    assert (first.path / "model.safetensors").stat().st_mtime_ns == made.st_mtime_ns
    # another model of that name is refused
    with pytest.raises(ModelLoadError, match="choose another name"):
        convert_model(plain, 4, "org/plain-8bit")
    assert convert_model(plain, 4, "mine").path == shelf / "mine"


def test_a_model_that_cannot_be_converted_is_refused_with_a_reason(plain: Path, tmp_path: Path, shelf: Path) -> None:
    with pytest.raises(InvalidRequestError, match="4 or 8, not 3"):
        convert_model(plain, 3)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(ModelLoadError, match="nothing on the shelf is called so"):
        convert_model("org/nowhere")
    (tmp_path / "file.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match="elsewise models import"):
        convert_model(tmp_path / "file.gguf")
    config = json.loads((plain / "config.json").read_text())
    for change, words in (
        ({"quantization": {"bits": 4, "group_size": 64}}, r"quantised already \(4 bit\)"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"model_type": "unheard_of"}, "unheard_of"),
    ):
        (plain / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ModelLoadError, match=words):
            convert_model(plain)
    (plain / "config.json").write_text(json.dumps(config))
    (plain / "model.safetensors").rename(plain / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match="only pickled weights"):
        convert_model(plain)
    assert not shelf.exists() or left(shelf) == []


def test_an_architecture_unknown_to_mlx_lm_is_named(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "libraries_knowing", lambda _: ("transformers",))
    with pytest.raises(ModelLoadError, match="mlx_lm does not know the architecture 'llama'"):
        convert_model(plain)


@pytest.mark.slow
def test_a_refusal_of_the_child_is_reported_and_leaves_nothing(plain: Path, shelf: Path) -> None:
    weights = load_file(plain / "model.safetensors")
    weights.pop("model.norm.weight")
    save_file(weights, plain / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match="mlx_lm cannot load it"):
        convert_model(plain)
    assert left(shelf) == []


def test_disk_space_is_checked_before_the_child_starts(plain: Path, monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(child_process, "Child", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(ModelLoadError, match="are free"):
        convert_model(plain)
    assert left(shelf) == []


@pytest.mark.slow
def test_a_cancelled_conversion_leaves_nothing(plain: Path, shelf: Path) -> None:
    class CancelledError(Exception):
        pass

    def cancel(step: Progress) -> None:
        if step.total:
            raise CancelledError

    with pytest.raises(CancelledError):
        convert_model(plain, progress=cancel)
    assert left(shelf) == []
    assert list_models() == []


@pytest.mark.slow
def test_a_killed_child_leaves_nothing(plain: Path, shelf: Path) -> None:
    killed = threading.Event()

    def kill() -> None:  # at once: a small model is converted before its progress arrives
        while not killed.is_set():
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # it has ended
                    if "runtime.backends.mlx.quantise_child" in child.cmdline():
                        child.kill()
                        killed.set()

    watching = threading.Thread(target=kill)
    watching.start()
    try:
        with pytest.raises(ModelLoadError, match="ended without an answer"):
            convert_model(plain)
    finally:
        killed.set()
        watching.join()
    assert left(shelf) == []
    assert list_models() == []


@pytest.mark.slow
def test_the_remains_of_a_killed_conversion_are_removed_by_the_next_one(plain: Path, shelf: Path) -> None:
    # given a converting process, killed while its child is at work
    import subprocess
    import sys

    code = (
        "import sys, time; from runtime import convert_model\n"
        "def told(step):\n    if step.total: print('at work', flush=True); time.sleep(60)\n"
        "convert_model(sys.argv[1], progress=told)"
    )
    asking = subprocess.Popen([sys.executable, "-c", code, str(plain)], stdout=subprocess.PIPE)
    assert asking.stdout is not None
    limit = threading.Timer(60, asking.kill)
    limit.start()
    assert asking.stdout.readline() == b"at work\n"
    asking.kill()
    asking.wait()
    asking.stdout.close()
    limit.cancel()
    # then nothing is listed, and the next conversion removes the remains
    assert list_models() == []
    deadline = time.monotonic() + 20
    while True:
        made = convert_model(plain, 8, "again")
        if left(shelf) == ["again"] or time.monotonic() > deadline:
            break
    assert left(shelf) == ["again"]
    assert made.quantisation == "8 bit (mlx)"
