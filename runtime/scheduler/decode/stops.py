"""Stop strings in a growing text, however many there are: one step per character."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Self

from runtime.grammar.constraint import Constraint
from runtime.records import Finish


class StopFinder:
    """Finds the stop string that is complete first, wherever tokens end; of several complete at once, the longest.

    The automaton of Aho and Corasick (1975): a state is the longest end of the text that some stop string begins with.

    Args:
        stops: None of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]  # by state
        self._depth = [0]  # characters of the state
        self._longest = [0]  # characters of the longest stop string that ends there; 0: none
        for stop in stops:
            self._add(stop)
        self._back = [0] * len(self._next)  # the state of the longest shorter end
        self._link()
        self._state = 0

    @property
    def pending(self) -> int:
        """Characters at the end of the text that may be the beginning of a stop string."""
        return self._depth[self._state]

    def feed(self, text: str) -> int | None:
        """Reads on.

        Returns:
            Where the stop string that was found begins, as an offset into `text` (negative: in what was read before).
        """
        for at, char in enumerate(text, 1):
            while self._state and char not in self._next[self._state]:
                self._state = self._back[self._state]
            self._state = self._next[self._state].get(char, 0)
            if self._longest[self._state]:
                return at - self._longest[self._state]
        return None

    def fork(self) -> Self:
        """A second one at the same place of its text."""
        return copy.copy(self)  # the tables, which do not change any more, are shared

    def _add(self, stop: str) -> None:
        state = 0
        for char in stop:
            following = self._next[state].get(char)
            if following is None:
                following = self._next[state][char] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._longest.append(0)
            state = following
        self._longest[state] = len(stop)

    def _link(self) -> None:
        """Breadth first: a state's shorter ends are linked before it."""
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for char, following in self._next[state].items():
                back = self._back[state]
                while back and char not in self._next[back]:
                    back = self._back[back]
                self._back[following] = self._next[back].get(char, 0)
                self._longest[following] = self._longest[following] or self._longest[self._back[following]]
                waiting.append(following)


@lru_cache(maxsize=4)
def stop_finder(stops: tuple[str, ...]) -> StopFinder:
    """One that is forked for each branch of a request: they share its tables."""
    return StopFinder(stops)


def own_end(constraint: Constraint | None, *, eos: bool) -> Finish:
    """Why the answer ends with the token that its grammar has just accepted; NONE where it does not by itself.

    Args:
        constraint: Where it stands in its grammar.
        eos: The token is an end of text.
    """
    if constraint is None:
        return Finish.EOS if eos else Finish.NONE
    if eos:
        return Finish.EOS if constraint.sound(1) else Finish.EOS_UNSOUND
    if constraint.finished:
        return Finish.GRAMMAR if constraint.sound() else Finish.GRAMMAR_UNSOUND
    return Finish.NONE
