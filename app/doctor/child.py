"""The child process of the machine check: runs one part, and prints each finding as a line of JSON.

A fault of a driver ends this process only. `python -m app.doctor.child PART BACKEND` runs a part; `... write FILE TURNS` is the
writer that is killed, `... leave FOLDER BACKEND` ends with a model open, `... bare BACKEND FOLDER` times the bare library.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path

import msgspec


def main() -> None:
    """Runs the part that the arguments name."""
    part, *arguments = sys.argv[1:]
    if part == "write":
        import_module("app.doctor.disk").write(Path(arguments[0]), int(arguments[1]))
        return
    if part == "leave":
        import_module("app.doctor.memory").leave(Path(arguments[0]), arguments[1])
        return
    out = os.dup(1)  # for findings only: what libraries print goes to stderr
    os.dup2(2, 1)
    for finding in getattr(import_module(f"app.doctor.{part}"), part)(*arguments):
        os.write(out, msgspec.json.encode(finding) + b"\n")


if __name__ == "__main__":
    main()
