"""Bias, bans, penalties and DRY, compared with the processors of transformers, mlx-lm and text-generation-webui."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime.errors import InvalidRequestError
from runtime.numerics.scoring import log_softmax
from runtime.options.generation import SamplingOptions
from runtime.records import Float32
from runtime.sampling.chain import Sampler, breaker_ids, make_sampler
from runtime.sampling.history import History
from runtime.sampling.pool import CandidatePool
from runtime.sampling.report import report
from runtime.sampling.stages.bias import Bias
from runtime.sampling.stages.dry import Dry
from runtime.sampling.stages.min_p import min_p
from runtime.sampling.stages.penalties import Penalties
from runtime.sampling.stages.top_k import top_k
from runtime.sampling.stages.xtc import xtc
from tests.runtime.sampling.naive import naive_dry

VOCAB = 300


def logits_of(seed: int) -> tuple[Float32, Float32, float]:
    """Raw logits of both signs, their log-probabilities, and the shift between them."""
    raw = (np.random.default_rng(seed).normal(size=(1, VOCAB)) * 4 + 1).astype(np.float32)
    shift = np.empty(1, np.float32)
    logprobs = log_softmax(raw, shift=shift)[0]
    return raw[0], logprobs, float(shift[0])


def said(seed: int, n: int = 80) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 40, n).tolist()
    return ids


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_the_repetition_penalty_equals_transformers(penalty: float) -> None:
    import torch
    from transformers import RepetitionPenaltyLogitsProcessor

    for seed in range(5):
        raw, logprobs, shift = logits_of(seed)
        pool = CandidatePool(logprobs, shift)
        Penalties(penalty, 0.0, 0.0).apply(pool, History(said(seed)))
        expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([said(seed)]), torch.tensor(raw)[None].clone())
        assert (raw[said(seed)] > 0).any()
        assert (raw[said(seed)] < 0).any()
        np.testing.assert_allclose(pool.row + shift, expected[0].numpy(), atol=2e-5)


@pytest.mark.parametrize("window", [0, 20, 1, 500])
def test_penalties_and_bias_equal_mlx_lm(window: int) -> None:
    import mlx.core as mx
    from mlx_lm.sample_utils import make_logits_processors

    for seed in range(3):
        raw, logprobs, shift = logits_of(seed)
        bias = {3: 2.5, 250: -7.0}
        size = window or 10_000
        processors = make_logits_processors(bias, 1.2, size, 0.4, size, 0.3, size)
        scores = mx.array(raw)[None]
        for processor in processors:
            scores = processor(mx.array(said(seed)), scores)
        pool = CandidatePool(logprobs, shift)
        Bias(bias, ()).apply(pool, History([]))
        Penalties(1.2, 0.0, 0.0).apply(pool, History(said(seed), window))
        Penalties(1.0, 0.0, 0.3).apply(pool, History(said(seed), window))
        Penalties(1.0, 0.4, 0.0).apply(pool, History(said(seed), window))
        np.testing.assert_allclose(pool.row + shift, np.array(scores)[0], atol=3e-5)
        together = CandidatePool(logprobs, shift)
        Bias(bias, ()).apply(together, History([]))
        Penalties(1.2, 0.4, 0.3).apply(together, History(said(seed), window))
        np.testing.assert_allclose(together.row, pool.row, atol=3e-5)


def test_bans_equal_transformers() -> None:
    import torch
    from transformers import SuppressTokensLogitsProcessor

    raw, logprobs, shift = logits_of(1)
    pool = CandidatePool(logprobs, shift)
    Bias({4: 9.0}, [4, 5, 299]).apply(pool, History([]))
    expected = SuppressTokensLogitsProcessor([4, 5, 299])(torch.zeros((1, 1), dtype=torch.long), torch.tensor(raw)[None])[0]
    np.testing.assert_allclose(pool.row + shift, expected.numpy(), atol=1e-5)


def kept(pool: CandidatePool) -> set[int]:
    return set(np.flatnonzero(pool.view.holds(np.arange(VOCAB))).tolist())


def test_top_k_top_p_min_p_and_xtc_equal_mlx_lm() -> None:
    import mlx.core as mx
    from mlx_lm import sample_utils as peer

    for seed in range(20):
        logprobs = logits_of(seed)[1] / np.float32(1 + seed % 5)
        logprobs = log_softmax(logprobs[None])[0]
        theirs: list[tuple[Any, Any]] = [
            (peer.apply_top_k(mx.array(logprobs)[None], 17), lambda pool: top_k(pool, 17)),
            (peer.apply_top_p(mx.array(logprobs)[None], 0.83), lambda pool: pool.keep_share(0.83)),
            (peer.apply_min_p(mx.array(logprobs)[None], 0.04), lambda pool: min_p(pool, 0.04)),
            (peer.apply_xtc(mx.array(logprobs)[None], 1.0, 0.05, []), lambda pool: xtc(pool, 0.05)),
        ]
        for expected, cut in theirs:
            pool = CandidatePool(logprobs)
            cut(pool)
            assert kept(pool) == set(np.flatnonzero(np.isfinite(np.array(expected)[0])).tolist())


# ---- DRY ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breakers", [(), (0,), (1, 2)])
def test_dry_equals_text_generation_webui(breakers: tuple[int, ...]) -> None:
    hits = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ids = rng.integers(0, 3 + seed % 4, int(rng.integers(1, 160))).tolist()
        if seed % 3 == 0:
            ids = ids[:30] * 4 + ids[: int(rng.integers(0, 30))]
        loses = naive_dry(ids, 0.8, 1.75, 2, set(breakers))
        hits += len(loses)
        _, logprobs, shift = logits_of(seed)
        pool = CandidatePool(logprobs, shift)
        Dry(0.8, 1.75, 2, 0, np.array(breakers, np.int32)).apply(pool, History(ids))
        expected = logprobs.astype(np.float64)
        for token, loss in loses.items():
            expected[token] -= loss
        np.testing.assert_allclose(pool.row, expected, rtol=1e-6, atol=1e-5)
    assert hits > 10


def test_dry_is_limited_to_its_range() -> None:
    ids = [7, 8, 9, 1, 2, 3, 4, 7, 8]
    _, logprobs, _ = logits_of(0)
    near, far = CandidatePool(logprobs), CandidatePool(logprobs)
    Dry(1.0, 2.0, 2, 5, np.empty(0, np.int32)).apply(near, History(ids))
    Dry(1.0, 2.0, 2, 9, np.empty(0, np.int32)).apply(far, History(ids))
    np.testing.assert_array_equal(near.row, logprobs)
    assert far.row[9] == logprobs[9] - 1


def test_the_dry_penalty_of_a_long_repetition_stays_finite() -> None:
    _, logprobs, _ = logits_of(0)
    pool = CandidatePool(logprobs)
    Dry(5.0, 1e9, 1, 0, np.empty(0, np.int32)).apply(pool, History([4] * 200))
    assert np.isfinite(pool.row).all()
    assert pool.row[4] < -1e20


def test_breakers_are_all_tokens_that_contain_the_given_text() -> None:
    pieces = [b"a", b"\n", b"x\n\n", b"b:", b"*", b'"', b"c"]
    assert breaker_ids(("\n", 6), pieces) == (1, 2, 6)
    with pytest.raises(InvalidRequestError, match="no token contains 'zz'"):
        breaker_ids(("zz",), pieces)
    sampler = make_sampler(SamplingOptions(dry_multiplier=0.8), 1, pieces=lambda: pieces)
    assert sampler.breakers == (1, 2, 3, 4, 5)
    assert make_sampler(SamplingOptions(), 1, pieces=lambda: pieces).breakers == ()


@pytest.mark.parametrize("edit", [{"presence_penalty": 0.5}, {"repetition_penalty": 1.2}, {"dry_multiplier": 0.8}])
def test_removed_tokens_stay_removed_after_an_edit(edit: dict[str, Any]) -> None:
    _, logprobs, shift = logits_of(3)
    stage = "dry" if "dry_multiplier" in edit else "penalties"
    sampler = make_sampler(SamplingOptions(order=("top_k", stage), top_k=1, **edit).check(VOCAB), 4)
    for place in range(20):
        traced = sampler.trace(logprobs, place, history=History(said(place)), shift=shift)
        assert traced.token == logprobs.argmax()
        assert report(traced).stages(0)[-1].kept == 1


# ---- the history ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 1, 7, 64, 1000])
def test_incremental_counts_equal_counting_from_scratch(window: int) -> None:
    rng = np.random.default_rng(window)
    ids = rng.integers(0, 30, 20).tolist()
    history = History(ids, window)
    for token in rng.integers(0, 50, 300).tolist():
        ids.append(token)
        history.append(token)
        found, counts = np.unique(ids[-window:] if window else ids, return_counts=True)
        tokens, ours = history.counted
        assert dict(zip(tokens.tolist(), ours.tolist(), strict=True)) == dict(zip(found.tolist(), counts.tolist(), strict=True))
    assert history.ids.tolist() == ids
    assert len(history) == len(ids)


def test_ids_and_a_growing_history_draw_the_same() -> None:
    options = SamplingOptions(
        repetition_penalty=1.4, frequency_penalty=0.2, penalty_window=9, dry_multiplier=1.0, temperature=0.8
    )
    sampler = Sampler(options, 5)
    history = History([1, 2, 3], sampler.window)
    path = [1, 2, 3]
    for place in range(40):
        _, logprobs, shift = logits_of(place)
        plain: npt.NDArray[np.int32] = np.array(path, np.int32)
        token, u = sampler.draw(logprobs, place, history=history, shift=shift)
        assert (token, u) == sampler.draw(logprobs, place, history=plain, shift=shift)
        history.append(token)
        path.append(token)


@pytest.mark.parametrize("options", [SamplingOptions(logit_bias={VOCAB: 1.0}), SamplingOptions(banned_tokens=(2, VOCAB))])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_an_id_beyond_the_row_is_refused_with_the_size_of_the_vocabulary(options: SamplingOptions, temperature: float) -> None:
    sampler = Sampler(dataclasses.replace(options, temperature=temperature), 1)
    for draw in (sampler.draw, sampler.trace):
        with pytest.raises(InvalidRequestError, match=f"token id {VOCAB} is outside the vocabulary of {VOCAB}"):
            draw(logits_of(0)[1], 0)


@pytest.mark.slow
def test_draws_after_all_stages_pass_a_chi_square_test() -> None:
    from runtime.sampling.report import report

    _, logprobs, shift = logits_of(2)
    options = SamplingOptions(
        temperature=3.0,
        repetition_penalty=1.3,
        logit_bias={9: 4.0},
        top_k=40,
        min_p=0.01,
        xtc_probability=1.0,
        xtc_threshold=0.06,
    )
    sampler = Sampler(options, 77)
    history = np.array(said(2), np.int32)
    draws = 2500
    counts = np.bincount(
        [sampler.draw(logprobs, place, history=history, shift=shift)[0] for place in range(draws)], minlength=VOCAB
    )
    last = report(sampler.trace(logprobs, 0, history=history, shift=shift)).stages(0)[-1]
    probs = np.zeros(VOCAB)
    probs[list(last.ids)] = last.after
    assert abs(probs.sum() - 1) < 1e-6
    assert not counts[probs == 0].any()
    likely = probs > 0
    chi_square = ((counts - draws * probs)[likely] ** 2 / (draws * probs[likely])).sum()
    freedom = int(likely.sum()) - 1
    assert freedom > 10
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)
