"""Keeps tokens about as surprising as the distribution is uncertain (arXiv:2202.00666), as transformers' `TypicalLogitsWarper`.

What is kept is a range of the sorted row on both sides of the entropy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.numerics.depth import Deep
from runtime.numerics.select import Place, place_of_mass
from runtime.options.checking import number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Kind, Parameter, Search, Slider, StageSpec

if TYPE_CHECKING:
    from runtime.numerics.sorted_row import SortedRow
    from runtime.sampling.pool import Pool


def typical(pool: Pool, p: float) -> None:
    """Those whose surprisal is nearest to the entropy, until they reach the share `p`."""
    order = pool.order
    if order.complete or (pool.last is not None and pool.last.rank < len(order.ids)):
        _typical_in_head(pool, p)
    elif pool.first is not None or pool.last is not None or not _typical_of_whole_row(pool, p):
        _typical_of_all(pool, p)


def _typical_of_whole_row(pool: Pool, p: float) -> bool:
    """Where nothing was cut before, without a look at what is very unlikely; False where that is not enough.

    What is as near to the entropy as the likeliest of all is looked at, and as much more as has the mass: whatever is further
    away than the likeliest is nearer than what lies below it.
    """
    order = pool.order
    entropy = order.entropy
    log_mass, target = float(np.log(order.total())), p * order.total()
    known = _down_to_surprisal(order, 2 * entropy - log_mass, target)  # the likeliest's is the logarithm of the mass
    if known is None or known.edges[-1] < target:
        return False
    surprisal = log_mass - (known.scores.astype(np.float64) - order.top) / order.temperature
    start, stop = _nearest(surprisal, known.edges, entropy, target)
    if start > 0:
        pool.first = order.at_known(known, start)
    pool.last = order.at_known(known, stop - 1)
    return True


def _down_to_surprisal(order: SortedRow, surprisal: float, target: float) -> Deep | None:
    """All entries that are not more surprising, in nats, and more if it takes more to reach a mass; or None."""
    score = order.top + order.temperature * (math.log(order.total()) - surprisal)
    border = np.float32(score - 1e-5 * (1 + abs(score)))  # what rounding may take
    head = order.ranked.values
    if head[-1] < border and order.edges[-1] >= target:
        return Deep(np.nextafter(head[-1], head[0]), order.ids, head, head, order.weights, order.edges)
    return order.reaching(target, left=True, least=border)


def _nearest(
    surprisal: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], entropy: float, target: float
) -> tuple[int, int]:
    """Those nearest to the entropy that reach a mass together, and equals of the last: from where, to before where.

    Both ends of the range move away from the entropy, so that the border is found by halving, without a sort by distance.

    Args:
        surprisal: ``(n,)`` rising.
        edges: ``(n,)`` the mass up to each entry, itself included.
        entropy: In nats, as the surprisals.
        target: The mass; where all together have less, all are left.
    """
    whole = int(edges.searchsorted(target))  # with nothing left out at the upper end
    if whole < len(edges) and surprisal[whole] - entropy > entropy - surprisal[0]:
        return 0, int(surprisal.searchsorted(surprisal[whole], "right"))
    middle = int(surprisal.searchsorted(entropy))
    above, below = entropy - surprisal[:middle][::-1], surprisal[middle:] - entropy  # distances, the nearest first
    sums = np.concatenate([[0.0], edges])

    def within(distance: np.float64) -> tuple[int, int]:
        return middle - int(above.searchsorted(distance, "right")), middle + int(below.searchsorted(distance, "right"))

    def reached(i: int) -> bool:
        start, stop = within(below[i])
        return bool(sums[stop] - sums[start] >= target)

    furthest = bisect_left(range(len(below)), True, key=reached)  # of the lower side
    start = int(sums[: middle + 1].searchsorted(sums[middle + furthest] - target, "right")) - 1  # with all nearer ones of it
    if 0 <= start < middle and (furthest == len(below) or above[middle - start - 1] < below[furthest]):
        return within(above[middle - start - 1])
    return within(below[furthest]) if furthest < len(below) else (0, len(surprisal))


def _typical_in_head(pool: Pool, p: float) -> None:
    order = pool.order
    start = pool.first.rank if pool.first else 0
    stop = pool.last.rank + 1 if pool.last else len(order.ids)
    weights = order.weights[start:stop]
    probs = weights / weights.sum()
    with np.errstate(divide="ignore"):
        surprisal = -np.log(probs)
    entropy = float(np.dot(probs, np.where(probs > 0, surprisal, 0.0)))
    near, beyond = _nearest(surprisal, probs.cumsum(), entropy, p)
    if near > 0:
        pool.first = order.at_rank(start + near)
    pool.last = order.at_rank(start + beyond - 1)


def _typical_of_all(pool: Pool, p: float) -> None:
    order, row = pool.order, pool.order.row
    ids = np.arange(len(row))
    left = pool.view.holds(ids)
    everyone = order.exact_weights()  # what is left may be little beside what stands before it
    weights = np.where(left, everyone, 0.0)
    mass = float(weights.sum())
    known = weights > 0
    scores = np.where(known, row, np.float32(0)).astype(np.float64)  # surprisals differ by less than float32 tells apart
    surprisal = np.log(mass) - (scores - order.top) / order.temperature
    entropy = float(np.dot(weights, surprisal)) / mass
    nearness = np.where(known, -np.abs(surprisal - entropy), -np.inf)
    border = nearness[place_of_mass(nearness, weights.astype(np.float32), p * mass, left=True).token]
    near = np.flatnonzero(nearness >= border)
    kept = row[near]
    first, last = int(near[kept == kept.max()][0]), int(near[kept == kept.min()][-1])
    before_first, before_last = _before(order, ids, first), _before(order, ids, last)
    pool.first = Place(int(np.count_nonzero(before_first)), first, float(everyone[before_first].sum()), float(everyone[first]))
    pool.last = Place(int(np.count_nonzero(before_last)), last, float(everyone[before_last].sum()), float(everyone[last]))


def _before(order: SortedRow, ids: npt.NDArray[np.int64], token: int) -> npt.NDArray[np.bool_]:
    """Which of `ids` stand before `token`."""
    row = order.row
    own, scores = row[token], row[ids]
    found: npt.NDArray[np.bool_] = (scores > own) | ((scores == own) & (ids < token))
    return found


def _kernel(chosen: Chosen) -> Kernel:
    share = float(chosen["typical_p"])
    return lambda pool, _history, _u: typical(pool, share)


SPEC = StageSpec(
    name="typical",
    number=10,
    kind=Kind.CUT,
    kernel=_kernel,
    search=Search.MASS,
    label="typical",
    parameters=(
        Parameter(
            "typical_p", 1.0, number(0.0, 1.0, open_low=True),
            QT_TRANSLATE_NOOP("Options", "typical"),
            QT_TRANSLATE_NOOP("Options", "keeps the tokens whose surprise is nearest to the entropy; 1 is off"),
            slider=Slider(0.01, 1.0, always=True),
            aliases=("typ_p",),
        ),
    ),
)  # fmt: skip
