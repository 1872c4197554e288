"""Weights larger than the machine's memory are refused by their size, before they are read."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from app.doctor.reference import references, write_vast_model
from runtime import ModelLoadError, check_model


@pytest.fixture
def vast(shelf: Path, tmp_path: Path) -> Path:
    """A model of twice the machine's memory, in a sparse file: hashing it would take minutes."""
    [llama] = [reference for reference in references() if reference.name == "llama"]
    folder = tmp_path / "vast"
    write_vast_model(folder, llama, 2 * psutil.virtual_memory().total)
    return folder


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("backend", "way"), [("hf", "offload='disk'"), ("mlx", "a quantised one$")])
def test_a_model_larger_than_memory_is_refused_with_a_way_out(vast: Path, backend: str, way: str) -> None:
    with pytest.raises(ModelLoadError, match=rf"this model's weights take .* GB, this machine has .* GB of memory: .*{way}"):
        check_model(vast, backend, device="cpu")
