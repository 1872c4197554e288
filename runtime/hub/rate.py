"""How fast something is, over its last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_WINDOW_SECONDS = 5.0
_STEP_SECONDS = 0.2  # between two notes


class Rate:
    """Bytes a second.

    Args:
        clock: Seconds, never backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, done: int) -> None:
        """So many bytes are done by now; fewer than before begin anew."""
        now = self._clock()
        if self._notes and done < self._notes[-1][1]:
            self._notes.clear()
        if len(self._notes) > 1 and now - self._notes[-2][0] < _STEP_SECONDS:
            self._notes.pop()
        self._notes.append((now, done))
        while len(self._notes) > 2 and now - self._notes[1][0] >= _WINDOW_SECONDS:
            self._notes.popleft()

    @property
    def per_second(self) -> float:
        """Over the last seconds, those in which nothing came among them; 0 where nothing was noted twice."""
        if len(self._notes) < 2:
            return 0.0
        (since, first), (_, last) = self._notes[0], self._notes[-1]
        passed = max(self._clock(), self._notes[-1][0]) - since
        return (last - first) / passed if passed > 0 else 0.0

    def left(self, remaining: int) -> float | None:
        """Seconds for so many bytes more; None where nothing moves."""
        rate = self.per_second
        return remaining / rate if rate > 0 else None
