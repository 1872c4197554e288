"""Scratch memory that is reused only by the same thread and for the same purpose."""

from __future__ import annotations

import threading

import numpy as np

from runtime.numerics.scoring import MOST_ENTRIES, log_softmax, scratch
from runtime.options.generation import SamplingOptions
from runtime.sampling.chain import make_sampler


def test_each_use_has_its_own_memory_and_reuses_it() -> None:
    first, other = scratch("a", 100), scratch("b", 100)
    assert not np.shares_memory(first, other)
    assert np.shares_memory(scratch("a", 50), first)
    assert np.shares_memory(scratch("a", 100), first)
    larger = scratch("a", 1000)
    assert len(larger) == 1000
    assert np.shares_memory(scratch("a", 100), larger)
    much = scratch("a", MOST_ENTRIES + 1)
    assert not np.shares_memory(much, scratch("a", MOST_ENTRIES + 1))


def test_threads_share_no_scratch_memory() -> None:
    mine = scratch("a", 100)
    theirs: list[bool] = []
    thread = threading.Thread(target=lambda: theirs.append(np.shares_memory(scratch("a", 100), mine)))
    thread.start()
    thread.join()
    assert theirs == [False]


def test_earlier_results_are_not_changed_by_later_computations() -> None:
    # given a row that was scored and drawn from under penalties
    rng = np.random.default_rng(3)
    logits = rng.normal(size=(2, 3000)).astype(np.float32) * 3
    first = log_softmax(logits[:1])
    kept = first.copy()
    sampler = make_sampler(SamplingOptions(repetition_penalty=1.4, temperature=0.9), 5)
    said = np.arange(0, 3000, 7, dtype=np.int32)
    tokens = [sampler.draw(first[0], position, history=said)[0] for position in range(30)]
    traced = [sampler.trace(first[0], position, history=said) for position in range(30)]
    rows = [trace.steps[-1].view.order.row.copy() for trace in traced]
    # when others are scored and drawn from
    log_softmax(logits[1:])
    for position in range(30):
        make_sampler(SamplingOptions(presence_penalty=2.0), 6).draw(log_softmax(logits[1:])[0], position, history=said)
    # then the earlier results are unchanged
    np.testing.assert_array_equal(first, kept)
    assert [trace.token for trace in traced] == tokens
    for trace, row in zip(traced, rows, strict=True):
        np.testing.assert_array_equal(trace.steps[-1].view.order.row, row)
