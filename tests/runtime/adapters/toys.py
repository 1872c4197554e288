"""Adapters of the fake backend."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from runtime import LanguageModel
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Float32
from tests.fakes import TOLERANCE, local, until

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, resolve=False)
INVOCATION = [44, 7]


def toy_adapter(folder: Path, seed: int, *, invocation: list[int] | None = None) -> Path:
    """An adapter for the fake backend, in peft's layout."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for path, outer in (("value", 16), ("head", 259)):
        tensors[f"base_model.model.{path}.lora_A.weight"] = rng.normal(size=(2, 16)).astype(np.float32)
        tensors[f"base_model.model.{path}.lora_B.weight"] = rng.normal(size=(outer, 2)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alora_invocation_tokens": invocation}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def right(model: LanguageModel, got: Float32, ids: list[int], stack: tuple[tuple[str, float], ...]) -> None:
    expected = model.next_token_logprobs_uncached(ids, adapters=stack)
    np.testing.assert_allclose(got, expected, atol=TOLERANCE, rtol=0)


def wait_until_it_leaves(model: LanguageModel, unloading: threading.Thread | None = None) -> None:
    """Waits until new requests for an adapter that is being unloaded are refused; the thread must still be unloading it."""
    until(lambda: leaves(model) or not (unloading is None or unloading.is_alive()))
    assert leaves(model), "it was unloaded without having waited for anybody"


def leaves(model: LanguageModel) -> bool:
    """Whether an adapter is being unloaded."""
    registry = local(model).adapters.registry
    return any(registry.find(info.name).unloading for info in registry.infos())
