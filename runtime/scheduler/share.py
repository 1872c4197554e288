"""What generations push in one forward, and draw after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.scheduler.logits import Distributions
from runtime.scheduler.rows import Drawn, Row, draw
from runtime.scheduler.workspace import Workspace


@dataclass(frozen=True, slots=True)
class Share:
    """What rows push in one forward: rows that say the same at the same place share a slot."""

    rows: list[Row]
    tokens: list[int]
    parents: list[int]
    at: list[int]  # each row's place among them

    @classmethod
    def of(cls, rows: list[Row]) -> Share:
        """The rows' pending tokens."""
        fresh: dict[tuple[int, int], int] = {}
        at = [fresh.setdefault(row.due_next, len(fresh)) for row in rows]
        return cls(rows, [token for _, token in fresh], [slot for slot, _ in fresh], at)

    @property
    def temperatures(self) -> list[float]:
        """As `normalise` takes them."""
        return temperatures(self.rows, self.at, len(self.tokens))

    def reserve(self, workspace: Workspace) -> None:
        """Slots for the tokens."""
        for slot, token in zip(self.parents, self.tokens, strict=True):
            workspace.append(slot, token)

    def draw(self, base: int, after: Distributions) -> Drawn:
        """Each row stands on its new slot, the first of which is `base`, and draws what follows."""
        for row, i in zip(self.rows, self.at, strict=True):
            row.slot = base + i
            row.pushed += 1
        return draw(self.rows, after, self.at)


def temperatures(rows: Sequence[Row], at: Sequence[int], n: int) -> list[float]:
    """At which temperature the draws will ask for the weight of each of `n` distributions; 1 where they will not.

    Args:
        rows: The generations.
        at: Each one's place among the distributions.
        n: How many these are.
    """
    asked = [1.0] * n
    for row, i in zip(rows, at, strict=True):
        if (temperature := row.stream.heats) != 1.0:
            asked[i] = temperature
    return asked
