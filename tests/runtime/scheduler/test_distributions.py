"""Normalising raw logits into the log-probabilities that draws and records read: in place, and the same to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.numerics.ranking import Ranked
from runtime.options.generation import SamplingOptions
from runtime.records import Float32
from runtime.sampling.chain import make_sampler
from runtime.scheduler.prefill.distributions import normalise

GREEDY = make_sampler(SamplingOptions(temperature=0.0), 0)


def some_logits(rows: int, vocab: int = 5000) -> Float32:
    return np.random.default_rng(rows).normal(scale=4, size=(rows, vocab)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 3, 70])
def test_log_probabilities_overwrite_writeable_logits_and_leave_read_only_ones(rows: int) -> None:
    # given writeable logits, and the same logits read-only
    own, theirs = some_logits(rows), some_logits(rows)
    theirs.flags.writeable = False
    # when both are normalised
    here, there = normalise(own, entropy=True), normalise(theirs, entropy=True)
    # then only the writeable ones are overwritten, and the numbers are the same
    assert all(np.shares_memory(row.row, own) for row in here.ranked)
    assert not any(np.shares_memory(row.row, theirs) for row in there.ranked)
    assert np.array_equal(theirs, some_logits(rows))
    assert all(np.array_equal(one.row, other.row) for one, other in zip(here.ranked, there.ranked, strict=True))
    assert np.array_equal(here.shift, there.shift)
    assert here.entropy is not None
    assert there.entropy is not None
    assert np.array_equal(here.entropy, there.entropy)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("entropy", [True, False])
def test_rows_beside_a_row_that_is_not_finite_are_the_same_as_alone(bad: float, entropy: bool) -> None:
    logits = some_logits(3)
    alone = [normalise(logits[[i]].copy(), entropy=entropy) for i in (0, 2)]
    logits[1, 7] = bad
    after = normalise(logits, entropy=entropy)
    assert after.finite.tolist() == [True, False, True]
    for i, one in zip((0, 2), alone, strict=True):
        assert np.array_equal(after.ranked[i].row, one.ranked[0].row)
        assert after.shift[i] == one.shift[0]
        assert after.ranked[i].mass == one.ranked[0].mass
        assert after.ranked[i].entropy == one.ranked[0].entropy
    np.testing.assert_allclose(np.exp(after.ranked[1].row), 1 / 5000, rtol=1e-5)


@pytest.mark.parametrize("vocab", [1, 5, 63, 64, 100, 1000, 5001])
def test_a_greedy_draw_leaves_the_likeliest_token_for_the_records(vocab: int) -> None:
    row = some_logits(1, vocab)[0]
    row[vocab // 2 :] = np.minimum(row[vocab // 2 :], 1.0)
    for peaks in ([], [vocab - 1], [vocab // 3, vocab - 1], [0, vocab // 2]):
        edited = row.copy()
        edited[peaks] = 30.0
        ranked = Ranked(edited)
        token, u = GREEDY.draw(ranked, 0)
        assert token == int(edited.argmax()) == ranked.ids[0]  # the first of equals
        assert np.isnan(u)
