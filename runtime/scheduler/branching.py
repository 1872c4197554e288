"""Jobs that go on from their path in several ways at once: `FanJob`, `BeamJob`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from runtime.beams import BeamOptions, Hypothesis, OnStep
from runtime.grammar.constraint import Constraint
from runtime.scheduler.jobs import GenerateJob, StayingJob, nothing, settle


@dataclass(slots=True, eq=False)
class FanJob(StayingJob):
    """Several continuations of one path, which is worked on once for all of them."""

    jobs: Sequence[GenerateJob] = ()

    def fail(self, error: BaseException) -> None:
        """All streams end with the error."""
        for job in self.jobs:
            job.fail(error)

    def leave(self) -> None:
        """All streams end."""
        for job in self.jobs:
            job.leave()

    @property
    def least_tokens(self) -> int:
        """The path, and a token of each continuation that has more than one."""
        return len(self.ids) + sum(job.options.max_tokens != 1 for job in self.jobs)

    def uses(self, digest: str) -> bool:
        """Whether an adapter takes part in any of them, or may yet."""
        return any(job.uses(digest) for job in self.jobs)

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for any of them."""
        return self.cancelled or all(job.cancelled for job in self.jobs)


@dataclass(slots=True, eq=False)
class BeamJob(StayingJob):
    """The best continuations of the path that a beam search finds."""

    options: BeamOptions = field(default_factory=BeamOptions)
    constraint: Constraint | None = None  # where a hypothesis stands in its grammar; this job's alone
    on_step: OnStep = nothing  # runs on the owner thread and must not block
    future: Future[list[Hypothesis]] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        """The waiter gets the error."""
        settle(self.future, error=error)

    def leave(self) -> None:
        """Nobody waits."""

    @property
    def least_tokens(self) -> int:
        """The path, and a token of each beam where there is a second step."""
        return len(self.ids) + (self.options.width if self.options.max_tokens != 1 else 0)
