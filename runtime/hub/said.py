"""What the child says, a line at a time."""

from __future__ import annotations

import msgspec

from runtime.hub.plan import DownloadPlan, DownloadProgress


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: how far it is, what it will fetch, the name that it is done under, or why it cannot."""

    progress: DownloadProgress | None = None
    plan: DownloadPlan | None = None
    name: str = ""
    error: str = ""
    reason: str = ""
    kept: int = 0
