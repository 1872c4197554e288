"""A sampling step without a model: the draws and their reports."""

from __future__ import annotations

import numpy as np
import pytest

from runtime import InvalidRequestError, SamplingOptions, draw_step, make_sampler
from runtime.numerics.stage_table import StageTable

LOGITS = (np.random.default_rng(4).normal(size=(3, 500)) * 3).astype(np.float32)


def test_a_step_with_reports_has_the_same_draws() -> None:
    # given three streams with a cut and a temperature, drawn with and without a report
    samplers = [make_sampler(SamplingOptions(temperature=0.7, top_p=0.9, xtc_probability=0.5), seed) for seed in range(3)]
    tables: list[StageTable] = []
    plain, scores = draw_step(LOGITS, samplers, [5, 6, 7], 10)
    told, same = draw_step(LOGITS, samplers, [5, 6, 7], 10, stages=tables)
    # then the draws are the same, and each has one row of stages
    assert plain.tolist() == told.tolist()
    assert np.array_equal(scores.top_ids, same.top_ids)
    [table] = tables
    assert [[stage.name for stage in table.stages(i)] for i in range(3)] == [["raw", "temperature", "top_p", "xtc", "draw"]] * 3
    assert table.token.tolist() == told.tolist()


def test_a_step_needs_a_sampler_and_a_position_for_every_row_and_finite_logits() -> None:
    with pytest.raises(InvalidRequestError, match="3 rows, 1 samplers, 3 positions, 3 histories"):
        draw_step(LOGITS, [make_sampler(SamplingOptions(), 0)], [1, 2, 3])
    broken = LOGITS.copy()
    broken[1, 7] = np.nan
    with pytest.raises(InvalidRequestError, match="row 1"):
        draw_step(broken, [make_sampler(SamplingOptions(), 0)] * 3, [1, 2, 3])
