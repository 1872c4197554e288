"""Where runtime and storage meet: the engine's block file, by name."""

from __future__ import annotations

from typing import Any

from app.paths import DataFolder

BUDGET = 4 << 30  # bytes on the disk, for all models together


def blocks_in(data: DataFolder) -> dict[str, Any]:
    """`LoadOptions.blocks` of a data folder, for whoever holds its lock; plain values that cross the pipe."""
    return {"factory": "storage:open_blocks", "path": str(data.blocks), "budget": BUDGET}
