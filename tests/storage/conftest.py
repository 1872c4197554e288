from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import SessionStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of the sessions file; its folder does not exist yet."""
    return tmp_path / "data" / "sessions.sqlite3"


@pytest.fixture
def store(path: Path) -> Iterator[SessionStore]:
    store = SessionStore.open(path)
    yield store
    store.close_sync()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("elsewise-store")]
    assert not left, f"store threads left running: {left}"
