from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import weakref
from unittest.mock import Mock

import pytest

from runtime import run_sync
from runtime.aio import LoopThread, Mailbox


def test_a_loop_thread_runs_what_is_posted_in_order_until_stopped() -> None:
    thread, seen = LoopThread("test-loop"), list[int]()
    for number in range(100):
        assert thread.post(seen.append, number)
    thread.stop()
    thread.join()
    assert seen == list(range(100))
    assert not thread.post(seen.append, 100)
    assert "test-loop" not in {t.name for t in threading.enumerate()}


def test_a_coroutine_submitted_from_another_thread_answers_there() -> None:
    async def name() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    thread = LoopThread("test-loop")
    assert thread.submit(name()).result() == "test-loop"
    thread.stop()
    thread.join()
    with pytest.raises(RuntimeError, match="test-loop has ended"):
        thread.submit(name())


def test_stopping_cancels_running_coroutines() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    thread = LoopThread("test-loop")
    future = thread.submit(forever())
    thread.stop()
    thread.join()
    assert future.cancelled()


def test_a_mailbox_keeps_order_and_loses_nothing() -> None:
    async def scenario() -> list[int]:
        mailbox, seen, done = Mailbox(asyncio.get_running_loop()), list[int](), asyncio.Event()

        def post_all() -> None:
            for number in range(20_000):
                mailbox.put(lambda number=number: seen.append(number))  # type: ignore[misc]  # a default argument
            mailbox.put(done.set)

        thread = threading.Thread(target=post_all)
        thread.start()
        await done.wait()
        thread.join()
        return seen

    assert asyncio.run(scenario()) == list(range(20_000))


def test_a_callback_that_raises_does_not_hold_back_the_others() -> None:
    async def scenario() -> tuple[list[int], list[object]]:
        loop, seen, faults, done = asyncio.get_running_loop(), list[int](), list[object](), asyncio.Event()
        loop.set_exception_handler(lambda _, context: faults.append(context.get("exception")))
        mailbox = Mailbox(loop)
        for callback in (lambda: seen.append(1), lambda: 1 // 0, lambda: seen.append(2), lambda: 1 // 0, done.set):
            mailbox.put(callback)
        await done.wait()
        return seen, faults

    seen, faults = asyncio.run(scenario())
    assert seen == [1, 2]
    assert [type(fault) for fault in faults] == [ZeroDivisionError] * 2


def test_a_mailbox_of_a_closed_loop_drops_its_messages() -> None:
    loop = asyncio.new_event_loop()
    mailbox = Mailbox(loop)
    loop.close()
    for _ in range(3):
        message = Mock()
        left = weakref.ref(message)
        mailbox.put(message)
        message.assert_not_called()
        del message
        gc.collect()
        assert left() is None


def test_run_sync_completes_a_coroutine_with_and_without_a_running_loop() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2 if number > 0 else 1 // 0

    async def cell() -> int:
        return run_sync(double(4))

    assert (run_sync(double(3)), asyncio.run(cell())) == (6, 8)
    with pytest.raises(ZeroDivisionError):
        run_sync(double(-1))
    assert "run-sync" not in {thread.name for thread in threading.enumerate()}


def test_ctrl_c_cancels_the_awaited_coroutine() -> None:
    ended = threading.Event()

    async def forever() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)  # as a terminal sends it: it interrupts the waiting main thread
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        run_sync(forever())
    assert ended.is_set()
