from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchmarks.measure import Float32, Ids, Subject, Workload, WorkloadResult, measure, medians
from tests.benchmarks.subjects import Scripted


def two_requests(subject: Subject) -> None:
    subject.logprobs([[1, 2, 3], [1, 2, 4]])
    subject.answers([[1, 2, 3, 5]], 3)


def run(subject: Scripted) -> WorkloadResult:
    return measure(Workload("W0", two_requests), subject, backend="none", model="scripted")


@pytest.mark.slow
def test_tokens_and_ideal_are_counted_exactly() -> None:
    result = run(Scripted())
    # then all tokens were pushed: two contexts of three, a prompt of four and two of the three that were generated
    assert result.tokens == 3 + 3 + 4 + 2
    # but 1, 2, 3 | 4 | 5, 6, 7 would have been enough: the logits after the last generated token were not requested
    assert result.ideal == 3 + 1 + 3
    assert result.ratio == 12 / 7


@pytest.mark.slow
def test_earlier_work_of_the_subject_is_not_counted_and_its_cache_is_cleared() -> None:
    subject = Scripted()
    subject.logprobs([[1] * 40])
    assert run(subject).tokens == run(subject).tokens == 12
    assert subject.forgotten == 2


@pytest.mark.slow
def test_different_tokens_have_different_outcomes() -> None:
    class Other(Scripted):
        def answers(self, prompts: object, n: int) -> list[list[int]]:
            return [[6, 7, 9]]  # the last one differs

    assert run(Scripted()).outcome == run(Scripted()).outcome
    assert run(Scripted()).outcome != run(Other()).outcome


@pytest.mark.slow
def test_an_answer_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="scripted answered 2 tokens where 3 were asked for"):
        run(Scripted(short=True))


def spin(seconds: float) -> None:
    """Keeps this thread's core busy for so many cpu-seconds."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Lingering(Scripted):
    """Answers at once, and continues to work in another thread."""

    def __init__(self) -> None:
        super().__init__()
        self.after: list[threading.Thread] = []
        self.worked = 0.0  # cpu-seconds of that thread at its end

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        self.after.append(threading.Thread(target=self._work_on))
        self.after[-1].start()
        return super().logprobs(contexts)

    def _work_on(self) -> None:
        spin(0.05)
        self.worked = time.thread_time()


@pytest.mark.slow
def test_work_of_a_subject_after_its_answer_counts_and_that_of_the_workload_does_not() -> None:
    subject = Lingering()

    def play(asked: Subject) -> None:
        asked.logprobs([[1]])
        subject.after[0].join()
        spin(0.3)  # a draw, a resampling
        asked.answers([[1]], 1)

    result = measure(Workload("W0", play), subject, backend="none", model="scripted")
    assert 0.8 * subject.worked < result.cpu_seconds < subject.worked + 0.2


@pytest.mark.slow
def test_medians_have_the_number_of_laps_and_the_largest_count_of_tokens() -> None:
    laps = [replace(run(Scripted()), cpu_seconds=cpu, wall_seconds=1.0, tokens=int(cpu)) for cpu in (3.0, 1.0, 2.0)]
    found = medians(laps)
    assert (found.cpu_seconds, found.tokens, found.laps, laps[0].laps) == (2.0, 3, 3, 1)
    with pytest.raises(ValueError, match="something else each time"):
        medians([laps[0], replace(laps[1], outcome="another")])
