"""Runs the writer under faults, and checks after each of them that every acknowledged row is there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from storage import NodeRow, SessionStore
from tests.storage.helpers import ids, with_store

REPOSITORY = Path(__file__).parents[2]


def writer(path: Path, rounds: int, *, limit: int = 0) -> list[str]:
    """The command line of the writer."""
    return [sys.executable, "-m", "tests.storage.writer", str(path), str(rounds), str(limit)]


def run(command: Sequence[str]) -> list[list[Any]]:
    """Runs the command until it ends or is killed; returns the acknowledgements."""
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def under(road: str, command: Sequence[str], path: Path, fault: str, log: Path) -> list[str]:
    """A command whose writes to a database and its WAL fail.

    Args:
        road: "vfs": in SQLite itself, for which the command takes a fault and a log as its last arguments;
            "strace": the same faults in the kernel, where ptrace is allowed.
        command: The command to run.
        path: The database.
        fault: See `failing_vfs.Fault`.
        log: A file with one line for each fault.
    """
    if road == "vfs":
        log.touch()
        return [*command, fault, str(log)]
    files = [argument for suffix in ("", "-wal") for argument in ("-P", f"{path}{suffix}")]
    return ["strace", "-f", "-o", str(log), *files, "-e", f"trace={fault.split(':')[0]}", "-e", f"inject={fault}", *command]


def vfs(path: Path, rounds: int, fault: str, log: Path) -> list[str]:
    """The writer with a SQLite whose writes to the database and its WAL fail."""
    return under("vfs", writer(path, rounds), path, fault, log)


def is_open(road: str) -> bool:
    """Whether faults can be injected this way here: "strace" needs strace and the right to use ptrace."""
    return road != "strace" or (
        shutil.which("strace") is not None and not subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode
    )


def fired(log: Path) -> int:
    """The number of injected faults."""
    text = log.read_text()
    return text.count("(INJECTED)") or int("killed by SIGKILL" in text)


def check_nothing_was_lost(path: Path, said: Sequence[Sequence[Any]]) -> None:
    """Every acknowledged token is there and intact, and no run is left open; there may be more than was acknowledged."""
    promised = {words[1]: words[2] for words in said if words[0] in ("user", "chunk", "finish")}
    finished = {words[1] for words in said if words[0] == "finish"}

    async def check(store: SessionStore) -> None:
        assert await store.verify() == []
        nodes: dict[int, NodeRow] = {}
        for session in await store.sessions():
            nodes |= {node.id: node for node in (await store.load_session(session.id)).nodes}
        assert nodes.keys() >= promised.keys()
        tokens = await store.load_tokens(list(nodes))
        for node_id, count in promised.items():
            held = ids(tokens[node_id])
            assert held == list(range(len(held)))
            assert count <= len(held) == nodes[node_id].token_count
        for node_id, node in nodes.items():
            assert node.status == ("complete" if node_id in finished or node.role == "user" else node.status)
            assert node.status != "open"
            if node.status == "partial":
                assert node.finish_reason == "app_ended"
                assert node.text.split() == [f"w{i}" for i in range(node.token_count)]

    with_store(path, check)
