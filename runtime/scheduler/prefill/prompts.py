"""Queries and prompts on their way in: chunks sized by time, packed into one forward per workspace."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter

import numpy as np

from runtime.aio import together
from runtime.backends.base import ForwardInterrupted
from runtime.info import PromptProgress
from runtime.options.load import LoadOptions
from runtime.options.priority import Priority
from runtime.records import Scores
from runtime.scheduler.faults import bisect, typed
from runtime.scheduler.jobs import CallJob, GenerativeJob, Job, QueryJob, ScoreJob
from runtime.scheduler.kv.cache import Cache, fill_gaps
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.metrics import Counters, RequestMetrics
from runtime.scheduler.prefill.distributions import ChunkLogits, Distribution, non_finite
from runtime.scheduler.prefill.prefill import Batch, Prefill, by_workspace, stop_of

CHUNK_SECONDS = 0.08  # a prefill chunk while another request waits for a token
ALONE_SECONDS = 0.4  # and when none does
LONG_SECONDS = 1.5  # of one that other jobs interrupt, or of background work, at most
CALM_SECONDS = 3.0  # without jobs of two callers at once, before a forward that can be interrupted is so long
QUIET_SHARE = 0.1  # of the time in which only background work was there: so long may its forwards be that cannot
MIN_CHUNK = 32  # tokens; on a slow machine the first chunk, too: a larger one may take minutes
LOGITS_BYTES = 30 << 20  # of a forward's rows on the host: glibc uses memory of 32 MiB again, and pages in anew what is larger
MOST_LOGITS_BYTES = 64 << 20  # the same of a large model: beside half a byte for each parameter paging in is cheap
FEWEST_ROWS = 128  # that a forward may give, however large the vocabulary: fewer tokens do not fill a processor
SHORT = 2  # tokens; what needs no more goes in together, even if others wait as long as when none waits


class Pace:
    """How many tokens go into one forward: what takes a given time at the speed that was measured.

    Args:
        speed: Tokens per second, as far as it is known before the first chunk.
        most: Tokens, however fast the model is.
    """

    def __init__(self, speed: float, most: int) -> None:
        self._speed, self._most = speed, most
        self.measured = False  # else the speed is a guess
        self.urgent = time.monotonic()  # when work that is not in the background was last seen

    def chunk(self, seconds: float) -> int:
        """Tokens of a forward that takes so long."""
        return min(max(int(self._speed * seconds), MIN_CHUNK), self._most)

    def busy(self) -> None:
        """Work that is not in the background is there."""
        self.urgent = time.monotonic()

    def background(self) -> int:
        """Tokens of a forward of background work that cannot be interrupted: the more, the longer nothing else came."""
        quiet = time.monotonic() - self.urgent
        return self.chunk(min(max(QUIET_SHARE * quiet, ALONE_SECONDS), LONG_SECONDS))

    def seconds(self, tokens: int) -> float:
        """How long a forward of so many tokens takes."""
        return tokens / self._speed

    def measure(self, tokens: int, seconds: float) -> None:
        """A forward of so many tokens has taken so long."""
        if tokens >= MIN_CHUNK // 2:
            self._speed += 0.5 * (tokens / max(seconds, 1e-6) - self._speed)
            self.measured = True


def _interrupts(job: Job, others: Sequence[Job]) -> bool:
    """Whether a job that has just come ends a long forward of others, the most urgent first.

    Not one that is less urgent, nor one of the same call, nor background work, nor what asks the same as they.
    """
    if isinstance(job, CallJob):
        return True
    if job.abandoned or job.turn is others[0].turn or job.priority > others[0].priority or job.priority == Priority.BACKGROUND:
        return False
    return not (isinstance(job, QueryJob) and any(isinstance(other, QueryJob) and job.key == other.key for other in others))


def preemptible(job: Job, tokens: int, other: Job) -> bool:
    """Whether a job in work, of so many tokens, gives way to one that has just come."""
    if job.priority != other.priority:
        return job.priority > other.priority
    return not job.parks and tokens > len(other.ids) + other.extra_tokens


class Prompts:
    """The prefills that run. Owner thread only.

    Args:
        options: Batch limits.
        cache: Where prefills stand.
        counters: What was done.
        ledger: Told when they are in place and when they end.
        fail: Ends a job that is no longer here with an error.
        starts: For each kind of job that goes on from its prompt, what takes it when that is in place, with what follows it.
        park: The job must wait until another has left.
        others_give_way: Frees what less urgent work of another kind holds; False: there is none.
    """

    def __init__(
        self,
        options: LoadOptions,
        cache: Cache,
        counters: Counters,
        ledger: RequestMetrics,
        *,
        fail: Callable[[Job, BaseException], None],
        starts: Mapping[type[Job], Callable[[Prefill, Distribution], None]],
        park: Callable[[Job], None],
        preempt_others: Callable[[], bool],
    ) -> None:
        self._batch_rows, self._batch_tokens = options.batch_rows, options.max_batch_tokens
        self._cache = cache
        self._counters = counters
        self._ledger = ledger
        self._fail = fail
        self._starts = starts
        self._park = park
        self._preempt_others = preempt_others
        self._round = 0
        self._disturbed = -math.inf  # when two callers last had jobs here at once
        self._hurried = False  # whether a job for which a forward was interrupted waits for the next one
        self.arrived: Callable[[], Sequence[Job] | None] = tuple  # see `Scheduler.listen`
        backend = cache.backend
        rows_bytes = min(max(backend.info.parameters // 2, LOGITS_BYTES), MOST_LOGITS_BYTES)
        most = max(rows_bytes // (4 * backend.info.vocab_size), FEWEST_ROWS)
        self._most_rows = options.max_batch_tokens if backend.on_device and not backend.unified else most
        self.pace = Pace(cache.backend.speed, options.prefill_chunk_tokens or cache.backend.chunk_tokens)
        self.running: list[Prefill] = []

    def step(self, *, decoding: bool) -> None:
        """One forward within the quota, over all workspaces where the backend can.

        The more urgent prompts come first, then those of the caller that has waited longest.

        While generations wait (`decoding`) there is one forward only: one chunk stands between two of their tokens.
        """
        self._round += 1
        self.running.sort(key=attrgetter("job.priority", "job.turn.served", "served"))
        quota = self.pace.chunk(CHUNK_SECONDS) if decoding else self._alone()
        if decoding:
            self._disturbed = time.monotonic()
            short = SHORT * sum(p.total - p.at <= SHORT for p in self.running)
            quota = max(quota, min(short, self.pace.chunk(ALONE_SECONDS)))
        quota = min(quota, self._batch_tokens)
        for group in [list(self.running)] if self._cache.backend.together else by_workspace(self.running):
            quota -= self._push(group[: self._batch_rows], quota)
            if quota <= 0 or decoding:
                return

    def _alone(self) -> int:
        """Tokens of the next forward, where no generation waits for it: a longer one costs less for each."""
        now, first = time.monotonic(), self.running[0].job  # the most urgent one
        if first.priority < Priority.BACKGROUND:
            self.pace.urgent = now
            for prefill in self.running:
                if prefill.job.priority == first.priority and prefill.job.turn is not first.turn:
                    self._disturbed = now
        if self._hurried:
            self._hurried = False
            return self.pace.chunk(CHUNK_SECONDS)
        if self._cache.backend.interruptible:
            calm = self.pace.measured and now - self._disturbed >= CALM_SECONDS
            return self.pace.chunk(LONG_SECONDS if calm else ALONE_SECONDS)
        return self.pace.background()

    def _interrupted(self, group: Sequence[Prefill], until: float) -> bool:
        """Whether a forward of `group` is to be given up: for other jobs that came, or because no caller waits for any of it.

        Not after `until`: what is left of it takes no longer than a short one.
        """
        if time.monotonic() > until:
            return False
        arrived, jobs = self.arrived(), [prefill.job for prefill in group]
        return arrived is None or any(_interrupts(job, jobs) for job in arrived) or all(job.abandoned for job in jobs)

    def _push(self, group: list[Prefill], quota: int) -> int:
        """One forward over the group's next tokens; how many rows were pushed."""
        resumed = []
        for prefill in group:
            if (prefill.workspace.recurrent or isinstance(prefill.job, ScoreJob)) and not self._resume(prefill):
                continue
            prefill.mark = prefill.slot, prefill.at, prefill.reused, prefill.computed
            resumed.append(prefill)
        group = resumed
        if not group:
            return 0
        batch, backend = Batch(self._most_rows, self._cache.vectors.block_bytes), self._cache.backend
        started = time.monotonic()
        try:
            recurrent = group[0].workspace.recurrent
            for prefill in group:
                batch.advance(prefill, quota - batch.size, stop_of(prefill, group) if recurrent else prefill.total)
            interrupted = None
            if backend.interruptible and batch.size > self.pace.chunk(ALONE_SECONDS):
                until = started + self.pace.seconds(batch.size) - ALONE_SECONDS
                interrupted = partial(self._interrupted, group, until)
            batch.run(interrupted)
        except BaseException as error:  # noqa: BLE001  # bisected: only the guilty request fails
            batch.rollback()
            for prefill in group:
                prefill.undo()
            if isinstance(error, ForwardInterrupted):
                self._disturbed, self._hurried = time.monotonic(), True
                self._counters.prefill_seconds += self._disturbed - started
                self._counters.tokens_prefilled += batch.size
                for prefill in group:  # the jobs that came go first
                    prefill.served = prefill.job.turn.served = self._round
                return quota
            if isinstance(error, NoRoomError):
                if len(batch.portions) > 1:  # one after the other: then each finds all that the others do not need
                    groups = by_workspace(group)
                    return sum(self._push([p for p in part if p in self.running], quota) for part in groups)
                if self._preempt_others() or self.preempt(group):
                    rest = [prefill for prefill in group if prefill in self.running]
                    return self._push(rest, quota) if rest else quota
            bisect(group, error, lambda part: self._push(part, quota), self.end)
            return quota
        pushed = batch.size
        seconds = time.monotonic() - started
        self.pace.measure(pushed, seconds)
        self._counters.prefill_seconds += seconds
        self._counters.tokens_prefilled += pushed
        self._counters.publish(self._cache)  # before the answers: with one the caller sees its numbers
        moved = []
        for prefill in group:
            if prefill.at > prefill.mark[1]:
                moved.append(prefill)
                prefill.served = prefill.job.turn.served = self._round
                if prefill.job.on_progress is not None:
                    prefill.job.on_progress(prefill.progress)
        if not self._cache.room.in_place:
            self._cache.copy_new_tails(moved)
        complete: list[tuple[Job, Prefill, Distribution]] = []
        for prefill in moved:
            self._settle_chunk(prefill, complete)
        if self._cache.copied_tails:
            self._cache.drop_copied_tails()
        self._counters.publish(self._cache)  # before the answers: with one the caller sees its numbers
        with together():
            for job, prefill, last in complete:
                try:
                    if isinstance(job, GenerativeJob):
                        self._starts[type(job)](prefill, last)
                    else:
                        job.answer(last)
                except BaseException as error:  # noqa: BLE001  # the border: this one alone fails
                    self._fail(job, error)
        return pushed

    def preempt(self, among: list[Prefill] | None = None, job: Job | None = None) -> bool:
        """Live rows need more than the budget: a prompt goes back to wait until there is room, its KV in the trie.

        The least urgent, of those one that has not been sent back before, of those the longest.

        Args:
            among: One of these; None: of all that run.
            job: The one that asks, where it is not running: an equally urgent prompt gives way to a shorter one, once.

        Returns:
            False when there is none, or nothing else for which it could wait.
        """
        prefills = self.running if among is None else among
        if job is not None:
            prefills = [prefill for prefill in prefills if preemptible(prefill.job, prefill.total, job)]
        if not prefills or len(self._cache.room.live) < 2:
            return False
        chosen = max(prefills, key=lambda prefill: (prefill.job.priority, not prefill.job.parks, prefill.total))
        self._drop(chosen)
        self._park(chosen.job)
        return True

    def _resume(self, prefill: Prefill) -> bool:
        """Whether a token can be appended where the job stands, or where it is brought back to; if not, it has ended."""
        ws, job = prefill.workspace, prefill.job
        try:
            if ws.recurrent and not ws.resumable(prefill.slot):
                prefill.slot, prefill.at = self._cache.regain(prefill, job.ids[: prefill.at])
                prefill.reused = min(prefill.reused, prefill.at)  # later tokens may have been computed, not found
            if (
                isinstance(job, ScoreJob)
                and prefill.first_wanted <= prefill.at < prefill.total
                and ws.follow(prefill.slot, int(prefill.tagged[prefill.at])) is not None
            ):  # another has computed it meanwhile, and its scores with it
                prefill.first_wanted = max(self.first_unscored(job) - 1, 0)
        except BaseException as error:  # noqa: BLE001  # the border: this job alone fails
            self.end(prefill, typed(error))
            return False
        return True

    def _settle_chunk(self, prefill: Prefill, complete: list[tuple[Job, Prefill, Distribution]]) -> None:
        """Publishes a chunk's tokens and keeps its scores. A path that is complete has its lease released, and is listed."""
        job, chunk, rows = prefill.job, prefill.chunk, sorted(prefill.rows)
        prefill.chunk, scores, last = None, None, None
        prefill.rows.clear()
        try:
            if chunk is not None:
                scores = self._score_rows(job, chunk, rows) if isinstance(job, ScoreJob) else None
                if prefill.at == prefill.total:
                    position, row = rows[-1]
                    last = chunk.after.get(row)
                    if last is None:
                        raise non_finite(position)
            start = prefill.lease.length
            if prefill.at > start:
                part = None if scores is None else scores[start : prefill.at]
                self._cache.publish(prefill, job.ids[start : prefill.at], prefill.slot, part)
            if scores is not None and start:
                self._cache.keep_scores(prefill.lease, scores[:start])
            if last is not None:
                self._cache.vectors.put(job.key, last)
        except BaseException as error:  # noqa: BLE001  # the border: this job alone fails
            self.end(prefill, typed(error))
            return
        if last is None:
            return
        complete.append((job, prefill, last))
        self.running.remove(prefill)
        if not isinstance(job, GenerativeJob):  # else it stays there, and is counted at its end
            self._cache.leave(prefill)
            self._counters.tokens_reused += prefill.reused
        if isinstance(job, ScoreJob):
            self._counters.last_reused, self._counters.last_computed = prefill.reused, prefill.computed
            job.prompted = time.monotonic()
            self._ledger.leave(job, "done", reused=prefill.reused, computed=prefill.computed)

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

    def _drop(self, prefill: Prefill) -> None:
        self.running.remove(prefill)
        self._cache.leave(prefill)

    def end(self, prefill: Prefill, error: BaseException | None) -> None:
        """The job ends here: with the error, or because no caller waits."""
        self._drop(prefill)
        how = "cancelled" if error is None else "error"
        self._ledger.leave(prefill.job, how, reused=prefill.reused, computed=prefill.computed)
        self._counters.publish(self._cache)  # before the answer: with it the caller sees the numbers
        if error is not None:
            prefill.job.fail(error)
        else:
            prefill.job.leave()

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
        fill_gaps(known, last.score(job.ids[at : at + 1], job.k), at)
        return True

    def scores_are_known(self, job: ScoreJob) -> None:
        """Answers from what is remembered."""
        self._counters.tokens_reused += len(job.ids)
        self._counters.last_reused, self._counters.last_computed = len(job.ids), 0
        number, listener = job.number, job.on_progress
        self._ledger.leave(job, "done", reused=len(job.ids))
        self._counters.publish(self._cache)
        if listener is not None:
            listener(PromptProgress(len(job.ids), len(job.ids), len(job.ids), 0, number))
        job.answer()
