"""Coroutines started from signals."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from tests.ui.conftest import until
from ui import Refusal
from ui.core.tasks import BUG_TEXT, StoppableTasks, Tasks

Arun = Callable[[Coroutine[object, object, object]], object]


async def refuse() -> None:
    raise Refusal("not now; try later")


def test_a_refusal_is_passed_to_the_callers_handler_or_to_the_default_one(arun: Arun) -> None:
    async def play() -> None:
        shown, own = list[str](), list[str]()
        tasks = Tasks(shown.append)
        tasks.run(refuse())
        tasks.run(refuse(), refused=own.append)
        await until(lambda: len(tasks) == 0)
        assert (shown, own) == (["not now; try later"], ["not now; try later"])

    arun(play())


def test_a_bug_is_logged_with_its_traceback_and_reported(arun: Arun, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def play() -> None:
        shown = list[str]()
        tasks = Tasks(shown.append)
        await tasks.run(fail())
        assert shown == [BUG_TEXT]
        assert caplog.records[-1].exc_info is not None
        caplog.clear()

    arun(play())


def test_a_missing_module_of_a_moved_bundle_is_reported_as_a_move(
    arun: Arun, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewise"))

    async def fail() -> None:
        raise ModuleNotFoundError

    async def play() -> None:
        shown = list[str]()
        await Tasks(shown.append).run(fail())
        assert shown == ["Elsewise was moved or removed while it was running: quit it, and open it from where it is now."]
        caplog.clear()

    arun(play())


def test_a_running_task_survives_garbage_collection(arun: Arun) -> None:
    async def play() -> None:
        done = list[int]()

        async def work() -> None:
            await asyncio.sleep(0.01)
            done.append(1)

        tasks = Tasks(lambda _words: None)
        tasks.run(work())
        gc.collect()
        await until(lambda: done)

    arun(play())


def test_a_new_task_of_a_kind_cancels_the_previous_one(arun: Arun) -> None:
    async def play() -> None:
        answered = list[str]()

        async def search(query: str) -> None:
            await asyncio.sleep(0.01)
            answered.append(query)

        tasks = Tasks(lambda _words: None)
        for query in ("b", "bo", "boat"):
            tasks.latest("list", search(query))
        tasks.latest("other", search("other"))
        await until(lambda: len(tasks) == 0)
        assert answered == ["boat", "other"]

    arun(play())


def test_cancel_ends_everything_but_the_caller(arun: Arun) -> None:
    async def play() -> None:
        tasks = Tasks(lambda _words: None)
        waiting = tasks.run(asyncio.sleep(3600))
        await asyncio.sleep(0)
        ended = asyncio.Event()

        async def close() -> None:
            await tasks.cancel()
            ended.set()

        tasks.run(close())
        await ended.wait()
        assert waiting.cancelled()
        await until(lambda: len(tasks) == 0)

    arun(play())


def test_ended_waits_for_all_running_tasks_and_those_started_meanwhile(arun: Arun) -> None:
    async def play() -> None:
        tasks, ended = Tasks(lambda _words: None), list[str]()

        async def later() -> None:
            await asyncio.sleep(0)
            ended.append("later")

        async def first() -> None:
            await asyncio.sleep(0)
            tasks.run(later())
            ended.append("first")

        tasks.run(first())
        await tasks.ended()
        assert ended == ["first", "later"]
        # and tasks that have ended already cause no delay
        done = tasks.run(first())
        await until(done.done)
        await tasks.ended()
        assert len(ended) == 4

    arun(play())


class Told:
    """Records the reports about one kind of work, and whether the work was over by then."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, object, bool]] = []
        self.running = StoppableTasks(Tasks(lambda _words: None))

    def begin(self, work: Callable[[], Coroutine[object, object, int]]) -> None:
        self.running.begin(
            "count",
            work,
            done=lambda result: self._hear("done", result),
            stopped=lambda: self._hear("stopped", None),
            refused=lambda words: self._hear("refused", words),
        )

    def _hear(self, what: str, told: object) -> None:
        self.heard.append((what, told, "count" not in self.running))


async def seven() -> int:
    return 7


async def forever() -> int:
    await asyncio.sleep(3600)
    return 0


async def refused() -> int:
    raise Refusal("not now; try later")


async def broken() -> int:
    raise ZeroDivisionError


def test_the_end_of_work_is_reported_once_after_it_is_over(arun: Arun, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        told = Told()
        for work in (seven, refused, broken):
            told.begin(work)
            assert "count" in told.running
            await until(lambda: "count" not in told.running)
        told.begin(forever)
        told.running.stop("count")  # before its first step
        await until(lambda: "count" not in told.running)
        told.begin(forever)
        await asyncio.sleep(0)
        told.running.stop("count")
        await until(lambda: "count" not in told.running)
        told.running.stop("count")  # no work is left to stop
        assert told.heard == [
            ("done", 7, True),
            ("refused", "not now; try later", True),
            ("refused", BUG_TEXT, True),
            ("stopped", None, True),
            ("stopped", None, True),
        ]
        caplog.clear()

    arun(play())


def test_running_work_is_not_started_twice_and_cancel_waits_for_its_end(arun: Arun) -> None:
    async def play() -> None:
        told, begun = Told(), list[int]()

        async def noted() -> int:
            begun.append(1)
            return await forever()

        told.begin(noted)
        told.begin(noted)
        await asyncio.sleep(0)
        await told.running.cancel()
        assert (begun, told.heard) == ([1], [("stopped", None, True)])
        await told.running.cancel()  # no work is left

    arun(play())
