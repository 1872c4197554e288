"""The engines that a window offers."""

from __future__ import annotations

import pytest

from app.workbench.models.views import backend_choices


def test_an_engine_that_is_missing_says_so_and_names_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"hf": "torch not installed (`make setup`)", "mlx": True, "vllm": "!"}
    monkeypatch.setattr("runtime.available_backends", lambda: states)
    choices = backend_choices("mlx")
    assert [(choice.name, choice.problem, choice.chosen) for choice in choices] == [
        ("hf", "torch not installed", False),
        ("mlx", "", True),
    ]
