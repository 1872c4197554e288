"""The effect of each sampler stage on the likeliest tokens, as columns for many tokens and as objects for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequestError
from runtime.options.generation import RANDOM_STAGES, STAGE_NAMES

REPORTED = 64  # likeliest tokens of the raw row, and of the last one, that a report shows
NUMBER_COLUMNS = {"draw": "u"} | {name: f"u_{name}" for name in RANDOM_STAGES}  # the random number of each stage
_AXES = {  # by column: dtype, axes after the first (s stages, o score rows, k tokens, b bytes), fill value
    "names": ("u1", "s", 0),
    "rows": ("u1", "s", 0),
    "kept": ("i4", "s", 0),
    "mass": ("f8", "s", 0),
    "held": ("u1", "sb", 0),
    "temperature": ("f8", "", 1.0),
    "below": ("f8", "", 0),
    "u": ("f8", "", np.nan),
    "u_xtc": ("f8", "", np.nan),
    "token": ("i4", "", -1),
    "before": ("f8", "", np.nan),
    "shift": ("f4", "", np.nan),
    "ids": ("i4", "k", -1),
    "scores": ("f4", "ok", -np.inf),
}


@dataclass(frozen=True, slots=True)
class Stage:
    """The effect of one stage.

    Attributes:
        name: "raw", "grammar", a stage of `SamplingOptions.order`, or "draw".
        kept: Number of tokens of the vocabulary that are left after it.
        normaliser: Their total weight; the likeliest token of the row weighs 1.
        u: The random number of the stage, if it has one.
        ids: The shown tokens, the likeliest before the stage first.
        before, after: Their probabilities; 0 in `after` where this stage or an earlier one cut them.
        cumulative: Cumulative sums of `before`.
    """

    name: str
    kept: int
    normaliser: float
    u: float | None
    ids: tuple[int, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    cumulative: tuple[float, ...]

    @property
    def cut(self) -> tuple[int, ...]:
        """The shown tokens that this stage cut."""
        return tuple(t for t, b, a in zip(self.ids, self.before, self.after, strict=True) if b > 0 and a == 0)


@dataclass(frozen=True, slots=True)
class StageTable:
    """The data to repeat draws and to show their stages: n tokens, s stages, k shown tokens, o rows of scores.

    Only stages that edit scores add a row of them, so most draws have one: the raw log-probabilities. Each stage stores a
    normaliser and a mask of the tokens it left.
    """

    names: npt.NDArray[np.uint8]  # (n, s) of STAGE_NAMES; 0 fills
    rows: npt.NDArray[np.uint8]  # (n, s) index of the row of scores after the stage
    kept: npt.NDArray[np.int32]  # (n, s)
    mass: npt.NDArray[np.float64]  # (n, s) normalisers
    held: npt.NDArray[np.uint8]  # (n, s, b) packed mask of the shown tokens that are left, little endian
    temperature: npt.NDArray[np.float64]  # (n,) from the temperature stage on, until a later stage edits scores
    below: npt.NDArray[np.float64]  # (n,) weight of the tokens before the range that was drawn from
    u: npt.NDArray[np.float64]  # (n,) of the draw; NaN when greedy
    u_xtc: npt.NDArray[np.float64]  # (n,) of XTC; NaN where it is off
    token: npt.NDArray[np.int32]  # (n,) the token drawn
    before: npt.NDArray[np.float64]  # (n,) weight of the tokens before it
    shift: npt.NDArray[np.float32]  # (n,) raw logits less log-probabilities
    ids: npt.NDArray[np.int32]  # (n, k) -1 fills
    scores: npt.NDArray[np.float32]  # (n, o, k) the raw log-probabilities, then the scores after each edit

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: slice) -> StageTable:
        return StageTable(*(getattr(self, name)[index] for name in _AXES))

    def stages(self, i: int) -> tuple[Stage, ...]:
        """The stages of row `i`."""
        shown = self.ids[i] >= 0
        ids = self.ids[i][shown]
        held = np.unpackbits(self.held[i], axis=-1, count=len(shown), bitorder="little")[:, shown].view(np.bool_)
        made: list[Stage] = []
        before: npt.NDArray[np.float64] | None = None
        for s, name, weights in self._weighed(i):
            after = np.where(held[s], weights[shown] / self.mass[i, s], 0.0)
            before = after if before is None else before
            order = np.lexsort((ids, -before))
            number = float(getattr(self, NUMBER_COLUMNS[name])[i]) if name in NUMBER_COLUMNS else np.nan
            made.append(
                Stage(
                    name=name,
                    kept=int(self.kept[i, s]),
                    normaliser=float(self.mass[i, s]),
                    u=None if np.isnan(number) else number,
                    ids=tuple(ids[order].tolist()),
                    before=tuple(before[order].tolist()),
                    after=tuple(after[order].tolist()),
                    cumulative=tuple(np.cumsum(before[order]).tolist()),
                )
            )
            before = after
        return tuple(made)

    def as_drawn(self, i: int) -> int | None:
        """The token of row `i`, drawn again from the stored data; None where these do not lead to a stored token."""
        if not self.names[i].any():
            return None
        last, _, weights = self._weighed(i)[-1]
        scores = self.scores[i, self.rows[i, last]]
        order = np.lexsort((self.ids[i], -scores))[:REPORTED]
        order = order[weights[order] > 0]  # the likeliest tokens of the row, without a gap
        if not len(order):
            return None
        u, below, mass = float(self.u[i]), float(self.below[i]), float(self.mass[i, last])
        if np.isnan(u):  # greedy
            return int(self.ids[i, order[0]])
        target = below + u * mass
        place = int(np.searchsorted(np.cumsum(weights[order]), target, side="right"))
        if place < len(order) and self._holds(i, last, int(order[place])):
            return int(self.ids[i, order[place]])
        # beyond the likeliest tokens: compares with the stored weight before the drawn one
        own, slack = float(weights[self.ids[i] == self.token[i]].sum()), 1e-6 * (below + mass)
        lies = self.before[i] - slack <= target <= self.before[i] + own + slack
        return int(self.token[i]) if lies else None

    def _holds(self, i: int, s: int, place: int) -> bool:
        return bool(self.held[i, s, place >> 3] >> (place & 7) & 1)

    def _weighed(self, i: int) -> list[tuple[int, str, npt.NDArray[np.float64]]]:
        """The index, name and shown tokens' weights ``(k,)`` of each stage; the likeliest weighs 1."""
        found: list[tuple[int, str, npt.NDArray[np.float64]]] = []
        heated = -1  # the row of scores that the temperature divides
        known: tuple[tuple[int, float], npt.NDArray[np.float64]] | None = None
        for s in np.flatnonzero(self.names[i]).tolist():
            name, row = STAGE_NAMES[int(self.names[i, s])], int(self.rows[i, s])
            heated = row if name == "temperature" else heated
            temperature = float(self.temperature[i]) if row == heated else 1.0
            if known is None or known[0] != (row, temperature):
                scores = self.scores[i, row].astype(np.float64)
                scores -= scores.max()
                if temperature != 1.0:
                    with np.errstate(over="ignore"):
                        scores /= temperature
                known = (row, temperature), np.exp(scores, out=scores)
            found.append((s, name, known[1]))
        return found

    # ---- stored -------------------------------------------------------------------------------------------------------

    def to_columns(self, top_ids: npt.NDArray[np.int32], top_logprobs: npt.NDArray[np.float32]) -> Columns:
        """Plain arrays by name, for the pipe and the database, without the data that the run's alternatives hold.

        Args:
            top_ids: ``(n, m)`` of the run.
            top_logprobs: ``(n, m)``.
        """
        shared = self._shared(top_ids, top_logprobs)
        columns = {f"stage_{name}": getattr(self, name) for name in _AXES if name not in ("ids", "scores")}
        columns["stage_shared"] = np.full(len(self), shared, np.uint16)
        columns["stage_ids"] = self.ids[:, shared:]
        columns["stage_raw"] = self.scores[:, 0, shared:] if self.scores.shape[1] else self.scores[:, :, shared:].sum(axis=1)
        columns["stage_scores"] = self.scores[:, 1:, :]
        return columns

    def _shared(self, top_ids: npt.NDArray[np.int32], top_logprobs: npt.NDArray[np.float32]) -> int:
        """How many of the first shown tokens equal the run's alternatives, in all rows with stages."""
        width = min(self.ids.shape[1], top_ids.shape[1])
        there = self.names.any(axis=1)
        same = self.ids[there, :width] == top_ids[there, :width]
        same &= self.scores[there, 0, :width] == top_logprobs[there, :width]
        differing = np.flatnonzero(~same.all(axis=0))
        return int(differing[0]) if len(differing) else width

    @classmethod
    def from_columns(
        cls, columns: Columns, top_ids: npt.NDArray[np.int32], top_logprobs: npt.NDArray[np.float32]
    ) -> Self | None:
        """The inverse of `to_columns`; None where the columns are missing.

        Raises:
            InvalidRequestError: Some columns are missing, of another type, or inconsistent.
        """
        found = {name: columns[f"stage_{name}"] for name in _STORED if f"stage_{name}" in columns}
        if not found:
            return None
        for name, (dtype, axes) in _STORED.items():
            column = found.get(name)
            if column is None or column.dtype != np.dtype(dtype) or column.ndim != axes:
                raise InvalidRequestError(f"column stage_{name} is missing or not {dtype} with {axes} dimensions")
        n, (_, s) = len(top_ids), found["names"].shape
        shared = int(np.max(found["shared"], initial=0))
        rest, edits, k = found["ids"].shape[1], found["scores"].shape[1], found["scores"].shape[2]
        k = k if edits else shared + rest
        sizes = {"s": s, "k": k, "b": -(-k // 8)}
        shapes = {name: (n, *(sizes[axis] for axis in axes)) for name, (_, axes, _) in _AXES.items() if name != "scores"}
        shapes |= {"ids": (n, rest), "raw": (n, rest), "scores": (n, edits, k), "shared": (n,)}
        for name, column in found.items():
            if column.shape != shapes[name]:
                raise InvalidRequestError(f"column stage_{name} is of shape {column.shape}, others ask for {shapes[name]}")
        if shared + rest != k or shared > top_ids.shape[1] or bool((found["shared"] != shared).any()):
            raise InvalidRequestError(
                f"column stage_shared says {shared}, which does not fit to {k} tokens of which {rest} differ"
            )
        if int(np.max(found["names"], initial=0)) >= len(STAGE_NAMES):
            raise InvalidRequestError(f"column stage_names holds {int(found['names'].max())}, which is no stage we know")
        if not k and found["names"].any():
            raise InvalidRequestError("column stage_names tells of stages, and no token is shown")
        if int(np.max(found["rows"], initial=0)) > edits:
            raise InvalidRequestError(f"column stage_rows names row {int(found['rows'].max())} of {edits + 1}")
        there: npt.NDArray[np.bool_] = np.any(found["names"], axis=1)
        ids = _joined(top_ids[:, :shared], found.pop("ids"), there)
        raw = _joined(top_logprobs[:, :shared], found.pop("raw"), there)
        del found["shared"]
        edited = found.pop("scores")
        scores = np.concatenate([raw[:, None], edited], axis=1) if edits else raw[:, None]
        return cls(ids=ids, scores=scores, **found)

    @classmethod
    def empty(cls, n: int) -> Self:
        """A table of `n` tokens without stages."""
        shapes = {"s": 0, "b": 0, "k": 0, "o": 1}
        made = {name: np.full((n, *(shapes[a] for a in axes)), fill, dtype) for name, (dtype, axes, fill) in _AXES.items()}
        return cls(**made)

    @classmethod
    def concat(cls, tables: Sequence[StageTable]) -> StageTable:
        """The rows of all tables; narrower tables are filled up."""
        if len(tables) == 1:
            return tables[0]
        joined = {}
        for name, (_, axes, fill) in _AXES.items():
            columns = [getattr(table, name) for table in tables]
            shape = tuple(max(column.shape[axis + 1] for column in columns) for axis in range(len(axes)))
            joined[name] = np.concatenate([_widened(column, shape, fill) for column in columns])
        return cls(**joined)


Columns = Mapping[str, npt.NDArray[Any]]
_STORED = {name: (dtype, 1 + len(axes)) for name, (dtype, axes, _) in _AXES.items()} | {"shared": ("u2", 1), "raw": ("f4", 2)}


def _joined(shared: npt.NDArray[Any], rest: npt.NDArray[Any], there: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    """The shared alternatives and the other shown tokens; fill values in rows without stages."""
    joined = np.concatenate([shared, rest], axis=1) if rest.shape[1] else shared  # a view
    if there.all():
        return joined
    fill = -1 if joined.dtype.kind == "i" else -np.inf
    return np.where(there[:, None], joined, joined.dtype.type(fill))


def _widened(column: npt.NDArray[Any], shape: tuple[int, ...], fill: float) -> npt.NDArray[Any]:
    if column.shape[1:] == shape:
        return column
    wide = np.full((len(column), *shape), fill, column.dtype)
    wide[tuple(slice(0, size) for size in column.shape)] = column
    return wide
