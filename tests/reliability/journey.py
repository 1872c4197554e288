"""The whole window without a network: first run, chat, branch, inspector, comparison, export, reopening.

The journey is the one of `tests/end_to_end`, with mouse and keys on a real engine process. It runs in a network namespace of
its own, if this machine allows one, and under strace, which logs each `connect` of the window, its engine and all
their children. Each may only use a socket in the file system (a display server, a message bus).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache

from tests.reliability.suite import REPOSITORY, Order, Tally
from tests.storage.faults import is_open

JOURNEY = "tests/end_to_end/test_window.py::test_a_chat_from_first_word_to_reopening"
SECONDS = 500
_NAMESPACE = ("unshare", "-rn")
_CONNECT = re.compile(r"connect\(\d+, \{sa_family=(\w+), (.*?)\}")


@cache
def namespace() -> Sequence[str]:
    """The prefix that starts a command without a network; empty if that is not allowed."""
    try:
        allowed = subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return ()
    return _NAMESPACE if allowed else ()


def connects(log: str) -> list[tuple[str, str]]:
    """The family and the address of each `connect` in strace's log."""
    return [(found[1], found[2]) for found in _CONNECT.finditer(log)]


def journey(order: Order) -> Tally:
    """Repeats the journey."""
    tally = Tally()
    for number in range(order.count):

        def act(number: int = number) -> str:
            assert is_open("strace"), "this row needs strace and the right to use ptrace"
            log = order.folder / f"{number}.strace"
            strace = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), "-e", "trace=connect"]
            pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", JOURNEY]
            done = subprocess.run(
                [*namespace(), *strace, *pytest],
                cwd=REPOSITORY,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
                env={**os.environ, "TMPDIR": str(order.folder)},
            )
            assert done.returncode == 0, done.stdout[-1500:]
            seen = connects(log.read_text(errors="replace"))
            away = [what for family, what in seen if family != "AF_UNIX"]
            assert not away, f"{len(away)} connects: {away[0]}"
            for _, address in seen:
                tally.seen[f"connect to {address}"] += 1
            return "in a namespace without a network" if namespace() else "traced"

        tally.attempt("the journey", act)
    return tally
