"""How many threads a model's tokens are computed with on a CPU: measured once on an idle machine, kept with the model.

More threads than memory can feed only wait for each other, and a small model's modules are too short to share. That holds for
single tokens: a forward over many has all cores, as with llama.cpp's `--threads-batch`. A core that another process keeps busy
has no thread: all others would wait for it. Nothing is measured or changed where the user said how many: by
`LoadOptions.threads`, by OMP_NUM_THREADS or MKL_NUM_THREADS, or by `torch.set_num_threads`.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil
import torch

from runtime.loading.measurements import THREADS, keep_measurement, measurement

BUDGET_SECONDS = 1.0  # after which no other count is tried
MANY_TOKENS = 64  # of a forward that all cores share
SPOILT = 3.0  # times the seconds of a token with all cores: then not all are there, as in a container with a share of them
LAPS = 5  # forwards of one token for each count; the fastest counts
WORTH = 0.97  # of the time, for twice the threads
QUIET = 0.1  # of the time of our processors: what others may use while a measurement is made that is kept
TICK = 0.02  # seconds: two of the system's ticks, by which it counts
LOOK_SECONDS = 0.1  # at least, between two looks at what others use
AGAIN_SECONDS = 1.0  # between two looks while an answer is written
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
NO_WORK = ("idle", "iowait", "guest", "guest_nice")  # of a processor's times; a guest's are in the user's as well

log = logging.getLogger(__name__)


class ThreadChoice:
    """What this process has set, and what torch began with. Owner thread only: OpenMP's count belongs to a thread."""

    def __init__(self) -> None:
        self._set: set[int] = set()

    def set(self, count: int) -> None:
        """From now on so many."""
        torch.set_num_threads(count)
        self._set.add(count)

    def measure(self, digest: str, weights: str, forward: Callable[[], object]) -> Threads | None:
        """Sets the count that is kept for a model on this machine, or the fastest; the user's own is left alone.

        Args:
            digest: Of the model's weights.
            weights: How they are held: packed ones need other counts.
            forward: Computes one token.

        Returns:
            Those of the model from now on: for a forward over few tokens as many as were measured, over many all cores. None:
            the user has said how many.
        """
        if self.chosen_by_user():
            return None
        most = cores()
        key = f"{THREADS}, {weights}, {machine(most)}"
        kept = measurement(digest, key)
        found = {int(n): float(s) for n, s in kept.items() if n.isdigit() and isinstance(s, float)}
        if not found or max(found) > most:
            others = Others()
            found = probe(forward, most, torch.set_num_threads)
            if others.cores(0.0) <= QUIET * _logical():
                keep_measurement(digest, key, {str(n): seconds for n, seconds in found.items()})
        few = fastest(found)
        self.set(few)
        return Threads(self, few, most if found.get(most, math.inf) < SPOILT * found[few] else few)

    def change(self, count: int) -> None:
        """From now on so many, unless another count was set outside this program."""
        if not self.chosen_by_user():
            self.set(count)

    def chosen_by_user(self) -> bool:
        """Whether how many was said outside this program."""
        if any(os.environ.get(name) for name in VARIABLES):
            return True
        return torch.get_num_threads() not in {*self._set, cores(), _logical()}


class Threads:
    """Those of one model's forwards, in a process that has one count for all models.

    Args:
        choice: Where it is set.
        few: For a forward over few tokens, on idle cores.
        many: Over `MANY_TOKENS` and more.

    Attributes:
        count: Of the last forward.
        due: Monotonic seconds from which on a forward over few tokens has to `take`; one over many always has to.
    """

    def __init__(self, choice: ThreadChoice, few: int, many: int) -> None:
        self._choice, self._few, self._many = choice, few, many
        self._others = Others()
        self.count, self.due = few, 0.0

    def take(self, tokens: int) -> None:
        """Sets how many the next forward has: no more than there are cores that others leave to it, but half of all."""
        count = self._many if tokens >= MANY_TOKENS else self._few
        lasts = math.inf if count == 1 else AGAIN_SECONDS
        self.due = 0.0 if tokens >= MANY_TOKENS else time.monotonic() + lasts
        if count > 1:
            count = min(count, max(self._many - round(self._others.cores()), (self._many + 1) // 2))
        if count != self.count:
            self.count = count
            self._choice.change(count)


class Others:
    """What other processes compute on the cores that this one may use."""

    def __init__(self) -> None:
        self._began, self._computed, self._busy = time.perf_counter(), self._seconds(), 0.0

    def cores(self, least: float = LOOK_SECONDS) -> float:
        """How many they kept busy since this was last asked; where it was within `least` seconds, what it was then."""
        passed = time.perf_counter() - self._began
        if passed >= least:
            computed = self._seconds()
            self._busy = max(computed - self._computed - TICK, 0.0) / passed
            self._began, self._computed = self._began + passed, computed
        return self._busy

    @staticmethod
    def _seconds() -> float:
        """CPU seconds of all processes but this one, since the machine started; 0 where the system does not tell them."""
        try:
            system, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        except Exception:  # the border: a /proc that is shut or cut, as in a sandbox, must fail no request
            log.debug("what other processes compute is not known", exc_info=True)
            return 0.0
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(system))
        busy = sum(sum(core) - sum(getattr(core, name, 0.0) for name in NO_WORK) for i, core in enumerate(system) if i in mine)
        return busy - own.user - own.system


@contextmanager
def one_thread() -> Iterator[None]:
    """For a model so small that more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def probe(
    forward: Callable[[], object], most: int, set_threads: Callable[[int], None], clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Seconds of a token by number of threads: all cores, half of them, and so on, in turns, for about a second.

    In turns, so that what else the machine does meets all of them. Of a model so large that a token takes a second, nothing but
    all cores is tried.
    """
    counts = [most >> halvings for halvings in range(most.bit_length())]
    found: dict[int, float] = {}
    began = clock()
    for count in counts * LAPS:
        if found and clock() - began >= BUDGET_SECONDS:
            break
        set_threads(count)
        started = clock()
        forward()
        found[count] = min(clock() - started, found.get(count, math.inf))
    return found


def fastest(found: Mapping[int, float]) -> int:
    """The fewest threads that no larger number beats by much."""
    best = min(found)
    for count in sorted(found):
        if found[count] < WORTH * found[best]:
            best = count
    return best


def cores() -> int:
    """Physical cores that this process may use."""
    return max(min(psutil.cpu_count(logical=False) or _logical(), _logical()), 1)


def machine(most: int) -> str:
    """What a measurement holds for."""
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {most} idle cores, torch {torch.__version__}"


def _logical() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CHOICE = ThreadChoice()  # of this process: torch has one count
