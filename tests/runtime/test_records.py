"""Runs of tokens: columns, records, slices, and round trips."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from runtime.errors import InvalidRequestError
from runtime.numerics.scoring import log_softmax, summarise
from runtime.records import NO_TOKEN, Finish, Origin, Scores, TokenRun

TEXTS = ("na", "ï", "", "🙂")
DATA = (b"na", "ï".encode(), b"\xf0\x9f", b"\x99\x82")


def scored(n: int = 4, k: int = 3) -> TokenRun:
    logprobs = log_softmax(np.random.default_rng(n).normal(size=(n, 20)).astype(np.float32))
    scores = summarise(logprobs, np.arange(n, dtype=np.int32), k)
    return TokenRun(
        ids=np.arange(n, dtype=np.int32),
        token_bytes=DATA[:n],
        texts=TEXTS[:n],
        logprob=scores.logprob,
        rank=scores.rank,
        entropy=scores.entropy,
        top_ids=scores.top_ids,
        top_logprobs=scores.top_logprobs,
        covered_mass=scores.covered_mass,
        origin=np.full(n, int(Origin.SAMPLED), np.uint8),
        finish=np.array([0] * (n - 1) + [int(Finish.STOP)], np.uint8),
        draw=np.linspace(0, 0.9, n, dtype=np.float32),
    )


def assert_same(a: TokenRun, b: TokenRun) -> None:
    assert a.token_bytes == b.token_bytes
    assert a.texts == b.texts
    for name, column in a.to_columns().items():
        other = b.to_columns()[name]
        assert column.dtype == other.dtype, name
        assert np.array_equal(column, other, equal_nan=column.dtype.kind == "f"), name


def test_a_record_has_the_values_of_its_row() -> None:
    run = scored()
    record = list(run)[3]
    assert record.token_id == 3
    assert (record.token_bytes, record.text) == (DATA[3], "🙂")
    assert record.logprob == float(run.logprob[3])
    assert record.rank == int(run.rank[3])
    assert record.entropy == float(run.entropy[3])
    assert record.top_ids == tuple(run.top_ids[3].tolist())
    assert record.top_logprobs == tuple(run.top_logprobs[3].tolist())
    assert record.covered_mass == float(run.covered_mass[3])
    assert record.origin is Origin.SAMPLED
    assert record.finish_reason == "stop"
    assert next(iter(run)).finish_reason is None
    assert record.logprob is not None
    assert record.surprisal_bits == pytest.approx(-record.logprob / np.log(2))


def test_unscored_tokens_have_no_numbers() -> None:
    record = next(iter(TokenRun.unscored([5], [b"x"], ["x"], Origin.TYPED)))
    assert (record.logprob, record.rank, record.entropy, record.covered_mass) == (None, None, None, None)
    assert record.surprisal_bits is None
    assert record.top_ids == record.top_logprobs == ()


def test_padded_alternatives_are_left_out() -> None:
    run = scored(1)
    wide = TokenRun.concat([run, scored(2, k=5)])
    assert wide.top_k == 5
    assert wide.top_ids[0, 3:].tolist() == [NO_TOKEN, NO_TOKEN]
    assert next(iter(wide)).top_ids == tuple(run.top_ids[0].tolist())


def test_columns_survive_the_round_trip() -> None:
    assert_same(TokenRun.from_columns(scored().to_columns()), scored())
    empty = TokenRun.unscored([], [], [], Origin.TYPED)
    assert len(TokenRun.from_columns(empty.to_columns())) == 0


@pytest.mark.parametrize("name", ["top_ids", "top_logprobs"])
def test_alternatives_without_their_other_column_are_dropped(name: str) -> None:
    columns = {each: column for each, column in scored().to_columns().items() if each != name}
    run = TokenRun.from_columns(columns)
    assert run.top_ids.shape == run.top_logprobs.shape == (len(scored()), 0)
    assert run.record(1).token_id == scored().record(1).token_id
    np.testing.assert_array_equal(run.logprob, scored().logprob)


def test_concatenated_slices_equal_the_whole() -> None:
    run = scored()
    assert_same(TokenRun.concat([run[:1], run[1:1], run[1:3], run[3:]]), run)
    assert len(TokenRun.concat([])) == 0


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"texts has 3 rows, ids has 4"):
        replace(scored(), texts=TEXTS[:3])


def test_finish_reasons_have_the_names_users_see() -> None:
    labels = [f.label for f in Finish]
    plain = [None, "eos", "stop", "length", "context", "cancelled", "grammar", "error", "engine_died"]
    assert labels == [*plain, "stop", "eos", "grammar"]


def test_finish_reasons_are_complete_by_eos_or_neither() -> None:
    assert {f for f in Finish if not f.incomplete} == {Finish.NONE, Finish.EOS, Finish.STOP, Finish.GRAMMAR}
    assert {f for f in Finish if f.by_eos} == {Finish.EOS, Finish.EOS_UNSOUND}
    assert {f for f in Finish if f.unsound} == {Finish.EOS_UNSOUND, Finish.GRAMMAR_UNSOUND}
    run = TokenRun.concat([replace(scored()[:1], finish=np.array([int(f)], np.uint8)) for f in Finish])
    assert run.by_eos.tolist() == [f.by_eos for f in Finish]
    assert [r.incomplete for r in run] == [f.incomplete for f in Finish]


def test_a_slice_of_scores_has_its_own_memory() -> None:
    scores = summarise(log_softmax(np.random.default_rng(0).normal(size=(4, 20))), None, 3)
    part = scores[1:3]
    assert len(part) == 2
    assert part.top_ids.base is None
    assert part.nbytes == scores.nbytes // 2
    joined = Scores.concat([scores[:1], part, scores[3:]])
    assert np.array_equal(joined.top_ids, scores.top_ids)
