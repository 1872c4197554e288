"""The engine process for the operating system: its start, its end with the cause, and when it counts as hung."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from resources.processes import child_command, engine_environment
from runtime.loading.paths import is_model_id, shelf_path
from runtime.transport.messages import EXIT_PROTOCOL

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL}


class EngineProcess:
    """A child that runs `runtime.transport` on one end of a socket pair. For one thread; `reap_later` is the last call."""

    def __init__(self, backend: str, threads: int | None, log_path: Path | None) -> None:
        """Starts the process.

        Raises:
            OSError: The log cannot be opened, or the system starts no more processes.
        """
        self._log_path = log_path
        self.pipe, theirs = socket.socketpair()
        try:
            with theirs, _opened(log_path) as log:
                self._process = subprocess.Popen(
                    child_command("runtime.transport", str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    env=engine_environment(os.environ, backend, threads),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL if log is None else log,  # the caller's standard output is for results
                    stderr=log,
                    process_group=0,  # Ctrl-C in a terminal is for this process alone; `kill` reaches the child's own children
                )
        except BaseException:
            self.pipe.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        """Whether the process has ended; reaps it if it has."""
        return self._process.poll() is not None

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL to the process and its own children."""
        if not self.ended():  # not reaped yet: the group id is still the child's
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap_later(self) -> None:
        """Waits for the end of the process on a thread, as the system may take a while; otherwise it would remain a zombie."""
        threading.Thread(target=self._process.wait, name="elsewise-engine-end", daemon=True).start()

    def end_message(self, reason: str | None) -> str:
        """The message to the user: how the process ended, and what to do about it.

        Args:
            reason: Why it was killed; None if it ended by itself.
        """
        code = self._process.returncode
        if reason is not None:
            how = f"it was ended because {reason}"
        elif code is None:
            how = "it closed its pipe and does not end"
        elif code < 0:
            how = f"signal {-code} ({_signal_name(-code)}){_meaning(-code)}"
        elif code == EXIT_PROTOCOL:
            how = f"exit code {code}: it could not read what it was sent; are two versions of the program mixed?"
        else:
            how = f"exit code {code}"
        log = f"; its log is {self._log_path}" if self._log_path else ""
        return f"the engine process has ended: {how}. What it had answered is kept; load the model again to go on{log}"


def _opened(log_path: Path | None) -> AbstractContextManager[IO[bytes] | None]:
    """Standard error of the child: the log file (0600, appended to), or None to share this process's."""
    if log_path is None:
        return nullcontext()
    return open(log_path, "ab", buffering=0, opener=partial(os.open, mode=0o600))


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return "unknown"


def _meaning(number: int) -> str:
    if number == signal.SIGKILL:
        return ", which the system sends when memory runs out: choose a smaller model or kv_cache_bytes if it repeats"
    if number in _CRASHES:
        return ", a crash in native code: check the model file with `elsewise models verify` if it repeats"
    return ""


_LOAD_BASE_SECONDS = 120.0  # for imports of libraries from a cold disk, and the self-test
_LOAD_BYTES_PER_SECOND = 20e6  # with a slow disk and a conversion of dtypes
_UNKNOWN_BYTES = 16 << 30  # assumed if only the engine knows the size of the source


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Seconds of monotonic time in the caller's process (time in which the machine is suspended does not count)."""

    step_seconds: float = 30.0  # one step of the owner thread in which no layer of the model is reached
    silence_seconds: float = 30.0  # without any message, once the model is loaded
    loading_seconds: float | None = None  # without progress of the load; None: by the size of the source
    close_seconds: float = 1.2  # for the engine to end by itself; afterwards it is terminated
    beat_seconds: float = 0.25  # between two beats

    def for_loading(self, source: str) -> float:
        """Seconds that loading `source` may take without progress."""
        if self.loading_seconds is not None:
            return self.loading_seconds
        return _LOAD_BASE_SECONDS + _source_bytes(source) / _LOAD_BYTES_PER_SECOND


def offload_limits(source: str) -> EngineLimits:
    """The default limits, with longer steps, for a model whose weights are read in every step from a disk that may be slow."""
    return EngineLimits(step_seconds=EngineLimits().step_seconds + _source_bytes(source) / _LOAD_BYTES_PER_SECOND)


class Watchdog:
    """Decides whether an engine hangs, from its beats and from elapsed time. It has neither a clock nor a process."""

    def __init__(self, limits: EngineLimits, loading_seconds: float) -> None:
        self._limits, self._loading = limits, loading_seconds
        self._state, self._done = (0, "loading", 0), 0
        self._silent = 0.0
        self._stuck = 0.0

    def message_received(self) -> None:
        """Notes that a message of any kind arrived."""
        self._silent = 0.0

    def beat(self, steps: int, phase: str, progress: int = 0) -> None:
        """Notes a beat; a step whose `progress` grows is slow and does not hang."""
        if (steps, phase, progress) != self._state:
            self._state, self._stuck = (steps, phase, progress), 0.0

    def load(self, done: int) -> None:
        """Notes progress of the load, which does not hang while `done` changes."""
        if done != self._done:
            self._done, self._stuck = done, 0.0

    def elapse(self, seconds: float) -> str | None:
        """Adds elapsed time; returns why the engine must be killed, or None."""
        self._silent += seconds
        self._stuck += seconds
        steps, phase, _ = self._state
        silence = self._loading if phase == "loading" else self._limits.silence_seconds
        if self._silent > silence:
            return f"it gave no sign of life for {silence:g} s while {_DOING.get(phase, phase)}"
        if phase == "loading" and self._stuck > self._loading:
            return f"loading did not get further for {self._loading:g} s"
        if phase == "step" and self._stuck > self._limits.step_seconds:
            return f"step {steps:,} took more than {self._limits.step_seconds:g} s"
        return None


_DOING = {"loading": "loading", "step": "computing"}


def _source_bytes(source: str) -> int:
    try:
        path = Path(source)
        if not path.exists() and is_model_id(source):
            path = shelf_path(source)
        if path.is_dir():
            return sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        return path.stat().st_size
    except (OSError, ValueError):  # missing, or a name that only the engine knows; ValueError: it has a NUL
        return _UNKNOWN_BYTES
