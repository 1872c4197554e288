"""Running generations: one token for each per step, and their tails published to the trie in runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runtime.records import Int32, Scores
from runtime.scheduler.jobs import GenerateJob
from runtime.scheduler.logits import Distributions, non_finite
from runtime.scheduler.prefill import Prefill
from runtime.scheduler.stream import Stream
from runtime.scheduler.workspace import Workspace
from runtime.scoring import summarise

PUBLISH_TOKENS = 64  # a tail goes to the trie in runs of this many


@dataclass(slots=True, eq=False)
class Row:
    """A generation that decodes: its last slot, and the token that is to be pushed next."""

    stream: Stream
    prefill: Prefill
    pending: int = -1  # drawn, not yet pushed
    pushed: int = 0  # generated tokens whose KV stands in the workspace
    tried: int = 0  # of them, when they were last offered to the trie
    started: float = 0.0  # monotonic seconds of the first token

    @property
    def job(self) -> GenerateJob:
        """The request."""
        return self.stream.job

    @property
    def slot(self) -> int:
        """The last slot in place; kept with the prefill, where the cache sees who stands where."""
        return self.prefill.slot

    @slot.setter
    def slot(self, slot: int) -> None:
        self.prefill.slot = slot

    @property
    def workspace(self) -> Workspace:
        """Where it decodes."""
        return self.prefill.workspace

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
        return self.stream.scores[self.pushed - count : self.pushed]


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens that were drawn, and the distributions they came from: their records are still to be made."""

    rows: list[Row]
    after: Distributions
    at: Sequence[int]  # each row's place in `after`
    failures: dict[int, BaseException]  # by a row's identity: its distribution was no numbers, nothing was drawn

    def record(self) -> None:
        """Top-k, rank and entropy of every token, in one pass."""
        kept = [i for i, row in enumerate(self.rows) if id(row) not in self.failures]
        if not kept:
            return
        rows = [self.rows[i] for i in kept]
        places = np.array([self.at[i] for i in kept])
        logprobs, entropy = self.after.logprobs, self.after.entropy
        if not np.array_equal(places, np.arange(len(logprobs))):  # some share a row, or failed
            logprobs, entropy = logprobs[places], None if entropy is None else entropy[places]
        widest = max(row.job.options.top_k for row in rows)
        scores = summarise(logprobs, np.array([row.pending for row in rows], np.int32), widest, entropy)
        for i, row in enumerate(rows):
            row.stream.record(scores, i)


def draw(rows: list[Row], after: Distributions, at: Sequence[int]) -> Drawn:
    """Draws each row's next token; its stream says then whether it was the last.

    Args:
        rows: The generations.
        after: Of their last tokens; where it is not finite a generation is to end with `NonFiniteLogitsError`.
        at: Each generation's row in `after`.
    """
    failures: dict[int, BaseException] = {}
    now = time.monotonic()
    for row, i in zip(rows, at, strict=True):
        if not after.finite[i]:
            failures[id(row)] = non_finite(row.stream.position)
            continue
        token, u = row.stream.draw(after.logprobs[i])
        row.started = row.started or now
        row.pending = token
        row.stream.take(token, u)
    return Drawn(rows, after, at, failures)


def narrow(scores: Scores, k: int) -> Scores:
    """The same with `k` alternatives."""
    if scores.top_ids.shape[1] == k:
        return scores
    covered = np.exp(scores.top_logprobs[:, :k]).sum(axis=-1, dtype=np.float64)
    return Scores(
        scores.logprob,
        scores.rank,
        scores.entropy,
        scores.top_ids[:, :k].copy(),
        scores.top_logprobs[:, :k].copy(),
        np.minimum(covered, 1.0).astype(np.float32),
    )
