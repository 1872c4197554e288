"""Every architecture that can be imported from GGUF gives the numbers of transformers, with every tensor in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.loading.gguf.convert import check_gguf, convert
from runtime.loading.gguf.decoder import FAMILIES
from runtime.shelf.importing import import_model
from tests.runtime.loading.as_gguf import as_gguf
from tests.tiny_models import tiny_path

SIZES: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
UNTIED: dict[str, Any] = {**SIZES, "tie_word_embeddings": False}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
PHI3: dict[str, Any] = {**UNTIED, "pad_token_id": 0, "original_max_position_embeddings": 512}
# A short window, so that it has an effect; 4 layers, so that both kinds of layers occur more than once
GEMMA: dict[str, Any] = {**SIZES, "head_dim": 24, "query_pre_attn_scalar": 24, "sliding_window": 16, "num_hidden_layers": 4}
GEMMA3: dict[str, Any] = {
    **GEMMA,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window_pattern": 2,
}
ROPES3 = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}


def _configs() -> dict[str, Callable[[], Any]]:
    from transformers import (
        Gemma2Config,
        Gemma3TextConfig,
        LlamaConfig,
        MistralConfig,
        Phi3Config,
        Qwen2Config,
        Qwen3Config,
    )

    return {
        "llama": lambda: LlamaConfig(**UNTIED, rope_theta=100_000.0),
        "llama, tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
        "llama, wide heads": lambda: LlamaConfig(**UNTIED, head_dim=32),
        "llama, 3.1": lambda: LlamaConfig(
            **{**UNTIED, "head_dim": 32, "max_position_embeddings": 65_536}, rope_parameters=LLAMA3
        ),
        "llama, linear": lambda: LlamaConfig(**UNTIED, rope_parameters=LINEAR),
        "llama, mistral": lambda: MistralConfig(**UNTIED, sliding_window=None),
        "llama, mistral with a window": lambda: MistralConfig(**UNTIED, sliding_window=16),
        "qwen2": lambda: Qwen2Config(**UNTIED, rope_theta=1_000_000.0),
        "qwen2, tied": lambda: Qwen2Config(**SIZES, tie_word_embeddings=True),
        "qwen2, yarn": lambda: Qwen2Config(**UNTIED, rope_parameters=YARN),
        "qwen3": lambda: Qwen3Config(**UNTIED, head_dim=24, rope_theta=1_000_000.0),
        "qwen3, tied": lambda: Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
        "phi3": lambda: Phi3Config(**PHI3, sliding_window=None),
        "phi3, window": lambda: Phi3Config(**PHI3, sliding_window=16),
        "phi3, partly turned": lambda: Phi3Config(
            **{**PHI3, "hidden_size": 128}, sliding_window=None, partial_rotary_factor=0.75
        ),
        "gemma2": lambda: Gemma2Config(**GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=2.0),
        "gemma3": lambda: Gemma3TextConfig(**GEMMA3),
        "gemma3, 4b": lambda: Gemma3TextConfig(**GEMMA3, rope_parameters=ROPES3),
    }


NAMES = (
    *("llama", "llama, tied", "llama, wide heads", "llama, 3.1", "llama, linear"),
    *("llama, mistral", "llama, mistral with a window"),
    *("qwen2", "qwen2, tied", "qwen2, yarn", "qwen3", "qwen3, tied"),
    *("phi3", "phi3, window", "phi3, partly turned", "gemma2", "gemma3", "gemma3, 4b"),
)


def made(name: str, folder: Path) -> Path:
    """A model with norms other than all ones and biases other than all zeros."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(_configs()[name]())
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value.copy_(torch.rand_like(value) + 0.5)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tiny_path("llama") / "tokenizer.json").read_bytes())
    return folder


def test_every_family_is_tested() -> None:
    assert {name.partition(",")[0] for name in NAMES} == set(FAMILIES)
    assert set(NAMES) == set(_configs())


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if "," in name else []) for name in NAMES])
def test_a_converted_model_gives_the_logits_of_the_original(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    original = made(name, tmp_path / "original")
    folder = tmp_path / "converted"
    folder.mkdir()
    convert(check_gguf(as_gguf(original, tmp_path / "tiny.gguf")), folder, lambda done, total: None)
    ids = torch.arange(3, 120)[None]
    with torch.no_grad():
        theirs, ours = (AutoModelForCausalLM.from_pretrained(path).eval()(ids).logits for path in (original, folder))
    assert theirs.std() > 1  # otherwise no difference would show
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_both_backends_give_the_same_numbers_for_an_imported_model(name: str, shelf: Path, tmp_path: Path) -> None:
    from runtime import load

    folder = import_model(as_gguf(made(name, tmp_path / "original"), tmp_path / "tiny.gguf"))
    rows = []
    for backend in ("hf", "mlx"):
        with load(folder.path, backend=backend) as model:
            rows.append(torch.from_numpy(model.next_token_logprobs_sync(list(range(3, 60)))))
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-4)
