"""The end of a chunk and of a job: publish to the trie, work out scores, answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from runtime.info import PromptProgress
from runtime.numerics.scoring import empty_scores, summarise
from runtime.records import Int32, Scores
from runtime.scheduler.decode.rows import Row
from runtime.scheduler.jobs import ScoreJob
from runtime.scheduler.kv.cache import Cache, fill_gaps
from runtime.scheduler.metrics import Counters, RequestMetrics
from runtime.scheduler.prefill.distributions import ChunkLogits, non_finite
from runtime.scheduler.prefill.prefill import Prefill

log = logging.getLogger(__name__)


class ResultPublisher:
    """Turns rows of logits into published KV and answers."""

    def __init__(self, cache: Cache, counters: Counters, ledger: RequestMetrics) -> None:
        self._cache = cache
        self._counters = counters
        self.ledger = ledger

    # ---- scores -----------------------------------------------------------------------------------------------------

    def first_unscored(self, job: ScoreJob) -> int:
        """The first position from `job.start` whose score must be computed; past the end when all are known."""
        known = self._cache.known_scores(job)
        if job.known is not None:  # worked out by the job itself; the trie may have had no room for them
            fill_gaps(known, job.known, 0)
        first, n = max(job.start, 1), len(job.ids)
        unknown = np.flatnonzero(known.rank[first:] == 0) if first < n else np.empty(0, np.int64)
        if unknown.size and self._score_by_vector(job, known, first + int(unknown[0])):
            unknown = unknown[1:]
        job.known = known
        if not unknown.size:
            return n
        return first + int(unknown[0])

    def _score_by_vector(self, job: ScoreJob, known: Scores, at: int) -> bool:
        """Scores a text's first new token by the distribution that was kept where the old text ended, if it was.

        Without it the last old token would have to be pushed again, from a checkpoint before it on recurrent models.
        """
        last = self._cache.vectors.get((job.key[0], job.ids[:at].tobytes()))
        if last is None:
            return False
        fill_gaps(known, summarise(last.logprobs()[None], job.ids[at : at + 1], job.k), at)
        return True

    def scores_are_known(self, job: ScoreJob) -> None:
        """Answers from what is remembered."""
        self._counters.tokens_reused += len(job.ids)
        self._counters.last_reused, self._counters.last_computed = len(job.ids), 0
        number = job.number
        self.ledger.leave(job, "done", reused=len(job.ids))
        self._counters.publish(self._cache)
        job.on_progress(PromptProgress(len(job.ids), len(job.ids), len(job.ids), 0, number))
        job.answer()

    # ---- chunks -----------------------------------------------------------------------------------------------------

    def publish_chunk(self, prefill: Prefill) -> None:
        """Publishes a chunk's tokens and keeps its scores; `prefill.last` follows a path that is complete."""
        job, chunk, rows = prefill.job, prefill.chunk, sorted(prefill.rows)
        prefill.chunk, scores = None, None
        prefill.rows.clear()
        if chunk is not None:
            scores = self._score_rows(job, chunk, rows) if isinstance(job, ScoreJob) else None
            if prefill.done:
                prefill.last = chunk.end(rows[-1][1], rows[-1][0])
        start = prefill.lease.length
        if prefill.at > start:
            part = None if scores is None else scores[start : prefill.at]
            self._cache.publish(prefill, job.ids[start : prefill.at], prefill.slot, part)
        if scores is not None and start:
            self._cache.keep_scores(prefill.lease, scores[:start])
        if prefill.last is not None:
            self._cache.vectors.put(job.key, prefill.last)

    def _score_rows(self, job: ScoreJob, chunk: ChunkLogits, rows: Sequence[tuple[int, int]]) -> Scores:
        """Scores of the tokens that follow the rows, merged into what the job knows; rows for the whole path."""
        known = job.known
        assert known is not None
        inner = [row for row in rows if row[0] + 1 < len(job.ids)]
        if inner:
            first, n = inner[0][0], len(inner)
            fresh, finite = chunk.score([row for _, row in inner], job.ids[first + 1 : first + 1 + n], job.k)
            if not finite.all():
                raise non_finite(first + int((~finite).argmax()))
            fill_gaps(known, fresh, first + 1)
        return known

    def count(self, prefill: Prefill) -> None:
        """The job is complete: its tokens are counted, before whoever waits can look."""
        self._counters.tokens_reused += prefill.reused
        if isinstance(prefill.job, ScoreJob):
            self._counters.last_reused, self._counters.last_computed = prefill.reused, prefill.computed
            self.ledger.prompted(prefill.job)
            self.ledger.leave(prefill.job, "done", reused=prefill.reused, computed=prefill.computed)

    # ---- rows -------------------------------------------------------------------------------------------------------

    def publish_row(self, row: Row) -> None:
        """Publishes what a generation has pushed since the last time; where that fails, the answer goes on without."""
        job, lease = row.job, row.prefill.lease
        count = row.unpublished
        if count <= 0:
            return
        tail = min(count, row.pushed)
        try:
            tokens: Int32 = np.concatenate([job.ids[lease.length :], row.stream.new_tokens(0)[row.pushed - tail : row.pushed]])
            scores = None
            if tail:
                own = row.take_scores(tail)
                scores = Scores.concat([empty_scores(count - tail, own.top_ids.shape[1]), own]) if count > tail else own
            self._cache.publish(row.prefill, tokens, row.slot, scores)
        except BaseException:  # a copy for later that cannot be made (no memory, a native panic) must not end what runs
            log.exception("the KV of a running answer could not be kept")

    def end_row(self, row: Row, error: BaseException | None) -> None:
        """Publishes the tail, sends what was held back, ends the stream."""
        self._counters.tokens_reused += row.prefill.reused
        made = len(row.stream.new_ids)
        if row.job.constraint is not None:
            self._counters.count_grammar(made, row.job.constraint)
        try:
            if error is None:
                self.publish_row(row)
        finally:
            self._cache.leave(row.prefill)
            self.ledger.leave(
                row.job,
                "error" if error is not None else row.stream.finish.label or "cancelled",
                generated=made,
                reused=row.prefill.reused,
                computed=row.prefill.computed,
                first=row.started,
                drafted=row.drafted,
                accepted=row.accepted,
            )
            self._counters.publish(self._cache)  # before the end, so that who sees the end sees the numbers
            try:
                row.stream.flush()
            finally:
                row.job.on_end(error)
