"""At most a second of a streamed answer can be lost: measured by a clock that runs only while all tasks wait."""

from __future__ import annotations

import asyncio
import logging
import selectors
from typing import Any, cast

import pytest

from app.workbench.prompt.recorder import Recorder
from runtime import Origin, TokenRun
from storage import NewChunk, SessionStore, StoreFullError

PROMISED = 1.0  # seconds


class Clock(asyncio.SelectorEventLoop):
    """A loop whose seconds pass at once: a sleeping task wakes as soon as no other task is ready."""

    def __init__(self) -> None:
        self.now = 0.0
        clock = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                if timeout:
                    clock.now += timeout
                return super().select(0 if timeout is not None else None)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Disk:
    """Takes `seconds` for a write, and refuses the first `refusals`; records the number of saved tokens with the time."""

    def __init__(self, seconds: float, refusals: int = 0) -> None:
        self.seconds, self.refusals = seconds, refusals
        self.held: list[tuple[float, int]] = []
        self.first: list[int] = []

    async def append_chunk(self, _node_id: int, chunk: NewChunk) -> None:
        await asyncio.sleep(self.seconds)
        if self.refusals:
            self.refusals -= 1
            raise StoreFullError("no room")
        self.first.append(chunk.first)
        self.held.append((asyncio.get_running_loop().time(), chunk.first + chunk.count))


def token(number: int) -> TokenRun:
    return TokenRun.unscored([number], [b"w"], ["w"], Origin.SAMPLED)


def streamed(disk: Disk, *, every: float, tokens: int) -> list[float]:
    """The time between showing and saving each token."""
    arrived: list[float] = []

    async def stream() -> None:
        recorder = Recorder(cast("SessionStore", disk), 1, "model")
        for number in range(tokens):
            arrived.append(asyncio.get_running_loop().time())
            recorder.add(token(number))
            await asyncio.sleep(every)
        await recorder.close()

    with asyncio.Runner(loop_factory=Clock) as runner:
        runner.run(stream())
    on_disk = [next(time for time, held in disk.held if held > number) for number in range(tokens)]
    return [there - here for here, there in zip(arrived, on_disk, strict=True)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("every", [0.001, 0.03, 0.7, 3.0])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.25])
def test_every_token_is_saved_within_a_second_of_being_shown(every: float, seconds: float) -> None:
    disk = Disk(seconds)
    late = streamed(disk, every=every, tokens=300)
    assert max(late) <= PROMISED
    assert disk.first == [0, *(held for _, held in disk.held[:-1])], "in order, each token once"


def test_many_tokens_share_one_write() -> None:
    disk = Disk(0.01)
    streamed(disk, every=0.001, tokens=2_000)
    assert len(disk.held) < 10


def test_tokens_that_a_full_disk_refused_are_part_of_the_next_write(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    disk = Disk(0.01, refusals=2)
    late = streamed(disk, every=0.05, tokens=100)
    assert disk.first[0] == 0
    assert max(late[40:]) <= PROMISED
    assert caplog.text.count("cannot be saved yet") == 2
    caplog.clear()
