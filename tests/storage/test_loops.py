"""Any event loop can await the store: several at once, one after the other, cancelled ones, Qt's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from storage import NewNode, SessionStore, StoreClosedError
from tests.storage.helpers import chat, chunk


def test_two_event_loops_one_after_the_other_use_one_store(store: SessionStore) -> None:
    first = asyncio.run(store.create_session("first"))
    second = asyncio.run(store.create_session("second"))
    assert [row.id for row in asyncio.run(store.sessions())] == [second, first]


def test_two_event_loops_at_once_use_one_store(store: SessionStore) -> None:
    async def work(name: str) -> None:
        for i in range(20):
            await chat(store, f"{name} {i}")
            await asyncio.gather(*(store.sessions(name) for _ in range(3)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(work(name))) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def check() -> None:
        rows = await store.sessions()
        assert sorted(row.title for row in rows) == sorted(f"{name} {i}" for name in "ab" for i in range(20))
        assert await store.verify() == []

    asyncio.run(check())


def test_a_cancelled_caller_does_not_undo_its_writes(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("s")
        tasks = [
            asyncio.ensure_future(store.add_node(NewNode(session, None, "user", str(i)), chunk(0, 500))) for i in range(20)
        ]
        await asyncio.sleep(0)  # all are submitted
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(end, asyncio.CancelledError) for end in ended)
        assert len((await store.load_session(session)).nodes) == 20
        assert await store.verify() == []

    asyncio.run(run())


def test_an_event_loop_that_ends_before_its_answers_causes_no_error(
    store: SessionStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        _pending = [asyncio.ensure_future(store.create_session(str(i))) for i in range(50)]
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert len(asyncio.run(store.sessions())) == 50
    assert caplog.records == []


def test_close_carries_out_all_submitted_writes(path: Path) -> None:
    store = SessionStore.open(path)

    async def run() -> None:
        tasks = [asyncio.ensure_future(store.create_session(str(i))) for i in range(30)]
        await asyncio.sleep(0)
        await store.close()
        assert len(await asyncio.gather(*tasks)) == 30
        await store.close()
        with pytest.raises(StoreClosedError, match="was closed"):
            await store.sessions()

    asyncio.run(run())
    store.close_sync()
    again = SessionStore.open(path)
    assert len(asyncio.run(again.sessions())) == 30
    again.close_sync()


QASYNC = """
import asyncio, sys
from pathlib import Path
from PySide6.QtCore import QCoreApplication
from qasync import QEventLoop
from storage import NewNode, SessionStore

app = QCoreApplication([])

async def main():
    store = SessionStore.open(Path(sys.argv[1]))
    session = await store.create_session("from Qt")
    await asyncio.gather(*(store.add_node(NewNode(session, None, "user", str(i))) for i in range(50)))
    print(len((await store.load_session(session)).nodes))
    await store.close()

for _ in range(2):
    with asyncio.Runner(loop_factory=lambda: QEventLoop(app)) as runner:
        runner.run(main())
"""


@pytest.mark.slow
def test_the_store_works_under_qts_event_loop(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", QASYNC, path], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["50", "50"]), done.stderr
