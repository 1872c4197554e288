"""The commands of the fake model, which a test sends as a message with the role "command"."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runtime import errors as runtime_errors

if TYPE_CHECKING:
    from tests.runtime.process.fake_model import FakeTransport  # which looks its commands up here


class _Panic(BaseException):
    """Like a Rust panic, not a subclass of Exception."""


async def _raise(model: FakeTransport, argument: str) -> str:
    """An error by name, with its arguments as JSON: `raise ModelLoadError ["text"]`."""
    name, _, arguments = argument.partition(" ")
    kinds = {**vars(runtime_errors), "KeyError": KeyError, "Panic": _Panic}
    error: BaseException = kinds[name](*json.loads(arguments))
    error.add_note("a note")
    raise error


async def _state(model: FakeTransport, argument: str) -> str:
    return json.dumps({name: getattr(model, name) for name in ("queries", "generated", "cancelled", "turns", "priorities")})


async def _environment(model: FakeTransport, argument: str) -> str:
    return json.dumps(dict(os.environ))


async def _process(model: FakeTransport, argument: str) -> str:
    """The import path, heavy imports, SIGINT handling, thread and garbage collection of this process."""
    return json.dumps(
        {
            "path": sys.path,
            "heavy": sorted({"torch", "mlx", "transformers", "PySide6"} & sys.modules.keys()),
            "sigint_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
            "thread": threading.current_thread() is threading.main_thread(),
            "collects": gc.isenabled(),
            "exempt": gc.get_freeze_count(),
        }
    )


async def _hold(model: FakeTransport, argument: str) -> str:
    """Makes queries wait from now on until they are cancelled or reset."""
    model.held = asyncio.Event()
    return ""


async def _die(model: FakeTransport, argument: str) -> str:
    os.kill(os.getpid(), int(argument))
    return ""


async def _exit(model: FakeTransport, argument: str) -> str:
    os._exit(int(argument))


async def _step(model: FakeTransport, argument: str) -> str:
    """A step that never ends while the process keeps sending beats."""
    model.beat = (7, "step", 0)
    await asyncio.Event().wait()
    return ""


async def _move(model: FakeTransport, argument: str) -> str:
    """Steps for some seconds, each of them short."""
    end = time.monotonic() + float(argument)
    while time.monotonic() < end:
        model.beat = (model.beat[0] + 1, "step", 0)
        await asyncio.sleep(0.02)
    model.beat = (model.beat[0], "idle", 0)
    return "moved"


async def _freeze(model: FakeTransport, argument: str) -> str:
    """Stops the beats too, as if native code held the interpreter; the file named in `argument` marks the start."""
    if argument:
        Path(argument).touch()  # noqa: ASYNC240  # as above: this blocks in any case
    while True:
        time.sleep(1)  # noqa: ASYNC251  # blocks the event loop on purpose


async def _slow_close(model: FakeTransport, argument: str) -> str:
    """Makes closing take so many seconds, without the process ending itself earlier."""
    model.close_seconds = float(argument)
    _waits_for_its_model()
    return ""


async def _stubborn(model: FakeTransport, argument: str) -> str:
    """Ignores SIGTERM and closes slowly."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    model.close_seconds = 60
    _waits_for_its_model()
    return ""


def _waits_for_its_model() -> None:
    """Stops the process from exiting before the model is closed: the caller has to end it."""
    vars(importlib.import_module("runtime.transport.server"))["_SHUTDOWN_SECONDS"] = 60


async def _write(model: FakeTransport, argument: str) -> str:
    """Writes to both standard streams."""
    os.write(1, b"to stdout\n")
    os.write(2, b"to stderr\n")
    return ""


async def _child(model: FakeTransport, argument: str) -> str:
    """Starts a child of the engine process that outlives it unless it is killed too."""
    subprocess = importlib.import_module("subprocess")
    return str(subprocess.Popen(["sleep", "60"], close_fds=False).pid)


async def _large(model: FakeTransport, argument: str) -> str:
    return "x" * int(argument)


async def _repeat(model: FakeTransport, argument: str) -> str:
    return argument


COMMANDS = {
    "repeat": _repeat,
    "raise": _raise,
    "state": _state,
    "environment": _environment,
    "process": _process,
    "hold": _hold,
    "die": _die,
    "exit": _exit,
    "step": _step,
    "move": _move,
    "freeze": _freeze,
    "slow-close": _slow_close,
    "stubborn": _stubborn,
    "write": _write,
    "child": _child,
    "large": _large,
}
