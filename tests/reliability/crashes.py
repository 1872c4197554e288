"""kill -9 and failing disks: acknowledged data is stored, no data is wrong, and the next start works.

Faults are injected by SQLite's own VFS (`tests.storage.failing_vfs`), one in five by strace if ptrace is allowed.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from app.faults import STOPPED
from app.paths import DataFolder
from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from runtime import BlockOptions, LanguageModel
from storage import BlockFile, SessionStore
from tests.app.saving_engine import PATHS, path_of
from tests.app.workbench.scene import Engine, until
from tests.fakes import assert_right, fake_model
from tests.reliability.suite import REPOSITORY, Order, Tally
from tests.reliability.talker import OPTIONS
from tests.reliability.talking_window import own_bytes
from tests.storage.blocks.helpers import BUDGET, block, expected, keys
from tests.storage.blocks.writer import NBYTES
from tests.storage.failing_vfs import Fault
from tests.storage.faults import check_nothing_was_lost, fired, is_open, run, under, writer
from tests.storage.helpers import with_store
from ui import TurnStatus

WRITES = 60  # first writes of a session, or of a save of KV, at which a process is killed
ORPHAN_SECONDS = 15  # for an engine to end after its app was killed, on a busy machine
PATIENCE_SECONDS = 60
STRACE_CALLS = 30  # strace counts the calls of each thread separately, so that higher counts may never be reached
MESSAGES = 4  # of an app that is killed
START_SECONDS = 4.0  # within which an app without any output is killed
AFTER_A_LINE = 0.2  # seconds within which an app with output is killed
WINDOW_LINES = 12  # of a window, after one of which it is killed
WINDOW_SECONDS = 8.0  # within which a window that has shown nothing is killed
WINDOWS_ON_A_SESSION = 4
BLOCK_ROUNDS = 2
BLOCK_FAULTS = (("pwrite64", "ENOSPC"), ("pwrite64", "EIO"), ("fdatasync", "EIO"))


@cache
def roads() -> tuple[str, ...]:
    """The ways to inject a fault, the frequent one four times."""
    return ("vfs", "vfs", "vfs", "vfs", "strace" if is_open("strace") else "vfs")


def under_fault(order: Order, number: int, fault: str, command: list[str], file: Path) -> tuple[list[list[Any]], int, str]:
    """Runs a command with faults in its writes to `file`: its output, the faults that fired, and the way of injection."""
    parsed, log = Fault.parse(fault), order.folder / f"{number}.log"
    suits = parsed.action != "TORN" and parsed.first <= STRACE_CALLS
    road = roads()[number % len(roads())] if suits else "vfs"
    said = run(under(road, command, file, fault, log))
    return said, fired(log), road


# ---- the app ------------------------------------------------------------------------------------------------------------


def talker(path: Path, messages: int, where: str) -> list[str]:
    """The command line of an app that chats."""
    return [sys.executable, "-m", "tests.reliability.talker", str(path), str(messages), where]


def check_sessions(path: Path, said: Sequence[Sequence[Any]]) -> None:
    """Asserts that everything a killed app had acknowledged is in its file, and that no row is damaged or left open."""
    asked = [words[1] for words in said if words[0] == "asked"]
    answered = [words[1:] for words in said if words[0] == "answered"]

    async def look(store: SessionStore) -> None:
        assert await store.verify() == []
        nodes = [node for row in await store.sessions() for node in (await store.load_session(row.id)).nodes]
        assert all(node.status != "open" and not node.damaged for node in nodes)
        users = {node.id: node.text for node in nodes if node.role == "user"}
        assert set(asked) <= set(users.values()), "a message that was being answered is not there"
        for text, answer in answered:
            kept = [node.text for node in nodes if users.get(node.parent_id or 0) == text]
            assert kept == [answer], f"the answer to {text!r} was {answer!r}, and is {kept}"

    with_store(path, look)


def app_at_writes(order: Order) -> Tally:
    """Kills the app at each of its first writes, before the write and in the middle of it."""
    tally = Tally()
    for number in range(order.count):
        at = 1 + number % WRITES if order.count >= WRITES else 1 + (order.seed + number * WRITES // order.count) % WRITES
        kind = "TORN" if number // WRITES % 2 or (order.count < WRITES and number % 4 == 3) else "SIGKILL"
        path = order.folder / f"{number}.sqlite3"

        def act(path: Path = path, number: int = number, fault: str = f"pwrite64:signal={kind}:when={at}") -> str:
            said, faults, road = under_fault(order, number, fault, talker(path, MESSAGES, "here"), path)
            assert faults == 1, "it was not killed"
            if path.exists():
                check_sessions(path, said)
            return f"by {road}"

        tally.attempt(f"{kind} at write {at}", act)
        for file in order.folder.glob(f"{number}.*"):
            file.unlink()
    return tally


def app_at_moments(order: Order) -> Tally:
    """Kills the app, with an engine process beside it, at a random moment; the engine ends too.

    The moment is during the start, or soon after one of the lines that the app prints, however fast the machine is.
    """
    tally, chance = Tally(), random.Random(order.seed)
    printed = len(run(talker(order.folder / "whole.sqlite3", MESSAGES, "process")))
    for number in range(order.count):
        path, lines = order.folder / f"{number}.sqlite3", chance.randrange(printed)
        after = chance.uniform(0, AFTER_A_LINE if lines else START_SECONDS)

        def act(path: Path = path, lines: int = lines, after: float = after) -> str:
            with subprocess.Popen(talker(path, MESSAGES, "process"), cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                output = [process.stdout.readline() for _ in range(lines)]
                time.sleep(after)
                engines = [child for child in psutil.Process(process.pid).children() if process.poll() is None]
                process.kill()
                output += process.stdout.readlines()
            said = [json.loads(line) for line in output]
            _, alive = psutil.wait_procs(engines, timeout=ORPHAN_SECONDS)
            for engine in alive:
                engine.kill()
            assert not alive, f"{len(alive)} child processes have outlived it"
            if path.exists():
                check_sessions(path, said)
            return "after an answer" if any(words[0] == "answered" for words in said) else "before the first answer"

        tally.attempt(f"killed {after:.2f} s after line {lines}", act)
    return tally


# ---- the window ---------------------------------------------------------------------------------------------------------

Shown = dict[int, dict[int, tuple[str, str, bool]]]  # session -> turn -> role, bytes as Latin-1, whether it has ended


def windows_at_moments(order: Order) -> Tally:
    """Kills the window at a random moment, again and again on one data folder: each opens what the last one left.

    The turns that a window has shown as saved are in a copy of the sessions file, read by the use cases, and the next window
    starts with it. The moment is during the start, or soon after the window has shown something new.
    """
    tally, chance = Tally(), random.Random(order.seed)
    data, shown = DataFolder(order.folder / "data"), Shown()
    for number in range(order.count):
        lines, new = chance.randrange(WINDOW_LINES), number % WINDOWS_ON_A_SESSION == 0
        after = chance.uniform(0, AFTER_A_LINE if lines else WINDOW_SECONDS)

        def act(number: int = number, lines: int = lines, new: bool = new, after: float = after) -> str:
            said = killed_window(data, new, lines, after)
            for what, session_id, turns in said:
                expected = shown.setdefault(session_id, {})
                if what == "opened":
                    assert session_id >= max(filter(shown.get, shown), default=0), "it starts with an older session"
                    check_opened(expected, turns)
                expected.update({node_id: (role, text, ended) for node_id, role, text, ended in turns if text})
            if data.sessions.exists():
                copy = order.folder / f"{number}"
                copy.mkdir()
                for file in data.root.glob(f"{data.sessions.name}*"):
                    shutil.copyfile(file, copy / file.name)
                check_shown(copy / data.sessions.name, shown)
                shutil.rmtree(copy)
            assert len(said) >= lines, f"it has shown {len(said)} times"
            if not said:
                return "while it started"
            return "during an answer" if not all(turn[3] for turn in said[-1][2]) else "between two"

        tally.attempt(f"killed {after:.2f} s after line {lines}", act)
    return tally


def killed_window(data: DataFolder, new: bool, lines: int, after: float) -> list[list[Any]]:
    """The output of a window that was killed so many seconds after so many lines; its engine has ended."""
    command = [sys.executable, "-m", "tests.reliability.talking_window", str(data.root), "0", "new" if new else "old"]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        output = [process.stdout.readline() for _ in range(lines)]
        time.sleep(after)
        if process.poll() is not None:
            errors.seek(0)
            raise AssertionError(f"it ended by itself, with {process.returncode}: {errors.read().decode(errors='replace')}")
        family = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        output += process.stdout.readlines()
    _, alive = psutil.wait_procs(family, timeout=ORPHAN_SECONDS)
    for child in alive:
        child.kill()
    assert not alive, f"{len(alive)} child processes have outlived it"
    return [json.loads(line) for line in output if line.endswith(b"\n")]


def check_opened(expected: Mapping[int, tuple[str, str, bool]], turns: Sequence[tuple[int, str, str, bool]]) -> None:
    """Asserts that a window starts with turns as the window before it had shown them."""
    for node_id, role, text, ended in turns:
        assert ended, f"turn {node_id} is still open"
        before = expected.get(node_id)
        if before is not None:
            assert_same(node_id, before, role, text)


def assert_same(node_id: int, before: tuple[str, str, bool], role: str, text: str) -> None:
    """Asserts that a turn is as shown; of one that was being written, one text is a beginning of the other."""
    assert role == before[0]
    if before[2]:
        assert text == before[1], f"turn {node_id} was {before[1]!r}, and is {text!r}"
    else:
        assert text.startswith(before[1]) or before[1].startswith(text), f"turn {node_id} was {before[1]!r}, and is {text!r}"


def check_shown(path: Path, shown: Shown) -> None:
    """Asserts that every turn that any window has shown is in the file, on whatever branch, and that nothing is damaged."""

    async def look() -> None:
        store = SessionStore.open(path)
        workbench = AppWorkbench(Services(store, Supervisor("x", start=Engine())))
        assert await store.verify() == []
        for session_id, turns in shown.items():
            await workbench.sessions.open(session_id)
            saved = {node.id for node in (await store.load_session(session_id)).nodes if node.token_count}
            for node_id, before in turns.items():
                if not before[2] and node_id not in saved:
                    continue  # an answer whose first tokens were being written: they are saved every 0.4 s
                view = await workbench.branches.select(session_id, node_id)
                [turn] = [turn for turn in view.turns if turn.node_id == node_id]
                assert turn.status in (TurnStatus.COMPLETE, TurnStatus.PARTIAL)
                assert_same(node_id, before, turn.role, own_bytes(turn).decode("latin-1"))
        await workbench.close()

    asyncio.run(look())


# ---- the engine ---------------------------------------------------------------------------------------------------------


def check_saved(file: Path, said: Sequence[Sequence[Any]]) -> None:
    """Asserts that acknowledged blocks are stored, that all blocks give the numbers of a fresh run, and that saving works."""
    saved = {words[1]: words[2] for words in said if words[0] == "saved"}
    with fake_model(blocks=BlockOptions("storage:open_blocks", str(file), BUDGET)) as model:
        for number in range(PATHS):
            path = path_of(number)
            assert model.prefix_match(path).tokens >= saved.get(number, 0)
            assert_right(model.next_token_logprobs_sync([*path, 1]), [*path, 1])
            assert model.save_blocks(path).tokens == len(path)
        assert model.info.warnings == ()
    with BlockFile(file, BUDGET) as blocks:
        assert blocks.stats().damaged == 0
        assert blocks.stats().blocks >= PATHS * 2
    with fake_model(blocks=BlockOptions("storage:open_blocks", str(file), BUDGET)) as model:
        assert model.prefix_match(path_of(0)).tokens == len(path_of(0))
        assert_right(model.next_token_logprobs_sync([*path_of(0), 2]), [*path_of(0), 2])
        assert model.metrics().tokens_restored == len(path_of(0))


def engine_at_writes(order: Order) -> Tally:
    """Kills the engine at each of the first writes of its block file; the next engine reads no wrong block."""
    tally = Tally()
    for number in range(order.count):
        at = 1 + number % WRITES if order.count >= WRITES else 1 + (order.seed + number * WRITES // order.count) % WRITES
        kind = "TORN" if number // WRITES % 2 or (order.count < WRITES and number % 4 == 3) else "SIGKILL"
        file = order.folder / f"{number}.db"

        def act(file: Path = file, number: int = number, fault: str = f"pwrite64:signal={kind}:when={at}") -> str:
            command = [sys.executable, "-m", "tests.app.saving_engine", str(file)]
            said, faults, road = under_fault(order, number, fault, command, file)
            assert faults == 1, "it was not killed"
            check_saved(file, said)
            return f"by {road}"

        tally.attempt(f"{kind} at write {at}", act)
    return tally


def engine_at_moments(order: Order) -> Tally:
    """Kills the engine at a random moment of a message: the text is complete, and the next message is answered."""
    tally, chance = Tally(), random.Random(order.seed)
    path, file = order.folder / "sessions.sqlite3", order.folder / "blocks.db"
    blocks = {"factory": "storage:open_blocks", "path": str(file), "budget": BUDGET}

    async def play() -> None:
        store = SessionStore.open(path)
        workbench = AppWorkbench(Services(store, Supervisor("x", "fake", blocks=blocks), OPTIONS))
        session_id = (await workbench.sessions.new()).session_id
        await workbench.answers.send(session_id, "the first message")
        for number in range(order.count):
            tally.tried += 1
            try:
                outcome = await killed(workbench, store, session_id, f"message {number}", chance.uniform(0, 0.15))
                tally.seen[outcome] += 1
            except Exception as error:  # noqa: BLE001  # as in `Tally.attempt`
                tally.fail(f"kill {number}", error)
            if number % 10 == 9:  # paths stay short
                session_id = (await workbench.sessions.new()).session_id
        if await store.verify() != []:
            tally.failures.append("the sessions file is damaged")
        await workbench.close()

    asyncio.run(play())
    with BlockFile(file, BUDGET) as held:
        if held.stats().damaged:
            tally.failures.append("the block file is damaged")
    return tally


async def killed(workbench: AppWorkbench, store: SessionStore, session_id: int, text: str, after: float) -> str:
    """Sends a message, kills the engine during or soon after it, and sends another; returns the outcome of the first."""
    model = await workbench.services.supervisor.model()
    assert isinstance(model, LanguageModel)
    sending = asyncio.ensure_future(workbench.answers.send(session_id, text))
    await asyncio.sleep(after)
    during = not sending.done()
    os.kill(model.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(sending, return_exceptions=True)  # the wording of the refusal is not checked here
        await until(lambda: model.ended is not None)
        await workbench.answers.send(session_id, f"{text}, once more")
    nodes = (await store.load_session(session_id)).nodes
    texts = [node.text for node in nodes]
    assert text in texts
    assert f"{text}, once more" in texts
    last = (await workbench.sessions.open(session_id)).turns[-1]
    assert last.role == "assistant"
    assert last.status in (TurnStatus.COMPLETE, TurnStatus.PARTIAL)
    assert STOPPED not in last.note
    return "during an answer" if during else "between two"


# ---- disks --------------------------------------------------------------------------------------------------------------


def sweep(
    order: Order, faults: Sequence[tuple[str, frozenset[Any]]], start: Callable[[Path], list[str]], check: Callable[..., None]
) -> Tally:
    """Runs a writer with each fault at every call, or at as many evenly distributed calls as requested.

    Args:
        order: The order of the row.
        faults: In the form of `tests.storage.failing_vfs.Fault`, with "{k}" for the call; the writer's possible error messages.
        start: The command line of the writer.
        check: Gets the file and the output; fails if acknowledged data is missing.
    """
    tally, number = Tally(), 0
    for fault, allowed in faults:
        calls, most = calls_of(order, fault.split(":")[0], start), -(-order.count // len(faults))
        places = range(1, calls + 1) if calls <= most else [1 + (order.seed + i * calls // most) % calls for i in range(most)]
        for at in places:
            number += 1
            file = order.folder / f"{number}.sqlite3"

            def act(file: Path = file, number: int = number, fault: str = fault.format(k=at), allowed: Any = allowed) -> str:
                shutil.copyfile(order.folder / "empty.sqlite3", file)
                said, faults, road = under_fault(order, number, fault, start(file), file)
                assert faults, "no fault fired"
                failed = {words[1] for words in said if words[0] == "failed"}
                assert failed <= allowed, f"said {failed}"
                check(file, said)
                return f"{fault.split(':')[0]} {fault.split(':')[1][6:]} by {road}"

            tally.attempt(fault.format(k=at), act)
    return tally


def calls_of(order: Order, call: str, start: Callable[[Path], list[str]]) -> int:
    """The number of writes or syncs of the writer without faults."""
    file, log = order.folder / f"{call}.sqlite3", order.folder / f"{call}.log"
    log.unlink(missing_ok=True)
    shutil.copyfile(order.folder / "empty.sqlite3", file)
    assert run(under("vfs", start(file), file, f"{call}:count=COUNT:when=1+", log))[-1] == ["done"]
    return len(log.read_text().splitlines())


FULL, DISK = frozenset({"StoreFullError"}), frozenset({"StoreDiskError"})


def sessions_on_a_full_disk(order: Order) -> Tally:
    """ENOSPC at every write of a session, once (a retry saves it) and from then on."""
    faults = [("pwrite64:error=ENOSPC:when={k}", frozenset[str]()), ("pwrite64:error=ENOSPC:when={k}+", FULL)]
    return sweep_sessions(order, faults)


def sessions_on_a_failing_disk(order: Order) -> Tally:
    """EIO starting at every write and every sync of a session."""
    return sweep_sessions(order, [("pwrite64:error=EIO:when={k}+", FULL | DISK), ("fdatasync:error=EIO:when={k}+", DISK)])


def sweep_sessions(order: Order, faults: Sequence[tuple[str, frozenset[Any]]]) -> Tally:
    """Injects the faults into the writer of sessions."""
    with_store(order.folder / "empty.sqlite3", lambda store: store.sessions())
    return sweep(order, faults, lambda file: writer(file, 1), check_nothing_was_lost)


def blocks_on_a_bad_disk(order: Order) -> Tally:
    """Injects the faults into the writer of the block file, a cache: acknowledged blocks are stored, others need not be."""
    with BlockFile(order.folder / "empty.sqlite3", BUDGET) as store:
        store.put([block("old")])
    errors = frozenset({errno.ENOSPC, errno.EIO})
    faults = [(f"{call}:error={error}:when={{k}}+", errors) for call, error in BLOCK_FAULTS]
    return sweep(order, faults, blocks_writer, check_blocks)


def blocks_writer(file: Path) -> list[str]:
    """The command line of the writer of a block file."""
    return [sys.executable, "-m", "tests.storage.blocks.writer", str(file), str(BLOCK_ROUNDS)]


def check_blocks(file: Path, said: Sequence[Sequence[Any]]) -> None:
    """Asserts that acknowledged blocks are stored unless evicted, that all blocks are correct, and that none is damaged."""
    acknowledged = [tuple(words[1:]) for words in said if words[0] == "put"]
    halves = {path for path in acknowledged if len(path) == 2}
    with BlockFile(file, BUDGET) as store:
        for n in range(BLOCK_ROUNDS):
            for path in (("stem", f"half {n}"), ("stem", f"{n}", "tip"), (f"loose {n}",)):
                got = store.get(keys(*path))
                assert got == expected(*path, nbytes=NBYTES)[: len(got)]
                if path in acknowledged and path not in halves:
                    assert len(got) == len(path)
        assert store.put([block("new")]) == 1
        assert store.stats().damaged == 0
