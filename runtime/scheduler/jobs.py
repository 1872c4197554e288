"""The jobs of the scheduler. Any thread creates them; only the owner thread works on them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from runtime.adapters.stacks import Routing, stack_of
from runtime.aio import FutureLike, ignore
from runtime.beams import BeamOptions, OnStep
from runtime.grammar.constraint import Constraint
from runtime.info import OnProgress
from runtime.kv.trie import Namespace, Span
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.priority import Priority
from runtime.records import Int32, Scores, TokenRun
from runtime.sampling.chain import Sampler
from runtime.scheduler.prefill.distributions import Distribution


@dataclass(slots=True, eq=False)
class JobGroup:
    """The jobs of one call. Calls take turns, however many jobs each has."""

    one_by_one: bool = False  # whether the call submits a job only when another of its jobs ends
    served: int = 0  # the last round in which one of the jobs was pushed


@dataclass(slots=True, eq=False)
class Job:
    """A path of tokens. Subclasses request something for it; a plain `Job` is only a path, without a caller.

    Attributes:
        kind: The kind in `RequestTimings`; "" if the job is no request.
        ids: The tokens.
        namespace: Namespace of the KV of these tokens, from the last end in `before` on.
        before: (end, namespace) of the earlier spans, by ascending end: the tokens before an activated adapter.
    """

    kind: ClassVar[str] = ""
    ids: Int32
    namespace: Namespace
    priority: Priority = Priority.INSPECTOR
    cancelled: bool = False  # set by any thread, read between steps
    on_progress: OnProgress | None = None  # runs on the owner thread and must not block
    submitted: float = field(default_factory=time.monotonic)  # monotonic seconds, like the next two
    placed: float = 0.0  # when work on it began; written by `RequestMetrics`
    prompted: float = 0.0  # when its prefill was complete
    number: int = 0  # number of the request, from 1; negative once it has ended; written by `RequestMetrics`
    before: tuple[tuple[int, Namespace], ...] = ()
    blocks_checked: bool = False  # whether its path was looked up in the block file
    counted: bool = False  # whether it was counted as a hit or a miss of the cache
    turn: JobGroup = field(default_factory=JobGroup)
    order: int = 0  # order of its first admission, from 1; written by `Waiting`
    parks: int = 0  # how often it was parked to wait for room
    extra_tokens: int = 0  # tokens beyond the path that must fit into the budget
    whole: bool = False  # whether the whole distribution after the path is wanted; else it may stay on the device
    _key: tuple[Namespace, bytes] | None = None

    def end(self, error: BaseException | None) -> None:
        """Ends the job unanswered: gives the caller the error, if there is one and a caller waits."""

    def answer(self, last: Distribution) -> None:
        """Gives the caller the distribution after the path."""

    @property
    def abandoned(self) -> bool:
        """Whether no caller waits for it any more."""
        return self.cancelled

    @property
    def key(self) -> tuple[Namespace, bytes]:
        """Identifies the full path; equal queries have equal keys. Computed once, before an answer can activate an adapter."""
        if self._key is None:
            self._key = (self.before, self.namespace) if self.before else self.namespace, self.ids.tobytes()
        return self._key

    def spans(self, ids: Int32) -> list[Span]:
        """Splits `ids` by namespace: a prefix of the path, or the path with generated tokens after it."""
        if not self.before:
            return [(self.namespace, ids)]
        edges = [0, *(min(end, len(ids)) for end, _ in self.before), len(ids)]
        names = [*(namespace for _, namespace in self.before), self.namespace]
        return [(name, ids[start:end]) for name, (start, end) in zip(names, itertools.pairwise(edges), strict=True)]

    def namespace_at(self, index: int) -> Namespace:
        return next((namespace for end, namespace in self.before if index < end), self.namespace)

    def uses(self, digest: str) -> bool:
        """Whether the path uses an adapter."""
        names = (self.namespace, *(namespace for _, namespace in self.before))
        return any(digest == each for name in names for each, _ in stack_of(name))


@dataclass(slots=True, eq=False)
class RowCollector:
    """Collects the rows of several queries that are answered together. Owner thread only.

    Args:
        waiter: Receives an array ``(n, vocab) float32`` or a list of `TopLogprobs`; or the first error of a row.
        n: The number of rows.
        top: The number of likeliest tokens per row, at most the vocabulary; 0: only the `chosen` ids. None: the array.
        chosen: Further ids within the vocabulary to answer.
    """

    waiter: FutureLike
    n: int
    top: int | None = None
    chosen: Sequence[int] = ()
    failed: bool = False  # whether the waiter has received an error
    known: int = 0  # rows received so far
    answer: Any = None

    def put(self, i: int, last: Distribution) -> None:
        """Enters row `i`; the last one settles the waiter."""
        if self.failed:
            return
        if self.answer is None:
            self.answer = np.empty((self.n, last.vocab), np.float32) if self.top is None else [None] * self.n
        if self.top is None:
            last.logprobs(self.answer[i])
        else:
            self.answer[i] = last.likeliest(self.top, self.chosen)
        self.known += 1
        if self.known == self.n:
            settle(self.waiter, self.answer)

    def fail(self, error: BaseException) -> None:
        """Gives the waiter the first error of a row."""
        if not self.failed:
            self.failed = True
            settle(self.waiter, error=error)


@dataclass(slots=True, eq=False, weakref_slot=True)
class QueryJob(Job):
    """The distribution after the path: ``(vocab,) float32`` log-probabilities. Equal ones in flight share one job."""

    waiters: list[tuple[RowCollector, int]] = field(default_factory=list)  # each with its row index; empty once answered
    whole: bool = True

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            for rows, _ in self.waiters:
                rows.fail(error)
            self.waiters = []

    def answer(self, last: Distribution) -> None:
        for rows, i in self.waiters:
            try:
                rows.put(i, last)
            except BaseException as error:  # noqa: BLE001  # the border: no memory for the array of this caller
                rows.fail(error)
        self.waiters = []

    @property
    def abandoned(self) -> bool:
        for rows, _ in self.waiters:
            if not (rows.failed or rows.waiter.cancelled()):
                return self.cancelled
        return True


@dataclass(slots=True, eq=False)
class AnsweredJob(Job):
    """A job with one answer."""

    future: FutureLike = field(default_factory=Future)

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            settle(self.future, error=error)


@dataclass(slots=True, eq=False)
class ScoreJob(AnsweredJob):
    """The scores of the tokens from `start` on, with `k` alternatives each."""

    kind = "score"
    start: int = 0
    k: int = 10
    known: Scores | None = None  # scores of the whole path, as far as computed; owner thread only

    def answer(self, last: Distribution | None = None) -> None:  # noqa: ARG002  # the distribution after the path is not needed
        assert self.known is not None
        settle(self.future, self.known[self.start :])


@dataclass(slots=True, eq=False)
class DecodingJob(Job):
    """A job that keeps its place in the workspace after its prefill and generates from there."""

    kind = "generate"
    whole: bool = True  # the draw needs it, at any temperature
    constraint: Constraint | None = None  # the state of its grammar, not shared with other jobs

    def begin_masks(self) -> None:
        """Starts the computation of its next grammar mask in the background."""
        if self.constraint is not None:
            self.constraint.begin()


@dataclass(slots=True, eq=False)
class GenerateJob(DecodingJob):
    """A continuation of the path, token by token. The callbacks run on the owner thread and must not block."""

    options: GenerationOptions = field(default_factory=GenerationOptions)
    sampler: Sampler = field(default_factory=lambda: Sampler(SamplingOptions(temperature=0.0), 0))
    on_run: Callable[[TokenRun], None] = ignore
    on_end: Callable[[BaseException | None], None] = ignore
    eos: frozenset[int] | None = None  # None: the model's own
    routing: Routing | None = None  # routing of adapters that the answer itself may activate

    def uses(self, digest: str) -> bool:
        """Whether the path uses an adapter, or its answer may activate it."""
        return super(GenerateJob, self).uses(digest) or (self.routing is not None and self.routing.uses_adapter(digest))

    def invoked(self, routing: Routing, new_ids: Sequence[int]) -> bool:
        """Whether the last token of the answer so far completes an invocation sequence of its routing."""
        for invocation in routing.invocations if routing.uses else ():
            n = len(invocation)
            if new_ids[-1] == invocation[-1] and tuple([*self.ids[-n:].tolist(), *new_ids[-n:]][-n:]) == invocation:
                return True
        return False

    def end(self, error: BaseException | None) -> None:
        self.on_end(error)


@dataclass(slots=True, eq=False)
class CallJob(AnsweredJob):
    """A call on the owner thread between two steps."""

    call: Callable[[], Any] = lambda: None
    future: Future[Any] = field(default_factory=Future)


def settle(future: FutureLike, value: object = None, *, error: BaseException | None = None) -> None:
    """Resolves a future; does nothing if it was settled or cancelled before."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


@dataclass(slots=True, eq=False)
class BranchesJob(DecodingJob):
    """Several continuations of one path, which is computed once for all of them."""

    jobs: Sequence[GenerateJob] = ()

    def __post_init__(self) -> None:
        self.extra_tokens = sum(job.options.max_tokens != 1 for job in self.jobs)  # each further token needs a slot per branch

    def end(self, error: BaseException | None) -> None:
        for job in self.jobs:
            job.end(error)

    def begin_masks(self) -> None:
        """Starts the next mask of each branch; a branch forked from a job with a known mask has it already."""
        for job in self.jobs:
            job.begin_masks()

    def uses(self, digest: str) -> bool:
        """Whether any branch uses an adapter, or may activate it."""
        return any(job.uses(digest) for job in self.jobs)

    @property
    def abandoned(self) -> bool:
        return self.cancelled or all(job.cancelled for job in self.jobs)


@dataclass(slots=True, eq=False)
class BeamJob(DecodingJob):
    """A beam search for the best continuations of the path."""

    options: BeamOptions = field(default_factory=BeamOptions)
    on_step: OnStep = ignore  # runs on the owner thread and must not block
    future: FutureLike = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.extra_tokens = self.options.width if self.options.max_tokens != 1 else 0  # a second step needs a slot per beam

    def end(self, error: BaseException | None) -> None:
        if error is not None:
            settle(self.future, error=error)
