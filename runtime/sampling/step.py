"""One decoding step of several streams outside of a model: from raw logits to tokens and their scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.errors import InvalidRequestError
from runtime.numerics.ranking import ranked_rows
from runtime.numerics.scoring import asked_temperatures, empty_peaks, log_softmax, summarise_ranked
from runtime.numerics.stage_table import StageTable
from runtime.records import Float32, Int32, Scores
from runtime.sampling.chain import Sampler
from runtime.sampling.history import History
from runtime.sampling.report import DrawReport, draw_report, report_table


def draw_step(
    logits: Float32,
    samplers: Sequence[Sampler],
    positions: Sequence[int],
    top_k: int = 10,
    *,
    histories: Sequence[Int32 | History | None] | None = None,
    stages: list[StageTable] | None = None,
) -> tuple[Int32, Scores]:
    """Draws the next token of each stream, as `generate` does; returns the tokens and their scores.

    Args:
        logits: ``(n, vocab)`` float32, raw.
        samplers: One per row; see `make_sampler`.
        positions: The position of each token in its path.
        top_k: How many alternatives are recorded.
        histories: The tokens of each stream so far, prompt included, where penalties or DRY are on.
        stages: Receives a table with a row for each stream; see `GenerationOptions.stages`.

    Raises:
        InvalidRequestError: Rows, samplers, positions and histories differ in number, or logits are not finite.
    """
    n = len(logits)
    each_history = histories if histories is not None else [None] * n
    if not n == len(samplers) == len(positions) == len(each_history):
        raise InvalidRequestError(
            f"{n} rows, {len(samplers)} samplers, {len(positions)} positions, {len(each_history)} histories: give one each"
        )
    finite, shift = np.empty(n, np.bool_), np.empty(n, np.float32)
    mass, entropy, heated = np.empty(n), np.empty(n), np.empty(n)
    peaks = empty_peaks(*logits.shape)
    temperatures = asked_temperatures([sampler.heats[stages is not None] for sampler in samplers])
    logprobs = log_softmax(
        logits, entropy=entropy, finite=finite, shift=shift, mass=mass, peaks=peaks, temperatures=temperatures, heated=heated
    )
    if not finite.all():
        raise InvalidRequestError(f"row {int((~finite).argmax())} of the logits holds NaN or infinity")
    ranked = ranked_rows(logprobs, mass, entropy, peaks, temperatures, heated)
    tokens = np.empty(n, np.int32)
    reports: list[DrawReport] = []
    for i, (sampler, row, position, history, moved) in enumerate(
        zip(samplers, ranked, positions, each_history, shift.tolist(), strict=True)
    ):
        if stages is None:
            tokens[i], _ = sampler.draw(row, position, history=history, shift=moved)
        else:
            traced = sampler.trace(row, position, history=history, shift=moved)
            tokens[i] = traced.token
            reports.append(draw_report(traced))
    if stages is not None and reports:
        stages.append(report_table(reports))
    return tokens, summarise_ranked(ranked, tokens, top_k, entropy)
