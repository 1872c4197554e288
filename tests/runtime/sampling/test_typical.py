"""Typical sampling of whole rows, compared with its definition in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from runtime.numerics.scoring import log_softmax
from runtime.options.generation import SamplingOptions
from runtime.records import Float32
from runtime.sampling.chain import Sampler

VOCAB = 20_000


def defined(logprobs: Float32, p: float, temperature: float) -> npt.NDArray[np.bool_]:
    """The kept tokens: the nearest to the entropy that together have the share, with all ties of the last one."""
    scaled = logprobs.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    probs = weights / weights.sum()
    there = probs > 0
    surprisal = -np.log(np.where(there, probs, 1.0))
    far = np.where(there, np.abs(surprisal - float(probs @ surprisal)), np.inf)
    order = np.argsort(far, kind="stable")
    kept: npt.NDArray[np.bool_] = far <= far[order[int(np.searchsorted(probs[order].cumsum(), p))]]
    return kept


@pytest.mark.parametrize("spread", [0.3, 2.0, 4.0, 6.0])  # from thousands of likely tokens to one
@pytest.mark.parametrize("p", [0.2, 0.6, 0.95])  # the likeliest are removed, or stay
@pytest.mark.parametrize("banned", [False, True])
def test_typical_keeps_the_tokens_of_the_definition(spread: float, p: float, banned: bool) -> None:
    # given a row without a known head, with a temperature, and with impossible entries
    rng = np.random.default_rng(11)
    logprobs = log_softmax((rng.normal(size=(1, VOCAB)) * spread).astype(np.float32))[0]
    allowed = rng.random(VOCAB) < 0.5 if banned else None
    wanted = defined(logprobs if allowed is None else np.where(allowed, logprobs, np.float32(-np.inf)), p, 0.8)
    sampler = Sampler(SamplingOptions(temperature=0.8, typical_p=p), seed=3)
    # when it is drawn with a report
    traced = sampler.trace(logprobs, 0, allowed=allowed)
    left = next(step.view for step in traced.steps if step.stage == "typical")
    # then the same tokens are kept, and the draw without a report is the same, one of them
    held = left.holds(np.arange(VOCAB))
    assert np.array_equal(held, wanted)
    assert left.count == wanted.sum()
    assert sampler.draw(logprobs, 0, allowed=allowed)[0] == traced.token
    assert wanted[traced.token]


def test_all_ties_of_the_last_kept_token_stay() -> None:
    # given scores with many ties at the border of the share
    logprobs = log_softmax(np.round(np.random.default_rng(5).normal(size=(1, VOCAB)) * 6).astype(np.float32) / 2)[0]
    for p in (0.3, 0.7, 0.95):
        traced = Sampler(SamplingOptions(typical_p=p), seed=1).trace(logprobs, 0)
        left = next(step.view for step in traced.steps if step.stage == "typical")
        assert np.array_equal(left.holds(np.arange(VOCAB)), defined(logprobs, p, 1.0))


@pytest.mark.parametrize(("seed", "spread", "p"), [(5, 6.0, 0.95), (10, 4.0, 0.9), (11, 5.0, 0.9)])
def test_a_report_changes_no_draw_among_ties(seed: int, spread: float, p: float) -> None:
    # given scores with many ties in their distance to the entropy
    rounded = np.round(np.random.default_rng(seed).normal(size=(1, VOCAB)) * spread * 2) / 2
    logprobs = log_softmax(rounded.astype(np.float32))[0]
    sampler = Sampler(SamplingOptions(typical_p=p), seed=3)
    places = range(6)
    assert [sampler.draw(logprobs, place)[0] for place in places] == [sampler.trace(logprobs, place).token for place in places]
