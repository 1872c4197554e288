"""Runs a measurement in its own process, which prints its findings as one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 570.0


def measure_in_child(module: str, *given: object, what: str) -> dict[str, Any]:
    """Runs `python -m module given...` and returns its findings; empty, with a line on stderr, if it failed.

    Args:
        module: The module to run.
        given: Its arguments.
        what: Begins the line on stderr, which goes on with "not measured".
    """
    command = [sys.executable, "-m", module, *map(str, given)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        print(f"{what} not measured: {said[-1] if said else error}", file=sys.stderr)
        return {}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def resident_bytes() -> int:
    """Resident anonymous memory of this process, in bytes; 0 if the system has no /proc."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
