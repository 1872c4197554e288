"""Many at once, in this process: `continue_many`, `generate_many`, `beam_generate`."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial

from runtime.adapters.uses import Adapters
from runtime.beams import BeamOptions, Hypothesis, OnStep, given_beams
from runtime.branches import Branches, BranchRecords, Options, Prompts, check_count, check_prompts
from runtime.errors import (
    ContextOverflowError,
    InvalidRequestError,
    RuntimeFault,
    SessionClosedError,
    UnsupportedFeatureError,
)
from runtime.grammar.source import Grammar
from runtime.info import OnProgress
from runtime.model.gathering import Gathering
from runtime.model.generation import GenerationMembers
from runtime.options.checking import check_callback
from runtime.options.generation import GenerationOptions, given
from runtime.options.priority import Priority
from runtime.records import TokenRun
from runtime.scheduler.jobs import BeamJob, FanJob, GenerateJob, StayingJob
from runtime.text.pieces import check_fits


class BranchingMembers(GenerationMembers, BranchRecords):
    """See `runtime.members.branching`."""

    def continue_many_runs(
        self, ids: Sequence[int], n: int, options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        """Whatever has arrived."""
        gathering = Gathering("branches")
        return Branches(self._fan(gathering, ids, n, options, on_progress), gathering.drop)

    async def _fan(
        self,
        gathering: Gathering,
        ids: Sequence[int],
        n: int,
        options: GenerationOptions | None,
        on_progress: OnProgress | None,
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        options = given(options)
        check_count(n, options.branch)
        if n > 1 and options.speculative is not None:
            raise UnsupportedFeatureError(
                f"{n} branches decode together, one forward for all, which leaves nothing to guess ahead: leave `speculative` "
                "out, or ask for n=1"
            )
        await self._compiled(options)
        first = self._generation(ids, options)  # its seed is that of all
        jobs = {options.branch + i: self._branch(first, options.branch + i) for i in range(1, n)}
        jobs = {options.branch: first, **jobs}
        shared = {field.name: getattr(first, field.name) for field in fields(StayingJob)}
        fan = FanJob(**shared, jobs=tuple(jobs.values()))
        mailbox = self._mailbox()
        check_callback(on_progress)
        if on_progress is not None:
            fan.on_progress = lambda progress: mailbox.post(partial(on_progress, progress))
        gathering.begin(mailbox, jobs, self._engine.nudge)
        self._submit_with_turn(fan)
        try:
            async for item in gathering.runs():
                yield item
        finally:
            fan.cancelled = True
            gathering.cancel()

    def generate_many_runs(self, prompts: Prompts, options: Options = None) -> Branches[TokenRun]:
        """Whatever has arrived."""
        gathering = Gathering("prompts")
        return Branches(self._several(gathering, prompts, options), gathering.drop)

    async def _several(
        self, gathering: Gathering, prompts: Prompts, options: Options
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        each = options_for(check_prompts(prompts), options)
        for i, prompt in enumerate(prompts):
            if isinstance(prompt, str):
                check_fits(self, prompt, stage=f"prompt {i}")
        texts = [await self.tokenize_async(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        with self._grammars.holding(own.grammar for own in each if own is not None and own.grammar is not None):
            await self._compiled_for(each)
            jobs = {i: self._numbered(i, ids, own) for i, (ids, own) in enumerate(zip(texts, each, strict=True))}
        waiting = deque(jobs.values())
        self._held[id(gathering)] = asyncio.get_running_loop(), waiting

        def begin_next() -> None:
            if waiting:
                waiting[0].submitted = time.monotonic()
                self._submit_with_turn(waiting[0])
                waiting.popleft()

        gathering.begin(self._mailbox(), jobs, self._engine.nudge, on_end=begin_next)
        try:
            for _ in range(min(len(jobs), self._options.max_batch_rows)):
                begin_next()
            async for item in gathering.runs():
                yield item
        finally:
            left = bool(waiting)
            waiting.clear()
            del self._held[id(gathering)]
            gathering.cancel()
            if left:
                self._look_again()

    def _look_again(self) -> None:
        """Requests were given up before they arrived: who waits for the end of an adapter's uses is to look."""
        with suppress(SessionClosedError):
            self._engine.call(lambda: None)

    async def _compiled_for(self, each: Sequence[GenerationOptions | None]) -> None:
        """The grammars of all prompts, off the loop; what is wrong with one is said with its prompt's number."""
        wanted: dict[Grammar, int] = {}  # and the first prompt that wants it
        for i, options in enumerate(each):
            with said_of(i):
                grammar = given(options).grammar
            if grammar is not None and not self._grammars.ready(grammar):
                wanted.setdefault(grammar, i)
        if wanted:
            faults = await asyncio.to_thread(self._grammars.prepare_all, wanted)
            for grammar, i in wanted.items():
                if (fault := faults[grammar]) is not None:
                    with said_of(i):
                        raise fault

    def _numbered(self, i: int, ids: Sequence[int], options: GenerationOptions | None) -> GenerateJob:
        """The request for prompt `i`."""
        with said_of(i):
            return self._generation(ids, options)

    async def beam_generate(
        self,
        ids: Sequence[int],
        options: BeamOptions | None = None,
        *,
        adapters: Adapters = None,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        """Awaited."""
        options = given_beams(options, self.info.vocab_size)
        checked = self._check(ids)
        await self._compile(options.grammar)
        constraint = self._constraint(checked, options.grammar, options.grammar_prefix)
        namespace, before = self._route(checked, adapters)
        job = BeamJob(
            checked, namespace, Priority.CHAT, before=before, submitted=time.monotonic(), options=options, constraint=constraint
        )
        mailbox = self._mailbox()
        check_callback(on_progress)
        if on_progress is not None:
            job.on_progress = lambda progress: mailbox.post(partial(on_progress, progress))
        check_callback(on_step, "on_step")
        if on_step is not None:
            job.on_step = lambda step: mailbox.post(partial(on_step, step))
        self._submit_with_turn(job)
        try:
            return await asyncio.wrap_future(job.future)
        finally:
            self._cancel(job)


def options_for(prompts: Prompts, options: Options) -> list[GenerationOptions | None]:
    """One for each prompt.

    Raises:
        InvalidRequestError: More or fewer options than prompts, or something that is none.
    """
    if options is None or isinstance(options, GenerationOptions):
        return [options] * len(prompts)
    if not isinstance(options, Sequence) or any(not isinstance(own, GenerationOptions | None) for own in options):
        raise InvalidRequestError(f"options are GenerationOptions, or a list with one for each prompt, not {options!r:.80}")
    if len(options) != len(prompts):
        raise InvalidRequestError(f"{len(options):,} options for {len(prompts):,} prompts: give one for each, or one for all")
    return list(options)


@contextmanager
def said_of(i: int) -> Iterator[None]:
    """What is wrong inside is said with the number of the prompt."""
    try:
        yield
    except ContextOverflowError as error:
        raise ContextOverflowError(f"prompt {i}", error.resident, error.additional, error.limit) from None
    except RuntimeFault as error:
        raise type(error)(f"prompt {i}: {error}") from error
