"""What stands before the command."""

from __future__ import annotations

from dataclasses import dataclass

from app.paths import DataFolder


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options."""

    data: DataFolder
    model: str
    backend: str
