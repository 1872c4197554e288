"""Types shared by the runtime and its backends (`runtime.backends.packs.packed`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.adapters.stacks import TokenStacks

# immutable, contiguous, evaluated KV of `n` consecutive tokens: `nbytes`, `state`, `split(n)`, `export(start, stop)`
Payload = Any
Pack = Any  # a backend's working tree; only its backend looks inside
ROOT = -1  # the parent of the first token of a path


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that an operation will need, known in advance. Activations of a forward are not counted."""

    held: int  # the change in bytes held afterwards; negative: fewer
    moment: int  # the additional bytes at the peak, old and new copies together


@dataclass(slots=True, eq=False)
class PackTokens:
    """The tokens of one pack in a forward over several packs, as in the arguments of `Backend.forward`."""

    pack: Pack
    tokens: npt.NDArray[np.int64]  # (n,); zeros while a forward is prepared without them
    parents: npt.NDArray[np.int64]  # (n,)
    want: npt.NDArray[np.int64]  # ascending indices into `tokens`
    stacks: TokenStacks | None = None


NORMALISED_HEAD = 32  # likeliest entries copied to the host for a row that stays on the device: enough for most look-ups


class NormalisedRows(NamedTuple):
    """The normalisers of n rows of logits that stay on the device, and copies of the first rows."""

    rows: npt.NDArray[np.float32]  # (whole, vocab) raw logits of the first rows
    tops: npt.NDArray[np.float32]  # (n,), like the next three; see `runtime.numerics.scoring.normalisers`
    log_totals: npt.NDArray[np.float32]
    masses: npt.NDArray[np.float64]
    finite: npt.NDArray[np.bool_]
    # one pair for each other row: the likeliest ids and their log-probabilities, descending
    heads: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]]


class ForwardInterrupted(Exception):
    """A forward was abandoned between two layers; the packs are unchanged."""
