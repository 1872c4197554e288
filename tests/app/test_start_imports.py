"""The modules imported before the window is shown: times differ between machines, modules do not."""

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
# Modules that the window, the lock, the store and their libraries need. Each one makes every start slower.
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
# Prints every module, and every source file that was read, once the window is shown, then closes it like Ctrl-C.
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


def test_the_window_is_shown_before_unneeded_modules_are_imported(data: Path) -> None:
    loaded, sources = loaded_at_the_window(data)
    # then the libraries are exactly those it needs (those with an underscore belong to Python's own installation)
    libraries = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - OURS
    assert {name for name in libraries if not name.startswith("_")} - NEEDED == set()
    assert "sqlite_utils" in libraries  # so that an empty list does not count as success
    # and none of our modules of an engine, the shelf or a command
    assert {name for name in loaded if any(name == late or name.startswith(f"{late}.") for late in LATER)} == set()
    # and no source was read, as PySide6 does for each module imported after it
    assert "frame.py" not in sources
    # nor modules that read the metadata of every installed package, or find similar names
    assert not {"importlib.metadata", "difflib"} & set(loaded)
