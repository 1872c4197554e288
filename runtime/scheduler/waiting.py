"""Who waits for the scheduler: newcomers, and those for whom there was no room beside the others."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.scheduler.jobs import CallJob, Job


class Waiting:
    """Jobs that are not in work. A *parked* one is asked in again when somebody has left; newcomers queue behind it."""

    def __init__(self) -> None:
        self._new: list[Job] = []
        self._parked: list[Job] = []
        self._departures = 0

    def __bool__(self) -> bool:
        return bool(self._new or self._parked)

    def __iter__(self) -> Iterator[Job]:
        return iter([*self._parked, *self._new])

    def append(self, job: Job) -> None:
        """A newcomer."""
        self._new.append(job)

    def park(self, job: Job) -> None:
        """One that has to wait until others have left."""
        self._parked.append(job)

    def remove(self, job: Job) -> None:
        """It does not wait any more."""
        (self._parked if job in self._parked else self._new).remove(job)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._new.clear()
        self._parked.clear()

    def take(self, departures: int, *, idle: bool) -> list[Job]:
        """Who is placed now, the more urgent first.

        Args:
            departures: How many jobs have left so far; parked ones come back when that has changed.
            idle: Nobody is in work: they come back in any case.
        """
        back: list[Job] = []
        held: list[Job] = []
        if self._parked:
            urgent = min(job.priority for job in self._parked)
            if idle or departures != self._departures:
                back, self._parked = self._parked, []
            held = [job for job in self._new if not isinstance(job, CallJob) and job.priority >= urgent]
        self._departures = departures
        placed = [*back, *(job for job in self._new if job not in held)]
        self._new = held
        return sorted(placed, key=lambda job: job.priority)
