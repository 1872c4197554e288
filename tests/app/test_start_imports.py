"""What is loaded before the window stands: seconds differ from machine to machine, modules do not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.sample import ensure_sample
from storage import SessionStore

PATIENCE_SECONDS = 120
OURS = {"app", "resources", "runtime", "storage", "ui"}
# What the window, the lock, the store and their libraries need. Whatever is added here is waited for at every start.
NEEDED = {
    "PySide6", "shiboken6", "shibokensupport", "signature_bootstrap", "qasync",
    "numpy", "msgspec", "typing_extensions",
    "filelock", "psutil", "platformdirs", "click",
    "sqlite_utils", "sqlite_fts4", "pluggy", "dateutil",
}  # fmt: skip
LATER = {  # parts of ours that wait for an engine, a shelf or a command
    "runtime.backends", "runtime.engine", "runtime.loading", "runtime.scheduler",
    "runtime.transport.local", "runtime.transport.pipe", "runtime.text.tokenizer",
    "benchmarks", "app.cli.ask", "app.cli.common",
    "ui.commands.about", "ui.settings", "ui.setup.popover",
}  # fmt: skip
# Says every module, and every file whose source was read, when the window stands, then closes it as Ctrl-C would.
SCRIPT = """
import linecache, logging, os, signal, sys

class WhenItStands(logging.Handler):
    def emit(self, record):
        if "the window stands" in record.getMessage():
            print(*sys.modules)
            print(*linecache.cache)
            os.kill(os.getpid(), signal.SIGINT)

logging.getLogger().addHandler(WhenItStands())
logging.getLogger().setLevel(logging.INFO)
from app.cli import main
main()
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder that was used before."""

    async def fill() -> None:
        store = SessionStore.open(tmp_path / "data" / "sessions.db")
        await ensure_sample(store)
        await store.close()

    asyncio.run(fill())
    return tmp_path / "data"


def loaded_at_the_window(data: Path) -> tuple[list[str], str]:
    """Names of modules, in the order in which they were loaded, and the files whose source was read."""
    command = [sys.executable, "-c", SCRIPT, "--data-dir", str(data)]
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    modules, sources = done.stdout.splitlines()
    return modules.split(), sources


def test_the_window_stands_before_anything_it_can_do_without_is_loaded(data: Path) -> None:
    loaded, sources = loaded_at_the_window(data)
    # then the libraries are exactly those it needs (those with an underscore belong to Python's own installation)
    libraries = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - OURS
    assert {name for name in libraries if not name.startswith("_")} - NEEDED == set()
    assert "sqlite_utils" in libraries  # so that an empty answer is not taken for a light one
    # and of ours nothing that an engine, the shelf or a command is made of
    assert {name for name in loaded if any(name == late or name.startswith(f"{late}.") for late in LATER)} == set()
    # and no source was read, as PySide6 does with each module that is loaded after it
    assert "frame.py" not in sources
    # nor what reads the metadata of every installed package, or finds names that are alike
    assert not {"importlib.metadata", "difflib"} & set(loaded)
