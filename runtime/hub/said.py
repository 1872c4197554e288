"""What the child is asked, one line, and what it says, a line at a time."""

from __future__ import annotations

from typing import Literal

import msgspec

from runtime.hub.found import HubModel
from runtime.hub.plan import DownloadPlan, DownloadProgress, Kind


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The child's only order; on its standard input, because others can read a process's arguments."""

    what: Literal["plan", "fetch", "search", "who"]
    repository: str = ""
    kind: Kind | None = None
    query: str = ""
    limit: int = 0
    token: str = ""  # for the hub; empty for huggingface_hub's own choice

    def __repr__(self) -> str:  # no token in logs
        return f"Asked({self.what!r}, {self.repository or self.query!r})"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: how far it is, what it will fetch, the name that it is done under, what it found, or why it cannot."""

    progress: DownloadProgress | None = None
    plan: DownloadPlan | None = None
    name: str = ""
    found: tuple[HubModel, ...] | None = None
    error: str = ""
    reason: str = ""
    kept: int = 0
