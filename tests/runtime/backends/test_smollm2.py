"""The embedded model: the backend contract on real weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT
from runtime.backends.registry import resolve_backend
from runtime.loading.model_folder import ModelFolder
from runtime.options.load import LoadOptions
from runtime.shelf.source import resolve
from tests.runtime.backends.reference import append, chain, log_softmax

pytestmark = pytest.mark.slow

TOLERANCE = {"hf": 1e-4, "mlx": 1e-3}  # nats
PROMPT = [504, 3575, 282, 4649, 314, 7042, 30, 1116, 33, 30, 5033, 28, 260, 1893, 314, 253, 2817, 4232, 282, 1114]


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve("smollm2")  # if it is missing, the error names the command that fetches it


@pytest.fixture(scope="module")
def plain(folder: ModelFolder) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()

    def full(ids: list[int]) -> Any:
        with torch.inference_mode():
            return log_softmax(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy())

    return full


@pytest.mark.parametrize("name", ["hf", "mlx"])
def test_chain_tree_and_reload_equal_plain_transformers(name: str, folder: ModelFolder, plain: Any) -> None:
    backend = resolve_backend(name)(folder, LoadOptions(device="cpu", dtype="float32"))
    pack, tolerance = backend.open_pack(), TOLERANCE[name]
    slots, got = append(backend, pack, PROMPT)
    np.testing.assert_allclose(got, plain(PROMPT), atol=tolerance)
    # two branches in one call
    parents = np.concatenate([chain(20, 3, 19), chain(23, 2, 9)])
    _, logits = backend.forward(pack, np.array([28, 260, 314, 30, 504]), parents, np.array([2, 4]))
    np.testing.assert_allclose(log_softmax(logits[0]), plain([*PROMPT, 28, 260, 314])[-1], atol=tolerance)
    np.testing.assert_allclose(log_softmax(logits[1]), plain([*PROMPT[:10], 30, 504])[-1], atol=tolerance)
    # then the payload is exported, restored and continued
    fresh = backend.open_pack()
    held = backend.load(fresh, backend.restore(backend.export(backend.take(pack, slots))), ROOT)
    _, row = append(backend, fresh, [28], int(held[-1]))
    np.testing.assert_allclose(row[0], plain([*PROMPT, 28])[-1], atol=tolerance)
    assert backend.info.kv_bytes_per_token == 46_080
    backend.unload()
