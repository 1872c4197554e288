"""Reading jobs: internal values of the model at some positions of a path. Owner thread only.

A job has a pack of its own that is one chain. The cached KV up to the next position is copied into it; adjacent positions
share a forward, up to the limit of rows at once. Nothing is published: the cache does not change. The finished positions of a
cancelled job are kept for the next equal job.

A new reading is a job like `LensJob` here with its line in `READINGS`, a method of `LanguageModel`, and its hooks in
`runtime.backends.hf.readings` and `runtime.backends.mlx.readings`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from runtime.errors import NonFiniteLogitsError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.lens import LensRun, empty_lens, head_share, positions_at_once, read_layers
from runtime.records import Float32, Int32
from runtime.scheduler.faults import typed
from runtime.scheduler.jobs import Job, settle
from runtime.scheduler.prefill.prefill import Prefill
from runtime.scheduler.workers import BackgroundJob, Work, Worker

COMPARED_LOGPROB = np.log(1e-3)  # tokens at least this likely are compared with the ordinary answer
# Allowed deviation in nats. Measured with SmolLM2: 2e-5 in float32, 0.21 with fewer bits, because forwards of other shapes
# round differently. With KV of 8 bits (0.30) and 4 bits (2.0) the ordinary answer is the inexact one.
EXACT, ROUNDED, QUANTISED_KV = 2e-3, 0.5, {"q8": 1.0, "q4": np.inf}

Answer = dict[str, npt.NDArray[Any]]  # arrays, a row for each position


@dataclass(slots=True, eq=False, kw_only=True)
class LensJob(BackgroundJob):
    """The predictions of all layers (`runtime.lens`) at some positions of the path, as the columns of a `LensRun`.

    Attributes:
        reading: The backend's name of the reading.
        options: The fields that a request sets.
        info: The model's `info`.
        positions: Ascending; the path ends with the last of them.
        following: The token after the path.
        ordinary: ``(vocab,)`` log-probabilities after the path.
        tokens: Wanted at each position.
    """

    kind = "lens"
    reading: ClassVar = "layers"
    options: ClassVar = ("tokens", "top_k")
    info: ModelInfo
    positions: Int32
    following: int
    ordinary: Float32
    tokens: Int32
    top_k: int

    @property
    def share(self) -> float:
        """The cost of a position, in forwards of one token: that of the token, and a row of the head for each layer."""
        return 1 + (self.info.layers + 1) * head_share(self.info)

    def empty(self) -> Answer:
        """The columns, with the tokens entered and without scores."""
        ids = np.append(self.ids, np.int32(self.following)).astype(np.int32)
        return empty_lens(self.positions, ids, self.info.layers + 1, self.top_k, self.tokens).to_columns()

    def fill(self, answer: Answer, rows: Float32, first: int) -> None:
        """Enters finite rows ``(n, layers + 1, vocab)``, which it changes, at the positions from index `first` on.

        Compares the last row with the ordinary answer.

        Raises:
            UnsupportedFeatureError: They differ.
        """
        last = read_layers(rows, LensRun.from_columns(answer), first)
        if first + len(rows) < len(self.positions):
            return
        info, compared = self.info, self.ordinary >= COMPARED_LOGPROB
        deviation = float(np.abs(last - self.ordinary)[compared].max(initial=0.0))
        if deviation > _allowed(info):
            raise UnsupportedFeatureError(
                f"the last layer of {info.name}, read through its own norm and head, is {deviation:.3g} nats off the "
                "model's own answer: the layers of this architecture cannot be read so"
            )
        answer["deviation"] = np.asarray(deviation)


def _allowed(info: ModelInfo) -> float:
    """The allowed deviation of the last layer in nats."""
    kv = str(info.options.get("kv_dtype"))
    exact = info.dtype == kv == "float32" and info.quantisation is None
    return QUANTISED_KV.get(kv, EXACT if exact else ROUNDED)


READINGS = {LensJob.kind: LensJob}


@dataclass(slots=True, eq=False, kw_only=True)
class _Work(Work):
    job: LensJob
    answer: Answer  # filled in as positions are read


class ReadWorker(Worker[_Work]):
    """Works on the jobs of one reading."""

    def admit(self, job: LensJob) -> None:
        self._cache.check_room(len(job.ids))
        held = self._cache.interrupted.take(_key(job))
        answer, done = (job.empty(), 0) if held is None else held
        self.running.append(_Work(job=job, answer=answer, total=len(job.positions), done=done))

    def _forward(self, work: _Work, quota: int) -> None:
        try:
            self._read(work, quota)
        except BaseException as error:  # noqa: BLE001  # the border: the job gets it (a native panic is no Exception)
            if not self._retry_later(work, error):
                self.end(work, typed(error))
            return
        self._counters.publish(self._cache)  # before the answer, so that its reader sees the numbers
        work.report_progress()
        if work.done == work.total:
            self._leave(work, "done")
            settle(work.job.future, work.answer | {"reused": np.asarray(work.reused)})

    def _length(self, work: _Work) -> int:
        return len(work.job.ids)

    def end(self, work: _Work, error: BaseException | None) -> None:
        """Ends the job unfinished; if it was cancelled, its answer so far is kept for the next equal job."""
        if error is None and work.done:
            size = sum(column.nbytes for column in work.answer.values())
            self._cache.interrupted.keep(_key(work.job), (work.answer, work.done), size)
        self._leave(work, "cancelled" if error is None else "error")
        work.job.end(error)

    def _read(self, work: _Work, quota: int) -> None:
        """Extends the pack towards the next position, or reads that position and those adjacent to it."""
        job, first = work.job, int(work.job.positions[work.done])
        prefill = self._prefill_up_to(work, first)
        started, gap = time.monotonic(), first - prefill.at
        if gap:  # tokens in neither the trie nor the pack
            count, share = min(gap, quota), 1.0
        else:
            share = job.share
            most = min(max(int(quota / share), 1), positions_at_once(job.info), work.total - work.done)
            count = next((n for n in range(1, most) if job.positions[work.done + n] != first + n), most)
        count = min([count, *(end - prefill.at for end, _ in job.before if end > prefill.at)])  # one stack of adapters
        tokens = prefill.tagged[prefill.at : prefill.at + count]
        rows, prefill.slot = prefill.workspace.extend(tokens, prefill.slot, "hidden" if gap else job.reading)
        prefill.at += count
        work.computed += count
        self._pace.measure(round(count * share), time.monotonic() - started)
        if not np.isfinite(rows).all():
            raise NonFiniteLogitsError(f"what the {job.kind} reads at token {first:,} holds NaN or infinity")
        if not gap:
            job.fill(work.answer, rows, work.done)
            work.done += count

    def _prefill_up_to(self, work: _Work, position: int) -> Prefill:
        """The job's cursor, with the cached KV up to a position loaded into its pack."""
        if work.prefill is None:
            job = Job(work.job.ids, work.job.namespace, before=work.job.before)
            work.prefill = self._cache.place_apart(job)
        prefill = work.prefill
        if self._cache.enabled and prefill.at < position:
            before = prefill.at
            prefill.slot, prefill.at = self._cache.regain(prefill, work.job.ids[:position])
            work.reused += prefill.at - before
        return prefill


LensJob.worker = ReadWorker


def _key(job: LensJob) -> tuple[object, ...]:
    """Identifies the answer."""
    parts = [job.ids, job.positions, *(getattr(job, name) for name in job.options)]
    plain = (part.tobytes() if isinstance(part, np.ndarray) else part for part in parts)
    return job.kind, job.namespace, job.before, job.following, *plain
