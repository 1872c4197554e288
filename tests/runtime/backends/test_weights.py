"""Weights in fewer bits on a CPU: error, perplexity, separate fingerprints for each form, and refused options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime import (
    InvalidRequestError,
    Manifest,
    ModelInfo,
    SnapshotMismatchError,
    UnsupportedFeatureError,
    load,
)
from runtime.backends.hf import weights as packing
from runtime.backends.hf.weights import Bfloat16Linear, Float16Linear, Int4Linear, Int8Linear, PackedLinear
from runtime.errors import RuntimeFault
from runtime.loading.measurements import MOST_TOKENS, TEXT, kept_perplexities
from runtime.options.load import LoadOptions, Weights
from tests.block_stores import SHELVES, memory_options
from tests.fakes import engine_of
from tests.runtime.adapters.makers import save_adapter
from tests.runtime.backends.reference import expected, log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_path

FORMS = ("float16", "bfloat16", "int8", "int4")
# The largest and the mean |difference| of log-probabilities to float32 weights, in nats, on tiny models with large weights.
MOST = {"float16": (0.05, 0.005), "bfloat16": (0.5, 0.06), "int8": (1.5, 0.15), "int4": (12.0, 1.5)}


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate shelf for each test, which keeps its measurements."""
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    monkeypatch.delitem(SHELVES, "weights", raising=False)
    return tmp_path / "shelf"


def packed(name: str, weights: Any, **options: Any) -> Any:
    return load(tiny_path(name), "hf", device="cpu", threads=1, weights=weights, **options)


def held(model: Any) -> str:
    """The warning of a model about the form of its weights."""
    [warning] = (warning for warning in model.info.warnings if warning.startswith("weights are held in "))
    return str(warning)


def test_the_weights_option_has_exactly_the_tested_forms() -> None:
    assert get_args(Weights) == ("auto", "float32", *FORMS)
    with pytest.raises(InvalidRequestError, match="did you mean 'int8'"):
        LoadOptions.from_mapping({"weights": "int"})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["llama", "mamba", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "gemma3_80", "lfm2"))]
)
@pytest.mark.parametrize("weights", FORMS)
def test_the_error_of_packed_weights_stays_within_the_tolerance(name: str, weights: str, tell: Callable[[str], None]) -> None:
    ids = random_ids(4, 40)
    with packed(name, weights) as model:
        backend: Any = engine_of(model).backend
        modules = [m for m in backend.model.modules() if isinstance(m, PackedLinear)]
        rows = np.stack([model.next_token_logprobs_sync(ids[: i + 1].tolist()) for i in range(len(ids))])
        assert modules
        assert model.info.precision == f"float32, {weights} weights"
    gaps = np.abs(rows - expected(name, ids.tolist()))
    tell(f"{name} {weights}: {gaps.max():.4f} {gaps.mean():.5f}")
    largest, mean = MOST[weights]
    assert 0 < gaps.max() <= largest
    assert gaps.mean() <= mean


@pytest.mark.parametrize("kind", [Float16Linear, Bfloat16Linear, Int8Linear, Int4Linear])
@pytest.mark.parametrize("rows", [1, 7, packing.MANY_ROWS + 1])
def test_each_kernel_multiplies_by_its_own_weights(kind: type[PackedLinear], rows: int) -> None:
    # given a matrix that every form represents exactly, a bias, and a transposed input
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(0, 16, (32, 64), generator=generator).float() - 8
    weight[:, ::32], weight[:, 1::32] = -8, 7  # each group spans the whole range
    bias = torch.arange(32.0)
    x = torch.randint(-4, 5, (64, rows), generator=generator).float().T
    got = kind(weight, bias)(x[None])[0]
    want = torch.nn.functional.linear(x, weight, bias)
    scale = float(want.abs().max())
    tolerance = {Float16Linear: 1e-6, Bfloat16Linear: 2**-8, Int8Linear: 0.02, Int4Linear: 2**-8}[kind]
    np.testing.assert_allclose(got.numpy(), want.numpy(), atol=tolerance * scale)
    assert got.dtype == torch.float32


def test_a_shape_that_no_kernel_supports_is_held_in_16_bits() -> None:
    odd, narrow = torch.randn(17, 33), torch.randn(24, 32)
    assert not Int8Linear.takes(odd)
    assert not Int4Linear.takes(odd)
    assert Int8Linear.takes(narrow)
    assert not Int4Linear.takes(narrow)
    assert packing.kind_for("int8", odd, head=False) is Float16Linear
    assert packing.kind_for("int4", narrow, head=True) is Float16Linear


@pytest.mark.parametrize("name", ["llama", "gpt2"])  # a head with its own weights, and one tied to the embeddings
def test_packed_weights_keep_nothing_of_the_mapped_file(name: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_path(name), dtype=torch.float32).eval()
    mapped = {tensor.data_ptr() for tensor in model.parameters()}
    before = model.get_input_embeddings().weight.clone()
    packing.pack_weights(model, "int8")
    assert not mapped & {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers()) if tensor.numel()}
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_without_fbgemm_the_head_stays_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "has_float16", lambda: False)
    with pytest.raises(UnsupportedFeatureError, match="bfloat16 or int8"):
        packed("llama", "float16")
    with packed("llama", "int8") as model:
        backend: Any = engine_of(model).backend
        assert type(backend.model.get_output_embeddings()) is torch.nn.Linear


def test_the_perplexity_is_measured_once_and_kept(monkeypatch: pytest.MonkeyPatch, shelf: Path) -> None:
    with packed("llama", "int8") as model:
        first = held(model)
    assert "weights are held in int8" in first
    kept = kept_perplexities(tiny_folder("llama").weights_digest)
    assert set(kept) == {"float32", "int8"}
    assert f"{kept['int8']:.4g}, float32 {kept['float32']:.4g} (" in first
    # when it is loaded again, nothing is measured, and the warning is the same
    monkeypatch.setattr(packing, "perplexity", lambda *_: pytest.fail("measured again"))
    with packed("llama", "int8") as model:
        assert held(model) == first
    # another form measures only itself
    monkeypatch.setattr(packing, "perplexity", lambda *_: 7.0)
    with packed("llama", "float16"):
        pass
    assert kept_perplexities(tiny_folder("llama").weights_digest) == {**kept, "float16": 7.0}
    # a damaged record is measured again
    [file] = (shelf / ".measured").iterdir()
    file.write_text("{")
    with packed("llama", "int8") as model:
        assert "perplexity of a fixed text: 7, float32 7" in held(model)


@pytest.mark.slow
def test_the_kept_perplexity_equals_that_of_the_fixed_text() -> None:
    folder = tiny_folder("llama")
    with packed("llama", "float16") as model:
        ids = model.tokenize(TEXT)[:MOST_TOKENS]
        rows = [model.next_token_logprobs_sync(ids[: i + 1])[ids[i + 1]] for i in range(len(ids) - 1)]
    found = kept_perplexities(folder.weights_digest)
    assert found["float16"] == pytest.approx(float(np.exp(-np.mean(rows))), rel=1e-3)
    plain = expected("llama", ids)
    surprise = -np.mean([plain[i, ids[i + 1]] for i in range(len(ids) - 1)])
    assert found["float32"] == pytest.approx(float(np.exp(surprise)), rel=1e-3)


@pytest.mark.slow
def test_every_form_of_weights_has_its_own_fingerprint() -> None:
    infos: list[ModelInfo] = []
    for weights in ("auto", "float32", *FORMS):
        with packed("llama", weights) as model:
            infos.append(model.info)
    assert infos[0].kv_fingerprint == infos[1].kv_fingerprint
    assert infos[0].precision == infos[1].precision == "float32"
    assert len({info.kv_fingerprint for info in infos}) == 1 + len(FORMS)
    assert len({info.model_fingerprint for info in infos}) == 1 + len(FORMS)
    assert {info.parameters for info in infos} == {infos[0].parameters}
    plain, other = (Manifest.of(info, tokenizer="t", template=None) for info in (infos[0], infos[-1]))
    assert "dtype: float32, float32, int4 weights" in plain.differences(other)


def test_stored_kv_of_another_form_is_never_used(tmp_path: Path) -> None:
    ids = random_ids(9, 150).tolist()
    with packed("llama", "auto", blocks=memory_options("weights")) as plain:
        plain.next_token_logprobs_sync(ids)
        assert plain.save_blocks(ids).written > 0
        plain.kv_snapshot(ids, tmp_path / "kv")
    with packed("llama", "int8", blocks=memory_options("weights")) as model:
        got = model.next_token_logprobs_sync(ids)
        assert model.metrics().tokens_restored == 0
        assert model.metrics().tokens_reused == 0
        np.testing.assert_allclose(got, model.next_token_logprobs_uncached(ids), atol=0.1)
        with pytest.raises(SnapshotMismatchError, match="int8 weights"):
            model.kv_restore(tmp_path / "kv")
    with packed("llama", "float32", blocks=memory_options("weights")) as again:  # the plain form finds its own KV
        again.next_token_logprobs_sync(ids)
        assert again.metrics().tokens_restored > 0


def test_adapters_change_packed_and_plain_modules_equally(tmp_path: Path) -> None:
    folder, ids = (
        save_adapter(tmp_path / "a", "llama", seed=5, target_modules=["q_proj", "down_proj"]),
        random_ids(8, 20).tolist(),
    )
    moved = []
    for weights in ("auto", "float16"):
        with packed("llama", weights) as model:
            base = model.next_token_logprobs_sync(ids)
            model.push_lora(str(folder))
            moved.append(model.next_token_logprobs_sync(ids) - base)
    assert np.abs(moved[0]).max() > 0.1
    np.testing.assert_allclose(moved[1], moved[0], atol=0.05)


def test_unsupported_combinations_with_packed_weights_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"dtype": "bfloat16"}, "computed with in float32"),
        ({"offload": "disk"}, "contradict"),
        ({"device": "meta"}, "not one torch knows|not on this machine"),
    ]
    for options, words in refused:
        with pytest.raises(RuntimeFault, match=words):
            load(tiny_path("llama"), "hf", weights="int8", threads=1, **options)
    with pytest.raises(UnsupportedFeatureError, match="elsewise models convert"):
        load(tiny_path("llama"), "mlx", weights="int8")
    with pytest.raises(UnsupportedFeatureError, match="has no weights"):
        load("x", "fake", weights="int8")
    with pytest.raises(UnsupportedFeatureError, match="for the processor"):
        packing.check_weights(LoadOptions(weights="int8"), torch.device("cuda"))
    with pytest.raises(UnsupportedFeatureError, match="in memory already"):
        packing.check_weights(LoadOptions(weights="int8"), torch.device("cpu"), ready=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "options", "why"),
    [
        ("mlx", {"weights": "int8"}, "weights='int8' is for hf on a processor"),
        ("mlx", {"offload": "disk"}, "offload='disk': MLX keeps all weights"),
        ("hf", {"weights": "int8", "dtype": "bfloat16", "device": "cpu"}, "weights='int8' is computed with in float32"),
        ("fake", {"weights": "int8"}, "weights='int8': the fake backend has no weights"),
    ],
)
def test_an_unsupported_soft_option_is_a_warning_and_the_model_loads(backend: str, options: dict[str, Any], why: str) -> None:
    source = "x" if backend == "fake" else tiny_path("llama")
    with load(source, backend, soft_options=("weights", "offload"), **options) as model:
        [said] = [warning for warning in model.info.warnings if "set for all models" in warning]
        assert said.startswith(why)
        assert model.info.computed_with == model.info.dtype  # the label matches the numbers
        assert "int8" not in model.info.precision
        assert model.info.options["offload"] == "none"
    with pytest.raises(UnsupportedFeatureError, match=why):
        load(source, backend, **options)
    with pytest.raises(InvalidRequestError, match="soft_options is a sequence of options out of weights"):
        load(source, backend, soft_options=("device",))


def test_a_supported_soft_option_is_applied() -> None:
    with packed("llama", "int8", soft_options=("weights",)) as model:
        assert model.info.precision == "float32, int8 weights"
        assert not any("set for all models" in warning for warning in model.info.warnings)


def test_a_soft_context_length_is_capped_at_that_of_the_model() -> None:
    with load(tiny_path("llama"), "hf", device="cpu", context_length=1 << 20, soft_options=["context_length"]) as model:
        assert model.info.context_length == model.info.whole_context == 4096
    with load(tiny_path("llama"), "hf", device="cpu", context_length=100, soft_options=["context_length"]) as model:
        assert model.info.context_length == 100
    with pytest.raises(InvalidRequestError, match="the model has 4,096 positions"):
        load(tiny_path("llama"), "hf", device="cpu", context_length=1 << 20)


def test_packed_models_give_normalised_log_probabilities() -> None:
    with packed("llama", "int4") as model:
        row = model.next_token_logprobs_sync([1, 2, 3])
    np.testing.assert_allclose(log_softmax(row[None])[0], row, atol=1e-4)
