"""The growing tokens of one turn, with cheap appends and cheap access to one token."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from resources.ramp import STEPS_BITS
from ui.port import Origin, TokenRecord, TokenRun
from ui.transcript.measure import Measure, steps

STEP = 0b0000_0111  # place on the colour ramp
RARE = 0b0000_1000  # underlined: rank above 10, or a disagreement of two models
GENERATED = 0b0001_0000
TEMPLATE = 0b0100_0000  # hidden tokens have one of the two highest bits, so that `max` over many marks finds them
END = 0b1000_0000  # the end-of-sequence token, hidden

ColourOverride = tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]  # steps and underlines of a run's first tokens

_SEAL = 512  # tokens; shorter runs are joined, or a stream would keep a dozen arrays for each token
_FEW = 8  # up to so many tokens a plain loop is faster than arrays
_BY_ORIGIN = np.zeros(256, np.uint8)
_BY_ORIGIN[[int(Origin.SAMPLED), int(Origin.PICKED), int(Origin.GRAMMAR)]] = GENERATED
_BY_ORIGIN[int(Origin.TEMPLATE)] = TEMPLATE
_RARE_RANK = 10
_LN2 = math.log(2)


class Tokens:
    """A growing run. `texts` and `marks` are flat; the numbers stay in the runs that were appended."""

    def __init__(self, run: TokenRun, measure: Measure = Measure.SURPRISAL, over: ColourOverride | None = None) -> None:
        self._measure, self._over = measure, over
        self.texts: list[str] = []
        self.marks = bytearray()  # one byte per token: step and flags
        self._blocks: list[TokenRun] = []
        self._starts: list[int] = []  # first row of each block
        self._sealed = 0  # number of blocks that are long enough; later ones are joined when they are
        self.append(run)

    def __len__(self) -> int:
        return len(self.texts)

    def append(self, run: TokenRun) -> None:
        """Adds tokens at the end, at a cost that depends on `run` alone (amortised)."""
        if not len(run):
            return
        self._blocks.append(run)
        self._starts.append(len(self.texts))
        self.texts.extend(_shown_texts(run))
        self.marks.extend(self._marks_of(run, len(self.marks)))
        if len(self.texts) - self._starts[self._sealed] >= _SEAL:
            self._blocks[self._sealed :] = [TokenRun.concat(self._blocks[self._sealed :])]
            del self._starts[self._sealed + 1 :]
            self._sealed += 1

    def take_numbers(self, run: TokenRun) -> bool:
        """Replaces the numbers if `run` begins with the same tokens, and appends the rest of `run`.

        Returns:
            False if the tokens differ; then nothing changes.
        """
        held = len(self)
        if len(run) < held or not np.array_equal(self.ids(), run.ids[:held]):
            return False
        if self.texts != list(_shown_texts(run[:held])):
            return False
        self._blocks, self._starts, self._sealed = [run], [0], 1
        self.marks[:] = self._marks_of(run, 0)
        self.texts.extend(_shown_texts(run[held:]))
        return True

    def colour_by(self, measure: Measure, over: ColourOverride | None = None) -> None:
        """Colours by another measure, or by the steps and underlines of `over` (unlisted tokens have no colour)."""
        if measure is self._measure and over is None and self._over is None:
            return
        self._measure, self._over = measure, over
        self.marks[:] = b"".join(self._marks_of(b, start) for b, start in zip(self._blocks, self._starts, strict=True))

    def _marks_of(self, run: TokenRun, start: int) -> bytes:
        """One byte for each token of a run that begins at row `start`."""
        return _marks(run, self._measure) if self._over is None else _over_marks(run, self._over, start)

    def record(self, index: int) -> TokenRecord:
        block = bisect_right(self._starts, index) - 1
        return self._blocks[block].record(index - self._starts[block])

    def token_bytes(self, index: int) -> bytes:
        block = bisect_right(self._starts, index) - 1
        return self._blocks[block].token_bytes[index - self._starts[block]]

    def ids(self) -> npt.NDArray[np.int32]:
        """All ids, ``(n,) int32``."""
        return np.concatenate([b.ids for b in self._blocks]) if self._blocks else np.empty(0, np.int32)

    def entropy(self, first: int = 0) -> npt.NDArray[np.float32]:
        """Entropies from token `first` on, nats, ``(n - first,) float32``; NaN for unscored tokens."""
        if first >= len(self):
            return np.empty(0, np.float32)
        block = bisect_right(self._starts, first) - 1
        return np.concatenate([b.entropy for b in self._blocks[block:]])[first - self._starts[block] :]

    def generated(self, first: int = 0) -> npt.NDArray[np.int64]:
        """Ascending indices, from `first` on, of the visible tokens that a model generated."""
        marks = np.frombuffer(bytes(self.marks[first:]), np.uint8)
        return np.flatnonzero((marks & (GENERATED | END)) == GENERATED) + first


def _shown_texts(run: TokenRun) -> Sequence[str]:
    """The texts; special tokens of the template have none and get their bytes as text (shown on request only)."""
    if "" not in run.texts:
        return run.texts
    template = int(Origin.TEMPLATE)
    return tuple(
        text or (data.decode(errors="replace") if origin == template else "")
        for text, data, origin in zip(run.texts, run.token_bytes, run.origin.tolist(), strict=True)
    )


def _marks(run: TokenRun, measure: Measure) -> bytes:
    if len(run) <= _FEW and measure is Measure.SURPRISAL:
        return _few_marks(run)
    marks = steps(run, measure)
    marks[run.rank > _RARE_RANK] |= RARE
    marks[run.by_eos] |= END
    marks |= _BY_ORIGIN[run.origin]
    return marks.tobytes()


def _over_marks(run: TokenRun, over: ColourOverride, start: int) -> bytes:
    """The marks by `over`; tokens beyond it have no colour."""
    marks = np.zeros(len(run), np.uint8)
    steps_over, lines = (part[start : start + len(run)] for part in over)
    marks[: len(steps_over)] = steps_over
    marks[: len(lines)][lines] |= RARE
    marks[run.by_eos] |= END
    return (marks | _BY_ORIGIN[run.origin]).tobytes()


def _few_marks(run: TokenRun) -> bytes:
    marks = bytearray()
    columns = (run.logprob.tolist(), run.rank.tolist(), run.origin.tolist(), run.by_eos.tolist())
    for logprob, rank, origin, end in zip(*columns, strict=True):
        mark = int(_BY_ORIGIN[origin])
        if not math.isnan(logprob):
            mark |= bisect_right(STEPS_BITS, -logprob / _LN2) | (RARE if rank > _RARE_RANK else 0)
        marks.append(mark | (END if end else 0))
    return bytes(marks)
