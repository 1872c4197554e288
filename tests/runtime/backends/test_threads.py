"""The number of threads: measured once per model and machine, unless the user has set one."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from runtime import LanguageModel, load
from runtime.backends.hf import threads as choosing
from runtime.backends.hf.threads import BUDGET_SECONDS, LAPS, MANY_TOKENS, ThreadChoice, fastest, machine, probe
from runtime.loading.measurements import forget_measurements, keep_measurement, measurement
from tests.fakes import engine_of, some_ids
from tests.tiny_models import tiny_folder, tiny_path


class Machine:
    """A simulated clock, and forwards whose time depends on the number of threads."""

    def __init__(self, seconds: dict[int, float]) -> None:
        self.seconds, self.now, self.threads, self.forwards = seconds, 0.0, 0, 0

    def clock(self) -> float:
        return self.now

    def set(self, count: int) -> None:
        self.threads = count

    def forward(self) -> None:
        self.forwards += 1
        self.now += self.seconds[self.threads]


class Core(NamedTuple):
    """The CPU times of a core in seconds, as reported by psutil."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    guest: float = 0.0  # included in `user`


OTHERS = choosing.OtherProcesses.busy_cores


@pytest.fixture(autouse=True)
def nobody_has_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty shelf, and a process without a thread setting, alone on a machine with four cores."""
    before = torch.get_num_threads()
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path / "shelf"))
    for name in choosing.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choosing, "cores", lambda: 4)
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", lambda *_: 0.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(choosing, "CHOICE", ThreadChoice())
    yield
    monkeypatch.undo()
    torch.set_num_threads(before)


def test_the_core_count_and_its_halves_are_each_tried_several_times() -> None:
    small = Machine({8: 0.004, 4: 0.003, 2: 0.002, 1: 0.005})
    assert probe(small.forward, 8, small.set, small.clock) == pytest.approx(small.seconds)
    assert small.forwards == 4 * LAPS


def test_measuring_a_large_model_stays_within_the_time_budget() -> None:
    large = Machine({8: 0.45, 4: 0.4, 2: 0.9, 1: 1.8})
    found = probe(large.forward, 8, large.set, large.clock)
    assert set(found) == {8, 4, 2}
    assert large.now <= BUDGET_SECONDS + 0.9
    huge = Machine({6: 30.0, 3: 60.0, 1: 180.0})
    assert set(probe(huge.forward, 6, huge.set, huge.clock)) == {6}
    assert huge.forwards == 1


def test_a_briefly_busy_machine_does_not_change_the_result() -> None:
    # given two cores, one of which is used by another process at first
    class Busy(Machine):
        def forward(self) -> None:
            slow = self.now < 0.5 and self.threads == 2
            super().forward()
            self.now += 0.4 if slow else 0.0

    busy = Busy({2: 0.02, 1: 0.03})
    found = probe(busy.forward, 2, busy.set, busy.clock)
    assert found == pytest.approx({2: 0.02, 1: 0.03})
    assert fastest(found) == 2


def test_more_threads_are_chosen_only_for_a_clear_gain() -> None:
    assert fastest({1: 0.0100, 2: 0.0099, 4: 0.0200}) == 1
    assert fastest({1: 0.0100, 2: 0.0060, 4: 0.0059}) == 2
    assert fastest({1: 0.0100, 2: 0.0110, 4: 0.0050}) == 4


def test_a_measurement_is_kept_for_the_model_and_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "BUDGET_SECONDS", math.inf)  # forwards take no time here, but the machine may be busy
    calls: list[int] = []
    choice = ThreadChoice()
    few, many = measured(choice, lambda: calls.append(0))
    assert len(calls) == 3 * LAPS
    key = f"threads, float32, {machine(4)}"
    assert {int(n) for n in measurement("digest", key)} == {4, 2, 1}
    assert few in {4, 2, 1}
    assert many == 4
    # another choice, as of a later process, uses what is saved
    keep_measurement("digest", key, {"4": 0.2, "2": 0.1, "1": 0.3})
    calls.clear()
    assert measured(ThreadChoice(), lambda: calls.append(0)) == (2, 4)
    assert not calls
    # another form of weights, and a model that was removed, are measured again
    ThreadChoice().measure("digest", "int8", lambda: calls.append(0))
    assert len(calls) == 3 * LAPS
    forget_measurements("digest")
    ThreadChoice().measure("digest", "float32", lambda: calls.append(0))
    assert len(calls) == 6 * LAPS


@pytest.mark.slow
def test_a_measurement_beside_busy_processes_is_used_but_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", OTHERS)
    burning = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        threads = ThreadChoice().measure("digest", "float32", lambda: time.sleep(0.05))
    finally:
        for process in burning:
            process.kill()
            process.wait()
    assert threads is not None
    assert threads.count in {4, 2, 1}
    assert not measurement("digest", f"threads, float32, {machine(4)}")


@pytest.mark.parametrize(("busy", "kept"), [(0.1, True), (1.0, False)])
def test_no_measurement_is_kept_while_others_use_the_allowed_cores(
    busy: float, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a process that may use two cores of 64
    monkeypatch.setattr(psutil, "cpu_count", lambda **_: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", lambda *_: busy)
    ThreadChoice().measure("digest", "float32", lambda: None)
    assert bool(measurement("digest", f"threads, float32, {machine(4)}")) == kept


def test_a_short_measurement_beside_a_busy_process_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a model so small that it is measured in 60 ms, while another process uses one of two cores
    now = 10.0

    def forward() -> None:
        nonlocal now
        now += 0.004

    def times(*, percpu: bool) -> list[Core]:
        return [Core(now, 0.0, 0.0, 0.0, 0.0), Core(0.0, 0.0, 0.0, now, 0.0)]

    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=0.0, system=0.0))
    monkeypatch.setattr(choosing, "psutil", SimpleNamespace(cpu_times=times, Process=lambda: own))
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", OTHERS)
    ThreadChoice().measure("digest", "float32", forward)
    assert not measurement("digest", f"threads, float32, {machine(4)}")


@pytest.mark.parametrize("variable", choosing.VARIABLES)
def test_thread_variables_of_the_user_are_honoured(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "4")
    assert ThreadChoice().measure("digest", "float32", lambda: pytest.fail("measured")) is None


def test_a_torch_setting_of_the_user_is_honoured_and_distinguished_from_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    choice = ThreadChoice()
    assert choice.measure("digest", "float32", lambda: pytest.fail("measured")) is None
    choice.set(3)  # as the option of an earlier load does
    assert not choice.chosen_by_user()


def test_a_load_measures_on_the_owner_thread_unless_threads_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, key = tiny_folder("llama").weights_digest, f"threads, float32, {machine(4)}"
    with load(tiny_path("llama"), "hf", device="cpu", threads=1):
        assert measurement(digest, key) == {}
    seen: list[str] = []
    monkeypatch.setattr("runtime.backends.hf.backend.CHOICE", choice := ThreadChoice())
    monkeypatch.setattr(choice, "measure", lambda *_: seen.append(threading_name()))
    with load(tiny_path("llama"), "hf", device="cpu") as model:
        owner = engine_of(model).call(threading_name).result()
        assert model.info.options["threads"] == 4
    assert seen == [owner]
    assert owner != threading_name()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces torch's thread setting by a list of the numbers that were set."""
    found = [4]
    monkeypatch.setattr(torch, "set_num_threads", found.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: found[-1])
    return found


def test_many_tokens_use_all_cores_unless_a_count_was_set_elsewhere(counts: list[int]) -> None:
    keep_measurement("digest", f"threads, float32, {machine(4)}", {"4": 0.2, "2": 0.1, "1": 0.3})
    choice = ThreadChoice()
    assert measured(choice) == (2, 4)
    for count in (4, 2, 4):
        choice.change(count)
        assert counts[-1] == count
    # a count that was set elsewhere is kept
    counts.append(3)
    choice.change(2)
    assert counts[-1] == 3


def test_a_prompt_uses_all_cores_and_later_tokens_the_measured_count(counts: list[int]) -> None:
    folder = tiny_folder("llama")
    keep_measurement(folder.weights_digest, f"threads, float32, {machine(4)}", {"4": 0.2, "2": 0.1, "1": 0.3})
    for threads, many in ((None, 4), (2, 2)):
        with loaded(threads) as (model, seen):
            asyncio.run(model.sample(some_ids(1, MANY_TOKENS), 3, [], temperature=0.0))
            model.next_token_logprobs_sync(some_ids(2, MANY_TOKENS - 1))
            assert seen == [many, 2, 2, 2]


def test_each_model_of_a_process_has_its_own_thread_counts(counts: list[int]) -> None:
    folder = tiny_folder("llama")
    keep_measurement(folder.weights_digest, f"threads, float32, {machine(4)}", {"4": 0.2, "2": 0.1, "1": 0.3})
    with loaded(None) as (model, seen):
        model.next_token_logprobs_sync(some_ids(1, 100))
        # when another model is loaded with one thread
        with loaded(1):
            asyncio.run(model.sample(some_ids(2, 30), 2, [], temperature=0.0))
            model.next_token_logprobs_sync(some_ids(3, 100))
        # then the first model keeps its counts
        assert seen == [4, 2, 2, 4]


def test_many_tokens_do_not_use_all_cores_if_single_tokens_are_much_slower_with_them() -> None:
    key = f"threads, float32, {machine(4)}"
    for seconds, many in ((0.29, 4), (0.31, 2)):
        keep_measurement("digest", key, {"4": seconds, "2": 0.1, "1": 0.3})
        assert measured(ThreadChoice()) == (2, many)


def test_cores_kept_busy_by_other_processes_get_no_thread(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    busy = 0.0
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", lambda _: busy)
    keep_measurement("digest", f"threads, float32, {machine(4)}", {"4": 0.1, "2": 0.2, "1": 0.3})
    threads = ThreadChoice().measure("digest", "float32", lambda: pytest.fail("measured"))
    assert threads is not None
    for busy, free in ((0.3, 4), (1.1, 3), (4.0, 2), (0.0, 4)):  # noqa: B007  # at least half of the threads stay
        for tokens in (MANY_TOKENS, 1):
            threads.set_for(tokens)
            assert counts[-1] == free


@pytest.mark.parametrize(("single", "noticed"), [(0.1, 3), (0.9, 1)])  # seconds of a token with all cores
def test_a_core_that_becomes_busy_during_an_answer_gets_no_thread(
    single: float, noticed: int, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    folder = tiny_folder("llama")
    keep_measurement(folder.weights_digest, f"threads, float32, {machine(4)}", {"4": single, "2": 0.8, "1": 0.3})
    monkeypatch.setattr(choosing, "AGAIN_SECONDS", 0.0)
    looks: list[int] = []
    with loaded(None) as (model, seen):

        def busy(_: object) -> float:
            looks.append(len(seen))
            return 1.1 if len(seen) > 2 else 0.0

        monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", busy)
        asyncio.run(model.sample(some_ids(1, 30), 5, [], temperature=0.0))
        first = 4 if noticed > 1 else 1
        assert seen == [first, first, first, noticed, noticed]
        assert len(looks) == (5 if noticed > 1 else 0)  # with a single thread there is nothing to adapt


def test_only_processes_on_the_allowed_cores_count_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    now, own, system = 10.0, SimpleNamespace(user=1.0, system=1.0), [Core(2.0, 0.0, 1.0, 7.0, 0.0)] * 3
    library = SimpleNamespace(cpu_times=lambda *, percpu: system, Process=lambda: SimpleNamespace(cpu_times=lambda: own))
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", OTHERS)
    monkeypatch.setattr(choosing, "psutil", library)
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(choosing, "os", SimpleNamespace(sched_getaffinity=lambda _: {0, 2}))
    others = choosing.OtherProcesses()
    # given a second in which this process computes for 1 s, another one for 1 s, and a third on a core not allowed to us
    now, own = 11.0, SimpleNamespace(user=1.8, system=1.2)
    system = [Core(3.0, 0.0, 1.0, 7.0, 0.0), Core(3.0, 0.0, 1.0, 7.0, 0.0), Core(2.0, 0.9, 1.1, 7.0, 0.0)]
    assert others.busy_cores() == pytest.approx(1.0 - choosing.TICK)
    # when a second passes with waits for the disk only, then a check shortly after returns the same result
    now, system = 12.0, [core._replace(iowait=1.0) for core in system]
    assert others.busy_cores() == 0.0
    now, system = 12.01, [core._replace(user=9.0) for core in system]
    assert others.busy_cores() == 0.0


def test_guest_time_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, system = 10.0, [Core(2.0, 0.0, 1.0, 7.0, 0.0, 0.0)] * 2
    own = SimpleNamespace(cpu_times=lambda: SimpleNamespace(user=0.0, system=0.0))
    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", OTHERS)
    monkeypatch.setattr(choosing, "psutil", SimpleNamespace(cpu_times=lambda *, percpu: system, Process=lambda: own))
    monkeypatch.setattr(choosing, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    others = choosing.OtherProcesses()
    now, system = 11.0, [Core(3.0, 0.0, 1.0, 7.0, 0.0, 1.0), Core(2.0, 0.0, 1.0, 8.0, 0.0, 0.0)]
    assert others.busy_cores() == pytest.approx(1.0 - choosing.TICK)


def test_all_cores_are_used_where_cpu_times_cannot_be_read(monkeypatch: pytest.MonkeyPatch, counts: list[int]) -> None:
    # given a sandbox in which the CPU times cannot be read
    def shut(**_: object) -> list[Core]:
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(choosing.OtherProcesses, "busy_cores", OTHERS)
    monkeypatch.setattr(choosing, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(psutil, "cpu_times", shut)
    keep_measurement(tiny_folder("llama").weights_digest, f"threads, float32, {machine(4)}", {"4": 0.2, "2": 0.1, "1": 0.3})
    with loaded(None) as (model, seen):
        assert len(model.next_token_logprobs_sync(some_ids(1, MANY_TOKENS))) == model.info.vocab_size
        assert seen == [4]


def test_a_count_tried_in_a_measurement_is_not_taken_for_our_setting(
    counts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "cores", lambda: 6)
    counts.append(6)
    choice = ThreadChoice()
    assert measured(choice, lambda: time.sleep(0.01 * counts[-1])) == (1, 1)  # six threads take six times as long
    torch.set_num_threads(3)
    assert choice.chosen_by_user()
    assert choice.measure("digest", "float32", lambda: pytest.fail("measured")) is None


def measured(choice: ThreadChoice, forward: Callable[[], object] = lambda: pytest.fail("measured")) -> tuple[int, int]:
    """The number of threads for few tokens, and for many."""
    threads = choice.measure("digest", "float32", forward)
    assert threads is not None
    few = threads.count
    threads.set_for(MANY_TOKENS)
    return few, threads.count


@contextmanager
def loaded(threads: int | None) -> Iterator[tuple[LanguageModel, list[int]]]:
    """A model, and a list of the number of threads in each of its forwards."""
    seen: list[int] = []
    with load(tiny_path("llama"), "hf", device="cpu", threads=threads, prefill_chunk_tokens=200) as model:
        library: Any = engine_of(model).backend
        library.model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
        yield model, seen


def threading_name() -> str:
    import threading

    return threading.current_thread().name
