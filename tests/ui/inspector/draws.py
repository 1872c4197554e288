"""Tokens drawn by the real sampler, with their stages, for tests of their display."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_struct

from runtime import Origin, SamplingOptions, TokenRun, make_sampler
from runtime.sampling.report import report
from tests.ui.spoken import Vocabulary
from ui import Drawing

MODEL = "SmolLM2 135M Instruct"
HELD = 64


def row_of(probabilities: Sequence[float], vocab: int, first: int = 0) -> npt.NDArray[np.float32]:
    """``(vocab,)`` log-probabilities: these from id `first` on, the rest in equal parts for the others."""
    given = np.array(probabilities, np.float64)
    row = np.full(vocab, (1.0 - given.sum()) / (vocab - len(given)))
    row[first : first + len(given)] = given
    logprobs: npt.NDArray[np.float32] = np.log(row).astype(np.float32)
    return logprobs


def drawn_run(
    vocabulary: Vocabulary,
    row: npt.NDArray[np.float32],
    sampling: SamplingOptions,
    *,
    seed: int = 7,
    history: Sequence[int] = (1, 2, 3),
    words: Sequence[str] = (),
) -> TokenRun:
    """One token, drawn from `row` at the place after `history`; `words` names ids from 1000 on."""
    for word in words:
        vocabulary.id_of(word)
    traced = make_sampler(sampling, seed).trace(row, len(history), history=np.array(history, np.int32))
    token = traced.token
    data = vocabulary.bytes_of([token])[0] or f"t{token}".encode()
    plain = TokenRun.unscored([token], [data], [data.decode()], Origin.SAMPLED)
    order = np.lexsort((np.arange(len(row)), -row))[:HELD]
    shares = np.exp(row.astype(np.float64))
    return replace(
        plain,
        logprob=row[[token]],
        rank=np.array([1 + int((row > row[token]).sum())], np.int32),
        entropy=np.array([-float((shares * row).sum())], np.float32),
        top_ids=order[None].astype(np.int32),
        top_logprobs=row[order][None],
        covered_mass=np.array([float(shares[order].sum())], np.float32),
        draw=np.array([traced.u], np.float32),
        stages=report(traced),
    )


def drawing_of(sampling: SamplingOptions | None, *, history: Sequence[int] = (1, 2, 3), **more: Any) -> Drawing:
    """The drawing that the workbench returns for such a token."""
    made = Drawing(sampling, 7, 0, np.array(history, np.int32), MODEL, "", can_ask=False)
    return replace_struct(made, **more)
