"""The two adapter layouts: each is read by both backends, converted for the other library, and read by that library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import load
from runtime.adapters.convert import convert_adapter
from runtime.adapters.folder import read_header
from runtime.errors import AdapterError
from runtime.options.load import LoadOptions
from runtime.records import Float32
from tests.runtime.adapters.makers import Peft, adapters_of, save_adapter, to_mlx_layout
from tests.runtime.backends.reference import log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_path

TOLERANCE = 1e-4  # nats
IDS = random_ids(1, 20).tolist()


def by_mlx_lm(folder: Path) -> Float32:
    """mlx-lm's own numbers for an adapter on the tiny llama, after the last of `IDS`."""
    import mlx.core as mx
    from mlx_lm.tuner.utils import load_adapters

    from runtime.backends.mlx.loading import load_model  # the base as its config says; the test is about the adapter

    base = load_model(tiny_folder("llama"), LoadOptions())
    base.limits.reset()
    adapted = load_adapters(base.model, str(folder))
    return log_softmax(np.array(adapted(mx.array([IDS]))[0, -1]))


def test_both_backends_read_both_layouts(root: Path, tmp_path: Path) -> None:
    # given an adapter without the head, which mlx-lm does not train by default
    folder = save_adapter(root / "llama" / "plain", "llama", seed=5, target_modules=["q_proj", "down_proj"])
    as_mlx = to_mlx_layout(folder, tmp_path / "as-mlx", scale=6 / 4)
    assert read_header(folder).read().digest == read_header(as_mlx).read().digest  # the same adapter in another file
    expected = Peft("llama", plain=folder).logprobs(IDS, ("plain", 1.0))[-1]
    np.testing.assert_allclose(by_mlx_lm_with_keys(as_mlx), expected, atol=TOLERANCE, rtol=0)
    for backend in ("hf", "mlx"):
        with load(tiny_path("llama"), backend=backend) as model:
            model.push_lora(str(as_mlx))
            np.testing.assert_allclose(model.next_token_logprobs_sync(IDS), expected, atol=TOLERANCE, rtol=0)
            # the same digest: the KV of one serves the other
            before = model.metrics().tokens_computed
            model.clear_loras()
            model.push_lora(str(folder))
            model.next_token_logprobs_sync(IDS)
            assert model.metrics().tokens_computed == before


def by_mlx_lm_with_keys(folder: Path) -> Float32:
    """mlx-lm needs the list of modules, which its own trainer writes too."""
    import json

    config = json.loads((folder / "adapter_config.json").read_text())
    keys = sorted({name.rpartition(".")[0] for name in load_file(folder / "adapters.safetensors")})
    config["lora_parameters"]["keys"] = keys
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return by_mlx_lm(folder)


def test_a_converted_adapter_is_read_by_the_other_library(root: Path, tmp_path: Path) -> None:
    # given an adapter with ranks and alphas that differ by module, with rank-stabilised scaling
    patterns: dict[str, Any] = {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.v_proj": 11}}
    folder = save_adapter(
        root / "llama" / "mixed", "llama", seed=6, use_rslora=True, target_modules=["q_proj", "v_proj"], **patterns
    )
    expected = Peft("llama", mixed=folder).logprobs(IDS, ("mixed", 1.0))[-1]
    as_mlx = convert_adapter(folder, tmp_path / "mlx", "mlx")
    np.testing.assert_allclose(by_mlx_lm(as_mlx), expected, atol=TOLERANCE, rtol=0)
    back = convert_adapter(as_mlx, tmp_path / "peft", "peft")
    again = convert_adapter(folder, tmp_path / "again", "peft")
    for one in (back, again):
        np.testing.assert_allclose(Peft("llama", one=one).logprobs(IDS, ("one", 1.0))[-1], expected, atol=TOLERANCE, rtol=0)
    assert read_header(again).read().digest == read_header(folder).read().digest
    with load(tiny_path("llama"), backend="mlx") as model:
        for path in (folder, as_mlx, back):
            model.push_lora(str(path))
            np.testing.assert_allclose(model.next_token_logprobs_sync(IDS), expected, atol=TOLERANCE, rtol=0)
            model.pop_lora()


def test_a_conversion_that_cannot_be_expressed_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="cannot express"):
        convert_adapter(folders["act"], tmp_path / "mlx", "mlx")
    with pytest.raises(AdapterError, match="'peft' or 'mlx'"):
        convert_adapter(folders["A"], tmp_path / "x", "gguf")  # type: ignore[arg-type]  # on purpose
    assert not list(tmp_path.iterdir())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(AdapterError, match="exists already"):
        convert_adapter(folders["A"], tmp_path / "full", "mlx")


def test_mlx_settings_other_than_plain_lora_are_refused(root: Path, tmp_path: Path) -> None:
    a, _ = adapters_of("gemma3", root)
    folder = to_mlx_layout(a, tmp_path / "mlx", scale=1.5)
    config = (folder / "adapter_config.json").read_text()
    for old, new, says in (
        ('"lora"', '"dora"', "fine_tune_type is 'dora'"),
        ('"lora"', '"full"', "fine_tune_type is 'full'"),
        ('"scale": 1.5', '"alpha": 3', "has no scale"),
        ('"scale": 1.5', '"scale": "much"', "must be a finite number"),
    ):
        (folder / "adapter_config.json").write_text(config.replace(old, new))
        with pytest.raises(AdapterError, match=says):
            read_header(folder)
    (folder / "adapter_config.json").write_text(config)
    tensors = load_file(folder / "adapters.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.q_proj.m": np.ones(64, np.float32)}, folder / "adapters.safetensors")
    with pytest.raises(AdapterError, match="no part of a LoRA product"):
        read_header(folder)
    (folder / "adapters.safetensors").rename(folder / "adapters.npz")
    with pytest.raises(AdapterError, match="never opened"):
        read_header(folder)


def test_sixteen_bit_tensors_are_read_without_loss(folders: dict[str, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_torch

    tensors = load_file(folders["B"] / "adapter_model.safetensors")
    for dtype in (torch.bfloat16, torch.float16):
        folder = tmp_path / str(dtype)
        folder.mkdir()
        narrow = {name: torch.from_numpy(array).to(dtype) for name, array in tensors.items()}
        save_torch(narrow, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_bytes((folders["B"] / "adapter_config.json").read_bytes())
        for path, pair in read_header(folder).read().modules.items():
            wide = narrow[f"base_model.model.{path}.lora_A.weight"].float().numpy()
            np.testing.assert_array_equal(pair.a, wide)
