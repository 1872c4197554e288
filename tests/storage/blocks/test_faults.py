"""Killed at any write, on a full disk, on a failing one: the block file opens, and holds what was acknowledged."""

from __future__ import annotations

import errno
import itertools
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from storage import BlockFile
from tests.storage.blocks.helpers import BUDGET, block, expected, keys
from tests.storage.blocks.writer import NBYTES
from tests.storage.faults import fired, require, run, under

ROUNDS = 2
DISK_ERRORS = {errno.ENOSPC, errno.EIO}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "blocks.sqlite3"


def made(file: Path) -> bytes:
    with BlockFile(file, BUDGET) as store:
        store.put([block("old")])
    return file.read_bytes()


def keep_under(road: str, file: Path, fault: str, log: Path) -> list[list[Any]]:
    command = [sys.executable, "-m", "tests.storage.blocks.writer", str(file), str(ROUNDS)]
    return run(under(road, command, file, fault, log))


def check(file: Path, said: Sequence[Sequence[Any]], caplog: pytest.LogCaptureFixture) -> None:
    """What was acknowledged is there, unless it was evicted on purpose; all that is there is right; nothing is damaged."""
    caplog.clear()
    acknowledged = [tuple(words[1:]) for words in said if words[0] == "put"]
    halves = {path for path in acknowledged if len(path) == 2}
    with BlockFile(file, BUDGET) as store:
        for n in range(ROUNDS):
            for path in (("stem", f"half {n}"), ("stem", f"{n}", "tip"), (f"loose {n}",)):
                got = store.get(keys(*path))
                assert got == expected(*path, nbytes=NBYTES)[: len(got)]
                if path in acknowledged and path not in halves:
                    assert len(got) == len(path)
        assert store.put([block("new")]) == 1
        assert store.stats().damaged == 0
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize(
    ("road", "fault", "step"),
    [
        ("vfs", "pwrite64:signal=SIGKILL:when={k}", 1),
        ("vfs", "pwrite64:signal=TORN:when={k}", 3),
        ("strace", "pwrite64:signal=SIGKILL:when={k}", 11),
    ],
)
def test_kill_9_at_every_write(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, road: str, fault: str, step: int, tell: Callable[[str], None]
) -> None:
    require(road)
    caplog.set_level(logging.WARNING)
    content, killed = made(file), 0
    for k in itertools.count(1, step):  # to the last write there is
        copy, log = tmp_path / f"{k}.sqlite3", tmp_path / f"{k}.log"
        copy.write_bytes(content)
        said = keep_under(road, copy, fault.format(k=k), log)
        check(copy, said, caplog)
        if not fired(log):
            break
        killed += 1
    tell(f"block file, kill -9 by {road}: {killed} fired, at every {step}. write")
    assert said[-1] == ["done"]
    assert killed >= 100 // step


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["pwrite64:error=ENOSPC:when={k}+", "pwrite64:error=EIO:when={k}+", "fdatasync:error=EIO:when={k}+"]
)
def test_a_failing_disk_is_said_and_spoils_nothing(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, tell: Callable[[str], None]
) -> None:
    caplog.set_level(logging.WARNING)
    content, faults, seen = made(file), 0, set[int]()
    for k in itertools.count(1, 1 if fault.startswith("fdatasync") else 11):  # to the last one there is
        copy, log = tmp_path / f"{k}.sqlite3", tmp_path / f"{k}.log"
        copy.write_bytes(content)
        said = keep_under("vfs", copy, fault.format(k=k), log)
        check(copy, said, caplog)
        if not fired(log):
            break
        faults += 1
        seen |= {words[1] for words in said if words[0] == "failed"}
    tell(f"block file, {fault}: {faults} faults fired, seen as {seen or 'nothing'}")
    assert faults >= (1 if fault.startswith("fdatasync") else 9)  # a cache is synced at checkpoints only
    assert seen
    assert seen <= DISK_ERRORS


def test_one_fault_of_each_kind(file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    content = made(file)
    for k, fault in enumerate(("pwrite64:signal=SIGKILL:when=90", "pwrite64:error=ENOSPC:when=60+")):
        copy, log = tmp_path / f"{k}.sqlite3", tmp_path / f"{k}.log"
        copy.write_bytes(content)
        said = keep_under("vfs", copy, fault, log)
        assert fired(log) >= 1, fault
        assert ["done"] not in said or any(words[0] == "failed" for words in said), fault
        check(copy, said, caplog)
