"""The end of the block thread: every job gets a result or an error, whenever it was submitted."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from runtime.errors import BlockFileError, SessionClosedError
from runtime.kv.store import BlockStore
from runtime.kv.thread import BlockThread, Urgency
from tests.block_stores import MemoryBlocks
from tests.fakes import until

SECONDS = 20.0  # how long a wait without success takes


def look(_: BlockStore) -> str:
    return "seen"


def test_a_job_submitted_after_close_is_refused() -> None:
    store = MemoryBlocks()
    thread = BlockThread(lambda: store, lambda fault: None)
    assert thread.ask(Urgency.READ, look).result(SECONDS) == "seen"
    thread.close(1.0)
    until(lambda: store.closed)  # on a busy machine this takes longer than the second that close waits
    for urgency in (Urgency.READ, Urgency.WRITE):
        with pytest.raises(SessionClosedError, match="the model is closed; load it again"):
            thread.ask(urgency, look).result(30.0)
    thread.close(1.0)
    assert store.closed == 1


def test_a_job_submitted_during_close_is_refused() -> None:
    asked: list[Future[str]] = []

    def ask(name: str) -> None:
        if name == "close":
            asked.append(thread.ask(Urgency.WRITE, look))

    thread = BlockThread(lambda: MemoryBlocks(before=ask), lambda fault: None)
    thread.close(1.0)
    with pytest.raises(SessionClosedError):
        asked[0].result(30.0)


def test_a_job_that_close_leaves_no_time_for_is_refused() -> None:
    gate, reached = threading.Event(), threading.Event()

    def hold(_: BlockStore) -> str:
        reached.set()
        assert gate.wait(SECONDS)
        return "done"

    thread = BlockThread(MemoryBlocks, lambda fault: None)
    first = thread.ask(Urgency.WRITE, hold)
    assert reached.wait(SECONDS)
    second = thread.ask(Urgency.WRITE, look)
    given_up = thread.ask(Urgency.WRITE, look)
    assert given_up.cancel()
    thread.close(-1.0)  # close adds a second to this: it does not wait at all
    gate.set()
    assert first.result(SECONDS) == "done"
    with pytest.raises(SessionClosedError):
        second.result(SECONDS)
    assert given_up.cancelled()


def test_a_thread_whose_store_cannot_be_opened_refuses_every_job() -> None:
    def broken() -> BlockStore:
        raise OSError(5, "Input/output error")

    faults: list[Exception | None] = []
    thread = BlockThread(broken, faults.append)
    with pytest.raises(BlockFileError, match=r"the block file cannot be used: .*Input/output error"):
        thread.ask(Urgency.READ, look).result(SECONDS)
    thread.close(1.0)
    with pytest.raises(BlockFileError, match=r"the block file cannot be used: .*Input/output error"):
        thread.ask(Urgency.READ, look).result(30.0)
    assert [str(fault) for fault in faults] == ["[Errno 5] Input/output error"]
