"""What the group knows before a command is chosen; kept apart so that neither imports the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.paths import DataFolder

ESCAPE: Final = "elsewise-escape"  # the error handler of stdout


@dataclass(frozen=True, slots=True)
class Settings:
    """The global options."""

    data: DataFolder
    model: str
    backend: str
