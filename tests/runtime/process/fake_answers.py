"""The answers of the fake model: numbers derived from the ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime import (
    Finish,
    Origin,
    TokenRun,
)
from runtime.records import Float32

VOCAB = [bytes([letter]) for letter in range(97, 123)] + [b"\xff", "é".encode()]


EOS = 27


CONTEXT = 1000


def logprobs_of(ids: Sequence[int], width: int = len(VOCAB)) -> Float32:
    """The fake log-probabilities after `ids`: a different row for every sequence, ``(width,) float32``."""
    seed = sum((place + 1) * (token + 1) for place, token in enumerate(ids))
    return ((np.arange(width) * 37 + seed) % 101).astype(np.float32) * np.float32(-0.01)


def run_of(ids: Sequence[int], origin: Origin = Origin.SAMPLED, finish: Finish = Finish.NONE, top_k: int = 2) -> TokenRun:
    """Scored tokens with made-up numbers; the last one has `finish`."""
    n = len(ids)
    pieces = [VOCAB[token % len(VOCAB)] for token in ids]
    ends = np.zeros(n, np.uint8)
    if n:
        ends[-1] = finish
    return TokenRun(
        ids=np.array(ids, np.int32),
        token_bytes=tuple(pieces),
        texts=tuple(piece.decode(errors="replace") for piece in pieces),
        logprob=np.linspace(-1, -2, n, dtype=np.float32),
        rank=np.ones(n, np.int32),
        entropy=np.full(n, 0.5, np.float32),
        top_ids=np.tile(np.arange(top_k, dtype=np.int32), (n, 1)),
        top_logprobs=np.full((n, top_k), -1, np.float32),
        covered_mass=np.full(n, 0.75, np.float32),
        origin=np.full(n, origin, np.uint8),
        finish=ends,
        draw=np.full(n, 0.25, np.float32),
    )
