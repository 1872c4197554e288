"""Search for stop strings in a growing text: one step per character, however many strings there are."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from typing import Self
from weakref import WeakValueDictionary

from runtime.grammar.constraint import Constraint
from runtime.records import Finish


class StopTables:
    """The automaton of Aho and Corasick (1975): a state is the longest suffix of the text that is a prefix of a stop string.

    Args:
        stops: None of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]  # by state
        self.depth = [0]  # characters of the state
        self.longest = [0]  # characters of the longest stop string that ends in the state; 0: none
        for stop in stops:
            self._add(stop)
        self.back = [0] * len(self.next)  # by state: that of its longest proper suffix
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self.next[state].get(char)
            if following is None:
                following = self.next[state][char] = len(self.next)
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.longest.append(0)
            state = following
        self.longest[state] = len(stop)

    def _link(self) -> None:
        """Links states breadth first: the shorter suffixes of a state come before it."""
        waiting = deque(self.next[0].values())
        while waiting:
            state = waiting.popleft()
            for char, following in self.next[state].items():
                back = self.back[state]
                while back and char not in self.next[back]:
                    back = self.back[back]
                self.back[following] = self.next[back].get(char, 0)
                self.longest[following] = self.longest[following] or self.longest[self.back[following]]
                waiting.append(following)


_IN_USE: WeakValueDictionary[tuple[str, ...], StopTables] = WeakValueDictionary()


class StopFinder:
    """Finds the stop string that is complete first, also across tokens; of several complete at once, the longest.

    Finders of the same stop strings share their tables, which take a few hundred bytes per character.

    Args:
        stops: None of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        key = tuple(stops)
        tables = _IN_USE.get(key)
        if tables is None:
            tables = _IN_USE[key] = StopTables(key)
        self._tables, self._state = tables, 0

    @property
    def pending(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        return self._tables.depth[self._state]

    def feed(self, text: str) -> int | None:
        """Reads further text.

        Returns:
            The offset in `text` at which the stop string found begins (negative: in earlier text); None if none was found.
        """
        following, back, longest = self._tables.next, self._tables.back, self._tables.longest
        for at, char in enumerate(text, 1):
            while self._state and char not in following[self._state]:
                self._state = back[self._state]
            self._state = following[self._state].get(char, 0)
            if longest[self._state]:
                return at - longest[self._state]
        return None

    def fork(self) -> Self:
        """A copy in the same state."""
        return copy.copy(self)


def own_end(constraint: Constraint | None, *, eos: bool) -> Finish:
    """Why the answer ends with the token that its grammar has just accepted; NONE if neither eos nor the grammar ends it.

    Args:
        constraint: The state of its grammar.
        eos: Whether the token is an end of text.
    """
    if constraint is None:
        return Finish.EOS if eos else Finish.NONE
    if eos:
        return Finish.EOS if constraint.sound(1) else Finish.EOS_UNSOUND
    if constraint.finished:
        return Finish.GRAMMAR if constraint.sound() else Finish.GRAMMAR_UNSOUND
    return Finish.NONE
