"""kill -9 before every change that an import or a fetch makes to the shelf: no incomplete model is listed, nothing is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.hub.conftest import client, hub, tiny
from tests.runtime.hub.local_hub import Files, LocalHub

__all__ = ["client", "hub", "tiny"]  # fixtures

pytestmark = pytest.mark.slow
PATIENCE_SECONDS = 250


def changes(*arguments: str) -> int:
    """The number of changes that were tried."""
    command = [sys.executable, "-m", "tests.runtime.shelf.killed", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_an_import_killed_before_any_of_its_changes_leaves_the_shelf_sound(shelf: Path, gguf: Path) -> None:
    assert changes("import", str(gguf)) >= 5


def test_a_fetch_killed_before_any_of_its_changes_leaves_the_shelf_sound(hub: LocalHub, tiny: Files) -> None:
    hub.add("org/tiny", tiny)
    assert changes("fetch", "org/tiny") >= 15
