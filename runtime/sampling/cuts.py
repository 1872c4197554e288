"""Stages that remove tokens; what each leaves is a range of the falling order.

Top-k, top-p, min-p and typical keep what transformers' warpers of these names keep, XTC what llama.cpp's and mlx-lm's do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from runtime.sampling.pool import Pool
from runtime.sampling.select import Place, mass_where, place_of_mass

Cut = Callable[[Pool, float], None]


def top_k(pool: Pool, k: float) -> None:
    """The k likeliest of what is left."""
    start = pool.first.rank if pool.first else 0
    if pool.last is None or pool.last.rank >= start + k:
        pool.last = pool.order.at_rank(start + int(k) - 1)


def top_p(pool: Pool, p: float) -> None:
    """The likeliest that together reach the share `p`, the one that crosses it included."""
    pool.keep_share(p)


def min_p(pool: Pool, share: float) -> None:
    """Those that have `share` of the likeliest one's probability."""
    most = pool.first.mass if pool.first else 1.0
    last = pool.order.last_at_least(share * most)
    if pool.first is not None and last.rank < pool.first.rank:
        last = pool.first
    pool.keep_to(last)


def xtc(pool: Pool, threshold: float) -> None:
    """Removes all that reach the probability `threshold`, but the least likely of them and its equals."""
    order = pool.order
    last = order.last_at_least(threshold * pool.mass)
    start = pool.first.rank if pool.first else 0
    if last.rank <= start or last.mass < threshold * pool.mass:
        return
    if pool.last is not None and last.rank > pool.last.rank:
        last = pool.last
    row = order.row
    equals = np.flatnonzero(row == row[last.token])
    before = int(np.count_nonzero(equals < last.token))  # equals that stand before it
    if last.rank - before > start:
        pool.first = Place(last.rank - before, int(equals[0]), last.before - before * last.mass, last.mass)


def typical(pool: Pool, p: float) -> None:
    """Those whose surprisal is nearest to the entropy, until they reach the share `p`."""
    order = pool.order
    if order.complete or (pool.last is not None and pool.last.rank < len(order.ids)):
        _typical_in_head(pool, p)
    elif pool.first is not None or pool.last is not None or not _typical_of_whole_row(pool, p):
        _typical_of_all(pool, p)


def _typical_of_whole_row(pool: Pool, p: float) -> bool:
    """Where nothing was cut before, without a look at what is very unlikely; False where that is not enough.

    Where the last of what top-p leaves is further from the entropy than the likeliest of all, nothing is left out at the other
    end, and typical leaves the same. Else all it leaves lies as near as the likeliest, which is a border that others stand
    beyond.
    """
    order = pool.order
    entropy = order.entropy
    log_mass, target = np.log(order.total), p * order.total
    likeliest = entropy - log_mass  # how far it is away: its surprisal is the logarithm of the mass
    last = order.at_mass(target, left=True)
    if order.surprisal(last.token) - entropy > likeliest:
        pool.last = order.last_equal(last)
        return True
    known = order.down_to_surprisal(entropy + likeliest)
    if known is None:
        return False
    surprisal = log_mass - (known.scores.astype(np.float64) - order.top) / order.temperature
    far = np.abs(surprisal - entropy)
    by_distance = np.argsort(far, kind="stable")
    at = int(np.searchsorted(known.weights[by_distance].cumsum(), target, side="left"))
    near = np.flatnonzero(far <= far[by_distance[min(at, len(far) - 1)]])
    pool.first, pool.last = order.at_known(known, int(near[0])), order.at_known(known, int(near[-1]))
    return True


def _typical_in_head(pool: Pool, p: float) -> None:
    order = pool.order
    start = pool.first.rank if pool.first else 0
    stop = pool.last.rank + 1 if pool.last else len(order.ids)
    weights = order.weights[start:stop]
    probs = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprisal = -np.log(probs)
    entropy = float(np.dot(probs, np.where(probs > 0, surprisal, 0.0)))
    far = np.abs(surprisal - entropy)
    by_distance = np.argsort(far, kind="stable")
    last = min(int(np.searchsorted(np.cumsum(probs[by_distance]), p, side="left")), len(far) - 1)
    near = np.flatnonzero(far <= far[by_distance[last]])
    if near[0] > 0:
        pool.first = order.at_rank(start + int(near[0]))
    pool.last = order.at_rank(start + int(near[-1]))


def _typical_of_all(pool: Pool, p: float) -> None:
    order, row = pool.order, pool.order.row
    ids = np.arange(len(row))
    left = pool.view.holds(ids)
    everyone = order.all_weights()
    weights = np.where(left, everyone, np.float32(0))
    mass = mass_where(weights)
    known = weights > 0
    scores = np.where(known, row, np.float32(0)).astype(np.float64)  # surprisals differ by less than float32 tells apart
    surprisal = np.log(mass) - (scores - order.top) / order.temperature
    entropy = float(np.dot(weights, surprisal)) / mass
    nearness = np.where(known, -np.abs(surprisal - entropy), -np.inf)
    border = nearness[place_of_mass(nearness, weights, p * mass, left=True).token]
    near = np.flatnonzero(nearness >= border)
    kept = row[near]
    first, last = int(near[kept == kept.max()][0]), int(near[kept == kept.min()][-1])
    before_first, before_last = order.before(ids, first), order.before(ids, last)
    pool.first = Place(int(np.count_nonzero(before_first)), first, mass_where(everyone, before_first), float(everyone[first]))
    pool.last = Place(int(np.count_nonzero(before_last)), last, mass_where(everyone, before_last), float(everyone[last]))


CUTS: dict[str, tuple[str, Cut]] = {  # by stage: its setting, and what it does
    "top_k": ("top_k", top_k),
    "top_p": ("top_p", top_p),
    "min_p": ("min_p", min_p),
    "typical": ("typical_p", typical),
}
