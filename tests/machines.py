"""Other machines than this one, as `sys`, `platform` and the devices show them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest


def on_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86 machine without a GPU."""
    exists = Path.exists
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "exists", lambda path, **how: str(path) != "/dev/nvidia0" and exists(path, **how))


def on_apple_silicon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Mac with Metal."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
