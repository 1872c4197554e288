"""A session answers as the model does for the same ids, and computes each token once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
from collections.abc import Iterator

import pytest

from runtime import GenerationOptions, SamplingOptions, Session
from tests.runtime.backends.reference import TOLERANCE
from tests.runtime.session.subjects import CASES, Subject, drawn, greedy, piped, subject

PIPED = (("fake", "attention"), ("hf", "llama"), ("mlx", "lfm2"))
QUICK = {("fake", "attention", "here"), ("fake", "recurrent", "here"), ("fake", "attention", "piped"), ("hf", "gemma3", "here")}
PLACES = [*((*case, "here") for case in CASES), *((*case, "piped") for case in PIPED)]


@pytest.fixture(
    scope="module",
    params=[pytest.param(place, marks=[] if place in QUICK else pytest.mark.slow) for place in PLACES],
    ids=lambda case: "-".join(case),
)
def where(request: pytest.FixtureRequest) -> Iterator[Subject]:
    backend, name, place = request.param
    with (subject if place == "here" else piped)(backend, name) as made:
        yield made


@pytest.fixture
def case(where: Subject) -> Subject:
    where.model.clear_cache()
    return where


@pytest.fixture
def session(case: Subject) -> Iterator[Session]:
    with case.model.open_session() as opened:
        yield opened


@pytest.mark.sampled(1)
def test_prefix_suffix_and_answer_compute_each_token_once(case: Subject, session: Session) -> None:
    prefix, suffix = case.ids(1, 40), case.ids(2, 9)
    before = case.computed()
    status = session.ensure_prefix_sync(prefix, label="system")
    assert (status.reused, status.prefilled, status.dropped) == (0, 40, 0)
    assert (status.prefix, status.resident, status.available) == (40, 40, session.limit - 40)
    added = session.prefill_suffix_sync(suffix)
    assert (added.suffix, added.prefix, added.resident, added.prefilled) == (9, 40, 49, 9)
    assert case.computed() - before == 49
    # and the next log-probabilities are cached: the first token needs no forward
    case.check(session.logprobs_sync(), [*prefix, *suffix])
    assert case.computed() - before == 49
    answer = [record.token_id for record in session.decode_sync(greedy(6))]
    assert case.computed() - before == 49 + 5
    assert session.ids == [*prefix, *suffix, *answer]
    kinds = [(s.kind, s.label, s.start, s.end) for s in session.explain_context().segments]
    assert kinds == [("prefix", "system", 0, 40), ("suffix", "", 40, 49), ("generated", "", 49, 55)]
    # and it equals the model's answer without a session
    case.model.clear_cache()
    assert case.plain([*prefix, *suffix], greedy(6)) == answer


def test_the_prefill_scores_every_token(case: Subject, session: Session) -> None:
    prefix, suffix = case.ids(3, 21), case.ids(4, 4)
    first = session.ensure_prefix_sync(prefix).run
    second = session.prefill_suffix_sync(suffix).run
    assert first is not None
    assert second is not None
    whole = [*prefix, *suffix]
    logprobs = [*first.logprob.tolist(), *second.logprob.tolist()]
    for at in (1, 2, 20, 21, 22, 24):
        assert logprobs[at] == pytest.approx(float(case.right(whole[:at])[whole[at]]), abs=TOLERANCE)
    # and the scores are cached
    before = case.computed()
    records = asyncio.run(case.model.score(whole))
    assert [r.logprob for r in records[1:]] == pytest.approx(logprobs[1:], abs=TOLERANCE)
    assert case.computed() == before


def test_a_prefix_extended_over_the_answer_reuses_it(case: Subject, session: Session) -> None:
    prefix = case.ids(5, 30)
    session.ensure_prefix_sync(prefix)
    answer = [record.token_id for record in session.decode_sync(greedy(5))]
    before = case.computed()
    grown = [*prefix, *answer, *case.ids(6, 7)]
    status = session.ensure_prefix_sync(grown)
    assert status.dropped == 0
    assert (status.reused, status.prefilled) == (34, 8)  # the answer's last token was drawn, not pushed
    assert case.computed() - before == 8
    assert status.token_hash == hashlib.sha256(struct.pack(f"<{len(grown)}I", *grown)).hexdigest()
    assert status.byte_hash == hashlib.sha256(b"".join(case.model.decode_token(i) for i in grown)).hexdigest()
    case.check(session.logprobs_sync(), grown)


def test_a_shorter_prefix_drops_suffix_and_answer_and_counts_them(case: Subject, session: Session) -> None:
    prefix = case.ids(7, 20)
    session.ensure_prefix_sync(prefix)
    session.prefill_suffix_sync(case.ids(8, 4))
    list(session.decode_sync(greedy(3)))
    status = session.ensure_prefix_sync(prefix)
    assert (status.dropped, status.resident, status.reused + status.prefilled) == (7, 20, 20)
    assert status.prefilled == 0
    divergence = session.explain_context().divergence
    assert divergence is not None
    assert divergence.at == 20
    case.check(session.logprobs_sync(), prefix)


def test_forks_share_the_kv_of_their_stem_and_diverge(case: Subject, session: Session) -> None:
    stem = case.ids(9, 33)
    session.ensure_prefix_sync(stem)
    case.settle()
    before, held = case.computed(), case.model.cache_report().bytes
    branches = [session.fork() for _ in range(4)]
    case.settle()
    assert (case.computed(), case.model.cache_report().bytes) == (before, held)
    for token, branch in enumerate(branches):
        branch.advance(token)
        case.check(branch.logprobs_sync(), [*stem, token])
    assert case.computed() - before == 4
    assert session.ids == stem
    case.check(session.logprobs_sync(), stem)
    for branch in branches:
        branch.close()


def test_chosen_tokens_cost_one_forward_each_and_repeated_reads_none(case: Subject, session: Session) -> None:
    path = case.ids(10, 12)
    session.prefill_sync(path)
    before = case.computed()
    for step in range(5):
        row = session.logprobs_sync()
        case.check(row, path)
        token = int(row.argsort()[-2])  # not the greedy choice
        assert session.advance(token, at=len(path)) == 13 + step
        path.append(token)
    assert case.computed() - before == 4  # the log-probabilities after the last one were not requested
    session.logprobs_sync()
    session.logprobs_sync()
    assert case.computed() - before == 5
    # and a generation starts from the cached vector
    (record,) = session.decode_sync(greedy(1))
    assert case.computed() - before == 5
    assert record.token_id == int(case.right(path).argmax())


def test_a_truncated_session_continues_as_if_the_rest_had_never_existed(case: Subject, session: Session) -> None:
    path = case.ids(11, 50)
    session.ensure_prefix_sync(path)
    list(session.decode_sync(greedy(4)))
    for n in (51, 50, 33, 7):
        dropped, before = len(session) - n, case.computed()
        done = session.truncate_sync(n)
        assert (done.resident, done.dropped) == (n, dropped)
        assert case.computed() - before == done.recomputed
        assert done.recomputed == 0 or case.recurrent
        case.check(session.logprobs_sync(), [*path, *session.ids[50:]][:n])
    if case.recurrent:
        assert done.recomputed > 0
    assert session.truncate_sync(0).resident == 0


def test_an_answer_is_the_same_in_a_session_a_fork_and_without_a_session(case: Subject, session: Session) -> None:
    options = GenerationOptions(max_tokens=8, sampling=SamplingOptions(temperature=1.3), seed=11, ignore_eos=True)
    prompt = case.ids(12, 25)
    plain = case.plain(prompt, options)
    session.ensure_prefix_sync(prompt[:10])
    session.prefill_suffix_sync(prompt[10:])

    async def both() -> list[list[int]]:
        with session.fork() as fork:
            return list(await asyncio.gather(drawn(session, options), drawn(fork, options)))

    assert asyncio.run(both()) == [plain, plain]


def test_a_session_reuses_the_kv_of_another_session(case: Subject, session: Session) -> None:
    prefix = case.ids(13, 40)
    session.ensure_prefix_sync(prefix)
    with case.model.open_session() as other:
        status = other.ensure_prefix_sync(prefix)
        assert (status.reused, status.prefilled) == (40, 0)
        status = other.ensure_prefix_sync([*prefix[:40], 5])
        assert (status.reused, status.prefilled) == (40, 1)


def test_the_hashes_of_a_report_match_the_content_of_the_session(case: Subject, session: Session) -> None:
    """Recomputed from the ids and the bytes alone after each kind of change."""

    def check() -> None:
        ids, report = session.ids, session.explain_context()
        assert report.token_hash == hashlib.sha256(b"".join(struct.pack("<I", token) for token in ids)).hexdigest()
        assert report.byte_hash == hashlib.sha256(b"".join(case.model.decode_token(token) for token in ids)).hexdigest()
        stored = {name: value for name, value in session.manifest.to_mapping().items() if name != "name"}
        assert report.manifest_digest == hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()
        assert (report.resident, report.available) == (len(ids), report.limit - len(ids))
        assert [segment.start for segment in report.segments] == [0, *(s.end for s in report.segments[:-1])][: len(ids)]

    check()
    session.ensure_prefix_sync(case.ids(31, 70))
    check()
    session.prefill_suffix_sync(case.ids(32, 5))
    check()
    list(session.decode_sync(greedy(3)))
    check()
    session.advance(int(case.ids(33, 1)[0]))
    check()
    session.truncate_sync(71)
    check()
    with session.fork() as fork:
        fork.advance(int(case.ids(34, 1)[0]))
        check()
