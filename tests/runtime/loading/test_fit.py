"""The estimate of what a model takes, against what the engines say and what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import pytest

from runtime.loading.fit import CONTEXT, estimate_fit, kv_numbers
from runtime.loading.shelf import ModelShelf
from runtime.model.load import load
from tests.tiny_models import BUILDERS, tiny_folder, tiny_path

MLX_TOO = ("llama", "qwen3", "gemma3", "lfm2")
FAST = ("llama", "gemma3", "gpt2")
SMOLLM2: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "dtype": "bfloat16",
}
CHUNK = 64
# What a process of its own has held at most since its start, once a prompt was scored and gone on with.
MEASURE = f"""
import asyncio, resource, sys
from runtime import GenerationOptions, load
with load("smollm2", sys.argv[1], device="cpu", prefill_chunk_tokens={CHUNK}) as model:
    ids = (model.tokenize("The quick brown fox jumps over the lazy dog. ") * 400)[:int(sys.argv[2])]
    asyncio.run(model.score(ids))
    list(model.generate_sync(ids, GenerationOptions(max_tokens=2)))
    if sys.platform == "darwin":
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    else:  # there a child's number begins with its parent's
        lines = open("/proc/self/status").read().splitlines()
        print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))
"""


@pytest.mark.parametrize(
    "name", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in sorted(BUILDERS)]
)
def test_keys_and_values_are_what_the_engine_says(name: str) -> None:
    expected = kv_numbers(tiny_folder(name).config) * 4
    for backend in ("hf", "mlx") if name in MLX_TOO else ("hf",):
        with load(tiny_path(name), backend, device="cpu", max_batch_rows=1) as model:
            assert model.info.kv_bytes_per_token == expected, backend


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr("runtime.loading.fit._on_gpu", lambda backend: False)


def test_weights_become_float32_on_a_processor(processor: None) -> None:
    fit = estimate_fit(SMOLLM2, 269_000_000, context=1000)
    assert fit.weights == 2 * 269_000_000
    assert (fit.kv_per_token, fit.kv) == (46_080, 2 * 46_080_000)
    assert fit.total == fit.libraries + fit.weights + fit.kv + fit.working
    assert estimate_fit(SMOLLM2, 538_000_000, dtype="F32").weights == 538_000_000


def test_quantised_weights_stay_as_they_are_but_for_their_scales(processor: None) -> None:
    config = {**SMOLLM2, "quantization": {"bits": 4, "group_size": 64}}
    fit = estimate_fit(config, 9_000_000, backend="mlx")  # 4 bits a number and 32 for 64 of them: 4.5
    assert fit.weights == 10_000_000  # then 5


def test_a_gpu_keeps_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.loading.fit._on_gpu", lambda backend: True)
    fit = estimate_fit(SMOLLM2, 269_000_000)
    assert (fit.weights, fit.kv_per_token) == (269_000_000, 23_040)


def test_a_context_that_fits_is_found(processor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=2_000_000_000, available=1_500_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    fit = estimate_fit(SMOLLM2, 269_000_000)
    assert (fit.context, fit.memory, fit.free) == (8192, 2_000_000_000, 1_500_000_000)
    assert not fit.fits
    assert 1000 < fit.longest < 8192
    assert estimate_fit(SMOLLM2, 269_000_000, context=fit.longest).fits
    assert not estimate_fit(SMOLLM2, 269_000_000, context=fit.longest + 1).fits
    huge = estimate_fit(SMOLLM2, 70_000_000_000)
    assert (huge.fits, huge.longest) == (False, 0)


def test_the_context_is_the_models_own_or_what_is_asked_for(processor: None) -> None:
    assert estimate_fit({**SMOLLM2, "max_position_embeddings": 131_072}, 10**8).context == CONTEXT
    assert estimate_fit({**SMOLLM2, "max_position_embeddings": 2048}, 10**8).context == 2048
    assert estimate_fit(SMOLLM2, 10**8, context=100).context == 100


@pytest.mark.parametrize(
    "config", [{}, {"num_hidden_layers": "many"}, {"layer_types": 3}, {"text_config": []}, {"quantization": 4}]
)
def test_a_config_that_says_nothing_gives_an_estimate_all_the_same(config: Mapping[str, Any]) -> None:
    assert estimate_fit(config, 1000).total > 0


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "tokens"), [("hf", 100), ("hf", 1500), ("mlx", 100)])
def test_the_estimate_is_within_15_percent_of_what_is_measured(backend: str, tokens: int, tell: Callable[[str], None]) -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE, backend, str(tokens)], capture_output=True, text=True, check=True)
    measured = int(done.stdout)
    entry = ModelShelf().find("smollm2")
    config = json.loads((entry.path / "config.json").read_text())
    stored = sum(file.stat().st_size for file in entry.path.glob("*.safetensors"))
    fit = estimate_fit(config, stored, dtype=entry.dtype, backend=backend, context=tokens, chunk=CHUNK)
    tell(f"{backend}, {tokens:,} tokens: {fit.total / 1e6:,.0f} MB estimated, {measured / 1e6:,.0f} MB measured")
    assert abs(fit.total - measured) <= 0.15 * measured
