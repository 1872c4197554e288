"""The random number behind a draw, and the draw itself.

A draw is u from Philox(key = seed, counter = (position, branch, stage)) through the inverse CDF over falling
probability, ties by id. u belongs to its place: the same stream samples the same alone, in a batch, on a branch and after a
reload where the model's numbers are the same there, within the rounding of float32. Models whose numbers are rounded further
say so in `ModelInfo.warnings` (docs/tolerances.md).
"""

from __future__ import annotations

import secrets
from functools import lru_cache

DRAW_STAGE = 0  # in the counter; other stages have `StageSpec.draws`

_WORD = (1 << 64) - 1
_FACTOR_0, _FACTOR_1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_STEP_0, _STEP_1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def fresh_seed() -> int:
    """A random seed within 63 bits so that SQLite stores it as it is."""
    return secrets.randbits(63)


def uniform(seed: int, position: int, branch: int = 0, stage: int = DRAW_STAGE) -> float:
    """The number in [0, 1) that belongs to this place of this stream.

    From the first word of Philox4x64-10 (Salmon et al. 2011): what ``numpy.random.Philox`` gives, without making one.
    """
    c0, c1, c2, c3 = 1, position, branch, stage
    for k0, k1 in _keys(seed):
        a, b = _FACTOR_0 * c0, _FACTOR_1 * c2
        c0, c1, c2, c3 = (b >> 64) ^ c1 ^ k0, b & _WORD, (a >> 64) ^ c3 ^ k1, a & _WORD
    return (c0 >> 11) * 2.0**-53


@lru_cache(maxsize=1024)  # streams
def _keys(key: int) -> tuple[tuple[int, int], ...]:
    """The keys of all rounds."""
    first = key & _WORD, key >> 64
    return tuple(((first[0] + i * _STEP_0) & _WORD, (first[1] + i * _STEP_1) & _WORD) for i in range(10))
