"""Keeps tokens about as surprising as the distribution is uncertain (arXiv:2202.00666), as transformers' `TypicalLogitsWarper`.

The kept tokens are a range of the sorted row on both sides of the entropy.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.numerics.ranking import Deep
from runtime.numerics.select import RankedToken, place_of_mass
from runtime.options.checking import number
from runtime.sampling.spec import QT_TRANSLATE_NOOP, Chosen, Kernel, Parameter, Search, Slider, StageKind, StageSpec

if TYPE_CHECKING:
    from runtime.numerics.sorted_row import SortedRow
    from runtime.sampling.pool import CandidatePool


def typical(pool: CandidatePool, p: float) -> None:
    """Keeps the tokens whose surprisal is nearest to the entropy, until they reach the share `p`."""
    order = pool.order
    if order.complete or (pool.last is not None and pool.last.rank < len(order.ids)):
        _typical_in_head(pool, p)
    elif pool.first is not None or pool.last is not None or not _typical_of_whole_row(pool, p):
        _typical_of_all(pool, p)


def _typical_of_whole_row(pool: CandidatePool, p: float) -> bool:
    """Cuts a row without earlier cuts by only its more likely entries; False if they do not suffice.

    It sorts the entries that are as near to the entropy as the likeliest one, and more until they reach the mass. Entries
    below these are further from the entropy than all of them.
    """
    order = pool.order
    entropy = order.entropy
    log_mass, target = float(np.log(order.total())), p * order.total()
    known = _down_to_surprisal(
        order, 2 * entropy - log_mass, target
    )  # the likeliest token's surprisal is the logarithm of the mass
    if known is None or known.edges[-1] < target:
        return False
    surprisal = log_mass - (known.scores.astype(np.float64) - order.top) / order.temperature
    start, stop = _nearest(surprisal, known.edges, entropy, target)
    if start > 0:
        pool.first = order.at_known(known, start)
    pool.last = order.at_known(known, stop - 1)
    return True


def _down_to_surprisal(order: SortedRow, surprisal: float, target: float) -> Deep | None:
    """Entries up to a surprisal in nats, and more until they reach the mass `target`; None where they cannot be sorted."""
    score = order.top + order.temperature * (math.log(order.total()) - surprisal)
    border = np.float32(score - 1e-5 * (1 + abs(score)))  # with a margin for rounding
    head = order.ranked.values
    if head[-1] < border and order.edges[-1] >= target:
        return Deep(np.nextafter(head[-1], head[0]), order.ids, head, head, order.weights, order.edges)
    return order.reaching(target, left=True, least=border)


def _nearest(
    surprisal: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], entropy: float, target: float
) -> tuple[int, int]:
    """Start and stop of the entries nearest to the entropy that together reach a mass, with all ties of the furthest.

    Both ends of the range move away from the entropy, so bisection finds the border without a sort by distance.

    Args:
        surprisal: ``(n,)`` ascending, in nats.
        edges: ``(n,)`` the mass up to and including each entry.
        entropy: Entropy of the row in nats.
        target: The mass; all entries stay where they have less.
    """
    whole = int(edges.searchsorted(target))  # the range from the likeliest entry on
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

    furthest = bisect_left(range(len(below)), True, key=reached)  # on the lower side
    start = (
        int(sums[: middle + 1].searchsorted(sums[middle + furthest] - target, "right")) - 1
    )  # with all nearer ones of the lower side
    if 0 <= start < middle and (furthest == len(below) or above[middle - start - 1] < below[furthest]):
        return within(above[middle - start - 1])
    return within(below[furthest]) if furthest < len(below) else (0, len(surprisal))


def _typical_in_head(pool: CandidatePool, p: float) -> None:
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


def _typical_of_all(pool: CandidatePool, p: float) -> None:
    order, row = pool.order, pool.order.row
    ids = np.arange(len(row))
    left = pool.view.holds(ids)
    exact = order.exact_weights()  # the range may weigh little beside the entries before it
    weights = np.where(left, exact, 0.0)
    mass = float(weights.sum())
    known = weights > 0
    scores = np.where(known, row, np.float32(0)).astype(np.float64)  # float32 cannot tell near surprisals apart
    surprisal = np.log(mass) - (scores - order.top) / order.temperature
    entropy = float(np.dot(weights, surprisal)) / mass
    nearness = np.where(known, -np.abs(surprisal - entropy), -np.inf)
    border = nearness[place_of_mass(nearness, weights.astype(np.float32), p * mass, left=True).token]
    near = np.flatnonzero(nearness >= border)
    kept = row[near]
    first, last = int(near[kept == kept.max()][0]), int(near[kept == kept.min()][-1])
    before_first, before_last = _before(order, ids, first), _before(order, ids, last)
    pool.first = RankedToken(int(np.count_nonzero(before_first)), first, float(exact[before_first].sum()), float(exact[first]))
    pool.last = RankedToken(int(np.count_nonzero(before_last)), last, float(exact[before_last].sum()), float(exact[last]))


def _before(order: SortedRow, ids: npt.NDArray[np.int64], token: int) -> npt.NDArray[np.bool_]:
    """``(len(ids),)``: which of `ids` precede `token` in the order."""
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
    kind=StageKind.CUT,
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
