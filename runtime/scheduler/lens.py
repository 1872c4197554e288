"""Lens jobs: for some positions of a path what each layer would answer. Owner thread only.

A job has a pack of its own that is one chain. What the trie holds up to the next position is copied in; positions that
follow each other go in one forward, as far as their rows of logits may be there together. Nothing is published: the job
leaves the cache as it was. One that is cancelled leaves the positions that it has to the next one that asks for the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from runtime.errors import NonFiniteLogitsError, UnsupportedFeatureError
from runtime.info import PromptProgress
from runtime.lens import LensRun, empty_lens, head_share, positions_at_once, read_layers
from runtime.records import Float32, Int32
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.kv.workspace import NoRoomError
from runtime.scheduler.prefill.prefill import Prefill
from runtime.scheduler.workers import BackgroundJob, Means, Worker

SEEN = np.log(1e-3)  # tokens at least so likely are compared with the ordinary answer
EXACT, ROUNDED = 2e-3, 1.0  # nats that they may be off in float32, and where weights, numbers or KV have fewer bits


@dataclass(slots=True, eq=False)
class LensJob(BackgroundJob):
    """The layers' answers at `positions` of the path, which ends with the last of them."""

    kind = "lens"
    positions: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # ascending
    tokens: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # wanted at each of them
    following: int = -1  # the token after the path
    k: int = 5
    ordinary: Float32 = field(default_factory=lambda: np.empty(0, np.float32))  # (vocab,) log-probabilities after the path

    @staticmethod
    def worker(means: Means) -> Lenses:
        """What works on them."""
        return Lenses(means)


@dataclass(slots=True, eq=False)
class _Work:
    """A job on its way."""

    job: LensJob
    run: LensRun  # filled as it comes
    tagged: npt.NDArray[np.int64] | Int32
    done: int = 0  # positions
    reused: int = 0  # tokens that were copied from the trie
    computed: int = 0
    deviation: float = 0.0
    prefill: Prefill | None = None  # while it has a pack
    lacking: int | None = None  # bytes, for which others have to leave first
    departures: int = 0  # when it was last looked whether there is room

    def tell(self) -> None:
        self.job.on_progress(PromptProgress(self.done, len(self.run), self.reused, self.computed, self.job.number))


class Lenses(Worker[_Work]):
    """The lens jobs that run."""

    def admit(self, job: LensJob) -> None:
        """Takes a job in.

        Raises:
            MemoryBudgetError: Its path cannot fit whatever is evicted; nothing was computed.
        """
        self._cache.check_room(len(job.ids))
        held = self._cache.interrupted.take(_key(job))
        if held is not None:
            run, done = held
            self.running.append(_Work(job, run, self._cache.tagged(job, job.ids), done))
            return
        ids = np.append(job.ids, np.int32(job.following)).astype(np.int32)
        run = empty_lens(job.positions, ids, self._backend.info.layers + 1, job.k, job.tokens)
        self.running.append(_Work(job, run, self._cache.tagged(job, job.ids)))

    def step(self, *, beside: bool) -> None:
        """One forward for the job served longest ago; `beside`: others wait for this step's end."""
        work = self.running.pop(0)
        self.running.append(work)
        if work.lacking is not None and self._cache.live:
            looked, work.departures = work.departures, self._cache.departures
            if looked == work.departures or self._cache.room.spare() < work.lacking:
                return
        work.lacking = None
        try:
            self._forward(work, min(self._pace.chunk(beside=beside), self._options.max_batch_tokens))
        except BaseException as error:  # noqa: BLE001  # the border: the job gets it (a native panic is no Exception)
            if isinstance(error, NoRoomError) and self._cache.live > (work.prefill is not None):
                self.begin_anew(work)  # others hold what is needed
            else:
                self.end(work, typed(error))
            return
        self._counters.publish(self._cache)  # before the answer, so that its reader sees the numbers
        work.tell()
        if work.done == len(work.run):
            self._leave(work, "done")
            settle(work.job.future, replace(work.run, reused=work.reused, deviation=work.deviation))

    def packed(self, work: _Work) -> int | None:
        """Tokens of its path."""
        return None if work.prefill is None else len(work.job.ids)

    def end(self, work: _Work, error: BaseException | None) -> None:
        """The job ends unfinished: what it has stays for the next one that asks for the same."""
        if error is None and work.done:
            size = sum(column.nbytes for column in work.run.to_columns().values())
            self._cache.interrupted.keep(_key(work.job), (work.run, work.done), size)
        self._leave(work, "cancelled" if error is None else "error")
        if error is not None:
            work.job.fail(error)

    def _forward(self, work: _Work, quota: int) -> None:
        """Brings the pack to the next position, or reads it and those that follow it at once."""
        job, first = work.job, int(work.job.positions[work.done])
        prefill = self._placed(work, first)
        started, gap = time.monotonic(), first - prefill.at
        if gap:  # neither the trie nor the pack has it
            count, share = min(gap, quota), 1.0
        else:
            share = 1 + (self._backend.info.layers + 1) * head_share(self._backend.info)
            most = min(max(int(quota / share), 1), positions_at_once(self._backend.info), len(work.run) - work.done)
            count = next((n for n in range(1, most) if job.positions[work.done + n] != first + n), most)
        count = min([count, *(end - prefill.at for end, _ in job.before if end > prefill.at)])  # one stack of adapters
        tokens = work.tagged[prefill.at : prefill.at + count]
        answer, prefill.slot = prefill.workspace.extend_layers(tokens, prefill.slot, read=not gap)
        prefill.at += count
        work.computed += count
        self._pace.measure(round(count * share), time.monotonic() - started)
        if not np.isfinite(answer).all():
            raise NonFiniteLogitsError(f"what a layer answers after token {first:,} holds NaN or infinity")
        if not gap:
            last = read_layers(answer, work.run, work.done)
            work.done += count
            if work.done == len(work.run):
                self._compare(work, last)

    def _placed(self, work: _Work, position: int) -> Prefill:
        """The job's pack, with what is held of the path up to a position."""
        if work.prefill is None:
            job = Job(work.job.ids, work.job.namespace, before=work.job.before)
            work.prefill = self._cache.place_apart(job)
        prefill = work.prefill
        if self._cache.enabled and prefill.at < position:
            before = prefill.at
            prefill.slot, prefill.at = self._cache.regain(prefill, work.job.ids[:position])
            work.reused += prefill.at - before
        return prefill

    def _compare(self, work: _Work, last: Float32) -> None:
        """Compares the last layer with the ordinary answer.

        Raises:
            UnsupportedFeatureError: They differ.
        """
        ordinary = work.job.ordinary
        seen = ordinary >= SEEN
        work.deviation = float(np.abs(last - ordinary)[seen].max(initial=0.0))
        info = self._backend.info
        exact = info.dtype == "float32" and info.quantisation is None and info.options.get("kv_dtype") == "float32"
        if work.deviation > (EXACT if exact else ROUNDED):
            raise UnsupportedFeatureError(
                f"the last layer of {info.name}, read through its own norm and head, is {work.deviation:.3g} nats off the "
                "model's own answer: the layers of this architecture cannot be read so"
            )

    def begin_anew(self, work: _Work) -> None:
        """Frees its pack, and notes what room it needs."""
        self._free(work)
        work.job.parks += 1
        work.lacking, work.departures = self._cache.room.lacking(len(work.job.ids)), self._cache.departures

    def _leave(self, work: _Work, finish: str) -> None:
        self.running.remove(work)
        self._free(work)
        self._ledger.leave(work.job, finish, reused=work.reused, computed=work.computed)
        self._counters.publish(self._cache)

    def _free(self, work: _Work) -> None:
        if work.prefill is not None:
            self._cache.leave(work.prefill)
            work.prefill = None


def _key(job: LensJob) -> tuple[object, ...]:
    """What its answer depends on."""
    arrays = (job.ids, job.positions, job.tokens)
    return "lens", job.namespace, job.before, job.following, job.k, *(array.tobytes() for array in arrays)
