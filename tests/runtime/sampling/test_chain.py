"""Any stages in any order, over small and large vocabularies: what the stages written out in full give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime.errors import GrammarError, InvalidRequestError
from runtime.numerics.ranking import SHALLOW, Ranked
from runtime.numerics.scoring import log_softmax
from runtime.options.generation import ORDER, SamplingOptions
from runtime.records import Float32
from runtime.sampling.chain import Sampler, uniform
from runtime.sampling.report import report
from tests.runtime.sampling.naive import naive_draw, naive_scores, softmax

TIGHT = 1e-6  # a draw this close to a border may fall on either side: the order's masses are float32 sums
STAGES = tuple(name for name in ORDER if name not in ("penalties", "dry"))  # those have tests of their own


def row(seed: int, vocab: int, scale: float) -> Float32:
    logits = np.random.default_rng(seed).normal(size=(1, vocab)) * scale
    logprobs: Float32 = log_softmax(logits.astype(np.float32))[0]
    return logprobs


def compare(options: dict[str, Any], logprobs: Float32, places: range, seed: int = 3) -> None:
    sampler = Sampler(SamplingOptions(**options).check(len(logprobs)), seed)
    order = options.get("order", STAGES)
    mass = float(np.exp(logprobs, dtype=np.float64).sum())
    for place in places:
        scores = naive_scores(order, logprobs, options, [], uniform(seed, place, 0, 1))
        if np.isneginf(scores).all():  # the only one that was left is banned
            for act in (sampler.draw, sampler.trace):
                with pytest.raises(InvalidRequestError, match="banned"):
                    act(logprobs, place)
            continue
        token, distance = naive_draw(scores, uniform(seed, place))
        if distance > TIGHT:
            assert sampler.draw(logprobs, place)[0] == token
        traced = sampler.trace(logprobs, place)
        assert traced.token == sampler.draw(logprobs, place)[0]
        if distance > TIGHT:  # given the normaliser, and what another has looked at, nothing changes
            known = Ranked(logprobs, mass)
            known.reach(place * 7)
            assert sampler.draw(known, place)[0] == token
            assert sampler.trace(known, place).token == token
        last = report(traced).stages(0)[-1]
        np.testing.assert_allclose(last.after, softmax(scores)[list(last.ids)], rtol=1e-5, atol=1e-9)
        assert last.kept == np.isfinite(scores).sum()


@st.composite
def any_settings(draw: st.DrawFn) -> dict[str, Any]:
    order = draw(st.permutations(STAGES))
    order = order[: draw(st.integers(0, len(order)))]
    values: dict[str, dict[str, st.SearchStrategy[Any]]] = {
        "bias": {
            "logit_bias": st.dictionaries(st.integers(0, 99), st.floats(-8, 8), max_size=4),
            "banned_tokens": st.lists(st.integers(0, 99), max_size=5).map(tuple),
        },
        "temperature": {"temperature": st.floats(0.3, 3)},
        "top_k": {"top_k": st.integers(1, 90)},
        "top_p": {"top_p": st.floats(0.05, 0.999)},
        "min_p": {"min_p": st.floats(0.001, 0.5)},
        "typical": {"typical_p": st.floats(0.05, 0.99)},
        "xtc": {"xtc_probability": st.sampled_from([0.5, 1.0]), "xtc_threshold": st.floats(0.01, 0.5)},
    }
    chosen = {name: draw(made) for stage in order for name, made in values[stage].items()}
    for token in chosen.get("banned_tokens", ()):
        if chosen["logit_bias"].get(token, 0) > 0:  # refused as a contradiction
            del chosen["logit_bias"][token]
    return {**chosen, "order": tuple(order)}


FEW_OF_MANY: dict[str, Any] = {
    "xtc_probability": 0.5,
    "xtc_threshold": 0.01,
    "typical_p": 0.5,
    "top_k": 1,
    "order": ("xtc", "typical", "top_k"),
}


NONE_LEFT: dict[str, Any] = {"top_k": 1, "banned_tokens": (17,), "order": ("top_k", "bias")}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(NONE_LEFT, 448, 100, 1.0)
@example(FEW_OF_MANY, 2, 100, 2.5)  # what is left weighs a hundredth of what stands before it
@given(any_settings(), st.integers(0, 1000), st.sampled_from([100, 150, 400]), st.floats(0.2, 4))
def test_any_stages_in_any_order(options: dict[str, Any], seed: int, vocab: int, scale: float) -> None:
    compare(options, row(seed, vocab, scale), range(3))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"top_p": 0.9},
        {"top_p": 0.9, "temperature": 1.5},
        {"min_p": 0.02},
        {"typical_p": 0.4},
        {"typical_p": 0.9, "top_p": 0.99},
        {"top_k": 3000, "top_p": 0.9},
        {"xtc_probability": 1.0, "xtc_threshold": 1e-4},
        {"xtc_probability": 0.5, "xtc_threshold": 1e-3, "min_p": 0.01, "temperature": 1.3},
        {"top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
        {"top_p": 0.3, "min_p": 1e-5, "temperature": 0.8},
        {"top_p": 0.9, "logit_bias": {7: 4.0, 8: -3.0}, "banned_tokens": (1, 2, 3)},
        {"temperature": 0.01, "min_p": 0.5},
        {"order": ("top_p", "typical", "bias", "temperature", "min_p"), "top_p": 0.97, "typical_p": 0.9, "temperature": 0.9,
         "min_p": 0.01, "logit_bias": {5: 3.0, 77: -2.0}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scale", [0.02, 1.0, 3.0])
def test_large_vocabularies_are_searched_not_sorted(options: dict[str, Any], scale: float) -> None:
    # given distributions that are spread far beyond the sorted head
    compare(options, row(int(scale * 100), 20_000, scale), range(4))


def test_equal_scores_are_drawn_by_id() -> None:
    # given many ties, beyond the head too
    rng = np.random.default_rng(0)
    logprobs = log_softmax(rng.integers(0, 4, (1, 40 * SHALLOW.head)).astype(np.float32))[0]
    for options in ({}, {"top_p": 0.6}, {"top_k": 700}, {"typical_p": 0.5}, {"xtc_probability": 1.0, "xtc_threshold": 1e-4}):
        compare(options, logprobs, range(10))


def test_a_vocabulary_of_equals() -> None:
    compare({"top_p": 0.50001}, log_softmax(np.zeros((1, 30_000), np.float32))[0], range(10))


def test_a_mask_comes_first_and_is_reported_as_grammar() -> None:
    logprobs = row(4, 5000, 0.2)
    allowed = np.zeros(5000, np.bool_)
    allowed[[7, 90, 4000]] = True
    sampler = Sampler(SamplingOptions(top_k=2, logit_bias={90: -50.0}), 1)
    tokens = {sampler.draw(logprobs, place, allowed=allowed)[0] for place in range(40)}
    assert tokens == {7, 4000}
    stages = report(sampler.trace(logprobs, 0, allowed=allowed)).stages(0)
    assert [stage.name for stage in stages] == ["raw", "grammar", "bias", "top_k", "draw"]
    assert [stage.kept for stage in stages] == [5000, 3, 3, 2, 2]
    assert {7, 90, 4000} <= set(stages[1].ids)
    greedy = Sampler(SamplingOptions(temperature=0.0, logit_bias={90: 50.0}), 1)
    assert greedy.draw(logprobs, 0, allowed=allowed)[0] == 90


def test_nothing_left_is_an_error() -> None:
    logprobs = row(4, 10, 1.0)
    for temperature in (0.0, 1.0):
        sampler = Sampler(SamplingOptions(banned_tokens=(1, 2), temperature=temperature), 1)
        only = np.isin(np.arange(10), [1, 2])
        with pytest.raises(GrammarError, match="all 2 tokens that the grammar allows"):
            sampler.draw(logprobs, 0, allowed=only)
        with pytest.raises(GrammarError, match="allows no token"):
            sampler.draw(logprobs, 0, allowed=np.zeros(10, np.bool_))
        with pytest.raises(InvalidRequestError, match="mask"):
            sampler.draw(logprobs, 0, allowed=np.ones(9, np.bool_))
        everything = Sampler(SamplingOptions(banned_tokens=tuple(range(10)), temperature=temperature), 1)
        with pytest.raises(InvalidRequestError, match="banned"):
            everything.draw(logprobs, 0)
        with pytest.raises(InvalidRequestError, match="banned"):
            everything.trace(logprobs, 0)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_nothing_left_before_xtc_is_the_same_error(probability: float) -> None:
    # given bans of all that a grammar allows, or that an earlier stage left, and XTC behind them
    logprobs = row(4, 500, 1.0)
    best = int(logprobs.argmax())
    bans = SamplingOptions(xtc_probability=probability, banned_tokens=(best,))
    # then
    with pytest.raises(GrammarError, match="all 1 tokens that the grammar allows here are banned"):
        Sampler(bans, 1).draw(logprobs, 0, allowed=np.arange(500) == best)
    late = replace(bans, min_p=0.999, order=("min_p", "bias", "xtc"))
    with pytest.raises(InvalidRequestError, match="every token that the model could say is banned"):
        Sampler(late, 1).draw(logprobs, 0)


def test_rows_are_never_written() -> None:
    logprobs = row(4, 3000, 2.0)
    before = logprobs.copy()
    logprobs.flags.writeable = False
    options = SamplingOptions(temperature=0.7, logit_bias={3: 1.0}, top_p=0.9, repetition_penalty=1.2, typical_p=0.9)
    Sampler(options, 1).draw(logprobs, 5, history=np.array([1, 2, 3], np.int32))
    np.testing.assert_array_equal(logprobs, before)


def test_a_stage_left_out_of_the_order_does_nothing() -> None:
    # the model's own top-k, say, under a call's order without it
    sampler = Sampler(SamplingOptions(top_k=1, order=("temperature",)), 1)
    assert sampler.stages == ()
    assert len({sampler.draw(row(1, 100, 1.0), place)[0] for place in range(30)}) > 5


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05},
        {"top_k": 30, "typical_p": 0.6},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_p": 0.99},
        {"logit_bias": {5: 9.0}, "banned_tokens": (1, 2), "top_p": 0.4},
        {"temperature": 0.0, "banned_tokens": (3,)},
        {},
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [30, 5000])
def test_a_report_says_who_is_held_after_each_stage(options: dict[str, Any], vocab: int) -> None:
    sampler = Sampler(SamplingOptions(**options), 3)
    for place in range(20):
        traced = sampler.trace(row(8, vocab, 2.0), place)
        table = report(traced)
        held = np.unpackbits(table.held[0], axis=-1, count=table.ids.shape[1], bitorder="little").astype(np.bool_)
        for step, mine in zip(traced.steps, held, strict=True):
            assert mine.tolist() == step.view.holds(table.ids[0].astype(np.int64)).tolist()
        assert table.kept[0].tolist() == [step.view.count for step in traced.steps]
        assert table.mass[0].tolist() == [step.view.mass for step in traced.steps]
