"""Subjects, workloads and the meter between them; and the fewest tokens that a workload needs (`distinct_prefixes`)."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np
import numpy.typing as npt

Ids = Sequence[int]
Float32 = npt.NDArray[np.float32]


class Subject(Protocol):
    """Something that answers requests: Elsewise or a peer. Blocking; one thread."""

    name: str  # as the table shows it

    @property
    def tokens_computed(self) -> int:
        """Tokens pushed through the model since it was made, padding included."""

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities of the token after each context, ``(len(contexts), vocab) float32``."""

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """`n` tokens after each prompt, the likeliest at every step, whether or not one of them ends a text."""

    def forget(self) -> None:
        """Drops everything that is cached."""

    def close(self) -> None:
        """Frees the model."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One way of using a model. `play` uses nothing of the subject but `logprobs` and `answers`."""

    name: str  # "W1 particles"
    play: Callable[[Subject], None]


@dataclass(frozen=True, slots=True)
class Result:
    """What one workload cost with one subject: the most tokens, and medians of seconds of its own, over its laps.

    wall: from each request to its answer. cpu: of the whole process from the first request to the last answer, but for
    what the workload itself computed between two of them.
    """

    workload: str
    backend: str
    model: str
    subject: str
    tokens: int  # pushed through the model, padding included
    ideal: int  # see `benchmarks.measure`
    cpu_seconds: float
    wall_seconds: float
    outcome: str  # digest of all requests and answers: equal where two subjects drew the same tokens
    laps: int = 1

    @property
    def ratio(self) -> float:
        """Tokens computed over ideal; 1.0 cannot be beaten."""
        return self.tokens / self.ideal


def measure(workload: Workload, subject: Subject, *, backend: str, model: str) -> Result:
    """Plays a workload against a subject that remembers nothing of it."""
    subject.forget()
    gc.collect()
    meter = _Meter(subject)
    before = subject.tokens_computed
    workload.play(meter)
    return Result(
        workload=workload.name,
        backend=backend,
        model=model,
        subject=subject.name,
        tokens=subject.tokens_computed - before,
        ideal=distinct_prefixes(meter.contexts),
        cpu_seconds=meter.cpu_seconds,
        wall_seconds=meter.wall_seconds,
        outcome=meter.outcome,
    )


def medians(laps: Sequence[Result]) -> Result:
    """One result for several of the same workload and subject.

    Raises:
        ValueError: Their requests or answers differ.
    """
    first = laps[0]
    if len({(lap.ideal, lap.outcome) for lap in laps}) > 1:
        raise ValueError(f"{first.subject} did something else each time it played {first.workload}: {laps}")
    cpu, wall = median(lap.cpu_seconds for lap in laps), median(lap.wall_seconds for lap in laps)
    return replace(first, tokens=max(lap.tokens for lap in laps), cpu_seconds=cpu, wall_seconds=wall, laps=len(laps))


class _Meter:
    """A subject that passes everything on to another: it stops the time and writes down what was asked."""

    def __init__(self, subject: Subject) -> None:
        self.name = subject.name
        self.contexts: list[list[int]] = []  # each of whose prefixes had to go through the model
        self.cpu_seconds = 0.0
        self.wall_seconds = 0.0
        self._left: tuple[float, float] | None = None  # cpu-seconds of process and thread at the last answer
        self._subject = subject
        self._told = hashlib.sha256()

    @property
    def tokens_computed(self) -> int:
        return self._subject.tokens_computed

    @property
    def outcome(self) -> str:
        return self._told.hexdigest()[:12]

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        with self._clock():
            answer = self._subject.logprobs(contexts)
        for context in contexts:
            self._note(context)
        return answer

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        with self._clock():
            answers = self._subject.answers(prompts, n)
        for prompt, answer in zip(prompts, answers, strict=True):
            if len(answer) != n:
                raise ValueError(f"{self.name} answered {len(answer)} tokens where {n} were asked for")
            self._note([*prompt, *answer[:-1]])  # what follows the last token was not asked for
            self._tell(answer[-1:])
        return answers

    def forget(self) -> None:
        self._subject.forget()

    def close(self) -> None:
        self._subject.close()

    @contextmanager
    def _clock(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        if self._left is not None:  # threads of the subject may have worked on after it had answered
            process, thread = self._left
            self.cpu_seconds += max(cpu - process - (time.thread_time() - thread), 0.0)
        yield
        self.wall_seconds += time.perf_counter() - wall
        self._left = time.process_time(), time.thread_time()
        self.cpu_seconds += self._left[0] - cpu

    def _note(self, context: Ids) -> None:
        self.contexts.append(list(context))
        self._tell(context)

    def _tell(self, ids: Ids) -> None:
        self._told.update(np.asarray([*ids, -1], np.int32).tobytes())


def distinct_prefixes(contexts: Iterable[Sequence[int]]) -> int:
    """The number of different non-empty prefixes: the fewest tokens that exact answers can need.

    A *context* is a sequence of tokens whose next-token distribution was asked for; a generation of n tokens after a prompt
    asks for n of them, the longest being the prompt and all generated tokens but the last. To know what follows a context, the
    model must have seen each of its tokens behind exactly the tokens before it. A perfect cache, granular to the token,
    unlimited, and remembering distributions as well as keys and values, computes each such token once. Padding, tokens
    computed twice, and tokens computed ahead that were never asked about make the difference.

    In sorted order a context shares its longest known prefix with the one just before it; the rest is new.
    """
    count = 0
    before: list[int] = []
    for context in sorted(list(context) for context in contexts):
        count += len(context) - common_prefix(before, context)
        before = context
    return count


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens two sequences share."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
