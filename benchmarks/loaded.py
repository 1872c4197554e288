"""What the parts of a benchmark load once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar


class Closing(Protocol):
    """Something with an end."""

    def close(self) -> None:
        """Frees what it holds."""


Held = TypeVar("Held", bound=Closing)


class Loaded:
    """Models of one case, each made by its first user and closed behind the last part."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._ends = ExitStack()

    def get(self, kind: object, make: Callable[[], Held]) -> Held:
        """The one of this kind; made where there is none yet."""
        if kind not in self._held:
            self._held[kind] = made = make()
            self._ends.callback(made.close)
        found: Held = self._held[kind]
        return found

    def close(self) -> None:
        """Closes all, the last one first; what is asked for afterwards is made anew."""
        self._held.clear()
        self._ends.pop_all().close()
