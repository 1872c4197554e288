"""Acknowledged writes survive kill -9, a full disk and a failing one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from storage import NewChunk, NewNode, SessionStore
from tests.storage.faults import REPOSITORY, check_nothing_was_lost, fired, run, vfs, writer
from tests.storage.helpers import MODEL, chunk, with_store


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lines", [1, 2, 4, 5, 13])
def test_acknowledged_writes_survive_kill_9(path: Path, lines: int) -> None:
    said = []
    with subprocess.Popen(writer(path, 1_000), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = [json.loads(process.stdout.readline()) for _ in range(lines)]
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    check_nothing_was_lost(path, said)


def test_an_open_run_becomes_partial_with_its_text_so_far(path: Path, tmp_path: Path) -> None:
    store = SessionStore.open(path)

    async def stream() -> tuple[int, int, int, int]:
        session = await store.create_session("s")
        user = await store.add_node(NewNode(session, None, "user", "hi"), chunk(0, 2))
        full = await store.add_node(NewNode(session, user, "assistant", status="open"))
        header = chunk(0, 3)
        header.columns["origin"][0] = 0  # a template token is not part of the text
        await store.append_chunk(full, header)
        finish = np.array([0, 0, 1], np.uint8)  # the text of an end-of-text token is not part of the answer
        await store.append_chunk(full, NewChunk(MODEL, 3, 3, {**chunk(3, 3).columns, "finish": finish}))
        empty = await store.add_node(NewNode(session, user, "assistant", status="open"))
        branched = await store.add_node(NewNode(session, user, "assistant", status="open", text="w0 "), chunk(0, 1))
        await store.append_chunk(branched, chunk(1, 4))
        return session, full, empty, branched

    session, full, empty, branched = asyncio.run(stream())
    crashed = tmp_path / "crashed.sqlite3"
    for suffix in ("", "-wal"):  # the files that a killed process leaves
        Path(f"{crashed}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    store.close_sync()

    async def look(store: SessionStore) -> None:
        nodes = {node.id: node for node in (await store.load_session(session)).nodes}
        assert (nodes[full].status, nodes[full].finish_reason) == ("partial", "app_ended")
        assert (nodes[full].text, nodes[full].token_count) == ("w1 w2 w3 w4 ", 6)
        assert (nodes[branched].text, nodes[branched].token_count) == ("w0 w1 w2 w3 w4 ", 5)
        assert (nodes[empty].status, nodes[empty].text, nodes[empty].token_count) == ("partial", "", 0)
        assert [row.id for row in await store.sessions("w3")] == [session]
        assert await store.verify() == []

    with_store(crashed, look)


def test_a_reader_beside_the_writer_leaves_open_runs_open(path: Path) -> None:
    store = SessionStore.open(path)

    async def begin() -> int:
        session = await store.create_session("s")
        await store.add_node(NewNode(session, None, "assistant", status="open"))
        return session

    session = asyncio.run(begin())
    tree = with_store(path, lambda reader: reader.load_session(session), read_only=True)
    assert tree.nodes[0].status == "open"
    store.close_sync()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("limit", [150_000, 200_000, 250_000])
def test_a_full_disk_is_reported_and_loses_nothing(path: Path, limit: int) -> None:
    with_store(path, lambda store: store.sessions())
    said = run(writer(path, 100, limit=limit))
    [failed] = [words for words in said if words[0] == "failed"]
    assert failed[1] == "StoreFullError"
    assert "free some space" in failed[2]
    assert said[-1] == ["done"]  # once there was room, the same store continued
    assert [words[0] for words in said[said.index(failed) + 1 :]].count("finish") == 1
    check_nothing_was_lost(path, said)


@pytest.mark.slow
def test_acknowledged_writes_survive_a_fault_of_each_kind(path: Path, tmp_path: Path) -> None:
    # the sweeps are part of tests/reliability: here one fault of each kind shows that the injection works on this machine
    with_store(path, lambda store: store.sessions())
    for k, fault in enumerate(
        (
            "pwrite64:signal=SIGKILL:when=9",
            "pwrite64:signal=TORN:when=9",
            "pwrite64:error=ENOSPC:when=9+",
            "fdatasync:error=EIO:when=3+",
        )
    ):
        copy, log = tmp_path / f"{k}.sqlite3", tmp_path / f"{k}.log"
        copy.write_bytes(path.read_bytes())
        said = run(vfs(copy, 2, fault, log))
        assert fired(log) >= 1, fault
        assert ["done"] not in said or any(words[0] == "failed" for words in said), fault
        check_nothing_was_lost(copy, said)


def test_the_writer_succeeds_without_faults(path: Path) -> None:
    said = run(writer(path, 2))
    assert [words[0] for words in said] == ["user", "chunk", "chunk", "chunk", "finish"] * 2 + ["done"]
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208  # names only
    check_nothing_was_lost(path, said)
