"""Sessions in any order of steps, beside a list of ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import Session
from tests.runtime.session.subjects import Subject, greedy, subject

LIMIT = 40
TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=12)  # few tokens: paths meet
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ensure"), TOKENS),
        st.tuples(st.just("regrow"), TOKENS),
        st.tuples(st.sampled_from(["suffix", "prefill"]), TOKENS),
        st.tuples(st.just("advance"), st.integers(0, 3)),
        st.tuples(st.just("decode"), st.integers(1, 6)),
        st.tuples(st.just("abandon"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.sampled_from(["fork", "close", "logprobs"]), st.none()),
        st.tuples(st.just("turn"), st.integers(0, 7)),
    ),
    max_size=25,
)


@dataclass(slots=True)
class Naive:
    """A session as one would write it on paper."""

    ids: list[int] = field(default_factory=list)
    prefix: int = 0


@pytest.fixture(scope="module", params=["attention", "recurrent"])
def case(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with subject("fake", request.param) as made:
        yield made


@pytest.mark.slow
@settings(max_examples=25)
@given(steps=STEPS)
def test_a_session_is_a_list_of_ids(case: Subject, steps: list[tuple[str, object]]) -> None:
    from runtime import SessionConfig

    pairs = [(case.model.open_session(SessionConfig(limit=LIMIT)), Naive())]
    turn = 0
    for what, argument in steps:
        session, naive = pairs[turn % len(pairs)]
        before = case.computed()
        reported = play(case, session, naive, what, argument)
        if reported is not None:
            assert case.computed() - before == reported
        if what == "fork":
            pairs.append((session.fork(), Naive(list(naive.ids), naive.prefix)))
        elif what == "close" and len(pairs) > 1:
            session.close()
            pairs.remove((session, naive))
        elif what == "turn":
            assert isinstance(argument, int)
            turn = argument
        for each, paper in pairs:
            report = each.explain_context()
            assert (each.ids, report.prefix, report.resident) == (paper.ids, paper.prefix, len(paper.ids))
            spans = [(s.start, s.end) for s in report.segments]
            assert [i for start, end in spans for i in range(start, end)] == list(range(len(paper.ids)))
            assert all(start < end for start, end in spans)
    for session, naive in pairs:
        if naive.ids:
            case.check(session.logprobs_sync(), naive.ids)
        session.close()
    case.settle()
    assert case.model.cache_report().pins == 0


def play(case: Subject, session: Session, naive: Naive, what: str, argument: object) -> int | None:
    """One step on both; what the session says that it computed."""
    room = LIMIT - len(naive.ids)
    if what in ("ensure", "regrow"):
        assert isinstance(argument, list)
        ids = argument if what == "ensure" else [*naive.ids[: LIMIT - 12], *argument]
        kept = next((i for i, (a, b) in enumerate(zip(ids, naive.ids, strict=False)) if a != b), min(len(ids), len(naive.ids)))
        status = session.ensure_prefix_sync(ids)
        assert status.dropped == len(naive.ids) - kept
        assert status.reused + status.prefilled == len(ids)
        naive.ids, naive.prefix = list(ids), len(ids)
        return status.prefilled
    if what in ("suffix", "prefill"):
        assert isinstance(argument, list)
        argument = argument[:room]
        if argument:
            added = session.prefill_suffix_sync(argument) if what == "suffix" else session.prefill_sync(argument)
            naive.ids += argument
            assert (added.suffix, added.resident) == (len(argument), len(naive.ids))
            return added.prefilled
    elif what == "advance" and room:
        assert isinstance(argument, int)
        session.advance(argument, at=len(naive.ids))
        naive.ids.append(argument)
        return 0
    elif what in ("decode", "abandon") and room and naive.ids:
        assert isinstance(argument, int)
        records = session.decode_sync(greedy(argument if what == "decode" else 8))
        taken = list(itertools.islice(records, argument))
        records.close()
        assert len(taken) == min(argument, room)
        for record in taken:
            row = case.right(naive.ids)
            assert record.logprob == pytest.approx(float(row[record.token_id]), abs=1e-4)
            naive.ids.append(record.token_id)
    elif what == "truncate":
        assert isinstance(argument, float)
        n = int(argument * len(naive.ids))
        done = session.truncate_sync(n)
        assert (done.dropped, done.available) == (len(naive.ids) - n, LIMIT - n)
        del naive.ids[n:]
        naive.prefix = min(naive.prefix, n)
        return done.recomputed
    elif what == "logprobs" and naive.ids:
        case.check(session.logprobs_sync(), naive.ids)
    return None
