"""Pins of the model that computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from runtime import Pinned
from runtime.adapters.uses import Adapters


class FakePins:
    """Holds whatever it is given."""

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        return 1 if pin is None else pin

    async def pin_async(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> Pinned:
        return Pinned(self.pin(ids, pin), len(ids))

    def unpin(self, pin: int) -> None:
        """Nothing is held."""

    async def unpin_async(self, pin: int) -> None:
        self.unpin(pin)
