from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.ours import Ours
from benchmarks.tiny import ARCHITECTURES, make_recurrent, make_tiny

TOLERANCE = 1e-4  # nats, float32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_generated_model_is_the_same_every_time(architecture: str, tmp_path: Path) -> None:
    sizes = [make_tiny(architecture, tmp_path / name) for name in ("first", "second")]
    assert sizes == [257, 257]  # the bytes, and the end of a text
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("first", "second")]
    assert files[0] == files[1]
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} == set(files[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_both_libraries_read_the_same_model(architecture: str, tmp_path: Path) -> None:
    vocabulary = make_tiny(architecture, tmp_path / "model")
    ids = np.random.default_rng(5).integers(vocabulary, size=60).tolist()
    rows = []
    for backend in ("hf", "mlx"):
        ours = Ours(tmp_path / "model", backend)
        rows.append(ours.logprobs([ids])[0])
        ours.close()
    assert np.abs(rows[0] - rows[1]).max() < TOLERANCE
    assert rows[0].std() > 1  # and its distribution is not uniform


@pytest.mark.slow
def test_both_libraries_read_the_same_recurrent_model(tmp_path: Path) -> None:
    assert make_recurrent(tmp_path / "model") == 257
    ids = np.random.default_rng(5).integers(257, size=60).tolist()
    rows = []
    for backend in ("hf", "mlx"):
        ours = Ours(tmp_path / "model", backend)
        rows.append(ours.logprobs([ids])[0])
        ours.close()
    assert np.abs(rows[0] - rows[1]).max() < TOLERANCE
    assert rows[0].std() > 1


def test_the_tokenizer_of_another_model_is_copied(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path / "first")
    assert make_tiny("qwen3", tmp_path / "second", text=tmp_path / "first") == 257
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
