"""What passes between the runtime and its backends (`runtime.backends.packs.packed`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import TokenStacks

# immutable, contiguous, evaluated KV of `n` consecutive tokens: `nbytes`, `state`, `split(n)`, `export(start, stop)`
Payload = Any
Pack = Any  # a backend's working tree; only its backend looks inside
ROOT = -1  # the parent of a first token


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that something will take, known before it is done. The activations of one call are not KV and not counted."""

    held: int  # more (or fewer) that are held afterwards
    moment: int  # more that live at the worst moment on the way, old and new copies together


@dataclass(slots=True, eq=False)
class Part:
    """What one pack contributes to a forward over several: the arguments of `Backend.forward`."""

    pack: Pack
    tokens: npt.NDArray[np.int64]  # (n,); of a forward that is only prepared not yet known, and zeros
    parents: npt.NDArray[np.int64]  # (n,)
    want: npt.NDArray[np.int64]  # ascending indices into `tokens`
    stacks: TokenStacks | None = None


NORMALISED_HEAD = 32  # likeliest entries of a row that stays which cross with what normalises it: most look-ups ask for no more


class NormalisedRows(NamedTuple):
    """What makes log-probabilities of n rows of logits that stay where they are, and the first of the rows."""

    rows: npt.NDArray[np.float32]  # (whole, vocab), the first ones, raw
    tops: npt.NDArray[np.float32]  # (n,) and the next three: see `runtime.numerics.scoring.normalisers`
    log_totals: npt.NDArray[np.float32]
    masses: npt.NDArray[np.float64]
    finite: npt.NDArray[np.bool_]
    # of each row that does not cross: the likeliest ids and their log-probabilities, falling
    heads: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]


class ForwardInterrupted(Exception):
    """A forward was given up between two layers; the packs are as they were before."""
