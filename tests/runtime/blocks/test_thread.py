"""The block thread's end: whoever asks hears of it, whenever that is."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from runtime.blocks.store import BlockStore
from runtime.blocks.thread import BlockThread, Urgency
from runtime.errors import BlockFileError, SessionClosedError
from tests.block_stores import MemoryBlocks
from tests.fakes import until

SECONDS = 20.0  # that a wait in vain takes


def look(_: BlockStore) -> str:
    return "seen"


def test_who_asks_after_the_end_is_told_so() -> None:
    store = MemoryBlocks()
    thread = BlockThread(lambda: store, lambda fault: None)
    assert thread.ask(Urgency.READ, look).result(SECONDS) == "seen"
    thread.close(1.0)
    until(lambda: store.closed)  # which a busy machine may make later than the second that is waited for it
    for urgency in (Urgency.READ, Urgency.WRITE):
        with pytest.raises(SessionClosedError, match="the model is closed; load it again"):
            thread.ask(urgency, look).result(30.0)
    thread.close(1.0)
    assert store.closed == 1


def test_who_asks_while_it_ends_is_told_so() -> None:
    asked: list[Future[str]] = []

    def ask(name: str) -> None:
        if name == "close":
            asked.append(thread.ask(Urgency.WRITE, look))

    thread = BlockThread(lambda: MemoryBlocks(before=ask), lambda fault: None)
    thread.close(1.0)
    with pytest.raises(SessionClosedError):
        asked[0].result(30.0)


def test_what_there_is_no_time_for_is_told_so() -> None:
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
    thread.close(-1.0)  # which waits a second longer than that: not at all
    gate.set()
    assert first.result(SECONDS) == "done"
    with pytest.raises(SessionClosedError):
        second.result(SECONDS)
    assert given_up.cancelled()


def test_a_thread_without_a_store_says_that_there_is_none() -> None:
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
