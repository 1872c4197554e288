"""The text of a turn for Read mode: its stretches, and a map between tokens and characters."""

from __future__ import annotations

import re
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from ui.transcript.path import TranscriptTurn
from ui.transcript.read_mode.document import Stretch, plain_stretches, stretches
from ui.transcript.text.compose import is_hidden

_LINE_END = re.compile(r"(?<![\r\n])\r?\n(?=[^\r\n])")  # a single one, which markdown reads as a space


class Source:
    """The text of a turn as it was last read. User and model turns are markdown, others plain text.

    Tool calls are left out, as they are shown as cards.
    """

    def __init__(self, turn: TranscriptTurn) -> None:
        self._turn = turn
        self._version = turn.version
        self._read = -1  # number of tokens; -1 before the first read
        self._calls: tuple[tuple[int, int], ...] = ()
        self._ends: npt.NDArray[np.int64] = np.empty(0, np.int64)  # the end of each token in the text
        self.text = ""
        self.stretches: list[Stretch] = []

    @property
    def is_current(self) -> bool:
        held = self._turn
        return self._read == len(held.tokens) and self._version == held.version and self._calls == held.calls

    @property
    def is_read(self) -> bool:
        return self._read >= 0

    def read(self) -> int | None:
        """Reads the turn.

        Returns:
            The first stretch that changed; earlier ones are the same. None if the text is the same.
        """
        if self.is_current:
            return None
        tokens = self._turn.tokens
        texts = ["" if is_hidden(m, template=False) else t for t, m in zip(tokens.texts, tokens.marks, strict=True)]
        self._calls = self._turn.calls
        for start, stop in reversed(self._calls):
            texts = without(texts, start, stop)
        text, before, first_time = "".join(texts), self.text, self._read < 0
        self._ends = np.cumsum([len(t) for t in texts], dtype=np.int64)
        self._read, self._version, self.text = len(tokens), self._turn.version, text
        if text == before and not first_time:
            return None
        kept = max(len(self.stretches) - 1, 0) if text.startswith(before) and not self.is_plain else 0
        while kept and self.stretches[kept].goes_on:
            kept -= 1
        begin = self.stretches[kept].start if self.stretches and kept else 0
        old, self.stretches = self.stretches, [*self.stretches[:kept], *self._cut(begin)]
        same = takewhile(lambda pair: pair[0] == pair[1], zip(old[kept:], self.stretches[kept:], strict=False))
        return kept + sum(1 for _ in same)

    def character_of(self, token: int) -> int:
        """The first character of a token."""
        return int(self._ends[min(token, len(self._ends)) - 1]) if token > 0 and len(self._ends) else 0

    def token_of(self, character: float) -> int:
        return int(np.searchsorted(self._ends, character, side="right"))

    def markdown(self, number: int) -> str | None:
        """The source of a markdown stretch, with the user's line breaks kept; None for code and plain text."""
        if self.stretches[number].code is not None or self.is_plain:
            return None
        return self.plain(number) if self._turn.is_answer else _LINE_END.sub("  \n", self.plain(number))

    def plain(self, number: int) -> str:
        """The characters of a stretch."""
        return self.text[self.stretches[number].start : self.stretches[number].stop]

    def is_heading(self, number: int) -> bool:
        """Whether a stretch begins with a heading."""
        stretch = self.stretches[number]
        return not self.is_plain and stretch.code is None and self.text.startswith("#", stretch.start)

    @property
    def is_plain(self) -> bool:
        """Whether the text is plain, not markdown."""
        return self._turn.view.role not in ("user", "assistant")

    def _cut(self, begin: int) -> list[Stretch]:
        if not self.text.strip():
            return []
        return list(plain_stretches(self.text) if self.is_plain else stretches(self.text, begin))


def without(texts: list[str], start: int, stop: int) -> list[str]:
    """The pieces without the characters from `start` to `stop` of their joined text."""
    kept, at = list[str](), 0
    for text in texts:
        first, last = max(start - at, 0), max(stop - at, 0)
        kept.append(text[:first] + text[max(first, last) :])
        at += len(text)
    return kept
