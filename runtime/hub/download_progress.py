"""Progress of several files that are fetched side by side. In the child process only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from runtime.hub.child_protocol import DownloadProgress, HubFile, OnDownload

_REPORT_SECONDS = 0.1  # between two reports of a file


class ProgressReporter:
    """Counts received bytes of each file and of all; reports each file at most ten times a second."""

    def __init__(self, on_progress: OnDownload, clock: Callable[[], float] = time.monotonic) -> None:
        self._on_progress = on_progress
        self._clock = clock
        self._total = 0
        self._done: dict[str, int] = {}  # received bytes by file name
        self._sum = 0
        self._reported: dict[str, float] = {}  # time of the last report, by file name
        self._busy: set[str] = set()  # names of files with a running transfer
        self._rate = TransferRate(self._clock)

    def begin(self, files: Iterable[HubFile], received: Iterable[int]) -> None:
        """Starts counting these files; bytes `received` earlier count as done, but not for the rate."""
        files = list(files)
        self._done = {file.name: size for file, size in zip(files, received, strict=True)}
        self._total, self._sum = sum(file.size for file in files), sum(self._done.values())
        self._rate = TransferRate(self._clock)
        self._rate.note(self._sum)

    def state(self, state: str) -> None:
        self._report(state, None, 0)

    def check(self, file: HubFile, done: int) -> None:
        """Reports how many earlier bytes of a file have been hashed again."""
        if self._due(file):
            self._report("check", file, done)

    def fetch(self, file: HubFile, done: int) -> None:
        self._busy.add(file.name)
        self._count(file, done)
        if self._due(file):
            self._report("fetch", file, done)

    def end(self, file: HubFile) -> None:
        self._busy.discard(file.name)
        self._count(file, file.size)
        self._report("fetch", file, file.size)

    def wait(self, file: HubFile | None, done: int, why: str) -> None:
        if file is not None:
            self._busy.discard(file.name)
        self._report("wait", file, done, why)

    def _count(self, file: HubFile, done: int) -> None:
        if self._total:
            self._sum += done - self._done[file.name]
            self._done[file.name] = done
        self._rate.note(self._sum)

    def _due(self, file: HubFile) -> bool:
        now = self._clock()
        if now - self._reported.get(file.name, -_REPORT_SECONDS) < _REPORT_SECONDS:
            return False
        self._reported[file.name] = now
        return True

    def _report(self, state: str, file: HubFile | None, done: int, note: str = "") -> None:
        name, size = (file.name, file.size) if file else ("", 0)
        moving = state == "fetch" or bool(self._busy)
        self._on_progress(
            DownloadProgress(
                file=name,
                file_done=done,
                file_total=size,
                done=self._sum if self._total else 0,
                total=self._total,
                rate=self._rate.per_second if moving else 0.0,
                eta=self._rate.left(self._total - self._sum) if moving and self._total else None,
                state=state,
                note=note,
            )
        )


_WINDOW_SECONDS = 5.0
_STEP_SECONDS = 0.2  # between two notes


class TransferRate:
    """Bytes per second over the last seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, done: int) -> None:
        """Records the bytes done so far; a smaller count than before restarts the rate."""
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
        """The rate, idle seconds included; 0 before two notes."""
        if len(self._notes) < 2:
            return 0.0
        (since, first), (_, last) = self._notes[0], self._notes[-1]
        passed = max(self._clock(), self._notes[-1][0]) - since
        return (last - first) / passed if passed > 0 else 0.0

    def left(self, remaining: int) -> float | None:
        """Seconds for the remaining bytes; None while nothing moves."""
        rate = self.per_second
        return remaining / rate if rate > 0 else None
