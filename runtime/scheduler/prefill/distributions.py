"""Distributions after paths: normalisation of raw logits, and the cache of kept distributions."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from runtime.backends.packs.logits import DeviceLogits
from runtime.errors import MemoryBudgetError, NonFiniteLogitsError
from runtime.numerics.ranking import Ranked, RankedRows, ranked_rows
from runtime.numerics.scoring import (
    asked_temperatures,
    empty_peaks,
    empty_scores,
    heated_masses,
    log_softmax,
    normalisers,
    score_logits,
    summarise,
    top_k,
)
from runtime.records import Float32, Int32, Scores, TopLogprobs

FLOAT_BYTES = 4  # of one float32 entry


@dataclass(frozen=True, slots=True)
class Distributions:
    """The next-token distributions after one forward."""

    finite: npt.NDArray[np.bool_]  # (n,) whether each row is finite
    entropy: npt.NDArray[np.float64] | None  # (n,) nats, if requested
    shift: Float32  # (n,) normalisers: raw logits less log-probabilities
    # n rows of log-probabilities, uniform if not finite, with the sorted part found so far, which draws and records share
    ranked: list[Ranked]

    @classmethod
    def known(cls, last: Distribution, temperature: float = 1.0) -> Distributions:
        """The distributions of one kept row.

        Args:
            last: The row.
            temperature: The temperature at which draws need the total mass of the row; 1 if they do not.
        """
        logprobs = last.logprobs()
        ranked = Ranked(logprobs, last.mass)
        if temperature != 1.0:
            mass = heated_masses(logprobs[None], np.array([-last.log_total]), np.array([temperature]))
            ranked.heated = temperature, float(mass[0])
        return cls(np.ones(1, np.bool_), None, np.array([last.top + last.log_total], np.float32), [ranked])

    def alone(self, chosen: Sequence[int]) -> Distributions:
        """A copy of some rows."""
        places, known = np.array(chosen), [self.ranked[i] for i in chosen]
        ranked = [Ranked(row.row.copy(), row.mass, row.entropy, row.peaks.copy(), row.heated) for row in known]
        entropy = None if self.entropy is None else self.entropy[places]
        return Distributions(self.finite[places], entropy, self.shift[places], ranked)


class DeviceRow(NamedTuple):
    """The place of a row whose logits stay on the device."""

    logits: DeviceLogits
    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The distribution after one path: raw logits and their normalisers, so that log-probabilities are computed on demand.

    Attributes:
        raw: ``(vocab,)`` logits, read-only, perhaps a row of a larger array; or a row on the device.
        top: The largest logit.
        log_total: The logarithm of the sum of exp(logit - top).
        mass: The sum of exp over the log-probabilities; 1 up to rounding.
        memory: The owner of the memory of `raw`: an array, or rows on the device.
        vocab: Entries.
        head: The likeliest ids and their log-probabilities, descending, if `raw` is on the device.
    """

    raw: Float32 | DeviceRow
    top: np.float32
    log_total: np.float32
    mass: float
    memory: Float32 | DeviceLogits
    vocab: int
    head: tuple[npt.NDArray[np.int64], Float32] = (np.empty(0, np.int64), np.empty(0, np.float32))

    def logprobs(self, out: Float32 | None = None) -> Float32:
        """The log-probabilities ``(vocab,)``, in `out` or a new array."""
        raw = self.raw if isinstance(self.raw, np.ndarray) else self.raw.logits.rows(np.array([self.raw.place]))[0]
        below: Float32 = np.subtract(raw, self.top, out=out)
        np.subtract(below, self.log_total, out=below)
        return below

    def likeliest(self, k: int, chosen: Sequence[int] = ()) -> TopLogprobs:
        """The `k` likeliest tokens, at most the vocabulary, and the chosen ids; copies few numbers of a row on the device."""
        k = min(k, self.vocab)
        if isinstance(self.raw, np.ndarray) or len(self.head[0]) < k:
            row = self.logprobs()
            best, values = (found[0] for found in top_k(row[None], k))
            named = row[list(chosen)]
        else:
            best, values = self.head[0][:k].astype(np.int32), self.head[1][:k].copy()
            named = values[:0]
            if chosen:
                named = (self.raw.logits.entries(self.raw.place, np.array(chosen)) - self.top) - self.log_total
        return TopLogprobs.of(best, values, self.vocab, dict(zip(chosen, named.tolist(), strict=True)))

    def score(self, target: Int32, k: int) -> Scores:
        """The scores of the token ``(1,)`` that followed."""
        if isinstance(self.raw, np.ndarray):
            return summarise(self.logprobs()[None], target, k)
        return self.raw.logits.score(np.array([self.raw.place]), target, k)[0]

    def alone(self) -> Distribution:
        """A copy, on the same device."""
        if isinstance(self.raw, np.ndarray):
            raw = self.raw.copy()
            return replace(self, raw=raw, memory=raw)
        taken = self.raw.logits.take(np.array([self.raw.place]))
        return replace(self, raw=DeviceRow(taken, 0), memory=taken)


@dataclass(slots=True, eq=False)
class ChunkLogits:
    """The raw logits of one forward; the rows at which paths end are normalised together.

    Args:
        raw: ``(n, vocab)``, read-only from here on; or rows on the device.
        ends: Rows at the ends of complete paths, ascending: whether the whole row is wanted; else it may stay on the device.
        unfinished: Last rows of incomplete paths, which are only checked to be finite.
        block_bytes: See `LogitsCache`.
    """

    raw: Float32 | DeviceLogits
    ends: Mapping[int, bool]
    unfinished: Sequence[int] = ()
    block_bytes: int = 0
    _scored: dict[tuple[int, int, int], tuple[int, int]] = field(default_factory=dict)  # (row, target, k) -> (part, index)
    _parts: list[tuple[Scores, npt.NDArray[np.bool_]]] = field(default_factory=list)
    after: dict[int, Distribution] = field(init=False)  # by row: the finite ones of `ends`
    broken: set[int] = field(init=False)  # rows of `ends` and `unfinished` that are not finite

    def __post_init__(self) -> None:
        if isinstance(self.raw, np.ndarray):
            ends = [*self.ends, *self.unfinished]
            rows = self.raw if len(self.ends) == len(self.raw) else self.raw[ends]
            tops, log_totals, masses, finite = normalisers(rows)
            if self.unfinished:  # kept rows must not keep the others in memory
                rows = rows[: len(self.ends)].copy()
        else:
            ends = [*sorted(self.ends, key=lambda end: not self.ends[end]), *self.unfinished]
            chosen, n = np.array(ends), sum(self.ends.values())
            rows, tops, log_totals, masses, finite, heads = self.raw.normalised(chosen, n)
            rest, staying = chosen[n : len(self.ends)], self.raw
            if 0 < len(rest) * FLOAT_BYTES * rows.shape[1] <= self.block_bytes:  # otherwise no row is kept, or each as a copy
                staying = self.raw.take(rest)
        rows.flags.writeable = False
        memory, vocab, self.after = rows, rows.shape[1], {}
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        self.broken = set()
        for place, (end, sound) in enumerate(zip(ends, finite.tolist(), strict=True)):
            numbers = tops[place], log_totals[place], float(masses[place])
            if not sound:
                self.broken.add(end)
            elif place < len(rows):
                self.after[end] = Distribution(rows[place], *numbers, memory, vocab)
            elif place < len(self.ends):
                row = DeviceRow(staying, end if staying is self.raw else place - n)
                self.after[end] = Distribution(row, *numbers, staying, vocab, heads[place - n])

    def score(self, chosen: Sequence[int], targets: Int32, k: int) -> tuple[Scores, npt.NDArray[np.bool_]]:
        """Scores of the tokens `targets` after some rows, ascending: see `score_logits`.

        A row shared by several paths is scored once.
        """
        keys = [(row, target, k) for row, target in zip(chosen, targets.tolist(), strict=True)]
        new = [place for place, key in enumerate(keys) if key not in self._scored]
        if new:
            part = self._score([chosen[place] for place in new], targets[new], k)
            self._scored.update((keys[place], (len(self._parts), at)) for at, place in enumerate(new))
            self._parts.append(part)
            if len(new) == len(chosen):
                return part
        scores, finite = empty_scores(len(chosen), k), np.empty(len(chosen), np.bool_)
        found = np.array([self._scored[key] for key in keys])  # (n, 2)
        for number in np.unique(found[:, 0]).tolist():
            here = found[:, 0] == number
            known, sound = self._parts[number]
            scores.write(here, known, found[here, 1])
            finite[here] = sound[found[here, 1]]
        return scores, finite

    def _score(self, chosen: Sequence[int], targets: Int32, k: int) -> tuple[Scores, npt.NDArray[np.bool_]]:
        places = np.array(chosen)
        if not isinstance(self.raw, np.ndarray):
            return self.raw.score(places, targets, k)
        start, stop = chosen[0], chosen[-1] + 1
        adjacent = stop - start == len(chosen)  # then nothing is copied
        return score_logits(self.raw[start:stop] if adjacent else self.raw[places], targets, k)


@dataclass(slots=True)
class LogitsBlock:
    """Rows in the array of one forward: they are kept without a copy, and dropped together."""

    nbytes: int
    keys: set[Hashable] = field(default_factory=set)


class LogitsCache:
    """Whole distributions by path; drops the least recently used first, with all rows in the same array of logits.

    Args:
        budget: Bytes; 0 keeps nothing.
        make_room: Frees the bytes for an array; False: it is not kept.
    """

    def __init__(self, budget: int, make_room: Callable[[int], bool] = lambda _: True) -> None:
        self._budget = self.block_bytes = budget  # `block_bytes`: the largest array that is kept whole
        self._make_room = make_room
        self._most: int | None = None  # rows; None: no limit
        self._rows: OrderedDict[Hashable, Distribution] = OrderedDict()
        self._blocks: dict[int, LogitsBlock] = {}  # by id() of the array, which a kept row keeps alive
        self.pinned: dict[Hashable, Distribution] = {}  # kept and counted elsewhere
        self.bytes = 0
        self.hits = 0

    def get(self, key: Hashable) -> Distribution | None:
        """The distribution after the path, which then counts as just used."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
        else:
            row = self.pinned.get(key)
        self.hits += row is not None
        return row

    def peek(self, key: Hashable) -> Distribution | None:
        """`get` without counting a hit or a use."""
        row = self._rows.get(key)
        return self.pinned.get(key) if row is None else row

    def put(self, key: Hashable, row: Distribution) -> None:
        """Keeps a distribution, or a copy of it if its array is too large to keep."""
        if FLOAT_BYTES * row.vocab > self._budget or self._most == 0:
            return
        if key in self._rows:
            self.drop(key)
        if row.memory.nbytes > self.block_bytes:
            try:
                row = row.alone()
            except MemoryBudgetError:  # the device itself has no room for a copy
                return
        size, place = row.memory.nbytes, id(row.memory)
        block = self._blocks.get(place)
        if block is None:
            if self.bytes + size > self._budget:
                self._shrink(self._budget - size)
            if not self._make_room(size):
                return
            block = self._blocks[place] = LogitsBlock(size)
            self.bytes += size
        block.keys.add(key)
        self._rows[key] = row
        if self._most is not None:
            self._shrink(self._budget)

    def limit(self, rows: int) -> None:
        """Keeps at most this many rows from now on, each as a copy; 0 keeps none."""
        self._most, self.block_bytes = rows, 0
        self._shrink(self._budget)

    def drop(self, key: Hashable) -> None:
        """Drops one row, if it is there."""
        row = self._rows.pop(key, None)
        if row is not None:
            place = id(row.memory)
            self._blocks[place].keys.discard(key)
            if not self._blocks[place].keys:
                self.bytes -= self._blocks.pop(place).nbytes

    def set_budget(self, budget: int) -> None:
        """Sets the budget in bytes; drops the least recently used rows beyond it."""
        self._budget = budget
        self.block_bytes = budget if self._most is None else 0
        self._shrink(budget)

    def clear(self) -> None:
        self._rows.clear()
        self._blocks.clear()
        self.bytes = 0

    def _shrink(self, size: int) -> None:
        while self._rows and (self.bytes > size or (self._most is not None and len(self._rows) > self._most)):
            oldest = next(iter(self._rows.values()))
            for key in tuple(self._blocks[id(oldest.memory)].keys):
                self.drop(key)


def normalise(logits: Float32 | RankedRows, *, entropy: bool, temperatures: Sequence[float] = ()) -> Distributions:
    """Log-probabilities of raw logits ``(n, vocab)``, computed in place if the array is writeable.

    A pass over memory that the forward has just written costs half of one over other memory.

    Args:
        logits: The logits of a forward; rows on the device are normalised already.
        entropy: Whether to compute the rows' entropies.
        temperatures: Per row, the temperature at which draws need its total mass; 1 if they do not.
    """
    if isinstance(logits, RankedRows):
        entropies = np.array([math.nan if row.entropy is None else row.entropy for row in logits.rows])
        return Distributions(logits.finite, entropies, logits.shift, logits.rows)
    n, vocab = logits.shape
    finite = np.empty(n, np.bool_)
    spread = np.empty(n) if entropy else None
    shift: Float32 = np.empty(n, np.float32)
    mass = np.empty(n)
    peaks = empty_peaks(n, vocab)
    asked = asked_temperatures(temperatures)
    heated = None if asked is None else np.empty(n)
    logprobs = log_softmax(
        logits,
        entropy=spread,
        finite=finite,
        shift=shift,
        mass=mass,
        out=logits if logits.flags.writeable else None,
        peaks=peaks,
        temperatures=asked,
        heated=heated,
    )
    if not finite.all():
        even = np.float32(-np.log(vocab))
        logprobs[~finite], shift[~finite], mass[~finite] = even, -even, 1.0
        if spread is not None:
            spread[~finite] = -even
        if peaks is not None:
            peaks[~finite] = even
        if heated is not None:
            heated[~finite] = vocab
    ranked = ranked_rows(logprobs, mass, spread, peaks, asked, heated)
    return Distributions(finite, spread, shift, ranked)


def non_finite(position: int) -> NonFiniteLogitsError:
    """The error for a row of logits that is not finite."""
    return NonFiniteLogitsError(
        f"the model's logits at position {position:,} hold NaN or infinity; the weights may be damaged (verify the model) "
        "or the dtype too narrow (load with dtype='float32')"
    )
