"""Our packages have plain names (app, runtime, ...): a foreign one of the same name would be loaded instead of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

OURS = ("app", "resources", "runtime", "storage", "ui")


def check_names() -> None:
    """Ends the program with a clear line when a package of ours is shadowed by another one of its name."""
    home = Path(__file__).resolve().parent.parent
    for name in OURS:
        spec = importlib.util.find_spec(name)
        origin = Path(spec.origin).resolve().parent if spec and spec.origin else None
        if origin != home / name:
            sys.exit(
                f"elsewise: the package '{name}' is loaded from {origin}, not from {home / name}. "
                "Another distribution brought one of the same name: install Elsewise into an environment of its own"
            )
