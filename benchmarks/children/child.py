"""A process of its own that measures, and says what it found as one line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 570.0


def measure_in_child(module: str, *given: object, what: str) -> dict[str, Any]:
    """What `python -m module given...` found; empty, with a line on stderr, where it could not.

    Args:
        module: What is run.
        given: Its arguments.
        what: What is not there without it, for that line.
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
    """Of this process, now; 0 where the system does not say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    line = next(line for line in status.read_text("ascii").splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024
