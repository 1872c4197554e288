"""The other side of `runtime.loading.children`: what a child process says, and when it goes."""

from __future__ import annotations

import json
import os
import sys
import threading


def say(**message: object) -> None:
    """One JSON object on a line of its own."""
    sys.__stdout__.write(json.dumps(message) + "\n")  # type: ignore[union-attr]  # a child has one
    sys.__stdout__.flush()  # type: ignore[union-attr]  # likewise


def end_with_parent() -> None:
    """Leaves when standard input closes, as it does when the parent ends, however that comes about."""

    def wait() -> None:
        while os.read(0, 1):  # the buffer's lock would be held when the interpreter ends, which aborts the process
            pass
        os._exit(3)

    threading.Thread(target=wait, daemon=True, name="parent-watch").start()
