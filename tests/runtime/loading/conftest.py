from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder of the test's own."""
    folder = tmp_path / "models"
    monkeypatch.setenv("ELSEWISE_MODELS", str(folder))
    return folder
