from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.loading.gguf_files import small_llama


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder for one test."""
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return small_llama().write(tmp_path / "Small Llama v1.F32.gguf")


def left_behind(shelf: Path) -> list[str]:
    return [path.name for path in shelf.iterdir() if path.name not in (".lock", ".digests", ".used")]
