"""The libraries that can run an architecture, also under another name."""

from __future__ import annotations

import pytest

from runtime.loading.architectures import libraries_knowing
from runtime.loading.config import describe


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen3", "phi3", "gemma2", "gemma3_text", "falcon_mamba"])
def test_both_libraries_know_common_architectures(kind: str) -> None:
    assert libraries_knowing(kind) == ("transformers", "mlx_lm")


def test_mistral_quantised_for_mlx_runs_on_mlx_alone() -> None:
    config = {"model_type": "mistral", "quantization": {"bits": 4, "group_size": 64}}
    assert describe(config).backends == ("mlx",)


@pytest.mark.parametrize("kind", ["never_heard_of", "", "../llama", "a/b", "os.path", "__init__", "a" * 300, "é" * 150])
def test_no_library_knows_an_invalid_architecture(kind: str) -> None:
    assert libraries_knowing(kind) == ()
