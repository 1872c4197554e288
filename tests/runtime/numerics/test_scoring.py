"""Scores from raw logits, compared with float64 and with their definitions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from runtime.numerics.scoring import empty_scores, log_softmax, normalisers, score_logits, summarise, top_k
from runtime.records import NO_TOKEN, Float32

VOCABULARIES = (7, 1000, 49_152, 256_000)


def reference(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    normal: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    return normal


def rows(vocab: int, *, seed: int = 0, scale: float = 3.0, n: int = 3) -> Float32:
    return (np.random.default_rng(seed).normal(size=(n, vocab)) * scale).astype(np.float32)


@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 8.0])
def test_log_softmax_is_exact(vocab: int, scale: float) -> None:
    logits = rows(vocab, scale=scale)
    got = log_softmax(logits)
    assert got.dtype == np.float32
    # only the float32 rounding of the result, no systematic error of the sum
    np.testing.assert_allclose(got, reference(logits), rtol=2.5e-7, atol=1e-6)
    assert np.abs(np.exp(got.astype(np.float64)).sum(-1) - 1).max() < 3e-6


def test_log_softmax_of_equal_logits_has_no_bias() -> None:
    # a float32 sum over 256,000 equal terms is where the normaliser drifts
    got = log_softmax(np.full((1, 256_000), 5.0, np.float32))
    assert abs(float(got[0, 0]) + np.log(256_000)) < 1e-6


def test_log_softmax_survives_huge_logits() -> None:
    got = log_softmax(np.array([[1e30, 0.0, -1e30], [-5e4, -5e4, -6e4]], np.float32))
    assert got[0, 0] == 0.0
    np.testing.assert_allclose(got[1, :2], np.log(0.5), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_dtypes_are_computed_in_float32(dtype: type) -> None:
    logits: npt.NDArray[np.floating] = rows(500).astype(dtype)
    got = log_softmax(logits)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference(logits), atol=2e-6)


def test_rank_is_one_more_than_the_entries_strictly_above() -> None:
    logprobs = log_softmax(np.array([[3, 1, 3, 2, 0]] * 5, np.float32))
    scores = summarise(logprobs, np.arange(5, dtype=np.int32), 0)
    assert scores.rank.tolist() == [1, 4, 1, 3, 5]
    assert scores.logprob.tolist() == logprobs[0].tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("k", [0, 1, 10, 64])
@pytest.mark.parametrize("vocab", [7, 1000, 49_152])
def test_top_k_equals_a_full_sort(vocab: int, k: int) -> None:
    logprobs = np.round(log_softmax(rows(vocab)), 2)  # rounded: many ties
    ids, values = top_k(logprobs, min(k, vocab))
    for row in range(len(logprobs)):
        order = sorted(range(vocab), key=lambda t, row=row: (-logprobs[row, t], t))[:k]  # type: ignore[misc]  # default
        assert ids[row].tolist() == order
        assert values[row].tolist() == logprobs[row][order].tolist()


def test_ties_at_the_border_go_to_the_lowest_ids() -> None:
    ids, _ = top_k(np.array([[0, 5, 5, 5, 9, 5]], np.float32), 3)
    assert ids.tolist() == [[4, 1, 2]]
    ids, _ = top_k(np.zeros((1, 4), np.float32), 4)
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_more_alternatives_than_the_vocabulary_has_are_padded() -> None:
    scores = summarise(log_softmax(rows(3, n=2)), None, 5)
    assert scores.top_ids.shape == (2, 5)
    assert sorted(scores.top_ids[0, :3].tolist()) == [0, 1, 2]
    assert (scores.top_ids[:, 3:] == NO_TOKEN).all()
    assert np.isneginf(scores.top_logprobs[:, 3:]).all()
    np.testing.assert_allclose(scores.covered_mass, 1.0, atol=1e-6)
    assert (scores.covered_mass <= 1.0).all()


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_entropy_and_covered_mass_equal_float64(vocab: int) -> None:
    logits = rows(vocab)
    wide = reference(logits)
    scores = summarise(log_softmax(logits), None, 10)
    np.testing.assert_allclose(scores.entropy, -(np.exp(wide) * wide).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(scores.covered_mass, np.sort(np.exp(wide), -1)[:, ::-1][:, :10].sum(-1), rtol=1e-5)
    assert np.isnan(scores.logprob).all()
    assert not scores.rank.any()


def test_entropy_of_a_certain_and_of_a_uniform_distribution() -> None:
    with np.errstate(divide="raise", invalid="raise"):
        sure = summarise(np.array([[0.0, -np.inf, -np.inf]], np.float32), None, 1)
    assert sure.entropy.tolist() == [0.0]
    assert sure.covered_mass.tolist() == [1.0]
    even = summarise(log_softmax(np.zeros((1, 1024), np.float32)), None, 0)
    np.testing.assert_allclose(even.entropy, np.log(1024), rtol=1e-6)
    assert even.covered_mass.tolist() == [0.0]


def test_the_scores_of_a_row_are_the_same_alone_and_in_a_batch() -> None:
    logits = rows(1000, n=9)
    targets = np.arange(9, dtype=np.int32)
    together = summarise(log_softmax(logits), targets, 5)
    for i in range(9):
        alone = summarise(log_softmax(logits[i : i + 1]), targets[i : i + 1], 5)
        for column in ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass"):
            assert np.array_equal(getattr(alone, column)[0], getattr(together, column)[i]), column


def test_empty_scores_are_marked_as_unknown() -> None:
    none = empty_scores(2, 3)
    assert np.isnan(none.logprob).all()
    assert none.rank.tolist() == [0, 0]
    assert (none.top_ids == NO_TOKEN).all()
    none.entropy[0] = 1.0  # columns do not share memory
    assert np.isnan(none.logprob[0])


@pytest.mark.slow
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("k", [0, 1, 10])
def test_scores_of_raw_logits_equal_those_of_their_distributions(vocab: int, k: int) -> None:
    # given rows in several blocks, some with ties, one with NaN and one with infinity
    logits = rows(vocab, n=19)
    logits[4] = np.round(logits[4])
    targets = np.random.default_rng(3).integers(0, vocab, 19).astype(np.int32)
    want = summarise(log_softmax(logits), targets, k)
    sound = np.ones(19, bool)
    for bad, value in ((7, np.nan), (8, np.inf), (12, -np.inf)):
        logits[bad, vocab // 2] = value
        sound[bad] = False
    got, finite = score_logits(logits, targets, k)
    np.testing.assert_array_equal(finite, sound)
    for name in ("logprob", "rank", "top_ids", "top_logprobs"):
        np.testing.assert_array_equal(getattr(got, name)[sound], getattr(want, name)[sound])
    for name in ("entropy", "covered_mass"):
        np.testing.assert_allclose(getattr(got, name)[sound], getattr(want, name)[sound], rtol=1e-5)


def test_entropy_equals_float64() -> None:
    logits = rows(49_152)
    wide = reference(logits)
    entropy = np.empty(len(logits))
    log_softmax(logits, entropy=entropy)
    np.testing.assert_allclose(entropy, -(np.exp(wide) * wide).sum(-1), rtol=1e-6)


def test_log_softmax_reports_rows_that_are_not_finite() -> None:
    logits = rows(1000)[:1].repeat(5, axis=0)
    logits[1, 7], logits[2, 8], logits[3, 9] = np.nan, np.inf, -np.inf
    finite = np.empty(5, np.bool_)
    got = log_softmax(logits, finite=finite)
    assert finite.tolist() == [True, False, False, False, True]
    np.testing.assert_array_equal(got[[0, 4]], log_softmax(logits[[0, 4]]))


def test_normalisers_give_bit_identical_log_probabilities() -> None:
    # given rows with logits of many magnitudes, more than fit one block, when only their normalisers are computed
    rng = np.random.default_rng(4)
    logits = (rng.standard_normal((13, 49_152)) * rng.uniform(0.1, 200, (13, 1))).astype(np.float32)
    tops, log_totals, masses, finite = normalisers(logits)
    # then they give the same values as normalising all rows
    assert finite.all()
    mass = np.empty(13)
    assert np.array_equal((logits - tops[:, None]) - log_totals[:, None], log_softmax(logits, mass=mass))
    assert np.array_equal(masses, mass)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_normalisers_report_rows_that_are_not_finite(bad: float) -> None:
    logits = np.zeros((3, 700), np.float32)
    logits[1, 321] = bad
    assert normalisers(logits)[3].tolist() == [True, False, True]
