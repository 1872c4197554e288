"""What each stage of the sampler did to the likeliest tokens, as columns for many tokens and as objects for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from runtime.errors import InvalidRequestError

STAGE_NAMES: Final = (  # a stage's place is its number in stored columns: add at the end, move nothing
    "", "raw", "grammar", "bias", "penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typical", "xtc", "draw",
)  # fmt: skip
_FILLS = {"shift": np.nan, "ids": -1, "logprobs": -np.inf, "u": np.nan}
_DTYPES = {
    "names": "u1",
    "kept": "i4",
    "mass": "f8",
    "below": "f8",
    "u": "f8",
    "ids": "i4",
    "logprobs": "f4",
    "weights": "f8",
    "shift": "f4",
}
_AXES = {"names": 2, "kept": 2, "mass": 2, "below": 2, "u": 2, "ids": 2, "logprobs": 3, "weights": 2, "shift": 1}


@dataclass(frozen=True, slots=True)
class Stage:
    """What one stage did.

    Attributes:
        name: "raw", "grammar", a stage of `SamplingOptions.order`, or "draw".
        kept: Tokens of the whole vocabulary that are left after it.
        normaliser: Their weight together, where the likeliest that the order knows weighs 1.
        u: The random number it drew, if it draws one.
        ids: The tokens that are shown, the likeliest before the stage first.
        before, after: Their probabilities; 0 in `after` where the stage, or one before it, cut them.
        cumulative: Of `before`, summed in this order.
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
        """The shown tokens that this stage removed."""
        return tuple(t for t, b, a in zip(self.ids, self.before, self.after, strict=True) if b > 0 and a == 0)


@dataclass(frozen=True, slots=True)
class StageTable:
    """Columns for n tokens, s stages and k shown tokens each."""

    names: npt.NDArray[np.uint8]  # (n, s) of STAGE_NAMES; 0 fills
    kept: npt.NDArray[np.int32]  # (n, s)
    mass: npt.NDArray[np.float64]  # (n, s) normalisers
    below: npt.NDArray[np.float64]  # (n, s) weight of what stands before the range that is left
    u: npt.NDArray[np.float64]  # (n, s) NaN where none
    ids: npt.NDArray[np.int32]  # (n, k) -1 fills
    logprobs: npt.NDArray[np.float32]  # (n, s, k) after each stage, -inf where cut
    weights: npt.NDArray[np.float64]  # (n, k) in the order that was drawn from, its likeliest 1
    shift: npt.NDArray[np.float32]  # (n,) what raw logits have more than log-probabilities

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: slice) -> StageTable:
        """Some of the rows."""
        return StageTable(*(getattr(self, name)[index] for name in _COLUMNS))

    def stages(self, i: int) -> tuple[Stage, ...]:
        """Row `i`."""
        shown = self.ids[i] >= 0
        ids = self.ids[i][shown]
        probs = np.exp(self.logprobs[i][:, shown].astype(np.float64))  # (s, k)
        made = []
        for s in np.flatnonzero(self.names[i]).tolist():
            before, after = probs[max(s - 1, 0)], probs[s]
            order = np.lexsort((ids, -before))
            number = float(self.u[i, s])
            made.append(
                Stage(
                    name=STAGE_NAMES[int(self.names[i, s])],
                    kept=int(self.kept[i, s]),
                    normaliser=float(self.mass[i, s]),
                    u=None if np.isnan(number) else number,
                    ids=tuple(ids[order].tolist()),
                    before=tuple(before[order].tolist()),
                    after=tuple(after[order].tolist()),
                    cumulative=tuple(np.cumsum(before[order]).tolist()),
                )
            )
        return tuple(made)

    def as_drawn(self, i: int) -> int | None:
        """The token that row `i` was drawn as, drawn again from what is stored; None where it lies beyond that."""
        last = int(np.flatnonzero(self.names[i])[-1])
        ids, weights = self.ids[i], self.weights[i]
        order = np.lexsort((ids, -weights))
        order = order[weights[order] > 0]
        u = float(self.u[i, last])
        if np.isnan(u):  # greedy
            return int(ids[order[0]])
        edges = np.cumsum(weights[order])
        place = int(np.searchsorted(edges, self.below[i, last] + u * self.mass[i, last], side="right"))
        return int(ids[order[place]]) if place < len(order) else None

    def to_columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Plain arrays by name."""
        return {f"stage_{name}": getattr(self, name) for name in _COLUMNS}

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[np.generic]]) -> Self | None:
        """The inverse of `to_columns`; None where the columns are not there.

        Raises:
            InvalidRequestError: Some are missing, of another type, or do not fit together.
        """
        found = {name: columns[f"stage_{name}"] for name in _COLUMNS if f"stage_{name}" in columns}
        if not found:
            return None
        for name in _COLUMNS:
            column = found.get(name)
            if column is None or column.dtype != np.dtype(_DTYPES[name]) or column.ndim != _AXES[name]:
                raise InvalidRequestError(
                    f"column stage_{name} is missing or not {_DTYPES[name]} with {_AXES[name]} dimensions"
                )
        n, s, k = found["logprobs"].shape
        for name in _COLUMNS:
            shape = _shape(name, n, s, k)
            if found[name].shape != shape:
                raise InvalidRequestError(f"column stage_{name} is of shape {found[name].shape}, the others ask for {shape}")
        if int(np.max(found["names"], initial=0)) >= len(STAGE_NAMES):
            raise InvalidRequestError(f"column stage_names holds {int(found['names'].max())}, which is no stage we know")
        return cls(**found)  # type: ignore[arg-type]  # columns by name

    @classmethod
    def empty(cls, n: int) -> Self:
        """`n` tokens of which no stages are known."""
        return cls(**{name: np.full(_shape(name, n, 0, 0), _FILLS.get(name, 0), _DTYPES[name]) for name in _COLUMNS})

    @classmethod
    def concat(cls, tables: Sequence[StageTable]) -> StageTable:
        """One after the other; narrower ones are filled."""
        s, k = max(t.logprobs.shape[1] for t in tables), max(t.logprobs.shape[2] for t in tables)
        return cls(*(np.concatenate([_widened(name, getattr(t, name), s, k) for t in tables]) for name in _COLUMNS))


_COLUMNS = tuple(f.name for f in fields(StageTable))


def _shape(name: str, n: int, s: int, k: int) -> tuple[int, ...]:
    return {"logprobs": (n, s, k), "ids": (n, k), "weights": (n, k), "shift": (n,)}.get(name, (n, s))


def _widened(name: str, column: npt.NDArray[Any], s: int, k: int) -> npt.NDArray[Any]:
    shape = _shape(name, len(column), s, k)
    if column.shape == shape:
        return column
    wide = np.full(shape, _FILLS.get(name, 0), column.dtype)
    wide[tuple(slice(0, size) for size in column.shape)] = column
    return wide
