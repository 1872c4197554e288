"""What can be asked of the scheduler. Jobs are made by any thread and worked on by the owner thread alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from runtime.adapters.stacks import Routing, stack_of
from runtime.beams import BeamOptions, OnStep
from runtime.grammar.constraint import Constraint
from runtime.info import OnProgress
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.priority import Priority
from runtime.records import Int32, Scores, TokenRun
from runtime.sampling.chain import Sampler
from runtime.scheduler.prefill.distributions import Distribution
from runtime.trie import Namespace, Span


def nothing(_: object) -> None:
    """Nothing listens."""


@dataclass(slots=True, eq=False)
class Turn:
    """Jobs that were handed over together, or by one call: they share turns with those of others, however many they are."""

    one_by_one: bool = False  # whether a call hands them over as others of it end
    served: int = 0  # the round in which one of them was last pushed


@dataclass(slots=True, eq=False)
class Job:
    """A path of tokens and what is wanted of it: of a bare one nothing, and no caller waits for it.

    Attributes:
        kind: Of `RequestTimings`; "" where it is no request.
        ids: The tokens.
        namespace: What their KV belongs to; where `before` says otherwise, from its last end on.
        before: (end, namespace) of the spans that come first, by rising end: the tokens before an activated adapter.
    """

    kind: ClassVar[str] = ""
    ids: Int32
    namespace: Namespace
    priority: Priority = Priority.INSPECTOR
    cancelled: bool = False  # set by any thread, read between steps
    on_progress: OnProgress | None = None  # runs on the owner thread and must not block
    submitted: float = field(default_factory=time.monotonic)  # as the next two, in monotonic seconds
    placed: float = 0.0  # when it was begun; written by the ledger
    prompted: float = 0.0  # when its prompt was in place; written where that is seen
    number: int = 0  # of the request, from 1; negative once it has ended; written by the ledger
    before: tuple[tuple[int, Namespace], ...] = ()
    blocks_checked: bool = False  # its path was looked for among the stored blocks
    counted: bool = False  # as a hit or a miss of the cache
    turn: Turn = field(default_factory=Turn)
    order: int = 0  # of its first admission, from 1; written by `Waiting`
    parks: int = 0  # how often it was sent back to wait for room
    extra_tokens: int = 0  # tokens for which there must be room beside those of the path, whatever gives way
    whole: bool = False  # whether every entry of what follows the path is wanted: else it may stay on the device
    _key: tuple[Namespace, bytes] | None = None

    def fail(self, error: BaseException) -> None:
        """Tells the caller; a bare path has none."""

    def leave(self) -> None:
        """Ends the job without an error: no caller waits."""

    def answer(self, last: Distribution) -> None:
        """Tells what follows the path; nothing waits for that of a bare one."""

    @property
    def abandoned(self) -> bool:
        """Whether nothing waits for it any more."""
        return self.cancelled

    @property
    def key(self) -> tuple[Namespace, bytes]:
        """The full path: what two equal queries share. Worked out once, before an answer can activate an adapter."""
        if self._key is None:
            self._key = (self.before, self.namespace) if self.before else self.namespace, self.ids.tobytes()
        return self._key

    def spans(self, ids: Int32) -> list[Span]:
        """`ids`, the path or a part of it from its beginning (or with what was generated), by namespace."""
        if not self.before:
            return [(self.namespace, ids)]
        edges = [0, *(min(end, len(ids)) for end, _ in self.before), len(ids)]
        names = [*(namespace for _, namespace in self.before), self.namespace]
        return [(name, ids[start:end]) for name, (start, end) in zip(names, itertools.pairwise(edges), strict=True)]

    def namespace_at(self, index: int) -> Namespace:
        """Of the token at `index`."""
        return next((namespace for end, namespace in self.before if index < end), self.namespace)

    def uses(self, digest: str) -> bool:
        """Whether an adapter takes part in it."""
        names = (self.namespace, *(namespace for _, namespace in self.before))
        return any(digest == each for name in names for each, _ in stack_of(name))


class Waiter(Protocol):
    """Where an answer goes: a `concurrent.futures.Future`, or a `runtime.aio.Call`."""

    def cancelled(self) -> bool:
        """Whether no caller waits any more."""

    def set_result(self, value: Any, /) -> None:
        """The answer."""

    def set_exception(self, error: Any, /) -> None:
        """It failed."""


@dataclass(slots=True, eq=False)
class Rows:
    """Several queries that are answered together, each written where it belongs; owner thread.

    Args:
        waiter: Gets an array ``(n, vocab) float32``, or a list of `TopLogprobs`; the first error of a row goes there instead.
        n: Rows.
        top: The likeliest tokens of each that are answered, as far as the vocabulary goes, 0 for the chosen ids alone: no array
            of all rows is made. None: the array.
        chosen: Ids within the vocabulary that are answered beside them.
    """

    waiter: Waiter
    n: int
    top: int | None = None
    chosen: Sequence[int] = ()
    failed: bool = False  # no row is waited for any more
    known: int = 0  # rows so far
    answer: Any = None

    def put(self, i: int, last: Distribution) -> None:
        """Row `i` is known."""
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
        """One of the rows could not be computed."""
        if not self.failed:
            self.failed = True
            settle(self.waiter, error=error)


@dataclass(slots=True, eq=False, weakref_slot=True)
class QueryJob(Job):
    """The distribution after the path: ``(vocab,) float32`` log-probabilities. Equal ones in flight share one job."""

    waiters: list[tuple[Rows, int]] = field(default_factory=list)  # each with its row; none any more once they are answered
    whole: bool = True

    def fail(self, error: BaseException) -> None:
        """Every waiter gets the error."""
        for rows, _ in self.waiters:
            rows.fail(error)
        self.waiters = []

    def answer(self, last: Distribution) -> None:
        """Every waiter gets a row of its own."""
        for rows, i in self.waiters:
            try:
                rows.put(i, last)
            except BaseException as error:  # noqa: BLE001  # the border: no memory for the array of this caller
                rows.fail(error)
        self.waiters = []

    @property
    def abandoned(self) -> bool:
        """Whether no caller waits any more."""
        for rows, _ in self.waiters:
            if not (rows.failed or rows.waiter.cancelled()):
                return self.cancelled
        return True


@dataclass(slots=True, eq=False)
class AnsweredJob(Job):
    """A job with one answer."""

    future: Waiter = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        """The waiter gets the error."""
        settle(self.future, error=error)


@dataclass(slots=True, eq=False)
class ScoreJob(AnsweredJob):
    """The scores of tokens `start`.. given what precedes them; `k` alternatives each."""

    kind = "score"
    start: int = 0
    k: int = 10
    known: Scores | None = None  # of the whole path, as far as worked out; owner thread

    def answer(self, last: Distribution | None = None) -> None:  # noqa: ARG002  # what follows the path is not asked for
        """The waiter gets the scores."""
        assert self.known is not None
        settle(self.future, self.known[self.start :])


@dataclass(slots=True, eq=False)
class GenerativeJob(Job):
    """A job that keeps its place when its path is there, and goes on from it."""

    kind = "generate"
    whole: bool = True  # for the draw, at whatever temperature
    constraint: Constraint | None = None  # where it stands in its grammar; this job's alone

    def begin_masks(self) -> None:
        """Has what its grammar allows first worked out, while its path is computed."""
        if self.constraint is not None:
            self.constraint.begin()


@dataclass(slots=True, eq=False)
class GenerateJob(GenerativeJob):
    """A continuation of the path, token by token. The callbacks run on the owner thread and must not block."""

    options: GenerationOptions = field(default_factory=GenerationOptions)
    sampler: Sampler = field(default_factory=lambda: Sampler(SamplingOptions(temperature=0.0), 0))
    on_run: Callable[[TokenRun], None] = nothing
    on_end: Callable[[BaseException | None], None] = nothing
    eos: frozenset[int] | None = None  # None: the model's own
    routing: Routing | None = None  # of adapters that the answer itself may activate

    def uses(self, digest: str) -> bool:
        """Whether an adapter takes part in it, or may yet."""
        return super(GenerateJob, self).uses(digest) or (self.routing is not None and self.routing.uses_adapter(digest))

    def invoked(self, routing: Routing, new_ids: Sequence[int]) -> bool:
        """Whether the last token of the answer so far completes an invocation sequence of its routing."""
        for invocation in routing.invocations if routing.uses else ():
            n = len(invocation)
            if new_ids[-1] == invocation[-1] and tuple([*self.ids[-n:].tolist(), *new_ids[-n:]][-n:]) == invocation:
                return True
        return False

    def fail(self, error: BaseException) -> None:
        """The stream ends with the error; what was sent stays."""
        self.on_end(error)

    def leave(self) -> None:
        """The stream ends."""
        self.on_end(None)


@dataclass(slots=True, eq=False)
class CallJob(AnsweredJob):
    """Anything else that must happen on the owner thread between two steps."""

    call: Callable[[], Any] = lambda: None
    future: Future[Any] = field(default_factory=Future)


def settle(future: Waiter, value: object = None, *, error: BaseException | None = None) -> None:
    """Resolves a future that may have been settled, or cancelled, meanwhile."""
    with suppress(InvalidStateError):
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)


@dataclass(slots=True, eq=False)
class FanJob(GenerativeJob):
    """Several continuations of one path, which is worked on once for all of them."""

    jobs: Sequence[GenerateJob] = ()

    def __post_init__(self) -> None:
        self.extra_tokens = sum(job.options.max_tokens != 1 for job in self.jobs)  # those that have more than one token

    def fail(self, error: BaseException) -> None:
        """All streams end with the error."""
        for job in self.jobs:
            job.fail(error)

    def leave(self) -> None:
        """All streams end."""
        for job in self.jobs:
            job.leave()

    def begin_masks(self) -> None:
        """One for each; those that were forked from a job whose mask is known have it."""
        for job in self.jobs:
            job.begin_masks()

    def uses(self, digest: str) -> bool:
        """Whether an adapter takes part in any of them, or may yet."""
        return any(job.uses(digest) for job in self.jobs)

    @property
    def abandoned(self) -> bool:
        """Whether no caller waits for any of them."""
        return self.cancelled or all(job.cancelled for job in self.jobs)


@dataclass(slots=True, eq=False)
class BeamJob(GenerativeJob):
    """The best continuations of the path that a beam search finds."""

    options: BeamOptions = field(default_factory=BeamOptions)
    on_step: OnStep = nothing  # runs on the owner thread and must not block
    future: Waiter = field(default_factory=Future)

    def __post_init__(self) -> None:
        self.extra_tokens = self.options.width if self.options.max_tokens != 1 else 0  # where there is a second step

    def fail(self, error: BaseException) -> None:
        """The waiter gets the error."""
        settle(self.future, error=error)
