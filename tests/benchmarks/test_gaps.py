from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks.clock import calibrate, gaps_of, ticks
from benchmarks.parts.window import latency_verdicts
from benchmarks.run import NOWHERE
from benchmarks.workloads import BRANCHES, PARTICLES, Everything
from runtime import load


def test_a_blocked_loop_shows_as_a_gap() -> None:
    async def block() -> list[float]:
        task = asyncio.create_task(ticks(0.2))
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # noqa: ASYNC251  # the block to be detected
        return await task

    found = asyncio.run(block())
    assert max(found) >= 100
    assert sum(found) >= 200  # nothing is left out between two ticks


def test_figures_of_gaps_are_percentiles_and_the_maximum() -> None:
    middle, high, longest = gaps_of([1.0] * 98 + [5.0, 90.0])
    assert (middle, longest) == (1.0, 90.0)
    assert 5.0 <= high <= 90.0


def test_bars_are_compared_with_the_median_of_the_windows() -> None:
    # given windows of which one was disturbed, and an idle loop that ticks every 2 ms
    calm, disturbed, idle = [1.0] * 100, [1.0] * 50 + [90.0] * 50, [[2.0] * 100] * 3
    found = latency_verdicts(NOWHERE, idle, [calm, disturbed, calm], [disturbed, disturbed, calm])
    # then one disturbed window of three does not count, two do; the maximum is reported, and the limit is the idle loop's
    assert [(each.figure, each.bar, each.met) for each in found] == [(1.0, 16.0, True), (1.0, 50.0, True), (90.0, 40.0, False)]
    assert [each.limit.figure for each in found if each.limit] == [2.0] * 3
    assert all("the most: 90.0" in each.what for each in found)


def test_the_mixed_load_uses_the_model_in_every_way() -> None:
    # given a model that answers at once
    async def use() -> tuple[dict[str, int], int]:
        async with load("mock", "mock") as model:
            everything = Everything(model)
            await everything.run(0.3)
            return everything.finished, model.metrics().queries

    finished, queries = asyncio.run(use())
    # then each kind of work was done, with one query per particle
    assert all(count > 0 for count in finished.values()), finished
    assert set(finished) == {"chat", "particles", "score", "branches"}
    assert queries % PARTICLES == 0
    assert BRANCHES > 1


@pytest.mark.slow
def test_a_calibration_names_its_backend_and_model() -> None:
    found = calibrate("hf, tiny-llama")
    assert found.when == "hf, tiny-llama"
    assert found.cpu_seconds > 0
    assert found.idle_p99 <= found.idle_max


@pytest.mark.parametrize(("wall", "idle", "normal"), [(1.1, 2.0, True), (1.5, 2.0, False), (1.0, 9.0, False)])
def test_a_calibration_detects_a_busy_machine(wall: float, idle: float, normal: bool) -> None:
    from benchmarks.clock import Calibration

    assert Calibration("", 1.0, wall, idle, 99.0).normal is normal
