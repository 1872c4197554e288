"""The memory estimate of a model, compared with the backends' own numbers and with measurements."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from runtime import load
from runtime.loading.memory_estimate import CONTEXT, estimate_fit, kv_numbers, state_numbers
from runtime.options.generation import GenerationOptions
from runtime.options.load import KvDtype, LoadOptions
from runtime.scheduler.prefill.prefill import MIN_CHUNK  # the chunk size does not go below it, however busy the machine
from runtime.shelf.model_shelf import ModelShelf
from tests.machines import on_a_processor, on_apple_silicon
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
KV_DTYPES: tuple[KvDtype, ...] = ("auto", "f16", "q8", "q4")
# The peak memory of a process of its own after a prompt was scored and continued.
MEASURE = """
import asyncio, json, resource, sys
from runtime import GenerationOptions, load
with load(sys.argv[1], sys.argv[2], device="cpu", **json.loads(sys.argv[4])) as model:
    ids = (model.tokenize("The quick brown fox jumps over the lazy dog. ") * 400)[:int(sys.argv[3])]
    asyncio.run(model.score(ids))
    list(model.generate_sync(ids, GenerationOptions(max_tokens=2)))
    if sys.platform == "darwin":
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    else:  # there a child's number begins with its parent's
        lines = open("/proc/self/status").read().splitlines()
        print(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in sorted(BUILDERS)]
)
def test_the_estimated_kv_per_token_is_that_of_the_backend(name: str) -> None:
    expected = kv_numbers(tiny_folder(name).config) * 4
    for backend in ("hf", "mlx") if name in MLX_TOO else ("hf",):
        with load(tiny_path(name), backend, device="cpu", max_batch_rows=1) as model:
            assert model.info.kv_bytes_per_token == expected, backend


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    on_a_processor(monkeypatch)


def test_weights_are_counted_as_float32_on_a_cpu(processor: None) -> None:
    fit = estimate_fit(SMOLLM2, 269_000_000, context=1000)
    assert fit.weights == 2 * 269_000_000
    assert (fit.kv_per_token, fit.kv) == (46_080, (46_080 + 46_080 // 16 + 46_080 // 60) * 1000 + 96_000)
    assert fit.total == fit.libraries + fit.weights + fit.kv + fit.working
    assert estimate_fit(SMOLLM2, 538_000_000, dtype="F32").weights == 538_000_000


def test_scales_stored_in_float32_keep_their_size(processor: None) -> None:
    config = {**SMOLLM2, "quantization": {"bits": 4, "group_size": 64}, "dtype": "float32"}
    assert estimate_fit(config, 10_000_000, backend="mlx").weights == 10_000_000
    halves = LoadOptions(dtype="float16")
    assert estimate_fit(config, 10_000_000, backend="mlx", options=halves).weights == 9_000_000


def test_quantised_weights_keep_their_size_except_for_their_scales(processor: None) -> None:
    config = {**SMOLLM2, "quantization": {"bits": 4, "group_size": 64}}
    fit = estimate_fit(config, 9_000_000, backend="mlx")  # 4 bits per number and 32 bits per 64 numbers: 4.5 bits
    assert fit.weights == 10_000_000  # now 5 bits


def test_a_gpu_keeps_the_stored_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    on_apple_silicon(monkeypatch)
    fit = estimate_fit(SMOLLM2, 269_000_000, options=LoadOptions(weights="int8"))  # an option that applies to CPUs alone
    assert (fit.weights, fit.kv_per_token, fit.loading) == (269_000_000, 23_040, 0)


def test_the_longest_context_that_fits_is_found(processor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=1_700_000_000, available=1_500_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    fit = estimate_fit(SMOLLM2, 269_000_000)
    assert (fit.context, fit.memory, fit.free) == (8192, 1_700_000_000, 1_500_000_000)
    assert not fit.fits
    assert 1000 < fit.longest < 8192
    assert estimate_fit(SMOLLM2, 269_000_000, context=fit.longest).fits
    assert not estimate_fit(SMOLLM2, 269_000_000, context=fit.longest + 1).fits
    huge = estimate_fit(SMOLLM2, 70_000_000_000)
    assert (huge.fits, huge.longest) == (False, 0)


def test_the_context_is_the_models_own_or_the_requested_one(processor: None) -> None:
    assert estimate_fit({**SMOLLM2, "max_position_embeddings": 131_072}, 10**8).context == CONTEXT
    assert estimate_fit({**SMOLLM2, "max_position_embeddings": 2048}, 10**8).context == 2048
    assert estimate_fit(SMOLLM2, 10**8, context=100).context == 100


@pytest.mark.parametrize(
    "config", [{}, {"num_hidden_layers": "many"}, {"layer_types": 3}, {"text_config": []}, {"quantization": 4}]
)
def test_an_incomplete_config_still_gives_an_estimate(config: Mapping[str, Any]) -> None:
    assert estimate_fit(config, 1000).total > 0


def test_quantising_at_load_counts_the_float32_weights_beside_the_result(processor: None) -> None:
    tied = {**SMOLLM2, "intermediate_size": 1536, "tie_word_embeddings": True}
    whole, embedding = 538_060_032, 49152 * 576
    plain = estimate_fit(tied, whole, dtype="F32", context=100)
    held = {}
    for weights in ("float16", "bfloat16", "int8", "int4"):
        fit = estimate_fit(tied, whole, dtype="F32", context=100, options=LoadOptions(weights=weights))
        assert fit.total >= fit.libraries + whole + fit.weights
        assert fit.total < plain.total + fit.weights
        held[weights] = fit.weights
    head = 2 * embedding * 1024 / 576
    linear = whole // 4 - embedding
    assert held["int8"] == int(4 * embedding + head + linear)
    assert held["int4"] == int(4 * embedding + head + linear * 0.625)
    assert held["int4"] < held["int8"] < held["bfloat16"] < held["float16"]
    untied = estimate_fit({**tied, "tie_word_embeddings": False}, whole, dtype="F32", options=LoadOptions(weights="int8"))
    assert untied.weights == held["int8"] - embedding  # the head is not among the int8 weights


def test_no_context_fits_when_the_weights_do_not_fit_during_loading(processor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = psutil.virtual_memory()._replace(total=8_000_000_000, available=8_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    packed = estimate_fit(SMOLLM2, 4_000_000_000, options=LoadOptions(weights="int4"))  # 8 GB in float32 during loading
    assert packed.weights < 4_000_000_000
    assert (packed.fits, packed.longest) == (False, 0)


def test_load_options_change_the_estimate(processor: None) -> None:
    plain = estimate_fit(SMOLLM2, 269_000_000, context=1000)
    half = estimate_fit(SMOLLM2, 269_000_000, context=1000, options=LoadOptions(dtype="bfloat16"))
    assert (half.weights, half.kv_per_token) == (269_000_000, 23_040)
    uncached = estimate_fit(SMOLLM2, 269_000_000, context=1000, options=LoadOptions(cache=False))
    assert uncached.kv == plain.kv - 96_000  # the scores
    short = estimate_fit(SMOLLM2, 269_000_000, context=1000, options=LoadOptions(prefill_chunk_tokens=64))
    assert short.working < plain.working / 4
    assert estimate_fit(SMOLLM2, 10**8, options=LoadOptions(context_length=300)).context == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend", "tokens", "kv_dtypes"),
    [
        ("lfm2", "mlx", 600, ("q8",)),
        *(
            pytest.param(name, backend, 2000, KV_DTYPES, marks=pytest.mark.slow)
            for name in ("llama", "gemma3", "lfm2", "falcon_h1", "mamba")  # sliding windows, convolutions, state spaces
            for backend in ("hf", "mlx")
        ),
    ],
)
def test_estimated_kv_and_state_are_within_15_percent_of_the_backends_count(
    name: str, backend: str, tokens: int, kv_dtypes: tuple[KvDtype, ...]
) -> None:
    for kv_dtype in kv_dtypes:
        options: dict[str, Any] = {"device": "cpu", "kv_dtype": kv_dtype, "prefill_chunk_tokens": MIN_CHUNK}
        fit = estimate_fit(
            tiny_folder(name).config, 10**6, backend=backend, context=tokens, options=LoadOptions.from_mapping(options)
        )
        with load(tiny_path(name), backend, **options) as model:
            ids = (model.tokenize("The quick brown fox jumps over the lazy dog. ") * 400)[:tokens]
            asyncio.run(model.score(ids))
            list(model.generate_sync(ids, GenerationOptions(max_tokens=2, ignore_eos=True)))
            counted, per_token = model.metrics().kv_peak_bytes, model.info.kv_bytes_per_token
        assert fit.kv_per_token == per_token, kv_dtype
        assert abs(fit.kv + 16 * 4000 - counted) <= 0.15 * counted, kv_dtype  # and rows as wide as the vocabulary


def test_recurrent_state_is_computed_from_the_shapes_of_each_family() -> None:
    gated = {
        "model_type": "qwen3_next", "num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "linear_num_value_heads": 4, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    assert state_numbers(gated) == 3 * (64 * 8 + (2 * 16 + 64) * 4)
    second = {"model_type": "mamba2", "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8, "state_size": 16, "conv_kernel": 4,
              "n_groups": 1}  # fmt: skip
    assert state_numbers(second) == 2 * (32 * 16 + (32 + 32) * 4)
    assert state_numbers(SMOLLM2) == 0


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as published: with weights in 16 bits."""
    source, target = ModelShelf().folder("smollm2"), tmp_path_factory.mktemp("half")
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(source / name, target)
    tensors = load_file(source / "model.safetensors")
    save_file({name: tensor.astype(np.float16) for name, tensor in tensors.items()}, target / "model.safetensors")
    return target


MEASURED: list[tuple[str, int, dict[str, str]]] = [
    ("hf", 100, {}),
    ("hf", 1500, {}),
    ("mlx", 100, {}),
    *(("hf", 100, {"weights": weights}) for weights in ("float16", "int8", "int4")),
    ("hf", 1500, {"kv_dtype": "q8"}),
    ("hf", 100, {"dtype": "bfloat16"}),
    ("mlx", 300, {"kv_dtype": "q8"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "tokens", "given"), MEASURED)
def test_the_estimate_is_within_15_percent_of_the_measured_memory(
    backend: str, tokens: int, given: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    entry = ModelShelf().find("smollm2")
    _measured_alike(entry.path, entry.dtype, backend, tokens, given, tell)


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"weights": "int8"}])
def test_the_estimate_for_16_bit_weights_is_within_15_percent_of_the_measured_memory(
    half: Path, given: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    _measured_alike(half, "F16", "hf", 100, given, tell)


def _measured_alike(
    folder: Path, dtype: str, backend: str, tokens: int, given: Mapping[str, str], tell: Callable[[str], None]
) -> None:
    options = {**given, "prefill_chunk_tokens": CHUNK}
    command = [sys.executable, "-c", MEASURE, str(folder), backend, str(tokens), json.dumps(options)]
    measured = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    config = json.loads((folder / "config.json").read_text())
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    reckoned = LoadOptions.from_mapping({"device": "cpu", **options})
    fit = estimate_fit(config, stored, dtype=dtype, backend=backend, context=tokens, options=reckoned)
    tell(f"{backend}, {tokens:,} tokens, {given}: {fit.peak / 1e6:,.0f} MB estimated, {measured / 1e6:,.0f} MB measured")
    assert abs(fit.peak - measured) <= 0.15 * measured
