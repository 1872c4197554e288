from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm_templates import WarmChild

PATIENCE_SECONDS = 10.0


@pytest.fixture(autouse=True)
def no_bugs_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails the test if an error was logged."""
    yield
    errors = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not errors, errors


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Fails if a thread that the test started, such as the store's or the engine's, is still running."""
    before = set(threading.enumerate())
    yield
    for thread in _ours(before):
        thread.join(PATIENCE_SECONDS)  # a thread that was asked to end may need a moment
    left = [thread.name for thread in _ours(before)]
    assert not left, left


def _ours(before: set[threading.Thread]) -> list[threading.Thread]:
    """The new threads, except that of transformers' bars, which runs as long as the process."""
    return [thread for thread in threading.enumerate() if thread not in before and thread.name != "tqdm_monitor"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from or written into the folders of the user."""
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


@pytest.fixture(autouse=True)
def warm_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models share one template process: tests/runtime/text tests those of the product."""
    monkeypatch.setattr("runtime.text.template.RenderChild", WarmChild)
