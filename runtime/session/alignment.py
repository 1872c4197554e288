"""Where two token sequences say the same text, although they may cut it differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.trie.node import common_prefix

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Aligned:
    """The longest beginning that two sequences share as text, up to where a token ends in both.

    Attributes:
        held: Tokens of the first up to there.
        full: Tokens of the second.
    """

    held: int
    full: int


def aligned(held: Sequence[int], full: Sequence[int], bytes_of: Callable[[int], bytes]) -> Aligned:
    """How far `full` repeats what `held` says.

    A generated answer may be cut into other tokens than a tokenizer cuts its text into: ``held[:a.held] + full[a.full:]``
    keeps it as it was made.

    Args:
        held: Ids that stand somewhere already.
        full: Ids of a text that may go on from them.
        bytes_of: The exact bytes of an id (`LanguageModel.decode_token`).
    """
    same = common_prefix(np.asarray(held, np.int32), np.asarray(full, np.int32))
    mine, theirs = [bytes_of(i) for i in held[same:]], [bytes_of(i) for i in full[same:]]
    text, other = (np.frombuffer(b"".join(pieces), np.uint8) for pieces in (mine, theirs))
    shared = _common(text, other)
    ends, others = _ends(mine), _ends(theirs)
    borders = np.intersect1d(ends[ends <= shared], others[others <= shared])
    border = int(borders[-1]) if len(borders) else 0
    return Aligned(
        held=same + int(np.searchsorted(ends, border, side="right")),  # tokens without bytes stay with what was said
        full=same + (int(np.searchsorted(others, border, side="left")) + 1 if border else 0),
    )


def _common(a: npt.NDArray[np.uint8], b: npt.NDArray[np.uint8]) -> int:
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _ends(pieces: Sequence[bytes]) -> Int64:
    return np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
