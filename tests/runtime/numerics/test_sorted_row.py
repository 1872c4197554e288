"""Places in the descending order of a large row, found without sorting it, compared with a full sort in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime.numerics.ranking import Ranked
from runtime.numerics.scoring import log_softmax
from runtime.numerics.select import masked
from runtime.numerics.sorted_row import SortedRow
from runtime.options.generation import SamplingOptions
from runtime.sampling.chain import Sampler

VOCAB = 20_000
SHARES = (0.05, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.999)  # from the sorted head to most of the row


@pytest.mark.parametrize("spread", [0.05, 0.5, 1.5, 2.5, 4.0])  # from a flat row to a steep one
@pytest.mark.parametrize("digits", [7, 1])  # few ties, and many
@pytest.mark.parametrize("shares", [SHARES, SHARES[::-1], (0.8, 0.3, 0.95)], ids=str)  # earlier searches help later ones
def test_the_place_of_a_mass_equals_that_of_a_full_sort(spread: float, digits: int, shares: tuple[float, ...]) -> None:
    logits = np.round(np.random.default_rng(7).normal(size=(1, VOCAB)) * spread, digits).astype(np.float32)
    entropy, mass = np.empty(1), np.empty(1)
    logprobs = log_softmax(logits, entropy=entropy, mass=mass)[0]
    order = np.lexsort((np.arange(VOCAB), -logprobs))
    weights = np.exp(logprobs[order].astype(np.float64) - float(logprobs.max()))
    edges = weights.cumsum()
    falling = SortedRow(Ranked(logprobs, float(mass[0]), float(entropy[0])), 1.0)
    assert falling.entropy == pytest.approx(-(weights * np.log(weights / edges[-1])).sum() / edges[-1], abs=2e-6)
    for share in shares:
        place = falling.at_mass(share * edges[-1])
        # then it is the same entry, or a neighbour when the mass is within rounding of a border
        assert place.token == order[place.rank]
        wanted = int(edges.searchsorted(share * edges[-1], side="right"))
        assert place.rank == wanted or abs(edges[min(place.rank, wanted)] / edges[-1] - share) < 1e-6
        assert place.before == pytest.approx(edges[place.rank] - weights[place.rank], rel=1e-6, abs=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("spread", [0.5, 2.0, 3.0, 4.0])
@pytest.mark.parametrize(
    "stages",
    [
        {"typical_p": 0.9},
        {"typical_p": 0.3},
        {"typical_p": 0.999},
        {"top_p": 0.95},
        {"top_p": 0.2},
        {"typical_p": 0.9, "top_p": 0.9},
        {"typical_p": 0.9, "banned_tokens": (1, 2)},
        {"min_p": 1e-4, "typical_p": 0.9, "order": ("min_p", "typical")},
    ],
    ids=str,
)
def test_known_mass_and_entropy_change_no_draw(spread: float, stages: dict[str, Any]) -> None:
    logits = (np.random.default_rng(3).normal(size=(1, VOCAB)) * spread).astype(np.float32)
    entropy, mass = np.empty(1), np.empty(1)
    logprobs = log_softmax(logits, entropy=entropy, mass=mass)[0]
    sampler = Sampler(SamplingOptions(**stages), seed=5)
    for position in range(40):
        known = Ranked(logprobs, float(mass[0]), float(entropy[0]))
        assert sampler.draw(known, position) == sampler.draw(logprobs, position)


def test_a_row_with_every_entry_lowered_is_drawn_from_correctly() -> None:
    # given a small vocabulary with every token in the history, so that no entry reaches the row's original maximum
    logprobs = log_softmax((np.random.default_rng(2).normal(size=(1, 257)) * 0.05).astype(np.float32))[0]
    said = np.arange(257, dtype=np.int32)
    sampler = Sampler(SamplingOptions(presence_penalty=5.0), seed=1)
    # then its draws equal those of the original row: all entries are lowered by the same amount
    plain = Sampler(SamplingOptions(), seed=1)
    drawn = [(sampler.draw(logprobs, position, history=said)[0], plain.draw(logprobs, position)[0]) for position in range(60)]
    assert sum(ours != other for ours, other in drawn) <= 1  # except for a number next to a border


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_masked_entries_have_no_probability(share: float) -> None:
    chance = np.random.default_rng(7)
    row = chance.normal(size=1001).astype(np.float32)
    row[::13] = -np.inf
    before, mask = row.copy(), chance.random(1001) < share
    np.testing.assert_array_equal(masked(row, mask), np.where(mask, row, -np.inf))
    np.testing.assert_array_equal(row, before)
