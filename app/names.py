"""Checks that our packages (app, runtime, ...) are not shadowed by others with the same plain names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

OURS = ("app", "resources", "runtime", "storage", "ui")


def check_names() -> None:
    """Ends the program with a clear message if one of our packages is shadowed."""
    home = Path(__file__).resolve().parent.parent
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if origin != home / name:
            sys.exit(
                f"elsewise: the package '{name}' is loaded from {origin}, not from {home / name}. "
                "Another distribution brought one of the same name: install Elsewise into an environment of its own"
            )
