"""Runs the parts of the machine check in sequence, each in a process of its own."""

from __future__ import annotations

import os
import platform
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec
import psutil

from app.doctor.disk import unmount_below
from app.doctor.finding import Finding, Report
from resources.processes import child_command, engine_environment
from runtime import __version__, available_backends

PARTS: Final = ("parity", "window", "disk", "memory", "speed")  # the longest last
SLEEP: Final = "sleep"  # a part that needs a person, run only if named
SECONDS: Final = {
    "parity": 150.0,
    "memory": 150.0,
    "speed": 120.0,
    "window": 60.0,
    "disk": 60.0,
    SLEEP: 300.0,
}
TEN_MINUTES: Final = 600.0  # seconds for all parts except sleep
WITH_MODELS: Final = ("parity", "memory", "speed")  # run for each backend
GRACE: Final = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Doing:
    """The progress of the check."""

    done: int  # ended parts
    total: int  # all parts
    part: str  # the running one
    last: str  # the name of its last finding; "" before the first


def machine() -> dict[str, str]:
    """Facts about the machine for a report, without its name."""
    memory = psutil.virtual_memory()
    here = [name for name, state in available_backends().items() if state is True and name in ("hf", "mlx")]
    return {
        "elsewise": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "processors": str(psutil.cpu_count()),
        "memory": f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free",
        "backends": ", ".join(here) or "none",
    }


def check_machine(only: Iterable[str], tell: Callable[[Doing], None], *, factor: float = 1.0) -> Report:
    """Runs every part, or those in `only`. Ctrl-C ends the running part; the report has the findings so far.

    Args:
        only: Names of `PARTS`, or `SLEEP`; empty: all of `PARTS`.
        tell: Called with the progress.
        factor: Multiplies the time limits.
    """
    facts = machine()
    backends = [name for name in facts["backends"].split(", ") if name != "none"]
    wanted = [part for part in (*PARTS, SLEEP) if part in set(only) or (not only and part != SLEEP)]
    on = dict.fromkeys(WITH_MODELS, backends) | {SLEEP: backends[-1:]}
    steps = [(part, backend) for part in wanted for backend in on.get(part, [""])]
    report = Report(facts, {})
    end = time.monotonic() + TEN_MINUTES * factor
    try:
        for number, (part, backend) in enumerate(steps):
            rows = report.findings.setdefault(f"{part} on {backend}" if backend else part, [])
            name = partial(Doing, number, len(steps), part)
            seconds = SECONDS[part] * factor
            if part != SLEEP:
                seconds = min(seconds, end - time.monotonic())
            if seconds > 0:
                _run(part, backend, seconds, rows, lambda last, name=name: tell(name(last)))  # type: ignore[misc]
            else:
                over = f"{TEN_MINUTES * factor / 60:.0f} minutes are over"
                rows.append(Finding("this part", "not started", "", "failed", f"{over}; run --only {part}"))
    except KeyboardInterrupt:
        report.interrupted = True
    return report


def _run(part: str, backend: str, seconds: float, rows: list[Finding], tell: Callable[[str], None]) -> None:
    command = child_command("app.doctor.child", part, backend or "none")
    environment = engine_environment(os.environ, backend, None)  # as for an engine process
    pipe = subprocess.PIPE
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-", ignore_cleanup_errors=True) as room:
        environment |= {"TMPDIR": room}  # removed with the files of a killed child
        try:
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment, process_group=0
            ) as child:
                _listen(child, seconds, rows, tell)
        finally:
            unmount_below(Path(room))


def _listen(child: subprocess.Popen[bytes], seconds: float, rows: list[Finding], tell: Callable[[str], None]) -> None:
    """Reads the child's findings until it ends or its time is over."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    errors: list[bytes] = []
    assert child.stdout is not None
    assert child.stderr is not None
    readers = [
        threading.Thread(target=_pass_on, args=pair, daemon=True)
        for pair in ((child.stdout, lines.put), (child.stderr, errors.append))
    ]
    for reader in readers:
        reader.start()
    deadline = time.monotonic() + seconds
    late = False
    try:
        tell("")
        while line := _next(lines, deadline):
            rows.append(msgspec.json.decode(line, type=Finding))
            tell(rows[-1].name)
        late = time.monotonic() >= deadline
        status = child.wait(GRACE) if not late else 0
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)  # with its children
        child.wait()
        for reader in readers:
            reader.join(GRACE)
    if late:
        advice = "its rows so far are above; --patience gives it more time"
        rows.append(Finding("the rest of this part", f"not done in {seconds:.0f} s", "", "failed", advice))
    elif status:
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:]
        rows.append(Finding("the rest of this part", f"its process ended: {how}", "", "failed", " ".join(last)))


def _pass_on(stream: IO[bytes], put: Callable[[bytes], None]) -> None:
    for line in stream:
        put(line)
    put(b"")


def _next(lines: queue.SimpleQueue[bytes], deadline: float) -> bytes:
    """The next line; empty at the end and after the deadline."""
    try:
        return lines.get(timeout=max(deadline - time.monotonic(), 0))
    except queue.Empty:
        return b""
