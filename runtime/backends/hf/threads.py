"""The number of CPU threads for a model's forwards: measured once on an idle machine and saved with the model.

More threads than memory bandwidth can feed only wait for each other, and a small model's modules are too short to share. That
holds for single tokens; a forward over many tokens uses all cores, as with llama.cpp's `--threads-batch`. Cores that other
processes keep busy get no thread, as all threads would wait for the one there. Nothing is measured or changed where the user
chose a number: by `LoadOptions.threads`, OMP_NUM_THREADS, MKL_NUM_THREADS or `torch.set_num_threads`.
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

BUDGET_SECONDS = 1.0  # after which no further count is tried
MANY_TOKENS = 64  # least tokens of a forward that uses all cores
SLOWDOWN = 3.0  # time with all cores over the fastest time; if larger, cores are missing, as in a container with a quota
LAPS = 5  # forwards of one token for each count, of which the fastest is taken
WORTH = 0.97  # twice the threads must take less than this part of the time
QUIET = 0.1  # share of our cores that other processes may use during a measurement that is saved
TICK = 0.02  # seconds: two ticks of the system's CPU times
LOOK_SECONDS = 0.1  # least time between two measurements of other processes
AGAIN_SECONDS = 1.0  # between two measurements during decode
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
IDLE_TIMES = ("idle", "iowait", "guest", "guest_nice")  # among a core's CPU times; those of guests are part of the user's

log = logging.getLogger(__name__)


class ThreadChoice:
    """The number of threads that this process has set. Owner thread only: OpenMP has a count for each thread."""

    def __init__(self) -> None:
        self._set: set[int] = set()

    def set(self, count: int) -> None:
        torch.set_num_threads(count)
        self._set.add(count)

    def measure(self, digest: str, weights: str, forward: Callable[[], object]) -> Threads | None:
        """Sets the count that is saved for a model on this machine, or the fastest one, unless the user chose a count.

        Args:
            digest: Digest of the model's weights.
            weights: Form of the weights, on which the fastest count depends.
            forward: Computes one token.

        Returns:
            The model's thread counts: the measured one for a forward over few tokens, all cores for many. None: the user
            chose a count.
        """
        if self.chosen_by_user():
            return None
        most = cores()
        key = f"{THREADS}, {weights}, {machine(most)}"
        kept = measurement(digest, key)
        found = {int(n): float(s) for n, s in kept.items() if n.isdigit() and isinstance(s, float)}
        if not found or max(found) > most:
            others = OtherProcesses()
            found = probe(forward, most, torch.set_num_threads)
            if others.busy_cores(0.0) <= QUIET * _logical():
                keep_measurement(digest, key, {str(n): seconds for n, seconds in found.items()})
        few = fastest(found)
        self.set(few)
        return Threads(self, few, most if found.get(most, math.inf) < SLOWDOWN * found[few] else few)

    def change(self, count: int) -> None:
        """Sets the number of threads, unless another was set outside this program."""
        if not self.chosen_by_user():
            self.set(count)

    def chosen_by_user(self) -> bool:
        """Whether the number of threads was set outside this program."""
        if any(os.environ.get(name) for name in VARIABLES):
            return True
        return torch.get_num_threads() not in {*self._set, cores(), _logical()}


class Threads:
    """The thread counts of one model's forwards, in a process with one count for all models.

    Args:
        choice: Sets the count.
        few: The count for a forward over few tokens, on idle cores.
        many: The count for a forward over `MANY_TOKENS` or more.

    Attributes:
        count: The count of the last forward.
        due: Monotonic seconds after which a forward over few tokens must call `set_for`; one over many always must.
    """

    def __init__(self, choice: ThreadChoice, few: int, many: int) -> None:
        self._choice, self._few, self._many = choice, few, many
        self._others = OtherProcesses()
        self.count, self.due = few, 0.0

    def set_for(self, tokens: int) -> None:
        """Sets the count for the next forward: at most the cores that other processes leave idle, or half of all cores."""
        count = self._many if tokens >= MANY_TOKENS else self._few
        lasts = math.inf if count == 1 else AGAIN_SECONDS
        self.due = 0.0 if tokens >= MANY_TOKENS else time.monotonic() + lasts
        if count > 1:
            count = min(count, max(self._many - round(self._others.busy_cores()), (self._many + 1) // 2))
        if count != self.count:
            self.count = count
            self._choice.change(count)


class OtherProcesses:
    """The load of other processes on the cores that this one may use."""

    def __init__(self) -> None:
        self._began, self._computed, self._busy = time.perf_counter(), self._seconds(), 0.0

    def busy_cores(self, least: float = LOOK_SECONDS) -> float:
        """Number of cores kept busy since the last measurement, whose result is returned again within `least` seconds of it."""
        passed = time.perf_counter() - self._began
        if passed >= least:
            computed = self._seconds()
            self._busy = max(computed - self._computed - TICK, 0.0) / passed
            self._began, self._computed = self._began + passed, computed
        return self._busy

    @staticmethod
    def _seconds() -> float:
        """CPU seconds of all other processes since the machine started; 0 if the system hides them."""
        try:
            system, own = psutil.cpu_times(percpu=True), psutil.Process().cpu_times()
        except Exception:  # a sandbox may hide /proc, which must fail no request
            log.debug("what other processes compute is not known", exc_info=True)
            return 0.0
        mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(system))
        busy = sum(
            sum(core) - sum(getattr(core, name, 0.0) for name in IDLE_TIMES) for i, core in enumerate(system) if i in mine
        )
        return busy - own.user - own.system


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs on one thread, for a model so small that more only wait for each other."""
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

    In turns, so that other load on the machine affects all counts. If a token takes a second, only all cores are tried.
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
    """The smallest number of threads that no larger one beats by much."""
    best = min(found)
    for count in sorted(found):
        if found[count] < WORTH * found[best]:
            best = count
    return best


def cores() -> int:
    """Physical cores that this process may use."""
    return max(min(psutil.cpu_count(logical=False) or _logical(), _logical()), 1)


def machine(most: int) -> str:
    """The conditions of a measurement, part of its key."""
    return f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, {most} idle cores, torch {torch.__version__}"


def _logical() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


CHOICE = ThreadChoice()  # of this process: torch has one count
