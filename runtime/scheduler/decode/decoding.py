"""Decoding: one token per step for each running generation, in one forward per workspace.

If the backend computes asynchronously, the next forward begins as soon as the tokens are drawn: their records are made and
sent while it runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from runtime.aio import together
from runtime.errors import MemoryBudgetError
from runtime.numerics.ranking import RankRequest
from runtime.numerics.scoring import empty_scores
from runtime.options.speculation import SpeculativeOptions
from runtime.records import Finish, Int32, Scores
from runtime.scheduler.decode.draft import Drafter, PromptLookup
from runtime.scheduler.decode.resume import activate, bring_back
from runtime.scheduler.decode.rows import (
    COPY_OUT_TOKENS,
    DecodeBatch,
    DecodeRow,
    DecodeVocabulary,
    Drawn,
    Proposer,
    Stream,
    draw_deferred,
    temperatures,
    verify_draft,
)
from runtime.scheduler.faults import bisect, typed
from runtime.scheduler.jobs import BranchesJob, GenerateJob, Job
from runtime.scheduler.kv.workspace import Answer, NoRoomError, PartialForward, SharedFetch, Workspace, begin, forward, prepare
from runtime.scheduler.prefill.distributions import Distribution, Distributions, non_finite, normalise
from runtime.scheduler.prefill.prefill import Prefill, by_workspace
from runtime.scheduler.workers import SchedulerContext

log = logging.getLogger(__name__)
DRAW_HEAD = 128  # likeliest entries of a row on the device that are copied to the host: most draws need no others


class Decoding:
    """The running generations. Owner thread only.

    Args:
        context: What the scheduler's parts share.
        vocabulary: The model's vocabulary.
        drafter: The draft model, if any.
        preempt: Preempts a background job or a prompt; False if there is none.
    """

    def __init__(
        self,
        context: SchedulerContext,
        vocabulary: DecodeVocabulary,
        drafter: Drafter | None,
        preempt: Callable[[], bool],
    ) -> None:
        self._batch_rows = context.options.batch_rows
        self._cache, self._counters, self._request_metrics = context.cache, context.counters, context.request_metrics
        self._vocabulary, self._drafter, self._preempt = vocabulary, drafter, preempt
        self._overlaps = context.backend.overlaps  # whether it computes a begun forward asynchronously
        self._ahead: list[tuple[DecodeBatch, SharedFetch]] = []  # forwards in flight
        self.rows: list[DecodeRow] = []

    def start(self, prefill: Prefill, last: Distribution) -> None:
        """Starts the streams of a complete prompt: draws the first token of each from the distribution after it.

        Raises:
            BaseException: They could not be started; all their places are released.
        """
        rows: list[DecodeRow] = []
        places = [prefill]
        proposer: Proposer | None = None
        try:
            jobs = [prefill.job] if isinstance(prefill.job, GenerateJob) else self._branches(prefill.job)
            if not jobs:
                self._cache.leave(prefill)
                return
            for job in jobs[1:]:
                places.append(self._cache.join(prefill, job))  # noqa: PERF401  # on an error, `places` must hold those before
            if len(jobs) == 1 and jobs[0].options.speculative is not None:  # branches share their forwards instead
                proposer = self._open_proposer(jobs[0], jobs[0].options.speculative)
            rows = [
                DecodeRow(job, Stream(job, self._vocabulary), place, place.workspace)
                for job, place in zip(jobs, places, strict=True)
            ]
            rows[0].proposer = proposer
            self.rows += rows
            self._counters.last_reused, self._counters.last_computed = prefill.reused, prefill.computed
            self._counters.first_token_seconds = time.monotonic() - jobs[0].submitted
            self._counters.publish(self._cache)  # before the first token, so that its reader sees the prompt's costs
            now = time.monotonic()
            for row in rows:
                row.job.prompted = now
            drawn = Drawn(Distributions.known(last, rows[0].stream.heats))
            for row in rows:
                drawn.draw(row, 0)
            self._settle([drawn])
            with together():
                for row in rows:
                    row.stream.deliver()
        except BaseException:  # the caller ends the jobs
            ended = [row.prefill for row in rows if row not in self.rows]
            self.rows = [row for row in self.rows if row not in rows]
            if proposer is not None and prefill not in ended:
                proposer.close()
            for place in places:
                if place not in ended:
                    self._cache.leave(place)
            raise

    def _branches(self, job: Job) -> list[GenerateJob]:
        """The branches of a `BranchesJob`; ends the cancelled ones."""
        assert isinstance(job, BranchesJob)
        for dropped in (one for one in job.jobs if one.cancelled):
            self._request_metrics.leave(dropped, "cancelled")
            dropped.end(None)
        return [one for one in job.jobs if not one.cancelled]

    def _open_proposer(self, job: GenerateJob, options: SpeculativeOptions) -> Proposer:
        drafter = self._drafter if options.method != "prompt_lookup" else None
        proposer: Proposer = drafter.open() if drafter else PromptLookup(options.prompt_lookup_max, options.prompt_lookup_min)
        proposer.extend(job.ids.tolist())
        return proposer

    def end(self, row: DecodeRow, error: BaseException | None) -> None:
        """Ends a generation: publishes its tail and sends the tokens held back."""
        self.rows.remove(row)
        workspace = row.workspace
        if self._overlaps and all(other.workspace is not workspace for other in self.rows):
            workspace.abandon()
        if row.proposer is not None:
            row.proposer.close()
        self._counters.tokens_reused += row.prefill.reused
        made = len(row.stream.new_ids)
        if row.job.constraint is not None:
            self._counters.count_grammar(made, row.job.constraint)
        try:
            if error is None:
                self._publish(row)
        finally:
            self._cache.leave(row.prefill)
            self._request_metrics.leave(
                row.job,
                "error" if error is not None else row.stream.finish.label or "cancelled",
                generated=made,
                reused=row.prefill.reused,
                computed=row.prefill.computed,
                first=row.started,
                drafted=row.drafted,
                accepted=row.accepted,
            )
            self._counters.publish(self._cache)  # before `on_end`, so that its reader sees the numbers
            try:
                row.stream.deliver(ended=True)
            finally:
                row.job.on_end(error)

    def _publish(self, row: DecodeRow) -> None:
        """Publishes the tokens pushed since the last time; a failure does not end the answer."""
        job, lease = row.job, row.prefill.lease
        count = row.unpublished
        if count <= 0:
            return
        tail = min(count, row.pushed)
        try:
            tokens: Int32 = np.concatenate([job.ids[lease.length :], row.stream.new_tokens()[row.pushed - tail : row.pushed]])
            scores = None
            if tail:
                own = row.take_scores(tail)
                scores = Scores.concat([empty_scores(count - tail, own.top_ids.shape[1]), own]) if count > tail else own
            self._cache.publish(row.prefill, tokens, row.prefill.slot, scores)
        except BaseException:  # a failed copy (no memory, a native panic) must not end the answer
            log.exception("the KV of a running answer could not be kept")

    def _copy_out(self, workspace: Workspace) -> None:
        """Copies edges that its rows do not use out of the pack, if no other request uses it."""
        rows = [row for row in self.rows if row.workspace is workspace]
        for row in rows:
            row.next_copy_out = max(2 * row.pushed, COPY_OUT_TOKENS)
        kv_budget, alone = self._cache.kv_budget, len(rows) == 1 and workspace.held == len(rows[0].job.ids) + rows[0].pushed
        if alone or workspace.users > len(rows) or not kv_budget.in_place:
            return
        try:
            kv_budget.copy_out(workspace)
        except BaseException:  # as in `_publish`
            log.exception("what stands beside a running answer could not be copied out")

    def drop_cancelled(self) -> None:
        for row in [row for row in self.rows if row.job.cancelled]:
            self.end(row, None)

    def step(self, *, paced: bool) -> None:
        """One token for each; `paced`: tokens that arrive faster than a screen shows them are sent together."""
        started = time.monotonic()
        for rows in [list(self.rows)] if self._cache.backend.together else by_workspace(self.rows):
            self._advance(rows)
        self._counters.decode_seconds += time.monotonic() - started
        with together():
            for row in self.rows:  # not paced before longer work such as a prefill
                row.stream.deliver(paced=paced)

    @property
    def stalled(self) -> bool:
        """Whether all rows wait for grammar masks."""
        return all(row.undrawn is not None for row in self.rows)

    def wait(self, seconds: float) -> None:
        """Waits up to `seconds` for the mask of the first row; called when all are `stalled`."""
        self.rows[0].stream.ready(seconds)

    def _advance(self, rows: list[DecodeRow]) -> None:
        drawn = self._collect(rows)
        drawn += [part for row in rows if row in self.rows and (part := draw_deferred(row)) is not None]
        served = {id(row) for part in drawn for row in part.rows}.union(*(part.failures for part in drawn))
        rest = [row for row in rows if id(row) not in served and row.undrawn is None and row in self.rows]
        for row in [row for row in rest if self._speculates(row)]:
            if self._push_drafted(drawn, row):
                rest.remove(row)
        for start in range(0, len(rest), self._batch_rows):
            self._push(drawn, rest[start : start + self._batch_rows])
        self._settle(drawn, rows)

    def _speculates(self, row: DecodeRow) -> bool:
        """Whether a row may speculate: it needs its workspace to itself, so that rejected tokens are the newest there."""
        return row.proposer is not None and all(other is row or other.workspace is not row.workspace for other in self.rows)

    # ---- forwards ---------------------------------------------------------------------------------------------------

    def _push(self, drawn: list[Drawn], rows: list[DecodeRow]) -> None:
        """One forward of the rows' pending tokens; appends the draws after it to `drawn`."""
        rows = self._resumable_rows(rows)
        if not rows:
            return
        batch: DecodeBatch | None = None
        try:
            batch = DecodeBatch(rows)
            after = self._computed(batch.parts, batch.rows, batch.at, batch.temperatures)
            if not after.finite.all() and batch.broken():
                raise non_finite(rows[0].stream.position)
        except BaseException as error:  # noqa: BLE001  # bisected: only the faulty row fails
            if batch is not None:
                batch.rollback()
            if isinstance(error, NoRoomError):
                if batch is not None and len(batch.parts) > 1:  # one workspace at a time, the largest last: it may have to end
                    for group in sorted(by_workspace(rows), key=lambda group: max(len(row.path) for row in group)):
                        self._push(drawn, [row for row in group if row in self.rows])
                    return
                if self._preempt() or self._end_larger(drawn, rows, error):
                    self._push(drawn, rows)
                    return
            bisect(rows, error, partial(self._push, drawn), self.end)
            return
        drawn.append(batch.draw(after, self.rows))

    def _computed(
        self, parts: Sequence[PartialForward], rows: Sequence[DecodeRow], at: Sequence[int], heats: Sequence[float]
    ) -> Distributions:
        request = self._request(rows, at, heats)
        got: Answer = forward(parts, partial(self._cache.backend.compute, request=request))
        return normalise(got, entropy=True, temperatures=heats)

    def _request(self, rows: Sequence[DecodeRow], at: Sequence[int], heats: Sequence[float]) -> RankRequest | None:
        """The parts of rows on the device to copy to the host; None: whole rows, or rows on the host."""
        if not self._cache.backend.on_device:
            return None
        whole = tuple(sorted({i for row, i in zip(rows, at, strict=True) if row.stream.reads_rows}))
        if len(whole) == len(heats):
            return None
        return RankRequest(max(DRAW_HEAD, *(row.job.options.top_k for row in rows)), tuple(heats), whole)

    def _end_larger(self, drawn: Sequence[Drawn], rows: Sequence[DecodeRow], error: NoRoomError) -> bool:
        """Ends the largest stream not yet pushed in this step to make room for `rows`; False if it is one of these."""
        pushed = {id(row) for part in drawn for row in part.rows}
        largest = max((row for row in self.rows if id(row) not in pushed), key=lambda row: len(row.path))
        if not self._cache.backend.together or largest in rows:
            return False
        self.end(largest, typed(error))
        return True

    def _push_drafted(self, drawn: list[Drawn], row: DecodeRow) -> bool:
        """Speculates: one forward of a row's pending token and drafted ones; False if nothing was pushed."""
        speculative, workspace = row.job.options.speculative, row.workspace
        if row.proposer is None or speculative is None or row.invoked:
            return False
        row.proposer.extend(row.stream.new_ids[row.proposer_tokens :])
        row.proposer_tokens = len(row.stream.new_ids)
        draft = row.proposer.propose(min(row.reach or speculative.num_tokens, row.stream.left - 1))
        if not draft:
            return False
        base, tokens = workspace.size, [token + row.prefill.tag for token in (row.pending, *draft)]
        parents = [row.prefill.slot, *range(base, base + len(draft))]
        try:
            for slot, token in zip(parents, tokens, strict=True):
                workspace.paths.add(slot, token)
            part = PartialForward(workspace, tokens, parents, range(len(tokens)))
            after = self._computed([part], [row] * len(tokens), range(len(tokens)), [row.stream.heats] * len(tokens))
            if not after.finite.all() and workspace.broken(base):
                raise non_finite(row.stream.position)
        except BaseException:  # noqa: BLE001  # tried again without a draft, where only a faulty row fails
            workspace.rollback(base)
            return False
        drawing = verify_draft(row, draft, after)
        right = len(drawing.rows) if row.undrawn is not None else max(len(drawing.rows) - 1, 0)
        self._counters.tokens_drafted += len(draft)
        self._counters.tokens_accepted += right
        row.drafted, row.accepted = row.drafted + len(draft), row.accepted + right
        # transformers' heuristic: a longer draft after full acceptance, a shorter one after a rejection
        row.reach = min(len(draft) + 2, speculative.num_tokens) if right == len(draft) else max(right, 1)
        workspace.truncate(base + 1 + right)
        row.prefill.slot, row.pushed = base + right, row.pushed + 1 + right
        drawing.record()  # at once: accepted tokens are published with their scores
        drawn.append(drawing)
        return True

    def _begin(self, rows: Sequence[DecodeRow]) -> None:
        """Begins the next forward of some rows; after a failure the next step tries again."""
        for row in [row for row in rows if self._speculates(row)]:  # it will push several tokens
            row.workspace.unprepare()
        rows = [row for row in rows if not self._speculates(row)]
        if not rows or rows[0].workspace.recurrent or any(row.invoked for row in rows):
            for row in rows:
                row.workspace.unprepare()
            return
        chosen = rows[: self._batch_rows]
        batch: DecodeBatch | None = None
        try:
            batch = DecodeBatch(chosen)
            fetch = begin(batch.parts, self._request(batch.rows, batch.at, batch.temperatures))
        except BaseException:  # noqa: BLE001  # the next step tries again, and bisects
            for row in chosen:
                row.workspace.unprepare()
            if batch is not None:
                batch.rollback()
            return
        self._ahead.append((batch, fetch))
        if len(chosen) == len(rows):  # else the forward of the others comes first and drops the preparation
            self._prepare(batch)

    def _prepare(self, batch: DecodeBatch) -> None:
        """Prepares the forward after the one in flight, if it is predictable: no two rows share a slot."""
        if len(batch.rows) != batch.size:
            return
        parts, going, start = [], list[DecodeRow](), 0
        for part, base in zip(batch.parts, batch.bases, strict=True):
            rows = batch.rows[start : start + len(part.tokens)]
            start += len(rows)
            further = [(row.prefill.tag, base + i) for i, row in enumerate(rows) if row.stream.left > 1]
            going += [row for row in rows if row.stream.left > 1]
            if further:
                tags, parents = zip(*further, strict=True)
                parts.append(PartialForward(part.workspace, tags, parents, range(len(tags))))
        if parts:
            try:
                places = range(len(going))
                prepare(parts, self._request(going, places, temperatures(going, places, len(going))))
            except BaseException:  # noqa: BLE001  # as in `_begin`: the next step tries again
                return

    def _collect(self, rows: Sequence[DecodeRow]) -> list[Drawn]:
        """The draws after the forward in flight of these rows, for those of its rows that still run."""
        found = next((pair for pair in self._ahead if any(row in pair[0].rows for row in rows)), None)
        self._ahead = [pair for pair in self._ahead if pair is not found and any(row in self.rows for row in pair[0].rows)]
        if found is None:
            return []
        batch, fetch = found
        lost = {part.workspace for part in batch.parts if part.workspace.collect() is None}
        if fetch.logits is None:
            return []
        after = normalise(fetch.logits, entropy=True, temperatures=batch.temperatures)
        if not after.finite.all():
            for part, base in zip(batch.parts, batch.bases, strict=True):
                newest = part.workspace.size == base + len(part.tokens)  # otherwise it was checked before others pushed
                if part.workspace not in lost and newest and part.workspace.broken(base):
                    part.workspace.rollback(base)
                    lost.add(part.workspace)  # its rows are pushed again, and bisected
        running = [row for row in self.rows if row.workspace not in lost]
        return [batch.draw(after, running)]

    def _resumable_rows(self, rows: list[DecodeRow]) -> list[DecodeRow]:
        """The rows, each at a slot to which a token can be appended; a row that cannot be brought back is ended.

        Bringing a row back may take the recurrent state of another row, but only of a shorter path: there are at most as many
        rounds as rows.
        """
        for row in [row for row in rows if row.invoked]:
            self._publish(row)  # tokens computed under the previous route
            if (slot := self._guarded(row, partial(activate, self._cache, row))) is not None:
                row.prefill.slot = slot
        rows = [row for row in rows if row in self.rows]
        for _ in range(len(rows)):
            lost = [row for row in rows if not row.workspace.resumable(row.prefill.slot)]
            if not lost:
                break
            moved: dict[int, int] = {}  # old slot -> new slot: rows that shared a slot share one again
            for row in lost:
                if row.prefill.slot in moved:
                    row.prefill.slot = moved[row.prefill.slot]
                elif (slot := self._guarded(row, partial(self._bring_back, row))) is not None:
                    moved[row.prefill.slot], row.prefill.slot = slot, slot
            rows = [row for row in rows if row in self.rows]
        return rows

    def _bring_back(self, row: DecodeRow) -> int:
        return bring_back(self._cache, row.prefill, row.path)

    def _guarded(self, row: DecodeRow, act: Callable[[], int]) -> int | None:
        """Runs `act`, which moves a generation to a new slot; on an error, ends the generation and returns None."""
        try:
            return act()
        except BaseException as error:  # noqa: BLE001  # the border: only this generation fails
            self.end(row, typed(error))
            return None

    # ---- after the draw ---------------------------------------------------------------------------------------------

    def _settle(self, drawn: list[Drawn], rows: Sequence[DecodeRow] = ()) -> None:
        """After the draws: publishes tails, begins the next forward of `rows`, makes records, ends finished rows."""
        failed: dict[int, BaseException] = {}
        concerned: set[int] = set()  # by id(): rows with a draw or a failure
        for part in drawn:
            failed |= part.failures
            concerned.update(part.failures, map(id, part.rows))
        ending: list[DecodeRow] = []
        for row in self.rows:
            if id(row) not in concerned:
                continue
            if id(row) not in failed and row.stream.finish is Finish.NONE and (full := self._over_budget(row)) is not None:
                failed[id(row)] = full
            if id(row) in failed or row.stream.finish is not Finish.NONE:
                ending.append(row)
            elif row.due:
                row.tried = row.pushed
                self._publish(row)
            if row.pushed >= row.next_copy_out and row not in ending:
                self._copy_out(row.workspace)
        for row in self.rows:
            if id(row) in concerned and row not in ending:
                row.job.begin_masks()  # after all draws, with which masks would compete for the CPU; the forward hides them
        if self._overlaps and rows:
            self._begin([row for row in rows if row in self.rows and row not in ending and row.undrawn is None])
        for part in drawn:
            self._counters.tokens_generated += len(part.tokens)
            part.record()
        for row in ending:
            error = failed.get(id(row))
            self.end(row, None if error is None else typed(error))

    def _over_budget(self, row: DecodeRow) -> BaseException | None:
        """The error of a row whose path alone exceeds the budget; its answer so far stays."""
        try:
            self._cache.check_room(len(row.job.ids) + row.pushed + 1)
        except MemoryBudgetError as full:
            return typed(full)
        return None
