"""Paths that are kept in memory for whoever comes back to them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from runtime.adapters.uses import Adapters
from runtime.errors import SessionClosedError
from runtime.members.pins import Pinned, check_pin
from runtime.model.core import Core
from runtime.scheduler.jobs import Job
from runtime.scheduler.kv.pins import Pins


class PinMembers(Core):
    """`pin`, `unpin` and their twins; see `runtime.members.pins`."""

    _pin_numbers = itertools.count(1)  # of all models: a number is never given twice

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        """Soon."""
        number = next(self._pin_numbers) if pin is None else check_pin(pin)
        with suppress(SessionClosedError):  # a model that has ended holds nothing
            self._pinning(ids, number, adapters)
        return number

    async def pin_async(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> Pinned:
        """Awaited."""
        number = next(self._pin_numbers) if pin is None else check_pin(pin)
        return Pinned(number, await asyncio.wrap_future(self._pinning(ids, number, adapters)))

    def unpin(self, pin: int) -> None:
        """Soon."""
        number = check_pin(pin)
        with suppress(SessionClosedError):
            self._engine.call(lambda: self._pins.release(number))

    async def unpin_async(self, pin: int) -> None:
        """Awaited."""
        number = check_pin(pin)
        await asyncio.wrap_future(self._engine.call(lambda: self._pins.release(number)))

    @property
    def _pins(self) -> Pins:
        return self._engine.scheduler.cache.pins

    def _pinning(self, ids: Sequence[int], number: int, adapters: Adapters) -> Future[int]:
        checked = self._check(ids)
        namespace, before = self._route(checked, adapters)
        path = Job(checked, namespace, before=before)
        return self._engine.call(lambda: self._pins.hold(number, path.spans(checked), path.key))
