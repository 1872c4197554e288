from __future__ import annotations

import pytest

from runtime.hub.download_progress import TransferRate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_that_of_the_last_seconds() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    assert (rate.per_second, rate.left(10)) == (0.0, None)
    done = 0
    for speed in (1000, 50):  # bytes a second, ten seconds each
        for _ in range(100):
            rate.note(done)
            clock.now += 0.1
            done += speed // 10
    rate.note(done)
    assert rate.per_second == pytest.approx(50, rel=0.02)
    assert rate.left(500) == pytest.approx(10, rel=0.02)


def test_silence_slows_it_down() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    rate.note(0)
    clock.now += 1
    rate.note(100)
    clock.now += 9
    assert rate.per_second == pytest.approx(10)


def test_a_beginning_from_nothing_begins_anew() -> None:
    clock = Clock()
    rate = TransferRate(clock)
    rate.note(1000)
    clock.now += 1
    rate.note(0)
    clock.now += 1
    rate.note(30)
    assert rate.per_second == pytest.approx(30)
