"""A part of the machine check in a process of its own, which a fault of a driver may end: a line of JSON for each finding.

`python -m app.doctor.child PART BACKEND`; `... write FILE TURNS` is the writer that is killed, `... leave FOLDER BACKEND` what
ends with a model open, `... bare BACKEND FOLDER` the bare library beside ours.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import msgspec


def main() -> None:
    """Runs what the arguments name."""
    part, *arguments = sys.argv[1:]
    if part == "write":
        import_module("app.doctor.disk").write(Path(arguments[0]), int(arguments[1]))
        return
    if part == "leave":
        import_module("app.doctor.memory").leave(Path(arguments[0]), arguments[1])
        return
    out = os.dup(1)  # what libraries print is not part of the findings
    os.dup2(2, 1)
    for finding in getattr(import_module(f"app.doctor.{part}"), part)(*arguments):
        os.write(out, msgspec.json.encode(finding) + b"\n")


if __name__ == "__main__":
    main()
