from __future__ import annotations

import pytest

from app.bench.measure import Result, Subject, Workload, measure
from tests.app.bench.subjects import Scripted


def two_requests(subject: Subject) -> None:
    subject.logprobs([[1, 2, 3], [1, 2, 4]])
    subject.answers([[1, 2, 3, 5]], 3)


def run(subject: Scripted) -> Result:
    return measure(Workload("W0", two_requests), subject, backend="none", model="scripted")


def test_tokens_and_ideal_are_counted_exactly() -> None:
    result = run(Scripted())
    # then all tokens were pushed: two contexts of three, a prompt of four and two of the three that were generated
    assert result.tokens == 3 + 3 + 4 + 2
    # but 1, 2, 3 | 4 | 5, 6, 7 would have been enough: what follows the last generated token was not asked for
    assert result.ideal == 3 + 1 + 3
    assert result.ratio == 12 / 7


def test_what_the_subject_did_before_is_not_counted_and_forgotten() -> None:
    subject = Scripted()
    subject.logprobs([[1] * 40])
    assert run(subject).tokens == run(subject).tokens == 12
    assert subject.forgotten == 2


def test_the_outcome_tells_other_tokens_apart() -> None:
    class Other(Scripted):
        def answers(self, prompts: object, n: int) -> list[list[int]]:
            return [[6, 7, 9]]  # the last one differs

    assert run(Scripted()).outcome == run(Scripted()).outcome
    assert run(Scripted()).outcome != run(Other()).outcome


def test_an_answer_that_is_too_short_is_no_result() -> None:
    with pytest.raises(ValueError, match="scripted answered 2 tokens where 3 were asked for"):
        run(Scripted(short=True))
