"""What belongs to this machine, or to the numbers of this store, and does not travel with a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LOCAL: Final = ("adapters", "pruned")  # of a setup: folders, and numbers of nodes, which are other ones elsewhere


def travelling(setup: object) -> dict[str, Any]:
    """What a session is set to, without what names places on one machine."""
    return {name: value for name, value in setup.items() if name not in LOCAL} if isinstance(setup, dict) else {}


def without_folders(stats: Any) -> Any:
    """The stats of a node, the adapters of its ``made.stack`` as ``[null, name, scale, digest]`` without their folder."""
    made = stats.get("made") if isinstance(stats, Mapping) else None
    stack = made.get("stack") if isinstance(made, Mapping) else None
    if not isinstance(stack, list) or not stack:
        return stats
    kept = [[None, *use[1:]] if isinstance(use, list) and use else use for use in stack]
    return {**stats, "made": {**made, "stack": kept}}  # type: ignore[dict-item]  # looked at above
