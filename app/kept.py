"""Where runtime and storage meet: the engine's block file, by name."""

from __future__ import annotations

from typing import Any

from app.paths import DataFolder
from app.workbench.models.settings import SETTING, read_settings
from storage import SessionStore

BUDGET = 4 << 30  # bytes on the disk, for all models together


def blocks_in(data: DataFolder, budget: int = BUDGET) -> dict[str, Any]:
    """`LoadOptions.blocks` of a data folder, for whoever holds its lock; plain values that cross the pipe."""
    return {"factory": "storage:open_blocks", "path": str(data.blocks), "budget": budget}


async def disk_budget(store: SessionStore) -> int:
    """The bytes that the settings allow; who opens the block file with less throws the rest away."""
    values, _ = read_settings(await store.setting(SETTING))
    return values.disk_bytes or BUDGET
