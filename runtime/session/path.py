"""The tokens of a session, and where each came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from runtime.session.status import Segment, SegmentKind
from runtime.trie.node import common_prefix


@dataclass(frozen=True, slots=True)
class Mark:
    """A segment begins."""

    kind: SegmentKind
    label: str
    start: int


class Path:
    """Ids with their segments. Grows at its end and is cut there; a copy is independent."""

    __slots__ = ("_marks", "ids", "prefix", "version")

    def __init__(self, ids: Iterable[int] = (), marks: Iterable[Mark] = (), prefix: int = 0) -> None:
        self.ids: list[int] = list(ids)
        self._marks: list[Mark] = list(marks)
        self.prefix = prefix  # leading tokens that were ensured
        self.version = 0  # changes with the tokens

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, kind: SegmentKind, ids: Sequence[int], label: str = "") -> None:
        """Tokens at the end, as a segment of their own."""
        if ids:
            self._marks.append(Mark(kind, label, len(self.ids)))
            self.ids.extend(ids)
            self.version += 1

    def push(self, kind: SegmentKind, token: int) -> None:
        """One token at the end, in a segment with those of its kind before it."""
        if not self._marks or self._marks[-1].kind != kind:
            self._marks.append(Mark(kind, "", len(self.ids)))
        self.ids.append(token)
        self.version += 1

    def truncate(self, n: int) -> int:
        """The first `n` tokens stay; how many went."""
        dropped = len(self.ids) - n
        if dropped:
            del self.ids[n:]
            while self._marks and self._marks[-1].start >= n:
                self._marks.pop()
            self.prefix = min(self.prefix, n)
            self.version += 1
        return dropped

    def common(self, ids: Sequence[int]) -> int:
        """How many leading tokens `ids` shares with it."""
        return common_prefix(np.asarray(self.ids, np.int32), np.asarray(ids, np.int32))

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Where its segments begin."""
        return tuple(self._marks)

    def segments(self) -> tuple[Segment, ...]:
        """In order, without gaps."""
        marks, end = list(self._marks), len(self.ids)
        ends = [*(mark.start for mark in marks[1:]), end]
        return tuple(Segment(m.kind, m.label, m.start, e) for m, e in zip(marks, ends, strict=False))  # no marks: no end

    def copy(self) -> Path:
        """The same tokens, apart from here on."""
        marks, prefix = list(self._marks), self.prefix  # before the ids: a decode that runs adds those only at the end
        return Path(self.ids, marks, prefix)
