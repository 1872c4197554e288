"""The one-line reasons why an engine cannot answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.faults import STOPPED, not_loaded, too_long
from runtime import BackendUnavailableError, ContextOverflowError, EngineDiedError, ModelLoadError, ModelMissingError


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ("the engine process has ended: signal 11 (SIGSEGV), a crash in native code: check the file", " (signal 11, SIGSEGV)"),
        ("the engine process has ended: exit code 3. What it had answered is kept; load it again", " (exit code 3)"),
        ("the engine process has ended: it closed its pipe and does not end. What", " (it closed its pipe and does not end)"),
        ("gone", ""),
        ("the engine process has ended: " + "x" * 500, " (" + "x" * 60 + ")"),
    ],
)
def test_an_engine_that_ended_while_loading_has_one_reason_at_most(told: str, reason: str) -> None:
    words = not_loaded(EngineDiedError(told))
    assert words == f"engine stopped while loading{reason}; your text is kept. Send again to restart it"
    assert words.replace(f" while loading{reason}", "") == STOPPED


def test_other_faults_are_shown_with_their_own_message() -> None:
    assert not_loaded(ModelLoadError("no model here; fetch it")) == "no model here; fetch it"


def test_the_window_offers_another_engine_in_place_of_a_command_that_installs_one() -> None:
    words = not_loaded(BackendUnavailableError("backend 'hf' cannot run here: torch not installed (`make setup`)"))
    assert words.startswith("backend 'hf' cannot run here: torch not installed; choose another engine in the model menu")


@pytest.mark.parametrize(("source", "name"), [("smollm2", "smollm2"), ("/models/of/mine.gguf", "mine.gguf")])
def test_a_missing_model_is_reported_without_commands(source: str, name: str) -> None:
    missing = ModelMissingError("fetch it with: elsewise models get smollm2", source)
    assert not_loaded(missing) == f"{name} is not on this computer"


def test_a_server_with_several_models_is_reported_with_their_names() -> None:
    assert not_loaded(ModelMissingError("host has 2 models: name one of a, b")) == "host has 2 models: name one of a, b"


@pytest.mark.parametrize(
    ("own", "way_out"),
    [(9_000, "Shorten your message"), (854, "start a new session"), (855, "Shorten your message")],
)
def test_the_advice_for_a_long_prompt_depends_on_the_parts_of_the_context(own: int, way_out: str) -> None:
    words = too_long(ContextOverflowError("prompt", 0, 9_046, 8_192), own)
    assert words.startswith("9,046 tokens do not fit into the context of 8,192 (854 too many)")
    assert way_out in words


def test_a_moved_app_asks_to_be_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewise"))
    words = not_loaded(EngineDiedError("the engine cannot be started: no such file"))
    assert words.startswith("Elsewise was moved or removed while it was running; your text is kept")
    assert "Send again" not in words
