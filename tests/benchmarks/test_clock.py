from __future__ import annotations

import pytest

from benchmarks.clock import Lap, Stopwatch, cpu, digest, speed, take_turns, wall


def test_contenders_take_turns_and_the_first_round_is_not_counted() -> None:
    # given two contenders whose laps record their order
    order: list[str] = []

    def lap_of(name: str) -> Lap:
        order.append(name)
        return Lap(len(order), 1.0, 1.0)

    told: list[str] = []
    laps = take_turns({name: lambda name=name: lap_of(name) for name in "AB"}, 2, told.append, warm_up=True)  # type: ignore[misc]  # a default binds the name
    # then they alternate, each is reported, and two laps of each are left
    assert order == told == ["A", "B"] * 3
    assert {name: [lap.tokens for lap in each] for name, each in laps.items()} == {"A": [3, 5], "B": [4, 6]}


def test_speed_is_the_median_of_the_rounds_ratios() -> None:
    ours = [Lap(10, 4.0, 1.0), Lap(10, 4.0, 2.0), Lap(10, 4.0, 1.0)]
    peer = [Lap(5, 1.0, 1.0), Lap(5, 1.0, 1.0), Lap(5, 1.0, 50.0)]  # the last one was delayed
    # then per token: 0.2 / 0.1, 0.2 / 0.2, 10 / 0.1
    assert speed(ours, peer, wall) == pytest.approx(2.0)
    assert speed(ours, peer, cpu) == pytest.approx(0.5)


def test_the_clock_runs_from_its_start() -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="never started"):
        watch.lap(1)
    watch.start()
    lap = watch.lap(3, [[1, 2], [3]])
    assert lap.tokens == 3
    assert lap.wall_seconds >= 0
    assert lap.outcome == digest([[1, 2], [3]])
    assert watch.lap(1).outcome == ""


def test_different_streams_have_different_digests() -> None:
    assert digest([[1, 2], [3]]) != digest([[1], [2, 3]])
    assert digest([(1, 2)]) == digest([[1, 2]])
