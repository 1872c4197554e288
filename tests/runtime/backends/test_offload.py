"""Weights on disk: the numbers equal those of the whole model, and memory holds only a part of the weights."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM

from runtime import (
    BackendUnavailableError,
    InvalidRequestError,
    LanguageModel,
    ModelLoadError,
    UnsupportedFeatureError,
    load,
)
from runtime.records import Float32
from runtime.transport.child import offload_limits
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

NAMES = ("llama", "gemma3", "gpt2", "mamba")
MID = """
import json, sys, threading, time
from pathlib import Path
from runtime import load
from tests.fakes import engine_of
import torch, transformers, accelerate
folder, *limit = sys.argv[1:]
def held():  # bytes: ever held by this process, and its own memory now, without pages of files that the system may drop
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return [int(lines[name].split()[0]) << 10 for name in ("VmHWM", "RssAnon")]
before, most = held(), 0
over = threading.Event()
def watch():
    global most
    while not over.wait(0.002):
        most = max(most, held()[1])
watching = threading.Thread(target=watch)
watching.start()
options = {"offload": "disk", "offload_memory_bytes": int(limit[0])} if limit else {}
with load(folder, "hf", device="cpu", kv_cache_bytes=16 << 20, threads=1, **options) as model:
    row = model.next_token_logprobs_sync(list(range(5, 25)))
    over.set()
    watching.join()
    print(json.dumps({"peak": held()[0] - before[0], "own": most - before[1], "row": row.tolist()}))
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder for each test, in which no folder of ours may be left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.glob("elsewise-*")) == []  # torch keeps its own folder there


def offloaded(name: str, limit: int = 1) -> LanguageModel:
    return load(tiny_path(name), "hf", device="cpu", offload="disk", offload_memory_bytes=limit)


def close(got: Float32, want: Float32) -> None:
    """Compares bit for bit, apart from kernels whose order of addition depends on the address of a matrix."""
    np.testing.assert_allclose(got, want, atol=4e-6, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_an_offloaded_model_equal_those_of_the_whole_model(name: str) -> None:
    ids, more = random_ids(1, 40).tolist(), random_ids(2, 9).tolist()
    with load(tiny_path(name), "hf", device="cpu") as whole, offloaded(name) as parts:
        assert "bytes of weights are on disk" in parts.info.warnings[-1]
        for path in (ids, [*ids, *more]):  # the second path continues a cached prefix
            got = parts.next_token_logprobs_sync(path)
            close(got, whole.next_token_logprobs_sync(path))
            np.testing.assert_allclose(got, parts.next_token_logprobs_uncached(path), atol=1e-4)
        batch = [[*ids, token] for token in (3, 4, 5)]
        close(parts.batch_next_token_logprobs_sync(batch), whole.batch_next_token_logprobs_sync(batch))
        close(parts.embed_sync(["a b", "c"]), whole.embed_sync(["a b", "c"]))
        assert parts.info.kv_fingerprint == whole.info.kv_fingerprint
        assert parts.info.parameters == whole.info.parameters


def test_info_names_the_offloaded_bytes_and_the_time_per_forward() -> None:
    with offloaded("llama") as model:
        note = model.info.warnings[-1]
        total = 4 * model.info.parameters
        assert f"{total:,} of {total:,} bytes of weights are on disk" in note
        assert "s per forward" in note
        assert model.info.options["offload"] == "disk"
        assert model.info.device == "cpu"


@pytest.mark.slow
def test_weights_within_the_memory_limit_stay_in_memory() -> None:
    with offloaded("falcon_h1", 700_000) as model:
        total = 4 * model.info.parameters
        found = re.search(r"([\d,]+) of ([\d,]+) bytes of weights are on disk", model.info.warnings[-1])
        assert found is not None
        on_disk, weights = (int(number.replace(",", "")) for number in found.groups())
        assert weights == total
        assert 0 < total - on_disk <= 700_000
    with offloaded("llama", 100 << 20) as model:
        assert "so nothing is offloaded" in model.info.warnings[-1]


def test_a_failed_load_leaves_no_offload_folder(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        assert len(list(temporary.glob("elsewise-*"))) == 1
        raise ModelLoadError("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr("runtime.backends.hf.backend.prove", fails)
        with pytest.raises(ModelLoadError, match="no such thing"):
            offloaded("llama")
    with monkeypatch.context() as patch:
        patch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: fails())
        with pytest.raises(ModelLoadError, match="no such thing"):
            offloaded("llama")


def test_unsupported_and_invalid_offload_options_are_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"MLX keeps all weights in memory; .* [\d,]+ bytes .* [\d,]+ are free"):
        load(tiny_path("llama"), "mlx", offload="disk")
    with pytest.raises(UnsupportedFeatureError, match="has no weights"):
        load("x", "fake", offload="disk")
    with pytest.raises(UnsupportedFeatureError, match="in memory already"):
        load(_pair(), "hf", offload="disk")
    for bad, words in (
        ({"offload": "cpu"}, "offload='cpu'"),
        ({"offload": "dsk"}, "did you mean 'disk'"),
        ({"offload": "disk", "offload_memory_bytes": 0}, "offload_memory_bytes must be a whole number, 1 or more"),
        ({"offload_memory_bytes": 5}, "give both"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            load(tiny_path("llama"), "hf", **bad)


def test_without_accelerate_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "accelerate" else find(name, *rest))
    with pytest.raises(BackendUnavailableError, match="pip install 'accelerate"):
        offloaded("llama")


@pytest.mark.slow
def test_accelerate_is_not_imported_with_the_runtime() -> None:
    code = "import runtime, sys; runtime.load; import runtime.options.load; print('accelerate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_step_limit_of_an_offloaded_model_grows_with_its_size(tmp_path: Path) -> None:
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(4_000_000_000)
    assert offload_limits(str(tmp_path)).step_seconds == pytest.approx(30 + 200)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_loading_an_offloaded_model_takes_less_memory_than_its_weights(tmp_path: Path) -> None:
    # given a model of about 300 MB
    folder, weights = _mid_size(tmp_path / "mid")
    # when a fifth of its weights may stay in memory
    whole = _in_a_process(folder)
    parts = _in_a_process(folder, str(weights // 5))
    # then neither loading nor a forward ever held the weights, and the numbers are the same
    assert whole["peak"] > weights
    assert parts["own"] < 0.5 * weights
    assert (
        parts["peak"] < 0.75 * weights
    )  # includes mapped files and libraries; the system decides how much of them stays resident
    np.testing.assert_allclose(parts["row"], whole["row"], atol=4e-6)


def _pair() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(tiny_path("llama")), AutoTokenizer.from_pretrained(tiny_path("llama"))


def _in_a_process(folder: Path, *limit: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", MID, str(folder), *limit], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _mid_size(folder: Path) -> tuple[Path, int]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(5)
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 6, "num_attention_heads": 16}
    config = LlamaConfig(vocab_size=1000, num_key_value_heads=16, max_position_embeddings=512, **sizes)
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="100MB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_path("llama") / name).read_bytes())
    return folder, sum(p.numel() * 4 for p in model.parameters())
