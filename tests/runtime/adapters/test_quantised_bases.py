"""Adapters on bases with quantised weights have the same effect as peft's on the dequantised weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from runtime import AdapterError, LanguageModel, import_model, load
from runtime.backends.hf.weights import PackedLinear
from runtime.records import Float32
from tests.fakes import engine_of
from tests.runtime.adapters.makers import Peft, adapters_of
from tests.runtime.adapters.said import assert_same_bits, what_it_says
from tests.runtime.backends.reference import random_ids
from tests.runtime.loading.packed import packed
from tests.tiny_models import tiny_path

WEIGHTS = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Nats: the largest and mean difference from peft's rows and effects, and of rows after a cached prefix from uncached."""

    largest: float
    mean: float
    cached: float


EXACT = Bounds(1e-4, 1e-4, 1e-4)
ROUNDED = Bounds(0.5, 0.1, 0.1)  # the kernels of these forms round activations to bfloat16
CASES = [
    ("hf", "llama", "float16", EXACT),
    ("hf", "llama", "bfloat16", ROUNDED),
    ("hf", "llama", "int8", ROUNDED),
    ("hf", "llama", "int4", ROUNDED),
    ("hf", "llama", "GGUF", EXACT),  # 4 bits, as in the file
    ("hf", "gpt2", "int8", ROUNDED),  # with transposed matrices
    pytest.param(("mlx", "llama", "8 bits", EXACT), marks=pytest.mark.slow, id="mlx-llama-8-bits"),
    ("mlx", "llama", "4 bits", EXACT),
    ("mlx", "gemma3", "8 bits", EXACT),  # the head is the embeddings
]
STACKS = ((("A", 1.0),), (("B", 0.5),), (("A", 0.5), ("B", 1.0)))


@dataclass(frozen=True, slots=True)
class Case:
    """A base, and peft on transformers' own model with the base's dequantised weights."""

    model: LanguageModel
    peft: Peft
    bounds: Bounds


@pytest.fixture(scope="module", autouse=True)
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A shelf for these tests: measurements of packed weights are kept there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ELSEWISE_MODELS", str(tmp_path_factory.mktemp("shelf")))
        yield


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(case[:3]).replace(" ", "-"))
def case(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    backend, name, form, bounds = request.param
    a, b = (without_copies(folder, tmp_path_factory.mktemp("plain")) for folder in adapters_of(name, root))
    peft = Peft(name, A=a, B=b)
    with base(backend, name, form, tmp_path_factory.mktemp("base")) as model:
        held = (packed_weights if backend == "hf" else quantised_weights)(engine_of(model).backend)
        assert held
        hold(peft, held)
        for key, folder in (("A", a), ("B", b)):
            model.add_adapter(folder, key, any_base=True)  # the base is another folder on mlx
        yield Case(model, peft, bounds)


def base(backend: str, name: str, form: str, folder: Path) -> LanguageModel:
    """A tiny model with quantised weights; for mlx converted into a folder."""
    if form == "GGUF":
        gguf = packed(tiny_path(name), lambda tensor: "F32" if tensor == "token_embd.weight" else "Q4_0")
        kept = import_model(gguf.write(folder / "base.gguf"), keep_quantised=True)
        return load(kept.path, backend, device="cpu", threads=1)
    if backend == "hf":
        return load(tiny_path(name), "hf", device="cpu", threads=1, weights=form)
    from runtime.backends.mlx.quantise_child import quantise

    quantise(tiny_path(name), folder, int(form[0]), 64, lambda *_: None)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tiny_path(name) / file, folder / file)
    return load(folder, "mlx", device="cpu")


def without_copies(adapter: Path, folder: Path) -> Path:
    """The same adapter without the copy of the base's head that peft saves with it."""
    for file in adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / WEIGHTS)
    save_file({name: array for name, array in tensors.items() if ".lora_" in name}, folder / WEIGHTS)
    return folder


def packed_weights(backend: Any) -> dict[str, Float32]:
    """``(out, in)`` by path: the output of a module for each unit input."""
    modules = {path: m for path, m in backend.model.named_modules() if isinstance(m, PackedLinear)}
    return {path: m.product(torch.eye(m.in_features)).T.numpy() for path, m in modules.items()}


def quantised_weights(backend: Any) -> dict[str, Float32]:
    import mlx.core as mx
    from mlx.nn.layers.quantized import QuantizedEmbedding, QuantizedLinear

    modules = {p: m for p, m in backend.model.named_modules() if isinstance(m, QuantizedLinear | QuantizedEmbedding)}
    return {
        path: np.array(mx.dequantize(m.weight, m.scales, m.biases, group_size=m.group_size, bits=m.bits))
        for path, m in modules.items()
    }


def hold(peft: Peft, weights: dict[str, Float32]) -> None:
    """Sets the weights of peft's base, including those under adapters."""
    model = peft.model.get_base_model()
    for path, weight in weights.items():
        module = model.get_submodule(path)
        module = getattr(module, "base_layer", module)
        turned = weight if isinstance(module, torch.nn.Linear | torch.nn.Embedding) else weight.T
        assert module.weight.shape == turned.shape
        module.weight.data.copy_(torch.tensor(turned))


@pytest.mark.slow
def test_an_adapter_on_quantised_weights_has_the_effect_of_peft_on_dequantised_ones(
    case: Case, tell: Callable[[str], None], request: pytest.FixtureRequest
) -> None:
    model, peft = case.model, case.peft
    ids = random_ids(8, 45).tolist()
    # given the answers of the base before any adapter
    before = what_it_says(model)
    base, whole = model.next_token_logprobs_uncached(ids), peft.logprobs(ids)[-1]
    apart, kept, far = [np.abs(base - whole)], 0.0, []
    # when adapters are loaded, and requested with and without a cached prefix
    for name in ("A", "B"):
        model.load_adapter(name)
    for stack in STACKS:
        model.next_token_logprobs_sync(ids[:20], adapters=stack)
        computed = model.metrics().tokens_computed
        cached = model.next_token_logprobs_sync(ids, adapters=stack)
        assert model.metrics().tokens_computed - computed == 25
        alone = model.next_token_logprobs_uncached(ids, adapters=stack)
        kept = max(kept, float(np.abs(cached - alone).max()))
        moved, wanted = alone - base, peft.logprobs(ids, *stack)[-1] - whole
        apart.append(np.abs(moved - wanted))
        far.append(np.abs(wanted).max())
    # then each changes the row, by the right amount, also from the cache
    largest, mean = max(gaps.max() for gaps in apart), max(gaps.mean() for gaps in apart)
    tell(f"adapters on {request.node.callspec.id}: {largest:.2g} {mean:.2g} of {max(far):.2g}, cached {kept:.2g}")
    assert min(far) > 1
    assert largest <= case.bounds.largest
    assert mean <= case.bounds.mean
    assert kept <= case.bounds.cached
    # and the base's answers stay the same, also after unloading
    assert_same_bits(what_it_says(model), before)
    for name in ("A", "B"):
        model.unload_adapter(name)
    assert_same_bits(what_it_says(model), before)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "form"), [("hf", "int8"), ("mlx", "8 bits")])
def test_base_weights_saved_with_an_adapter_are_refused_on_a_quantised_base(
    backend: str, form: str, root: Path, tmp_path: Path
) -> None:
    # given an adapter for the head as peft saves it: with the base's own head
    folder, _ = adapters_of("llama", root)
    with base(backend, "llama", form, tmp_path) as model:
        before = what_it_says(model)
        # when it is loaded, then it is refused, and nothing changes
        with pytest.raises(AdapterError, match=r"weights of its own for lm_head, and this model's are quantised"):
            model.load_adapter(model.add_adapter(folder, "A", any_base=True))
        assert model.list_adapters() == []
        assert_same_bits(what_it_says(model), before)
