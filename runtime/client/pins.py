"""Paths that are kept in the engine's memory for whoever comes back to them."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from runtime.adapters.uses import Adapters
from runtime.client.arguments import plain_adapters, plain_ids
from runtime.client.calls import Calls
from runtime.errors import InvalidRequestError
from runtime.info import ModelInfo
from runtime.members.pins import Pinned, check_pin


class PinCalls(ABC):
    """`pin`, `unpin` and their twins; see `runtime.members.pins`. The numbers are given out at this end."""

    _calls: Calls
    _pin_numbers = itertools.count(1)

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """What is known of the model."""

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        number = next(self._pin_numbers) if pin is None else check_pin(pin)
        self._calls.tell("pin_async", ids=self._checked(ids), pin=number, adapters=plain_adapters(adapters))
        return number

    async def pin_async(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> Pinned:
        number = next(self._pin_numbers) if pin is None else check_pin(pin)
        call = self._calls.call("pin_async", ids=self._checked(ids), pin=number, adapters=plain_adapters(adapters))
        return cast("Pinned", await call)

    def unpin(self, pin: int) -> None:
        self._calls.tell("unpin_async", pin=check_pin(pin))

    async def unpin_async(self, pin: int) -> None:
        await self._calls.call("unpin_async", pin=check_pin(pin))

    def _checked(self, ids: Sequence[int]) -> list[int]:
        """Nobody waits for the answer of `tell`: what is wrong with the ids is said here."""
        plain, vocab = plain_ids(ids), self.info.vocab_size
        bad = next(((at, token) for at, token in enumerate(plain) if not 0 <= token < vocab), None)
        if bad is not None:
            raise InvalidRequestError(f"token id {bad[1]} at position {bad[0]} is outside the vocabulary of {vocab:,}")
        return plain
