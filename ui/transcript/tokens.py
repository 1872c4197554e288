"""The tokens of one turn as they arrive: cheap to append to, cheap to ask about one."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from runtime import Finish, Origin, TokenRecord, TokenRun
from ui.theme.palette import SURPRISE_STEPS_BITS

STEP = 0b0000_0111  # place on the surprise ramp
RARE = 0b0000_1000  # rank above 10
TEMPLATE = 0b0001_0000
END = 0b0010_0000  # the end-of-sequence token: kept, not shown
GENERATED = 0b0100_0000

_SEAL = 512  # rows: smaller runs are joined, so that a stream of single tokens does not keep a dozen arrays for each
_GENERATED = (int(Origin.SAMPLED), int(Origin.PICKED), int(Origin.GRAMMAR))
_RARE_RANK = 10


class Tokens:
    """A run that grows. `texts` and `marks` are flat; the numbers stay in the runs they came in."""

    def __init__(self, run: TokenRun) -> None:
        self.texts: list[str] = []
        self.marks = bytearray()  # one byte a token: step and flags
        self._blocks: list[TokenRun] = []
        self._starts: list[int] = []  # first row of each block
        self._sealed = 0  # how many blocks are long enough; the rest wait to be joined
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
        self.marks.extend(_marks(run))
        if len(self.texts) - self._starts[self._sealed] >= _SEAL:
            self._blocks[self._sealed :] = [TokenRun.concat(self._blocks[self._sealed :])]
            del self._starts[self._sealed + 1 :]
            self._sealed += 1

    def take_numbers(self, run: TokenRun) -> bool:
        """Replaces the numbers of the tokens held, if `run` begins with the same tokens; appends the rest of it.

        Returns:
            False where the tokens differ: nothing was changed.
        """
        held = len(self)
        if len(run) < held or not np.array_equal(self.ids(), run.ids[:held]):
            return False
        if self.texts != _shown_texts(run[:held]):
            return False
        self._blocks, self._starts, self._sealed = [run], [0], 1
        self.marks[:] = _marks(run)
        self.texts.extend(_shown_texts(run[held:]))
        return True

    def record(self, index: int) -> TokenRecord:
        """Token `index` with its numbers."""
        block = bisect_right(self._starts, index) - 1
        return self._blocks[block].record(index - self._starts[block])

    def token_bytes(self, index: int) -> bytes:
        """The bytes of token `index`."""
        block = bisect_right(self._starts, index) - 1
        return self._blocks[block].token_bytes[index - self._starts[block]]

    def ids(self) -> npt.NDArray[np.int32]:
        """All ids, ``(n,) int32``."""
        return np.concatenate([b.ids for b in self._blocks]) if self._blocks else np.empty(0, np.int32)

    def entropy(self, first: int = 0) -> npt.NDArray[np.float32]:
        """Entropies from token `first` on in nats, ``(n - first,) float32``; NaN where a token was never scored."""
        if first >= len(self):
            return np.empty(0, np.float32)
        block = bisect_right(self._starts, first) - 1
        return np.concatenate([b.entropy for b in self._blocks[block:]])[first - self._starts[block] :]

    def generated(self) -> npt.NDArray[np.int64]:
        """Indices of the tokens a model made and that are shown, ascending."""
        marks = np.frombuffer(bytes(self.marks), np.uint8)
        return np.flatnonzero((marks & (GENERATED | END)) == GENERATED)


def _shown_texts(run: TokenRun) -> list[str]:
    """The texts; special tokens of the template have none, their bytes stand in (shown on request only)."""
    template = int(Origin.TEMPLATE)
    return [
        text or (data.decode(errors="replace") if origin == template else "")
        for text, data, origin in zip(run.texts, run.token_bytes, run.origin.tolist(), strict=True)
    ]


def _marks(run: TokenRun) -> bytes:
    scored = run.rank > 0
    bits = np.where(scored, -run.logprob.astype(np.float64) / np.log(2), 0.0)
    marks = np.searchsorted(np.array(SURPRISE_STEPS_BITS), bits, side="right").astype(np.uint8)
    marks |= np.where(scored & (run.rank > _RARE_RANK), RARE, 0).astype(np.uint8)
    marks |= np.where(run.origin == int(Origin.TEMPLATE), TEMPLATE, 0).astype(np.uint8)
    marks |= np.where(run.finish == int(Finish.EOS), END, 0).astype(np.uint8)
    marks |= np.where(np.isin(run.origin, _GENERATED), GENERATED, 0).astype(np.uint8)
    return marks.tobytes()
