"""Arguments of what is called about pinned paths."""

from __future__ import annotations

import msgspec


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `pin_async`."""

    ids: list[int]
    pin: int
    adapters: list[tuple[str, float]] | None = None  # (name, scale)


class Unpin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `unpin_async`."""

    pin: int
