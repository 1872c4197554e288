"""What is known of a row's order: against a full sort, from nothing, from what was known, and after edits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.numerics.ranking import Look, Ranked, likeliest, places_of
from runtime.numerics.scoring import empty_peaks, log_softmax, summarise, summarise_ranked
from runtime.records import Float32


def row_of(seed: int, vocab: int, digits: int) -> Float32:
    """Rounded: with equals."""
    values: Float32 = np.round(np.random.default_rng(seed).normal(size=vocab), digits).astype(np.float32)
    return values


def sorted_ids(row: Float32) -> list[int]:
    return [int(token) for token in np.lexsort((np.arange(len(row)), -row))]


@pytest.mark.parametrize("vocab", [5, 63, 64, 1000, 20_011])
@pytest.mark.parametrize("steps", [(3,), (1, 64, 300), (100_000,)])
def test_it_knows_as_many_as_were_asked_for(vocab: int, steps: tuple[int, ...]) -> None:
    row = row_of(vocab, vocab, 1)
    ranked = Ranked(row)
    for count in steps:
        ranked.reach(count)
        assert ranked.ids.tolist() == sorted_ids(row)[: max(count, len(ranked.ids))]
        assert len(ranked.ids) >= min(count, vocab)
        assert ranked.values.tolist() == row[ranked.ids].tolist()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 3), st.sampled_from([70, 900, 5000]), st.sampled_from([0, 2, 64]))
def test_what_lies_above_a_value(seed: int, digits: int, vocab: int, known: int) -> None:
    row = row_of(seed, vocab, digits)
    ranked = Ranked(row)
    ranked.reach(known)
    for token, value in enumerate(row[:20]):
        assert ranked.place_of(token) == (value, int((row > value).sum()))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(0, 3), st.sampled_from([70, 900, 5000]), st.integers(0, 600), st.sampled_from([0, 5, 64])
)
def test_an_edited_copy_keeps_what_is_still_true(seed: int, digits: int, vocab: int, edits: int, known: int) -> None:
    # given a row of which the head is known, and a copy with other values here and there, in the head too
    row = row_of(seed, vocab, digits)
    ranked = Ranked(row)
    ranked.reach(known)
    rng = np.random.default_rng(seed)
    ids = rng.choice(vocab, min(edits, vocab), replace=False)
    ids = np.union1d(ids, ranked.ids[::3])
    copy = row.copy()
    copy[ids] += rng.choice([-np.inf, -2.0, -0.5, 0.0, 0.5, 3.0], len(ids)).astype(np.float32)
    # when its order is taken from the first one's
    edited = ranked.edited(lambda: copy, ids, copy[ids], None)
    # then its head is a head of a full sort, and goes on as one
    assert edited.ids.tolist() == sorted_ids(copy)[: len(edited.ids)]
    edited.reach(len(edited.ids) + 9)
    alive = [token for token in sorted_ids(copy) if copy[token] > -np.inf]
    assert edited.ids.tolist()[: len(alive)] == alive[: len(edited.ids)]
    for token in ids[:5]:
        assert edited.place_of(token) == (copy[token], int((copy > copy[token]).sum()))


def test_what_cannot_be_comes_only_where_all_is_asked_for() -> None:
    row = np.full(1000, -np.inf, np.float32)
    row[[3, 700]] = -1.0, -0.5
    assert likeliest(row, 5).tolist() == [700, 3]
    ranked = Ranked(row)
    ranked.reach(5)
    assert ranked.complete
    assert ranked.place_of(3) == (np.float32(-1.0), 1)


@pytest.mark.parametrize("vocab", [7, 1000, 49_152])
def test_records_are_the_same_whatever_is_known(vocab: int) -> None:
    logits = (np.random.default_rng(1).normal(size=(3, vocab)) * 3).astype(np.float32)
    entropy, mass = np.empty(3), np.empty(3)
    logprobs = log_softmax(logits, entropy=entropy, mass=mass)
    np.testing.assert_allclose(mass, np.exp(logprobs, dtype=np.float64).sum(-1), rtol=1e-6)
    targets = np.array([0, vocab // 2, vocab - 1], np.int32)
    ranked = [Ranked(row) for row in logprobs]
    for known, each in zip((0, 3, 300), ranked, strict=True):
        each.reach(known)
    plain, shared = summarise(logprobs, targets, 10, entropy), summarise_ranked(ranked, targets, 10, entropy)
    for name in ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(shared, name))


def test_the_mass_of_a_row_is_one_but_for_rounding() -> None:
    logits = (np.random.default_rng(2).normal(size=(4, 50_000)) * [[0.01], [1], [4], [9]]).astype(np.float32)
    mass = np.empty(4)
    assert log_softmax(logits, mass=mass).tolist() == log_softmax(logits).tolist()
    np.testing.assert_allclose(mass, 1.0, rtol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [63, 3000, 20_011, 50_000])
@pytest.mark.parametrize("digits", [7, 1])
@pytest.mark.parametrize("entropy", [None, 0.0, 2.0, 3.0, 5.5, 9.0])  # nats: as many of what lies deeper are looked for
def test_the_head_and_what_lies_deeper_are_found_in_one_search(vocab: int, digits: int, entropy: float | None) -> None:
    row = row_of(3, vocab, digits)
    ranked = Ranked(row, entropy=entropy)
    ranked.reach(64, Look(64, 4.0, 512))
    head = min(64, vocab)
    assert ranked.ids[:head].tolist() == sorted_ids(row)[:head]
    assert ranked.values.tolist() == row[ranked.ids].tolist()
    if ranked.reached is not None:
        least, ids, found, scores = ranked.reached
        assert ids.tolist() == np.flatnonzero(row >= least).tolist()
        assert found.tolist() == row[ids].tolist()
        assert scores.tolist() == sorted(found.tolist(), reverse=True)
    # a row that is nearly certain is settled by its head; of a flat one a search finds all that knows the mass
    flat = {63: 0.0, 3000: 0.0, 20_011: 5.0, 50_000: 6.0}[vocab]
    assert (ranked.reached is not None) == (2.5 < (3.0 if entropy is None else entropy) < flat)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("digits", [7, 1])
@pytest.mark.parametrize("spread", [2.75, 3.0])
@pytest.mark.parametrize("share", [0.8, 0.9, 0.95])
def test_of_a_flat_row_about_so_many_are_found_as_have_a_share(digits: int, spread: float, share: float) -> None:
    enough, looked, more = 0, 0, 0.0
    for seed in range(20):
        ranked = ranked_of(row_of(seed, 50_000, digits) * np.float32(spread))
        if np.exp(ranked.entropy or 0.0) < 600:  # of a steeper one the largest entries tell more
            continue
        looked += 1
        ranked.reach(64, Look(64, 4.0, 512, share))
        # then the head is exact and all that reach the value are there
        assert ranked.ids.tolist() == sorted_ids(ranked.row)[:64]
        assert ranked.reached is not None
        assert ranked.reached.ids.tolist() == np.flatnonzero(ranked.row >= ranked.reached.least).tolist()
        # and they seldom lack any of those that have the share together, nor are they many more
        weights = np.sort(np.exp(ranked.row.astype(np.float64)))[::-1].cumsum()
        needed = int(weights.searchsorted(share * weights[-1])) + 1
        enough += len(ranked.reached.ids) >= needed
        more = max(more, len(ranked.reached.ids) / needed)
    assert looked > 5
    assert enough >= 0.9 * looked
    assert more < 2.5


@pytest.mark.parametrize(("spread", "share"), [(0.5, 0.5), (2.0, 0.95), (2.75, 1e-6)])
def test_of_a_row_too_flat_to_be_sorted_the_head_alone_is_looked_for(spread: float, share: float) -> None:
    ranked = ranked_of(row_of(1, 50_000, 7) * np.float32(spread))
    ranked.reach(64, Look(64, 4.0, 512, share))
    assert ranked.ids.tolist() == sorted_ids(ranked.row)[:64]
    assert ranked.reached is None


def ranked_of(logits: Float32) -> Ranked:
    """Log-probabilities, of which all is known that a step knows."""
    entropy, mass = np.empty(1), np.empty(1)
    row = log_softmax(logits[None], entropy=entropy, mass=mass)[0]
    return Ranked(row, float(mass[0]), float(entropy[0]))


@pytest.mark.parametrize("n", [1, 1000, 50_001])
def test_what_a_mask_holds_is_found_however_much_it_is(n: int) -> None:
    rng = np.random.default_rng(1)
    for share in (0.0, 0.001, 0.02, 0.03, 0.06, 0.09, 0.11, 0.5, 1.0):
        mask = rng.random(n) < share
        for count in (0, int(np.count_nonzero(mask)), int(0.05 * n)):
            assert places_of(mask, count).tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.parametrize("vocab", [64, 1000, 20_011])
def test_the_peaks_of_a_step_are_those_of_its_rows(vocab: int) -> None:
    logits = np.random.default_rng(2).normal(size=(9, vocab)).astype(np.float32) * 4
    peaks = empty_peaks(*logits.shape)
    assert peaks is not None
    logprobs = log_softmax(logits, peaks=peaks)
    np.testing.assert_array_equal(logprobs, log_softmax(logits))
    for row, mine in zip(logprobs, peaks, strict=True):
        np.testing.assert_array_equal(Ranked(row).peaks, mine)
