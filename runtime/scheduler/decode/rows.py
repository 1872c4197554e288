"""Running generations: one token for each per step, and their tails published to the trie in runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from runtime.numerics.scoring import summarise_ranked
from runtime.records import Int32, Scores
from runtime.scheduler.decode.stream import Stream
from runtime.scheduler.jobs import GenerateJob
from runtime.scheduler.kv.workspace import PartialForward, Workspace
from runtime.scheduler.prefill.distributions import Distributions, non_finite
from runtime.scheduler.prefill.prefill import Prefill, by_workspace

PUBLISH_TOKENS = 64  # a tail goes to the trie in runs of this many
PATIENCE_SECONDS = 0.005  # that a step waits for masks, all together; rows whose mask comes later sit it out


class Guesses(Protocol):
    """Guesses what a text goes on with; see `runtime.speculation`."""

    def extend(self, tokens: Sequence[int]) -> None:
        """The text has grown."""

    def propose(self, limit: int) -> list[int]:
        """Up to `limit` tokens that may come next."""

    def close(self) -> None:
        """The text is complete."""


@dataclass(slots=True, eq=False)
class Row:
    """A generation that decodes: its last slot, and the token that is to be pushed next, or what that is drawn from."""

    job: GenerateJob
    stream: Stream
    prefill: Prefill
    workspace: Workspace  # where it decodes
    pending: int = -1  # drawn, not yet pushed
    undrawn: Distributions | None = None  # one: what follows the last slot, until the grammar's mask is there
    pushed: int = 0  # generated tokens whose KV stands in the workspace
    tried: int = 0  # of them, when they were last offered to the trie
    started: float = 0.0  # monotonic seconds of the first token
    guesses: Guesses | None = None  # of what comes next
    told: int = 0  # generated tokens that they know of
    invoked: bool = False  # its last token activates an adapter: the path is to be computed under another route
    outdated: list[slice] = field(default_factory=list)  # generated tokens whose numbers are not those of the route
    reach: int = 0  # guesses that are asked for next; 0: as many as may be
    drafted: int = 0  # guesses pushed so far
    accepted: int = 0  # of them, those that were right

    @property
    def slot(self) -> int:
        """The last slot in place; kept with the prefill, where the cache sees which rows stand where."""
        return self.prefill.slot

    @slot.setter
    def slot(self, slot: int) -> None:
        self.prefill.slot = slot

    @property
    def due_next(self) -> tuple[int, int]:
        """Where the next token hangs, and the token as workspaces know it: with the number of its adapters."""
        return self.prefill.slot, self.pending + self.prefill.tag

    @property
    def path(self) -> Int32:
        """The tokens that stand in the workspace."""
        joined: Int32 = np.concatenate([self.job.ids, self.stream.new_tokens(0)[: self.pushed]])
        return joined

    @property
    def due(self) -> bool:
        """Whether the tail is long enough to be published, and was not just refused."""
        return min(self.unpublished, self.pushed - self.tried) >= PUBLISH_TOKENS

    @property
    def unpublished(self) -> int:
        """Tokens in the workspace that the trie does not have yet."""
        return len(self.job.ids) + self.pushed - self.prefill.lease.length

    def take_scores(self, count: int) -> Scores:
        """The scores of the last `count` pushed tokens."""
        start = self.pushed - count
        scores = self.stream.scores[start : self.pushed]
        if not self.outdated:
            return scores
        rank = scores.rank.copy()
        for part in self.outdated:
            rank[max(part.start - start, 0) : max(part.stop - start, 0)] = 0  # not known
        return replace(scores, rank=rank)


@dataclass(slots=True, eq=False)
class Drawn:
    """Tokens that are drawn, and the distributions they come from: their records are still to be made."""

    after: Distributions
    rows: list[Row] = field(default_factory=list)  # a row that speculated may be there several times
    at: list[int] = field(default_factory=list)  # each row's place in `after`
    tokens: list[int] = field(default_factory=list)
    failures: dict[int, BaseException] = field(default_factory=dict)  # by a row's identity: it is to end with this
    recorded: bool = False
    begun: float = field(default_factory=time.monotonic)  # monotonic seconds

    def draw(self, row: Row, i: int) -> bool:
        """Draws a row's next token from `after`, in which it is row `i`; its stream says then whether it was the last.

        Returns:
            Whether it was drawn. Else the row waits for its grammar's mask, or `failures` has its error: of logits that are
            not finite `NonFiniteLogitsError`, of a grammar that fails `GrammarError` or what its library raised.
        """
        if not self.after.finite[i]:
            self.failures[id(row)] = non_finite(row.stream.position)
            return False
        if row.job.constraint is not None and not row.stream.ready(max(self.begun + PATIENCE_SECONDS - time.monotonic(), 0.0)):
            row.undrawn = self.after.alone(i)
            return False
        try:
            token, u = row.stream.draw(self.after.ranked[i], float(self.after.shift[i]))
        except BaseException as fault:  # noqa: BLE001  # nothing is left to draw from, or its grammar's library failed: it ends
            self.failures[id(row)] = fault
            return False
        row.started = row.started or time.monotonic()
        row.pending = token
        row.stream.take(token, u)
        row.invoked = row.job.routing is not None and row.job.invoked(row.job.routing, row.stream.new_ids)
        self.rows.append(row)
        self.at.append(i)
        self.tokens.append(token)
        return True

    def record(self) -> None:
        """Top-k, rank and entropy of every token, in one pass; a second call does nothing."""
        if self.recorded or not self.rows:
            return
        self.recorded = True
        entropy = self.after.entropy
        widest, ranked = 0, []
        for row, i in zip(self.rows, self.at, strict=True):
            widest = max(widest, row.job.options.top_k)
            ranked.append(self.after.ranked[i])
        known = None if entropy is None else entropy[np.array(self.at)]
        scores = summarise_ranked(ranked, np.array(self.tokens, np.int32), widest, known)
        for i, row in enumerate(self.rows):
            row.stream.record(scores, i)


def draw_late(row: Row) -> Drawn | None:
    """Draws the token whose mask was not there before; None while it is not."""
    after = row.undrawn
    if after is None or not row.stream.ready(0.0):
        return None
    row.undrawn = None
    drawn = Drawn(after)
    drawn.draw(row, 0)
    return drawn


def draw_along(row: Row, guesses: Sequence[int], after: Distributions) -> Drawn:
    """Draws as many tokens of a row as its guesses were right, and the one after them.

    Args:
        row: The generation, which has pushed its pending token and then the guesses.
        guesses: What was pushed after the pending token.
        after: Of each token pushed.
    """
    drawn = Drawn(after)
    for i, guess in enumerate([*guesses, None]):
        if not drawn.draw(row, i) or row.stream.finish or row.invoked or row.pending != guess:
            break
    return drawn


def narrow(scores: Scores, k: int) -> Scores:
    """The same with `k` alternatives."""
    if scores.top_ids.shape[1] == k:
        return scores
    covered = np.exp(scores.top_logprobs[:, :k]).sum(axis=-1, dtype=np.float64)
    covered[scores.rank == 0] = np.nan
    return Scores(
        scores.logprob,
        scores.rank,
        scores.entropy,
        scores.top_ids[:, :k].copy(),
        scores.top_logprobs[:, :k].copy(),
        np.minimum(covered, 1.0).astype(np.float32),
    )


class DecodeBatch:
    """The pending tokens of some rows, pushed in one forward: rows that say the same at the same place share a slot.

    Attributes:
        rows: Those of one workspace side by side.
        parts: The reserved slots, by workspace.
        bases: The number of the first slot in each workspace.
        at: Each row's place among the tokens of all parts.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        """Reserves the slots."""
        groups = by_workspace(rows)
        self.rows: list[Row] = []
        self.parts: list[PartialForward] = []
        self.bases: list[int] = [group[0].workspace.size for group in groups]
        self.at: list[int] = []
        self._slots: list[int] = []  # of each row
        start = 0
        for base, group in zip(self.bases, groups, strict=True):
            workspace = group[0].workspace
            fresh: dict[tuple[int, int], int] = {}
            places = [fresh.setdefault(row.due_next, len(fresh)) for row in group]
            for slot, token in fresh:
                workspace.paths.add(slot, token)
            self.parts.append(
                PartialForward(workspace, [token for _, token in fresh], [slot for slot, _ in fresh], range(len(fresh)))
            )
            self.rows += group
            self.at += [start + i for i in places]
            self._slots += [base + i for i in places]
            start += len(fresh)
        self.size = start  # tokens

    @property
    def temperatures(self) -> list[float]:
        """As `normalise` takes them."""
        return temperatures(self.rows, self.at, self.size)

    def rollback(self) -> None:
        """Forgets the slots."""
        for part, base in zip(self.parts, self.bases, strict=True):
            part.workspace.rollback(base)

    def broken(self) -> bool:
        """Whether any of them holds no numbers."""
        return any(part.workspace.broken(base) for part, base in zip(self.parts, self.bases, strict=True))

    def draw(self, after: Distributions, running: Sequence[Row]) -> Drawn:
        """Each row that still runs stands on its new slot, and draws what follows."""
        drawn = Drawn(after)
        for row, i, slot in zip(self.rows, self.at, self._slots, strict=True):
            if row in running:
                row.slot = slot
                row.pushed += 1
                drawn.draw(row, i)
        return drawn


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
