"""What a cache of a given size could save at best by the rule that Elsewise's follows: a simulator for W7.

Token-granular and leaf-first: each token is a node behind the token before it; a request touches its whole path; when
there is too much, the leaf that was touched longest ago goes, one token at a time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from benchmarks.measure import Ids


class TokenLru:
    """Tokens held, at most `capacity` of them.

    Args:
        capacity: Tokens.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._root = _Token(None, -1)
        self._held = 0
        self._clock = 0
        self._leaves: list[tuple[int, int, _Token]] = []  # by stamp; stale entries are skipped
        self._offers = 0

    def request(self, prompt: Ids, answer: Ids) -> int:
        """A prompt that is answered: how many tokens must be computed. The answer's last token is never pushed."""
        self._clock += 1
        token, known = self._root, 0
        for each in prompt:
            child = token.children.get(each)
            if child is None:
                break
            token, known = child, known + 1
            token.stamp = self._clock
        path = [*prompt, *answer[:-1]]
        for each in path[known:]:
            token = self._follow(token, each)
        self._offer(token)
        self._evict()
        return len(path) - known

    def _follow(self, token: _Token, each: int) -> _Token:
        child = token.children.get(each)
        if child is None:
            child = token.children[each] = _Token(token, each)
            self._held += 1
        child.stamp = self._clock
        return child

    def _evict(self) -> None:
        while self._held > self._capacity:
            stamp, _, token = heapq.heappop(self._leaves)
            if token.children or token.stamp != stamp or token.parent is None:
                continue
            parent, token.parent = token.parent, None
            del parent.children[token.id]
            self._held -= 1
            if not parent.children and parent.parent is not None:
                self._offer(parent)

    def _offer(self, token: _Token) -> None:
        self._offers += 1
        heapq.heappush(self._leaves, (token.stamp, self._offers, token))


class _Token:
    """One token behind the ones before it."""

    __slots__ = ("children", "id", "parent", "stamp")

    def __init__(self, parent: _Token | None, token: int) -> None:
        self.parent, self.id, self.stamp = parent, token, 0
        self.children: dict[int, _Token] = {}


def simulate(requests: Sequence[tuple[Ids, Ids]], capacity: int) -> int:
    """Tokens that all requests together compute with a cache of `capacity` tokens."""
    cache = TokenLru(max(capacity, 0))
    return sum(cache.request(prompt, answer) for prompt, answer in requests)
