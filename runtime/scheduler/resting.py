"""What can wait until nobody waits for anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from runtime.backends.base import Backend
from runtime.scheduler.cache import Cache
from runtime.scheduler.counters import Counters

log = logging.getLogger(__name__)


class Resting:
    """Lets backends do what makes later steps quicker. Owner thread only.

    Args:
        backends: The model and, where there is one, the draft model.
        cache: Accounts for what was computed.
        counters: Published after each rest.
    """

    def __init__(self, backends: Iterable[Backend], cache: Cache, counters: Counters) -> None:
        self._backends = list(backends)
        self._cache = cache
        self._counters = counters

    @property
    def due(self) -> bool:
        """Whether there is something to do."""
        return any(backend.due for backend in self._backends)

    def go_on(self, asked: Callable[[], bool]) -> None:
        """Does a part of it; call while it is `due` and the scheduler is not busy.

        Args:
            asked: Whether somebody asks for something meanwhile: then it gives way.
        """
        backend = next(backend for backend in self._backends if backend.due)
        try:
            backend.rest(asked)
        except BaseException:  # nobody waits for it: who asks next is answered without
            log.exception("what would make later steps quicker failed, and is left")
            self._backends.remove(backend)
        self._cache.account()
        self._counters.publish(self._cache)  # with what was computed for it
