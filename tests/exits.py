"""All ways for a process to end while it has a model, each with its expected exit status.

`run(case, backend, folder)` runs one in a process of its own, which loads a model and never closes it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parent.parent
SECONDS = 120.0  # limit for the load of a process, and again for its end
CHILD_SECONDS = 15.0  # limit for its children to end after it
READY = "ready"  # the line that a process prints where it is to receive a signal


def running(module: str) -> list[psutil.Process]:
    """The children of this process that run a module; not those that have ended."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, or is a zombie that this process has not waited for
            if module in child.cmdline():
                found.append(child)
    return found


_BEGIN = """
import asyncio, os, signal, sys, threading, time
from runtime import GenerationOptions, load, spawn
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell begin with it ignored
FOLDER, BACKEND = sys.argv[1:]
IDS = list(range(10, 40))
MANY = GenerationOptions(max_tokens=3000, eos_token_ids=())
FEW = GenerationOptions(max_tokens=40, eos_token_ids=())
def ready():
    print("ready", flush=True)
"""
_LOAD = "model = load(FOLDER, BACKEND)\n"
_STREAM = _LOAD + "stream = model.generate_sync(IDS, MANY)\nnext(stream)\n"


@dataclass(frozen=True, slots=True)
class Exit:
    """One way to end.

    Attributes:
        script: The code of the process behind `_BEGIN`.
        status: The expected exit status; negative for a signal, as in `subprocess`.
        sent: A signal to send when the process is ready.
        fast: The engine on which the case is a fast test; "" for none.
        said: A text that standard error must contain.
    """

    script: str
    status: int = 0
    sent: signal.Signals | None = None
    fast: str = ""
    said: str = ""


EXITS: Mapping[str, Exit] = {
    # idle
    "idle": Exit(_LOAD),
    "idle, a full stream before": Exit(_LOAD + "list(model.generate_sync(IDS, FEW))"),
    "idle, sys.exit(7)": Exit(_LOAD + "sys.exit(7)", 7),
    "idle, os._exit(5)": Exit(_LOAD + "os._exit(5)", 5),
    "closed twice, then the end": Exit(_STREAM + "model.close(); model.close()"),
    # a stream that is not read to its end
    "next(stream)": Exit(_STREAM),
    "break": Exit(_LOAD + "for record in model.generate_sync(IDS, MANY):\n    break"),
    "exception beside a stream": Exit(_STREAM + "raise ValueError('mine')", 1, said="ValueError: mine"),
    "sys.exit(9) beside a stream": Exit(_STREAM + "sys.exit(9)", 9),
    "sys.exit(text) beside a stream": Exit(_STREAM + "sys.exit('enough')", 1, said="enough"),
    "os._exit(5) beside a stream": Exit(_STREAM + "os._exit(5)", 5),
    "exception in on_progress": Exit(
        _LOAD
        + """
def refuse(progress):
    raise ValueError('mine')
list(model.generate_sync(IDS, MANY, on_progress=refuse))
""",
        1,
        said="ValueError: mine",
    ),
    "exception in a load's on_progress": Exit(
        """
def refuse(progress):
    raise ValueError('mine')
load(FOLDER, BACKEND, on_progress=refuse)
""",
        1,
        said="mine",
    ),
    # signals
    "SIGINT in a stream": Exit(
        _LOAD + "for i, record in enumerate(model.generate_sync(IDS, MANY)):\n    i == 3 and ready()",
        -signal.SIGINT,
        signal.SIGINT,
        fast="hf",
        said="KeyboardInterrupt",
    ),
    "SIGINT that is caught, then sys.exit(130)": Exit(
        _LOAD
        + """
try:
    for i, record in enumerate(model.generate_sync(IDS, MANY)):
        i == 3 and ready()
except KeyboardInterrupt:
    sys.exit(130)
""",
        130,
        signal.SIGINT,
    ),
    "SIGINT in a coroutine": Exit(
        _LOAD
        + """
async def main():
    n = 0
    async for record in model.generate(IDS, MANY):
        n += 1
        n == 3 and ready()
asyncio.run(main())
""",
        -signal.SIGINT,
        signal.SIGINT,
        said="KeyboardInterrupt",
    ),
    "SIGINT while it sleeps beside a stream": Exit(_STREAM + "ready(); time.sleep(100)", -signal.SIGINT, signal.SIGINT),
    "SIGINT while it loads": Exit(
        """
def slowly(progress):
    ready()
    time.sleep(3)
load(FOLDER, BACKEND, on_progress=slowly)
""",
        -signal.SIGINT,
        signal.SIGINT,
        said="KeyboardInterrupt",
    ),
    "SIGTERM in a stream": Exit(
        _LOAD + "for i, record in enumerate(model.generate_sync(IDS, MANY)):\n    i == 3 and ready()",
        -signal.SIGTERM,
        signal.SIGTERM,
    ),
    "SIGTERM that becomes sys.exit(3)": Exit(
        _STREAM + "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nready(); time.sleep(100)", 3, signal.SIGTERM
    ),
    # threads and loops
    "a daemon thread that streams": Exit(
        _LOAD
        + """
def work():
    for i, record in enumerate(model.generate_sync(IDS, MANY)):
        i == 3 and begun.set()
begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait()
""",
    ),
    "a thread that streams to its end": Exit(
        _LOAD
        + """
def work():
    print(len(list(model.generate_sync(IDS, FEW))), file=sys.stderr)
threading.Thread(target=work).start()
""",
        said="40",
    ),
    "an executor that streams to its end": Exit(
        _LOAD
        + """
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(lambda: print(len(list(model.generate_sync(IDS, FEW))), file=sys.stderr))
""",
        said="40",
    ),
    "a daemon thread that loads": Exit(
        """
def busy(*_):  # on a machine that is, what is woken up runs late
    if begun.is_set() and threading.current_thread().name == "loader":
        time.sleep(0.2)
begun = threading.Event()
threading.setprofile(busy)
threading.Thread(
    target=load, args=(FOLDER, BACKEND), kwargs={"on_progress": lambda _: begun.set()}, daemon=True, name="loader"
).start()
begun.wait()
"""
    ),
    "a closed loop": Exit(
        _LOAD
        + """
async def main():
    stream = model.generate(IDS, MANY)
    await anext(stream)
    kept.append(stream)
kept = []
asyncio.run(main())
"""
    ),
    "a loop that is dropped": Exit(
        _LOAD
        + """
async def main():
    kept.append(model.generate(IDS, MANY))
    await anext(kept[0])
kept, loop = [], asyncio.new_event_loop()
loop.run_until_complete(main())
"""
    ),
    "many queries that are not awaited": Exit(
        _LOAD
        + """
async def main():
    for i in range(20):
        asyncio.create_task(model.next_token_logprobs(IDS + [i]))
    await asyncio.sleep(0.01)
asyncio.run(main())
"""
    ),
    # forked children
    "a forked child ends normally beside a stream": Exit(
        _STREAM
        + """
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    next(stream)
"""
    ),
    "a forked child ends with 4 beside a stream": Exit(
        _STREAM
        + """
child = os.fork()
if not child:
    sys.exit(4)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
next(stream)
sys.exit(6)
""",
        6,
    ),
    "multiprocessing by fork": Exit(
        _STREAM
        + """
import multiprocessing
child = multiprocessing.get_context("fork").Process(target=int)
child.start(); child.join()
next(stream)
sys.exit(child.exitcode + 2)
""",
        2,
    ),
    # engines in a process of their own
    "a spawned engine that is not closed": Exit(
        """
async def main():
    return await spawn(FOLDER, BACKEND)
model = asyncio.run(main())
stream = model.generate_sync(IDS, MANY)
next(stream)
sys.exit(7)
""",
        7,
        fast="mlx",
    ),
    "SIGINT beside a spawned engine": Exit(
        """
async def main():
    model = await spawn(FOLDER, BACKEND)
    n = 0
    async for record in model.generate(IDS, MANY):
        n += 1
        n == 3 and ready()
asyncio.run(main())
""",
        -signal.SIGINT,
        signal.SIGINT,
    ),
    "SIGKILL beside a spawned engine": Exit(
        """
model = asyncio.run(spawn(FOLDER, BACKEND))
stream = model.generate_sync(IDS, MANY)
next(stream)
ready(); time.sleep(100)
""",
        -signal.SIGKILL,
        signal.SIGKILL,
    ),
    "SIGKILL while an engine starts": Exit(
        """
async def main():
    asyncio.get_running_loop().call_later(0.5, ready)
    await spawn(FOLDER, BACKEND)
    await asyncio.sleep(100)
asyncio.run(main())
""",
        -signal.SIGKILL,
        signal.SIGKILL,
    ),
    "SIGKILL while a forked child has the engine's pipe": Exit(
        """
model = asyncio.run(spawn(FOLDER, BACKEND))
if not os.fork():
    os.close(0); os.close(1); os.close(2)
    time.sleep(30)
    os._exit(0)
ready(); time.sleep(100)
""",
        -signal.SIGKILL,
        signal.SIGKILL,
    ),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended.

    Attributes:
        status: As in `subprocess`; None where it had to be killed because it did not end.
        error: Its standard error.
        left: Command lines of children that outlived it.
    """

    status: int | None
    error: str
    left: tuple[str, ...]

    def faults(self, case: Exit) -> list[str]:
        """The differences to the expected end."""
        found = []
        if self.status != case.status:
            found.append(f"ended with {self.status} instead of {case.status}")
        if case.said not in self.error:
            found.append(f"did not say {case.said!r}")
        found += [f"left {line}" for line in self.left]
        found += [f"said {word!r}" for word in ("terminate called", "Fatal Python error") if word in self.error]
        return found


def run(case: Exit, backend: str, folder: Path) -> Outcome:
    """Runs one case; none of its processes remains."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN + case.script, str(folder), backend],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        )
        family: set[psutil.Process] = set()
        try:
            assert process.stdout is not None
            if case.sent is not None:
                _wait_for(process, family)
                process.send_signal(case.sent)
            status = _ended(process, family)
            left = _left(family)
        finally:
            process.kill()
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            process.communicate()
        errors.seek(0)
        return Outcome(status, errors.read().decode(errors="replace"), left)


def _wait_for(process: subprocess.Popen[bytes], family: set[psutil.Process]) -> None:
    """Waits until the process prints that it is ready, or has ended."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == READY.encode():
            family.update(psutil.Process(process.pid).children(recursive=True))
            return


def _ended(process: subprocess.Popen[bytes], family: set[psutil.Process]) -> int | None:
    """The exit status of the process; its children are recorded meanwhile."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            family.update(psutil.Process(process.pid).children(recursive=True))
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.05)
    return None


def _left(family: set[psutil.Process]) -> tuple[str, ...]:
    """The children that are alive after their limit; forked copies of the process itself do not count."""
    engines = [each for each in family if "-c" not in _command(each)]
    _, alive = psutil.wait_procs(engines, timeout=CHILD_SECONDS)
    return tuple(" ".join(_command(each)) for each in alive)


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
