"""Columns that others compute with: what they hold must be what their name says."""

from __future__ import annotations

from typing import Final

import numpy as np

from storage import columns
from storage.rows import Columns

_KNOWN: Final = {  # name -> kinds of numbers, dimensions
    "ids": ("iu", 1),
    "logprob": ("f", 1),
    "rank": ("iu", 1),
    "entropy": ("f", 1),
    "covered_mass": ("f", 1),
    "origin": ("u", 1),
    "finish": ("u", 1),
    "draw": ("f", 1),
    "top_ids": ("iu", 2),
    "top_logprobs": ("f", 2),
    "data": ("u", 1),
    "lengths": ("iu", 1),
    "text_data": ("u", 1),
    "text_lengths": ("iu", 1),
}
MOST_ID: Final = (1 << 31) - 1


def check_known(found: Columns) -> None:
    """Refuses columns that whoever reads the tokens could not compute with; what nobody here knows may be anything.

    Raises:
        ValueError: Names the column.
    """
    for name, (kinds, dimensions) in _KNOWN.items():
        column = found.get(name)
        if column is not None and (column.dtype.kind not in kinds or column.ndim != dimensions):
            raise ValueError(f"column {name!r} should have {dimensions} dimension(s) of kind {kinds!r}, not {column.dtype} "
                             f"of shape {column.shape}")  # fmt: skip
    ids = np.asarray(found["ids"]).astype(np.int64)
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) <= MOST_ID:
        raise ValueError(f"column 'ids' should lie within 0 and {MOST_ID:,}")
    tops, numbers = found.get("top_ids"), found.get("top_logprobs")
    if tops is not None and numbers is not None and tops.shape != numbers.shape:
        raise ValueError(f"columns 'top_ids' and 'top_logprobs' have the shapes {tops.shape} and {numbers.shape}")
    for piece in columns.pieces(found, "text") or ():
        piece.decode()
