"""Several streams read as one: `Branches`, and what both kinds of model need to make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar

from runtime.errors import InvalidRequestError
from runtime.info import OnProgress
from runtime.options.generation import GenerationOptions
from runtime.records import TokenRecord, TokenRun

Prompts = Sequence[str | Sequence[int]]
Options = GenerationOptions | Sequence[GenerationOptions | None] | None
MOST_BRANCHES = 1024  # of one point: each is a generation of its own, with a place in every step
Item = TypeVar("Item")


class Branches(AsyncGenerator[tuple[int, Item], None]):
    """An async generator of ``(branch, item)`` in which one branch can be dropped while the others go on.

    Args:
        source: Yields what has arrived.
        drop: Stops one branch.

    Attributes:
        dropped: The branches that were.
    """

    def __init__(self, source: AsyncGenerator[tuple[int, Item], None], drop: Callable[[int], None]) -> None:
        self._source = source
        self._drop = drop
        self.dropped: set[int] = set()

    def drop(self, branch: int) -> None:
        """Stops one branch between two steps: nothing of it comes any more; one that ended or never was is no mistake.

        On the loop that reads, at any time. When all are dropped the generator ends.
        """
        self.dropped.add(branch)
        self._drop(branch)

    async def __anext__(self) -> tuple[int, Item]:
        """The next item, of whichever branch."""
        return await anext(self._source)

    async def asend(self, value: None) -> tuple[int, Item]:
        """The same."""
        return await self._source.asend(value)

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> tuple[int, Item]:
        """Raises inside: all branches stop."""
        raised = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        return await self._source.athrow(raised.with_traceback(trace) if trace else raised)

    async def aclose(self) -> None:
        """All branches stop between two steps."""
        await self._source.aclose()


async def records_of(runs: Branches[TokenRun]) -> AsyncGenerator[tuple[int, TokenRecord], None]:
    """The records of runs, one by one; none of a branch that was dropped meanwhile."""
    try:
        async for branch, run in runs:
            for record in run:
                if branch in runs.dropped:
                    break
                yield branch, record
    finally:
        await runs.aclose()


class BranchRecords(ABC):
    """`continue_many` and `generate_many`, record by record, of whoever has the two in runs; see `members.branching`."""

    @abstractmethod
    def continue_many_runs(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        """In chunks."""

    @abstractmethod
    def generate_many_runs(self, prompts: Prompts, options: Options = None) -> Branches[TokenRun]:
        """In chunks."""

    def continue_many(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRecord]:
        """Records as they come."""
        runs = self.continue_many_runs(ids, n, options, on_progress=on_progress)
        return Branches(records_of(runs), runs.drop)

    def generate_many(self, prompts: Prompts, options: Options = None) -> Branches[TokenRecord]:
        """Records as they come."""
        runs = self.generate_many_runs(prompts, options)
        return Branches(records_of(runs), runs.drop)


def merged(arrived: Iterable[tuple[int, TokenRun]]) -> list[tuple[int, TokenRun]]:
    """One run for each branch that has something, in the order of first arrivals."""
    runs: dict[int, list[TokenRun]] = {}
    for branch, run in arrived:
        runs.setdefault(branch, []).append(run)
    return [(branch, TokenRun.concat(of_branch)) for branch, of_branch in runs.items()]


def check_count(n: int, first: int) -> None:
    """Whether there can be `n` branches from number `first` on.

    Raises:
        InvalidRequestError: Not within 1 and `MOST_BRANCHES`, or beyond the last number there is.
    """
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MOST_BRANCHES:
        raise InvalidRequestError(f"n (branches) must be a whole number within 1 and {MOST_BRANCHES:,}, not {n!r}")
    if first + n > 1 << 64:
        raise InvalidRequestError(f"{n:,} branches from number {first} on go beyond 2**64 - 1; begin with a lower branch")


def check_prompts(prompts: Prompts) -> Prompts:
    """The prompts themselves.

    Raises:
        InvalidRequestError: One text instead of a list, or none.
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts is a list of texts or of token ids, not {type(prompts).__name__}")
    if not len(prompts):
        raise InvalidRequestError("no prompts: give at least one text or list of token ids")
    return prompts


def joint_error(failures: Mapping[int, BaseException], what: str) -> BaseException:
    """The first failure, with a note that says which of the `what` (branches, prompts) ended by which error."""
    numbers: dict[tuple[type[BaseException], str], list[int]] = {}
    for branch, error in failures.items():
        numbers.setdefault((type(error), str(error)), []).append(branch)
    first = next(iter(failures.values()))
    for (kind, message), branches in numbers.items():
        first.add_note(f"{what} {', '.join(map(str, sorted(branches)))} ended by {kind.__name__}: {message}")
    return first
