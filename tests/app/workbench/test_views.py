"""Engines and models that a window offers, and its messages about those that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.workbench.models.views import backend_choices, detail_of, find_of, model_of
from runtime import HubModel, ShelfEntry
from ui import LoadChoice


def test_a_missing_engine_is_reported_without_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {"hf": "torch not installed (`make setup`)", "mlx": True, "vllm": "!"}
    monkeypatch.setattr("runtime.available_backends", lambda: states)
    choices = backend_choices("mlx")
    assert [(choice.name, choice.problem, choice.chosen) for choice in choices] == [
        ("hf", "torch not installed", False),
        ("mlx", "", True),
    ]


def test_the_problem_of_a_model_is_described_without_a_command() -> None:
    problem = "no weights; fetch it again: `elsewise models fetch org/x@1`"
    entry = ShelfEntry("x", "x", "", Path("x"), 0, None, "download", complete=False, problem=problem)
    shown = {
        model_of(entry, "", LoadChoice()).problem,
        detail_of(entry),
        find_of(HubModel("org/x", problem=problem), set()).problem,
    }
    assert shown == {"no weights; fetch it again: Settings > Models"}
