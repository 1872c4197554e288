"""Subjects, workloads and the meter between them; the fewest tokens that a workload needs (`distinct_prefixes`)."""

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
    """A library that answers requests: Elsewise or a peer. Calls block and come from one thread."""

    name: str  # shown in tables

    @property
    def tokens_computed(self) -> int:
        """Tokens pushed through the model since it was loaded, padding included."""

    def logprobs(self, contexts: Sequence[Ids]) -> Float32:
        """Log-probabilities of the token after each context, ``(len(contexts), vocab) float32``."""

    def answers(self, prompts: Sequence[Ids], n: int) -> list[list[int]]:
        """Greedy answers: `n` tokens after each prompt; an end-of-text token does not end them."""

    def forget(self) -> None:
        """Clears all caches."""

    def close(self) -> None:
        """Frees the model."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One way of using a model. `play` calls only `logprobs` and `answers` of the subject."""

    name: str  # "W1 particles"
    play: Callable[[Subject], None]


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """Cost of one workload with one subject over its laps: the largest token count and the medians of the times.

    Wall time is the sum over requests of the time from request to answer. CPU time is that of the whole process from the
    first request to the last answer, without the workload's own work between requests.
    """

    workload: str
    backend: str
    model: str
    subject: str
    tokens: int  # pushed through the model, padding included
    ideal: int  # fewest tokens needed, see `distinct_prefixes`
    cpu_seconds: float
    wall_seconds: float
    outcome: str  # digest of all requests and answers: equal if two subjects drew the same tokens
    laps: int = 1

    @property
    def ratio(self) -> float:
        """Tokens computed divided by ideal; at least 1.0."""
        return self.tokens / self.ideal


def measure(workload: Workload, subject: Subject, *, backend: str, model: str) -> WorkloadResult:
    """Plays a workload once, after clearing the subject's caches, and returns its cost."""
    subject.forget()
    gc.collect()
    meter = _Meter(subject)
    before = subject.tokens_computed
    workload.play(meter)
    return WorkloadResult(
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


def medians(laps: Sequence[WorkloadResult]) -> WorkloadResult:
    """Combines the laps of one workload and subject into one result.

    Raises:
        ValueError: The requests or answers of the laps differ.
    """
    first = laps[0]
    if len({(lap.ideal, lap.outcome) for lap in laps}) > 1:
        raise ValueError(f"{first.subject} did something else each time it played {first.workload}: {laps}")
    cpu, wall = median(lap.cpu_seconds for lap in laps), median(lap.wall_seconds for lap in laps)
    return replace(first, tokens=max(lap.tokens for lap in laps), cpu_seconds=cpu, wall_seconds=wall, laps=len(laps))


class _Meter:
    """A subject that forwards to another one, measures its time and records the contexts asked for."""

    def __init__(self, subject: Subject) -> None:
        self.name = subject.name
        self.contexts: list[list[int]] = []  # all their prefixes had to go through the model
        self.cpu_seconds = 0.0
        self.wall_seconds = 0.0
        self._left: tuple[float, float] | None = None  # CPU seconds of process and thread at the last answer
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
            self._note([*prompt, *answer[:-1]])  # the distribution after the last token was not asked for
            self._tell(answer[-1:])
        return answers

    def forget(self) -> None:
        self._subject.forget()

    def close(self) -> None:
        self._subject.close()

    @contextmanager
    def _clock(self) -> Iterator[None]:
        cpu, wall = time.process_time(), time.perf_counter()
        if self._left is not None:  # CPU time of other threads since the last answer: the subject's, too
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
    asks for n contexts, the longest being the prompt and all generated tokens but the last. The distribution after a context
    requires that the model computes each of its tokens after exactly the tokens before it. A perfect cache (token-granular,
    unlimited, holding distributions as well as keys and values) computes each such token once. A library computes more by
    padding, by computing tokens twice, and by computing tokens whose distributions are never asked for.

    In sorted order a context shares its longest known prefix with its predecessor; its other tokens are new.
    """
    count = 0
    before: list[int] = []
    for context in sorted(list(context) for context in contexts):
        count += len(context) - common_prefix(before, context)
        before = context
    return count


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two sequences."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
