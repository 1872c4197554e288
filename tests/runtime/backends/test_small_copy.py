"""What is checked at load: a small random copy of the architecture in float32, and that the weights are numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from runtime import ModelLoadError, load
from runtime.backends import selftest
from runtime.backends.hf.backend import HfBackend
from runtime.backends.mlx import backend as mlx_backend
from runtime.backends.mlx.backend import MlxBackend
from tests.fakes import settled
from tests.tiny_models import build, tiny_path

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


@pytest.mark.usefixtures("shelf")  # where loads are remembered
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
    # then only one token goes through all layers
    assert taken["llama_deep"] - taken["llama"] == 27


@pytest.mark.usefixtures("shelf")
@pytest.mark.parametrize("name", ["llama", "gemma3", "lfm2"])
def test_a_model_whose_first_forward_took_long_is_loaded_without_one_the_next_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "WORTH_SECONDS", 0.0)
    monkeypatch.setattr(selftest, "WORTH_PARAMETERS", 0)
    text, checked = [5, 6, 7, 8], 0
    check = selftest.check_finite

    def counted(backend: Any) -> float:
        nonlocal checked
        checked += 1
        return check(backend)

    monkeypatch.setattr(mlx_backend, "check_finite", counted)
    found = []
    for _ in range(2):
        with load(tiny_path(name), "mlx") as model:
            found.append((model.info, model.next_token_logprobs_sync(text), settled(model)[1].bytes))
    # then recurrent ones alone are computed again, whose states have no other way to be known
    (first, row, kept), (second, again, kept_again) = found
    assert checked == (2 if "recurrent" in first.attention_kinds else 1)
    # and what is told and answered is the same
    assert (second, kept_again) == (first, kept)
    np.testing.assert_array_equal(again, row)
    # nor is it remembered of other weights, or in another form
    with load(tiny_path(name), "mlx", dtype="float16") as model:
        assert np.isfinite(model.next_token_logprobs_sync(text)).all()
    assert checked == (3 if "recurrent" in first.attention_kinds else 2)


def test_a_library_that_takes_no_mask_of_a_tree_is_pushed_without(tmp_path: Path) -> None:
    # given an architecture whose attention adds its own mask to ours, and fails
    config = AutoConfig.for_model(
        "gpt_neo", vocab_size=1000, hidden_size=64, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64, window_size=16, bos_token_id=0, eos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    folder = build(config, tmp_path / "neo")
    with load(folder, "hf") as model:
        # then it is loaded, says so, and two branches of a beginning are right
        assert any("as a tree they failed" in warning for warning in model.info.warnings)
        plain = AutoModelForCausalLM.from_pretrained(folder).eval()
        texts = [[5, 6, 7, *range(40, 40 + n)] for n in (3, 20)]
        got = model.batch_next_token_logprobs_sync(texts)
        for row, text in zip(got, texts, strict=True):
            with torch.inference_mode():
                expected = plain(input_ids=torch.tensor([text])).logits[0, -1].log_softmax(-1)
            np.testing.assert_allclose(row, expected.numpy(), atol=1e-4, rtol=0)
