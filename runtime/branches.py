"""`Branches`: several streams, read as one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar, cast

from runtime.errors import ContextOverflowError, InvalidRequestError, RuntimeFault
from runtime.options.checking import check_value, whole
from runtime.options.generation import GenerationOptions
from runtime.records import TokenRecord, TokenRun

Prompts = Sequence[str | Sequence[int]]
Options = GenerationOptions | Sequence[GenerationOptions | None] | None
MOST_BRANCHES = 1024  # of one prefix: each branch is a generation of its own, with a row in every step
Item = TypeVar("Item")


@dataclass(eq=False, repr=False)
class Branches(AsyncGenerator[tuple[int, Item], None]):
    """An async generator of ``(branch, item)`` in which one branch can be dropped while the others continue.

    Attributes:
        items: The same generator, for a reader that drops no branch.
        dropped: The dropped branches.
    """

    items: AsyncGenerator[tuple[int, Item], None]
    _drop: Callable[[int], None]
    dropped: set[int] = field(default_factory=set, init=False)

    @classmethod
    def later(cls, begin: Callable[[], Branches[Item] | Awaitable[Branches[Item]]]) -> Branches[Item]:
        """Branches that `begin` makes when the first item is requested; errors of `begin` are raised then."""
        dropped: set[int] = set()
        begun: list[Branches[Item]] = []

        async def read() -> AsyncGenerator[tuple[int, Item], None]:
            made = begin()
            source = made if isinstance(made, Branches) else await made
            begun.append(source)
            for branch in dropped:
                source.drop(branch)
            async with aclosing(source):
                async for item in source:
                    yield item

        def drop(branch: int) -> None:
            dropped.add(branch)
            for source in begun:
                source.drop(branch)

        return cls(read(), drop)

    def drop(self, branch: int) -> None:
        """Stops a branch between two steps: no more of its items are yielded. Does nothing for a branch that has ended.

        May be called at any time, on the reading loop. The generator ends when all branches are dropped.
        """
        self.dropped.add(branch)
        self._drop(branch)

    async def __anext__(self) -> tuple[int, Item]:
        """The next item of any branch."""
        return await anext(self.items)

    async def asend(self, value: None) -> tuple[int, Item]:
        """The next item of any branch."""
        return await self.items.asend(value)

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> tuple[int, Item]:
        """Raises an error in the generator, which stops all branches."""
        raised = kind if isinstance(kind, BaseException) else value if isinstance(value, BaseException) else kind()
        return await self.items.athrow(raised.with_traceback(trace) if trace else raised)

    async def aclose(self) -> None:
        """Stops all branches between two steps."""
        await self.items.aclose()


async def records_of(runs: Branches[TokenRun]) -> AsyncGenerator[tuple[int, TokenRecord], None]:
    """The records of runs, one by one, without those of dropped branches."""
    try:
        async for branch, run in runs:
            for record in run:
                if branch in runs.dropped:
                    break
                yield branch, record
    finally:
        await runs.aclose()


def check_count(n: int, first: int) -> None:
    """Checks the count `n` of branches that are numbered from `first` on.

    Raises:
        InvalidRequestError: A count outside 1 to `MOST_BRANCHES`, or branch numbers above 2**64 - 1.
    """
    check_value("n", n, whole(1, MOST_BRANCHES, of="branches"))
    if first + n > 1 << 64:
        raise InvalidRequestError(f"{n:,} branches from number {first} on go beyond 2**64 - 1; begin with a lower branch")


def check_prompts(prompts: Prompts) -> Prompts:
    """Returns the prompts, checked.

    Raises:
        InvalidRequestError: A single text instead of a list, or an empty list.
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts is a list of texts or of token ids, not {type(prompts).__name__}")
    if not len(prompts):
        raise InvalidRequestError("no prompts: give at least one text or list of token ids")
    return prompts


def options_for(prompts: Prompts, options: Options) -> list[GenerationOptions | None]:
    """The options of each prompt.

    Raises:
        InvalidRequestError: More or fewer options than prompts, or options of another type.
    """
    if options is None or isinstance(options, GenerationOptions):
        return [options] * len(prompts)
    if not isinstance(options, Sequence) or any(not isinstance(own, GenerationOptions | None) for own in options):
        raise InvalidRequestError(f"options are GenerationOptions, or a list with one for each prompt, not {options!r:.80}")
    if len(options) != len(prompts):
        raise InvalidRequestError(f"{len(options):,} options for {len(prompts):,} prompts: give one for each, or one for all")
    return list(options)


def joint_error(failures: Mapping[int, BaseException], what: str) -> BaseException:
    """The first failure, with a note per distinct error that names its branches or prompts (`what`)."""
    numbers: dict[tuple[type[BaseException], str], list[int]] = {}
    for branch, error in failures.items():
        numbers.setdefault((type(error), str(error)), []).append(branch)
    first = next(iter(failures.values()))
    for (kind, message), branches in numbers.items():
        first.add_note(f"{what} {', '.join(map(str, sorted(branches)))} ended by {kind.__name__}: {message}")
    return first


@contextmanager
def naming_prompt(i: int) -> Iterator[None]:
    """Adds the number of the prompt to the message of a `RuntimeFault` that is raised inside the block."""
    try:
        yield
    except ContextOverflowError as error:
        raise ContextOverflowError(f"prompt {i}", error.resident, error.additional, error.limit, error.counted) from None
    except RuntimeFault as error:
        kind, given = cast("tuple[type[RuntimeFault], tuple[Any, ...]]", error.__reduce__()[:2])
        message, *others = given or ("",)
        raise kind(f"prompt {i}: {message}", *others) from error
