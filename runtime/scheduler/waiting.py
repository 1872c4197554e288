"""Jobs that are not in work: newcomers, and those for which there was no room beside the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from runtime.options.priority import Priority
from runtime.scheduler.jobs import Job, Turn

AT_ONCE = 64  # jobs of one caller that are placed in one step


class Waiting:
    """A queue for each `Turn`, so that a caller with thousands of jobs delays no other; and the *parked* jobs."""

    def __init__(self) -> None:
        self.new: dict[tuple[Priority, Turn], deque[Job]] = {}  # those that can be placed
        self._admitted = 0  # jobs so far
        self.parked: dict[Job, int] = {}  # each with the bytes that must be free for it, in the order they came

    def __iter__(self) -> Iterator[Job]:
        return iter([*self.parked, *(job for jobs in self.new.values() for job in jobs)])

    def __len__(self) -> int:
        return len(self.parked) + sum(map(len, self.new.values()))

    def append(self, job: Job) -> None:
        """A newcomer."""
        self.new.setdefault((job.priority, job.turn), deque()).append(job)

    def park(self, job: Job, needed: int) -> None:
        """One that comes back when `needed` bytes are free beside the others, or nothing else is in work."""
        job.parks += 1
        self.parked[job] = needed

    def drop(self, chosen: Callable[[Job], bool]) -> list[Job]:
        """Takes jobs out that are not to wait any more."""
        dropped = [job for job in self if chosen(job)]
        if dropped:
            gone = set(dropped)
            self.parked = {job: needed for job, needed in self.parked.items() if job not in gone}
            left = {key: deque(job for job in jobs if job not in gone) for key, jobs in self.new.items()}
            self.new = {key: jobs for key, jobs in left.items() if jobs}
        return dropped

    def clear(self) -> None:
        """Nothing waits any more."""
        self.new.clear()
        self.parked.clear()

    def take(self, returns: Callable[[int], bool], full: Callable[[], bool]) -> Iterator[Job]:
        """The jobs that are placed now, the more urgent first; each is placed before the next one is asked for.

        Args:
            returns: Whether a parked job that needs so many bytes may come back.
            full: Whether as many prompts are in work as make a batch: then each caller's next job alone is placed.
        """
        for priority in Priority:
            for job in list(self.parked):
                if job.priority == priority and job in self.parked and returns(self.parked[job]):
                    del self.parked[job]
                    yield job
            for key in sorted([key for key in self.new if key[0] == priority], key=lambda key: key[1].served):
                for n in range(AT_ONCE):
                    jobs = self.new.get(key)  # the job that was placed last may have dropped others
                    if not jobs or (n and full()):
                        break
                    job = jobs.popleft()
                    if not jobs:
                        del self.new[key]
                    self._admitted += 1
                    job.order = self._admitted
                    yield job
