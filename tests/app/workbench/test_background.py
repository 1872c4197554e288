"""Blocking work on a thread: its reports, and its end when it is cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from app.workbench.background import stoppable
from tests.app.workbench.scene import until


def test_the_newest_report_arrives_while_the_work_pauses_and_the_last_one_at_the_end() -> None:
    told: list[int] = []
    go_on = threading.Event()

    def work(report: Callable[[int], None]) -> str:
        for done in range(1000):
            report(done)
        assert go_on.wait(20)
        for done in range(1000, 2001):
            report(done)
        return "done"

    async def scene() -> None:
        task = asyncio.create_task(stoppable(work, told.append))
        await until(lambda: 999 in told)
        assert len(told) < 500  # few of the reports in between
        go_on.set()
        assert await task == "done"
        assert told[-1] == 2000

    asyncio.run(scene())


def test_cancelled_work_ends_at_its_next_report_and_a_second_cancellation_does_not_wait() -> None:
    began, blocked, stopped = threading.Event(), threading.Event(), threading.Event()

    def work(report: Callable[[int], None]) -> None:
        began.set()
        assert blocked.wait(20)
        try:
            report(1)
        finally:
            stopped.set()

    async def scene() -> None:
        task = asyncio.create_task(stoppable(work, print))
        await asyncio.to_thread(began.wait, 20)
        # when it is cancelled once: the work has not ended, and is waited for
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=0.1)
        assert not done
        # when it is cancelled again: the loop goes on, although the work has not ended
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not stopped.is_set()
        # and the work ends at its next report
        blocked.set()
        await asyncio.to_thread(stopped.wait, 20)
        assert stopped.is_set()

    asyncio.run(scene())
