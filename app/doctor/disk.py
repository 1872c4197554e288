"""Checks that the store keeps every acknowledged turn when its writer is killed or the disk is full."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import numpy as np
import psutil

from app.doctor.finding import Finding, held
from resources.processes import child_command
from storage import NewNode, SessionStore, StoreError

KILLS: Final = 20
LONGEST_LIFE: Final = 0.15  # seconds from a writer's first acknowledgement to its death
SIZE: Final = "2m"  # of the full disk
TEXT: Final = "what was said " * 40
MOST: Final = 20_000  # turns; more than fit on the small disk
ADVICE: Final = "keep a backup of your sessions, and report it with this table"
FLUSH_SHARE: Final = 0.5
PATIENCE: Final = 60.0


def disk(_: str) -> Iterator[Finding]:
    """Checks the store with killed writers and on a full disk, and on macOS whether a commit waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
        yield _killed(Path(room))
        yield _full(Path(room))
        yield _flushed(Path(room))


def write(path: Path, turns: int) -> None:
    """Writes turns into one session, in a child process; prints a line for each committed one."""

    async def work() -> None:
        async with SessionStore.open(path) as store:
            session = await store.create_session("machine check")
            parent: int | None = None
            for number in range(turns):
                parent = await store.add_node(NewNode(session, parent, "user", f"{number} {TEXT}"), current=True)
                sys.stdout.write(f"{json.dumps([session, parent])}\n")
                sys.stdout.flush()

    asyncio.run(work())


def _writer(path: Path, turns: int) -> subprocess.Popen[str]:
    command = child_command("app.doctor.child", "write", str(path), str(turns))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, text=True)


def _killed(room: Path) -> Finding:
    path, draw, kept, lost = room / "killed" / "sessions.db", np.random.default_rng(20), 0, 0
    path.parent.mkdir()
    for _ in range(KILLS):
        writer = _writer(path, MOST)
        assert writer.stdout is not None
        lines = [writer.stdout.readline()]
        time.sleep(float(draw.uniform(0, LONGEST_LIFE)))
        writer.kill()
        lines += writer.communicate()[0].splitlines()
        acknowledged = _acknowledged(lines)
        missing = asyncio.run(_missing(path, acknowledged))
        kept, lost = kept + len(acknowledged) - missing, lost + missing
    return held(f"{KILLS} killed writers", lost, 0, f"{lost} of {kept + lost:,} turns lost", "0 lost", ADVICE)


def _acknowledged(lines: list[str]) -> list[tuple[int, int]]:
    """The turns of whole lines; the last line may be cut."""
    found = []
    for line in lines:
        with suppress(ValueError):
            session, node = json.loads(line)
            found.append((session, node))
    return found


async def _missing(path: Path, acknowledged: list[tuple[int, int]]) -> int:
    """Number of acknowledged turns that are missing, and of damaged rows."""
    async with SessionStore.open(path) as store:
        damage = len(await store.verify())
        if not acknowledged:
            return damage
        there = {node.id for node in (await store.load_session(acknowledged[0][0])).nodes}
        return damage + sum(node not in there for _, node in acknowledged)


def _full(room: Path) -> Finding:
    """Fills a small disk, if the system lets this user make one."""
    name = f"a full disk of {SIZE}"
    try:
        with _small_disk(room) as folder, _writer(folder / "sessions.db", MOST) as writer:
            try:
                lines = writer.communicate(timeout=PATIENCE)[0].splitlines()
            except subprocess.TimeoutExpired:
                writer.kill()
                return Finding(
                    name, f"not full in {PATIENCE} s", "0 lost", "failed", "the writer hangs, or the disk is very slow"
                )
            acknowledged = _acknowledged(lines)
            shutil.copytree(folder, room / "copy", ignore=shutil.ignore_patterns(".*"))
    except NoSmallDiskError as error:
        return Finding(name, "not here", "", "skipped", f"no small disk can be made here: {error}")
    if writer.returncode == 0 or not acknowledged:
        return Finding(
            name, f"{len(acknowledged)} turns, exit status {writer.returncode}", "", "failed", "the disk did not fill"
        )
    try:
        missing = asyncio.run(_missing(room / "copy" / "sessions.db", acknowledged))
    except StoreError as error:
        return Finding(name, "cannot be opened again", "0 lost", "failed", f"{error}; {ADVICE}")
    return held(name, missing, 0, f"{missing} of {len(acknowledged):,} turns lost", "0 lost", ADVICE)


class NoSmallDiskError(Exception):
    """This user cannot mount a disk."""


@contextmanager
def _small_disk(room: Path) -> Iterator[Path]:
    """Mounts a small disk, by `hdiutil` on macOS and as root on Linux.

    Raises:
        NoSmallDiskError: With the system's reason.
    """
    folder = room / "small"
    folder.mkdir()
    with ExitStack() as stack:
        try:
            if platform.system() == "Darwin":
                image = room / "small.dmg"
                _run("hdiutil", "create", "-size", SIZE, "-fs", "HFS+", "-volname", "elsewise-check", str(image))
                _run("hdiutil", "attach", str(image), "-mountpoint", str(folder), "-nobrowse")
            else:
                _run("mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", str(folder))
            stack.callback(unmount_below, room)
        except subprocess.CalledProcessError as error:
            raise NoSmallDiskError(error.stderr.decode(errors="replace").strip() or f"{error.cmd[0]} fails") from None
        except (OSError, subprocess.SubprocessError) as error:
            raise NoSmallDiskError(str(error)) from None
        yield folder


def unmount_below(room: Path) -> None:
    """Unmounts the disks in a folder, also those of a process that was killed."""
    detach = ("hdiutil", "detach", "-force") if platform.system() == "Darwin" else ("umount", "--lazy")
    for mounted in psutil.disk_partitions(all=True):
        if Path(mounted.mountpoint).is_relative_to(room.resolve()):
            _run(*detach, mounted.mountpoint)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)


def _flushed(room: Path) -> Finding:
    """Compares a commit with F_FULLFSYNC on macOS: a much faster one has not reached the disk."""
    name = "a commit waits for the disk"
    if platform.system() != "Darwin":
        return Finding(name, "fsync", "", "skipped", "only macOS needs F_FULLFSYNC")
    import fcntl

    file = os.open(room / "flushed", os.O_CREAT | os.O_WRONLY)
    try:
        flushes = []
        for _ in range(10):
            os.write(file, b"x" * 4096)
            begin = time.perf_counter()
            fcntl.fcntl(file, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]  # macOS alone has it
            flushes.append(time.perf_counter() - begin)
    finally:
        os.close(file)
    flush, commit = min(flushes), asyncio.run(_commit(room / "commits.db"))
    shown = f"{commit * 1e3:.1f} ms, F_FULLFSYNC takes {flush * 1e3:.1f} ms"
    return held(name, commit / flush, FLUSH_SHARE, shown, f">= {FLUSH_SHARE:g} of it", ADVICE, at_least=True)


async def _commit(path: Path) -> float:
    """Seconds of the fastest of ten commits."""
    seconds = []
    async with SessionStore.open(path) as store:
        session = await store.create_session("machine check")
        for _ in range(10):
            begin = time.perf_counter()
            await store.add_node(NewNode(session, None, "user", TEXT))
            seconds.append(time.perf_counter() - begin)
    return min(seconds)
