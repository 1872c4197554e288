"""The engines that a window offers."""

from __future__ import annotations

import sys

import pytest

from app.workbench.models.views import backend_choices


@pytest.mark.parametrize(("frozen", "reason"), [(False, "torch not installed: make setup"), (True, "not in this app")])
def test_an_engine_that_is_missing_says_what_can_be_done_about_it(
    frozen: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setattr(
        "runtime.available_backends", lambda: {"hf": "torch not installed: make setup", "mlx": True, "vllm": "!"}
    )
    choices = backend_choices("mlx")
    assert [(choice.name, choice.problem, choice.chosen) for choice in choices] == [("hf", reason, False), ("mlx", "", True)]
