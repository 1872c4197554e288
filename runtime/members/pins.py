"""The members of `LanguageModel` that keep paths in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from runtime.adapters.uses import Adapters
from runtime.errors import InvalidRequestError
from runtime.options.checking import is_whole, shown


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a pin holds.

    Attributes:
        pin: Its number.
        tokens: Leading tokens of the path that stay in memory; fewer than the path where not all of it was computed, or
            where pins together would hold more than half of the KV budget.
    """

    pin: int
    tokens: int


def check_pin(pin: object) -> int:
    """The number of a pin.

    Raises:
        InvalidRequestError: Something else.
    """
    if not is_whole(pin, 0):
        raise InvalidRequestError(f"a pin is the number that pin gave, not {shown(pin)}")
    return cast("int", pin)


class PinMembers(Protocol):
    """Pins keep the KV of a path that somebody comes back to, and what follows it: other text does not push them out.

    They are no claim to memory that running requests need: where nothing else can give way, pins lapse, as they do when the
    cache is cleared. All pins together hold at most half of the KV budget; those that were moved least recently lapse first.
    A lapsed pin is in force again when it is moved. `CacheReport` counts their leases, and them as `pins`.
    """

    def pin(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> int:
        """Keeps what is held of `ids` from now on; never blocks, and is in force before what is asked next.

        Args:
            ids: A path from its first token on.
            pin: A pin that moves here from where it was; None makes a new one.
            adapters: Under which it was computed; None: the stack in force.

        Returns:
            The pin's number, for `unpin`.

        Raises:
            InvalidRequestError: Ids out of range or of the wrong type.
            AdapterError: An adapter that is not loaded (in this process; over the pipe nothing is pinned then).
        """

    async def pin_async(self, ids: Sequence[int], pin: int | None = None, *, adapters: Adapters = None) -> Pinned:
        """`pin`, and waits until it is in force."""

    def unpin(self, pin: int) -> None:
        """Lets a path go; never blocks. A number that is not known (any more) is nothing to worry about."""

    async def unpin_async(self, pin: int) -> None:
        """`unpin`, and waits until it is done."""
