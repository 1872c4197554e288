"""Scores that stand beside the KV, and how two of them become one."""

from __future__ import annotations

import numpy as np

from runtime.records import Scores


def merge_scores(known: Scores, more: Scores) -> Scores | None:
    """`known` with its gaps (rank 0) filled from `more`; None when there is nothing to fill. The wider top-k wins whole."""
    if more.top_ids.shape[1] != known.top_ids.shape[1]:
        complete = bool((more.rank > 0).sum() >= (known.rank > 0).sum())
        return more if complete and more.top_ids.shape[1] > known.top_ids.shape[1] else None
    gaps = (known.rank == 0) & (more.rank > 0)
    if not gaps.any():
        return None
    wide = gaps[:, None]
    return Scores(
        logprob=np.where(gaps, more.logprob, known.logprob),
        rank=np.where(gaps, more.rank, known.rank),
        entropy=np.where(gaps, more.entropy, known.entropy),
        top_ids=np.where(wide, more.top_ids, known.top_ids),
        top_logprobs=np.where(wide, more.top_logprobs, known.top_logprobs),
        covered_mass=np.where(gaps, more.covered_mass, known.covered_mass),
    )
