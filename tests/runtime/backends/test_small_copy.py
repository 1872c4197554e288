"""What is checked at load: a small random copy of the architecture in float32, and that the weights are numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import ModelLoadError, load
from runtime.backends.hf.backend import HfBackend
from runtime.backends.mlx.backend import MlxBackend
from tests.tiny_models import tiny_path

BACKENDS: dict[str, Any] = {"hf": HfBackend, "mlx": MlxBackend}


@pytest.mark.parametrize("backend", BACKENDS)
def test_rounding_to_16_bits_refuses_no_model(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a processor whose sums in bfloat16 come out far apart, with and without a cache
    cls = BACKENDS[backend]
    sound = cls.forward

    def rounded(self: Any, *args: Any) -> Any:
        slots, logits = sound(self, *args)
        return slots, logits + np.linspace(0, 5, logits.shape[-1], dtype=np.float32) * (self.info.dtype == "bfloat16")

    monkeypatch.setattr(cls, "forward", rounded)
    # when a model is loaded in bfloat16, then it is there, in the same ways as in float32
    with load(tiny_path("llama"), backend, dtype="bfloat16") as model:
        assert model.info.dtype == "bfloat16"
        assert model.info.capabilities == ("tree",)
        assert not any("nats" in warning for warning in model.info.warnings)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_named(backend: str, value: float, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(tiny_path("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"weights of broken hold numbers that are not finite \(tensor .*layers\.1\.mlp"):
        load(folder, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_check_is_as_long_for_a_deep_model(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model of 3 layers and the same with 30
    pushed: list[int] = []
    cls = BACKENDS[backend]
    sound = cls.count

    def counted(self: Any, tokens: int) -> None:
        pushed.append(self.info.layers * tokens)
        sound(self, tokens)

    monkeypatch.setattr(cls, "count", counted)
    taken = {}
    for name in ("llama", "llama_deep"):
        pushed.clear()
        load(tiny_path(name), backend).close()
        taken[name] = sum(pushed)
    # then only one short forward goes through all layers: 4 tokens
    assert taken["llama_deep"] - taken["llama"] == 27 * 4
