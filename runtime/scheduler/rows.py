"""Running generations: one token for each per step, and their tails published to the trie in runs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runtime.errors import NonFiniteLogitsError
from runtime.records import Finish, Float32, Int32, Scores
from runtime.scheduler.jobs import GenerateJob
from runtime.scheduler.prefill import Prefill
from runtime.scheduler.stream import Stream
from runtime.scheduler.workspace import Workspace
from runtime.scoring import log_softmax, summarise

PUBLISH_TOKENS = 64  # a tail goes to the trie in runs of this many


@dataclass(slots=True, eq=False)
class Row:
    """A generation that decodes: its last slot, and the token that is to be pushed next."""

    stream: Stream
    prefill: Prefill
    slot: int
    pending: int = -1  # drawn, not yet pushed
    pushed: int = 0  # generated tokens whose KV stands in the workspace
    tried: int = 0  # of them, when they were last offered to the trie
    started: float = 0.0  # monotonic seconds of the first token

    @property
    def job(self) -> GenerateJob:
        """The request."""
        return self.stream.job

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
        return Scores.concat(self.stream.scores[self.pushed - count : self.pushed])


def decode(rows: list[Row], logprobs: Float32, finite: npt.NDArray[np.bool_]) -> list[tuple[Row, BaseException | None]]:
    """Draws each row's next token and records it.

    Args:
        rows: The generations.
        logprobs: ``(len(rows), vocab)``.
        finite: ``(len(rows),)`` which of them are numbers; the others end with `NonFiniteLogitsError`.

    Returns:
        The rows that ended, each with the error that ended it, if one did.
    """
    draws = [row.stream.draw(logprobs[i]) for i, row in enumerate(rows)]
    widest = max(row.job.options.top_k for row in rows)
    scores = summarise(logprobs, np.array([token for token, _ in draws], np.int32), widest)
    ended: list[tuple[Row, BaseException | None]] = []
    now = time.monotonic()
    for i, (row, (token, u)) in enumerate(zip(rows, draws, strict=True)):
        if not finite[i]:
            ended.append((row, non_finite(row.stream.position)))
            continue
        row.started = row.started or now
        row.pending = token
        row.stream.accept(token, u, narrow(scores[i : i + 1], row.job.options.top_k))
        if row.stream.finish is not Finish.NONE:
            ended.append((row, None))
    return ended


def normalise(logits: Float32) -> tuple[Float32, npt.NDArray[np.bool_]]:
    """Log-probabilities ``(n, vocab)`` of raw logits, and which rows ``(n,)`` hold numbers only (the others: uniform)."""
    finite = np.atleast_1d(np.isfinite(logits).all(axis=-1))
    safe = logits if finite.all() else np.where(finite[:, None], logits, np.float32(0))
    return log_softmax(safe), finite


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


def non_finite(position: int) -> NonFiniteLogitsError:
    """The error for a row whose logits are not numbers."""
    return NonFiniteLogitsError(
        f"the model's logits at position {position:,} hold NaN or infinity; the weights may be damaged (verify the model) "
        "or the dtype too narrow (load with dtype='float32')"
    )
