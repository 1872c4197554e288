"""Laps of Elsewise in which only the forwards are timed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import forwards as module
from benchmarks.forwards import Forwards
from benchmarks.ours import OurBranches, Ours, OurStreams
from benchmarks.tiny import make_tiny
from runtime.backends.base import PackTokens
from tests.fakes import engine_of

PROMPTS = [[1, 2, 3, 4], [5, 6, 7, 8, 9], [1, 2, 9]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tiny("llama", tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_lap_of_forwards_gives_the_same_answers_and_restores_the_clocks(folder: Path, backend: str) -> None:
    with closing(OurStreams(folder, backend)) as ours:
        plain = ours.decode(PROMPTS, 6)
        alone = ours.forwards(lambda: ours.decode(PROMPTS, 6))
        rest = ours.rest(lambda: ours.decode(PROMPTS, 6))
        assert alone.outcome == rest.outcome == plain.outcome
        assert min(alone.wall_seconds, rest.wall_seconds) > 0
        # and afterwards the clocks are the usual ones, and the model is unchanged
        backend_of = vars(engine_of(ours.model).backend)
        assert not {"compute", "begin", "prepare"} & backend_of.keys()
        assert ours.decode(PROMPTS, 6).outcome == plain.outcome


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_every_token_is_pushed_within_the_time_of_forwards(folder: Path, backend: str) -> None:
    # given a count of the tokens in the timed forwards
    with closing(Ours(folder, backend)) as ours:
        model: Any = engine_of(ours.model).backend
        pushed = 0
        compute = model.compute

        def counted(parts: Sequence[PackTokens]) -> object:
            nonlocal pushed
            pushed += sum(len(part.tokens) for part in parts)
            return compute(parts)

        model.compute = counted
        before = ours.tokens_computed
        with Forwards(ours.model) as forwards:
            ours.logprobs(PROMPTS)
        assert pushed == ours.tokens_computed - before > 0
        assert forwards.wall_seconds > 0


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_no_time_is_counted_twice(folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given clocks that advance by a second at each reading, and a forward that may complete a begun one
    seconds = itertools.count()
    monkeypatch.setattr(module, "time", SimpleNamespace(process_time=lambda: 0.0, perf_counter=lambda: float(next(seconds))))
    with closing(Ours(folder, backend)) as ours:
        before = ours.metrics.forward_calls
        with Forwards(ours.model) as forwards:
            ours.logprobs(PROMPTS[:1])
            ours.logprobs([[*PROMPTS[0], 9]])
        # then each call of the model took the second between its beginning and its end
        assert forwards.wall_seconds == ours.metrics.forward_calls - before == 2


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_the_time_of_a_forward_is_not_part_of_the_rest(folder: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a clock that only forwards advance: an hour each, half of it before the inner call
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(process_time=lambda: now, perf_counter=lambda: now))
    with closing(OurStreams(folder, backend)) as ours:
        model: Any = engine_of(ours.model).backend
        during: list[float] = []

        def moved(call: Callable[..., object]) -> Callable[..., object]:
            def moving(*args: object, **kwargs: object) -> object:
                nonlocal now
                before = rest.lap(0)
                now += 1800.0
                during.append(rest.lap(0).wall_seconds - before.wall_seconds)
                try:
                    return call(*args, **kwargs)
                finally:
                    now += 1800.0

            return moving

        model.compute, model.begin = moved(model.compute), moved(model.begin)
        with Forwards(ours.model) as forwards:
            rest, alone = forwards.watch_rest(), forwards.watch()
            rest.start()
            alone.start()
            ours.decode(PROMPTS, 6)
            now += 7.0
            # then the times are separated: the wait at the end counts as rest, and no time during a forward does
            assert (rest.lap(1).wall_seconds, rest.lap(1).cpu_seconds) == (7.0, 7.0)
            assert alone.lap(1).wall_seconds == now - 7.0 >= 6 * 3600.0
            assert set(during) == {0.0}


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_branches_compute_their_prompt_and_each_token_once(folder: Path, backend: str) -> None:
    # given eight branches of six tokens: the last one of each is not pushed, and common beginnings are shared
    with closing(OurBranches(folder, backend)) as ours:
        ours.branches(PROMPTS[0], 8, 6)
        assert len(PROMPTS[0]) < ours.needed <= len(PROMPTS[0]) + 8 * 5
        assert ours.computed == ours.needed
