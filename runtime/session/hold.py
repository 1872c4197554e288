"""The pin of a session, which it shares with its forks until one of them moves on."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runtime.adapters.uses import Adapters

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

_counting = threading.Lock()  # of users: forks may live in other threads
STRIDE = 64  # tokens that a path grows by, token for token, before its pin follows


class _Pin:
    """One pin of the engine, let go when nobody refers to it any more."""

    def __init__(self, model: LanguageModel, ids: Sequence[int], adapters: Adapters) -> None:
        self.number = model.pin(ids, adapters=adapters)
        self.users = 1
        release = weakref.finalize(self, model.unpin, self.number)
        release.atexit = False  # the engine ends with the process
        self.release = release


class Hold:
    """Keeps a session's path in the engine's memory. Never blocks.

    Args:
        model: Whose memory.
        adapters: Under which the path is computed.
    """

    def __init__(self, model: LanguageModel, adapters: Adapters = None) -> None:
        self._model, self._adapters = model, adapters
        self._pin: _Pin | None = None
        self._length = 0

    def move(self, ids: Sequence[int]) -> None:
        """Holds this path from now on."""
        self._length = len(ids)
        if not ids:
            self.release()
        elif self._pin is not None and self._pin.users == 1:
            self._model.pin(ids, self._pin.number, adapters=self._adapters)
        else:
            fresh = _Pin(self._model, ids, self._adapters)  # before the old one goes: what both hold is not let go in between
            self.release()
            self._pin, self._length = fresh, len(ids)

    def follow(self, ids: Sequence[int]) -> None:
        """The path has grown token by token: moved along from time to time."""
        if len(ids) - self._length >= STRIDE:
            self.move(ids)

    def shared(self) -> Hold:
        """The same for a fork."""
        twin = Hold(self._model, self._adapters)
        twin._pin, twin._length = self._pin, self._length
        if self._pin is not None:
            with _counting:
                self._pin.users += 1
        return twin

    def release(self) -> None:
        """Lets the path go, where no fork holds it too."""
        pin, self._pin, self._length = self._pin, None, 0
        if pin is not None:
            with _counting:
                pin.users -= 1
            if not pin.users:
                pin.release()
