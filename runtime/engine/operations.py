"""The operations of a model, as jobs of the owner thread: queries, scores, answers, vectors, text.

An operation's name and keywords are those of `runtime.transport.methods`. It is a coroutine function, or a function that
returns a future where nothing precedes the owner thread's work; streams return `Branches`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from runtime.adapters.registry import Registry
from runtime.adapters.stacks import Route, TokenStacks, stack_of
from runtime.adapters.uses import Adapters
from runtime.aio import AwaitedAnswer, InboxReader, RunStream, Turns, off_loop, running_loop
from runtime.backends.base import NORMALISED_HEAD
from runtime.beams import BeamOptions, Hypothesis, OnStep
from runtime.branches import Branches, joint_error, naming_prompt
from runtime.engine.owner import Engine
from runtime.engine.text_side import TextSide
from runtime.errors import GrammarError, InvalidRequestError, UnsupportedFeatureError
from runtime.grammar.constraint import Constraint
from runtime.grammar.grammars import Grammars, GrammarVocabulary
from runtime.grammar.source import Grammar
from runtime.info import Message, ModelInfo, OnProgress, PrefixMatch
from runtime.numerics.pooling import Pooling
from runtime.numerics.scoring import log_softmax
from runtime.numerics.stage_table import REPORTED
from runtime.options.checking import check_callback, nearest
from runtime.options.generation import GenerationOptions, resolve_options
from runtime.options.load import LoadOptions
from runtime.options.priority import Priority
from runtime.records import NO_TOKEN, Float32, Int32, TokenRun, TopLogprobs
from runtime.sampling.chain import fresh_seed, make_sampler
from runtime.scheduler.decode.draft import check_speculative
from runtime.scheduler.jobs import (
    AnsweredJob,
    BeamJob,
    BranchesJob,
    CallJob,
    DecodingJob,
    GenerateJob,
    Job,
    JobGroup,
    QueryJob,
    RowCollector,
    ScoreJob,
    settle,
)
from runtime.scheduler.prefill.embedding import EmbedJob
from runtime.scheduler.prefill.readings import READINGS
from runtime.text.chat import render_chat_ids, wants_bos
from runtime.text.formats import CHAT_FORMATS
from runtime.text.utf8 import clean_text

T = TypeVar("T")
Queued = tuple[asyncio.AbstractEventLoop | None, deque[GenerateJob]]  # loop of a batch, and its jobs that are not submitted yet


class Operations:
    """Makes jobs of requests and hands them to the owner thread."""

    def __init__(self, engine: Engine, text: TextSide, options: LoadOptions, adapters: Registry) -> None:
        self._engine, self._options, self._adapters = engine, options, adapters
        vocab = engine.backend.info.vocab_size
        self.text = text.within(vocab)
        self.ends = self.text.ends(vocab)
        self.byte_vocab = text.tokenizer.byte_vocab(vocab)
        self.grammars = Grammars(partial(_vocabulary, self.byte_vocab, self.text))
        self.turns: Turns[Job] = Turns(engine.submit)
        self._queued: dict[int, Queued] = {}  # by stream
        self._described: tuple[ModelInfo, ModelInfo] | None = None  # the backend's `info`, and the one with the chat format

    @property
    def info(self) -> ModelInfo:
        """The backend's `info`, with the current chat format."""
        own = self._engine.backend.info
        if self._described is None or self._described[0] is not own:
            self._described = own, self.text.described(own)
        return self._described[1]

    # ---- log-probabilities -----------------------------------------------------------------------------------

    async def logprobs(self, batch: Sequence[Int32], adapters: Adapters, priority: Priority, cache_salt: str) -> Float32:
        """Log-probabilities after each path, ``(n, vocab)``."""
        call: AwaitedAnswer[Float32] = AwaitedAnswer(self.turns.inbox(), self._engine.nudge)
        self._query(batch, adapters, priority, cache_salt, RowCollector(call, len(batch)))
        return await call.answer()

    async def top_logprobs(
        self, batch: Sequence[Int32], n: int, chosen: Sequence[int], adapters: Adapters, priority: Priority, cache_salt: str
    ) -> list[TopLogprobs]:
        """The `n` likeliest tokens after each path, and the chosen ones."""
        call: AwaitedAnswer[list[TopLogprobs]] = AwaitedAnswer(self.turns.inbox(), self._engine.nudge)
        self._query(batch, adapters, priority, cache_salt, RowCollector(call, len(batch), n, chosen))
        return await call.answer()

    def _query(
        self, batch: Sequence[Int32], adapters: Adapters, priority: Priority, cache_salt: str, rows: RowCollector
    ) -> None:
        """Submits a query for the distribution after each path."""
        jobs, plain = [], adapters is None and not cache_salt
        routing = self._adapters.routing if plain else self._adapters.routing_of(adapters, cache_salt)
        whole = rows.top is None or rows.top > NORMALISED_HEAD  # otherwise a few numbers of each row suffice
        for i, ids in enumerate(batch):
            namespace, before = routing.plain or routing.route(ids)
            jobs.append(QueryJob(ids, namespace, priority, before=before, whole=whole, waiters=[(rows, i)]))
        self.turns.submit(*jobs)

    def logprobs_uncached(self, ids: Int32, adapters: Adapters) -> Future[Float32]:
        """Log-probabilities after a path, ``(vocab,)``, by the library's own forward."""
        job = self.path(ids, adapters)
        parts = [(stack_of(name), len(part)) for name, part in job.spans(ids)]
        stacks = None
        if any(stack for stack, _ in parts):
            of = np.repeat(np.arange(len(parts)), [length for _, length in parts])
            stacks = TokenStacks(of, tuple(stack for stack, _ in parts))
        return self._engine.call(lambda: log_softmax(self._engine.backend.logits_uncached(ids.tolist(), stacks)[None])[0])

    async def score(
        self,
        ids: Int32,
        top_k: int,
        start: int,
        adapters: Adapters,
        priority: Priority,
        cache_salt: str,
        on_progress: OnProgress | None = None,
    ) -> TokenRun:
        """Scores of ``ids[start:]``."""
        namespace, before = self.route(ids, adapters, cache_salt)
        job = ScoreJob(ids, namespace, priority, before=before, start=start, k=top_k)
        return TokenRun.scored(ids[start:], self.byte_vocab, await self._answer(job, on_progress))

    # ---- the cache -------------------------------------------------------------------------------------------

    def prefix_match(self, ids: Int32, adapters: Adapters) -> Future[PrefixMatch]:
        """How much of a path's KV is in memory and in the block file."""
        job, blocks = self.path(ids, adapters), self._engine.scheduler.blocks
        answer: Future[PrefixMatch] = Future()
        return self.settling(answer, lambda: blocks.match(job, answer))

    async def cache_kv(self, ids: Int32, adapters: Adapters, on_progress: OnProgress | None = None) -> None:
        """Computes the KV of a path that is not in memory."""
        call: AwaitedAnswer[list[TopLogprobs]] = AwaitedAnswer(self.turns.inbox(), self._engine.nudge)
        namespace, before = self.route(ids, adapters)
        rows = RowCollector(call, 1, 0)  # asks for no numbers
        job = QueryJob(ids, namespace, before=before, whole=False, waiters=[(rows, 0)])
        _report_progress(job, call, on_progress)
        self.turns.submit(self._dropping_vector(job), job)
        await call.answer()

    def pin(self, ids: Int32, pin: int, adapters: Adapters) -> Future[int]:
        """Keeps the KV of a path that is in memory; returns its number of tokens."""
        path = self.path(ids, adapters)
        pins = self._engine.scheduler.cache.pins
        return self._engine.call(lambda: pins.hold(pin, path.spans(ids), path.key))

    def unpin(self, pin: int) -> Future[None]:
        return self._engine.call(lambda: self._engine.scheduler.cache.pins.release(pin))

    def clear_cache(self, vectors: bool) -> Future[None]:
        """Drops the KV, and if asked the next-token vectors."""
        return self._engine.call(lambda: self._engine.scheduler.cache.clear(vectors=vectors))

    def keep_vectors(self, count: int) -> Future[None]:
        """Limits the number of cached next-token vectors."""
        return self._engine.call(lambda: self._engine.scheduler.cache.vectors.limit(count))

    def reset_queries(self) -> Future[None]:
        return self._engine.call(lambda: self._engine.scheduler.cancel_queries(asyncio.CancelledError()))

    def set_kv_budget(self, budget_bytes: int) -> Future[None]:
        return self._engine.call(lambda: self._engine.scheduler.cache.kv_budget.set_budget(budget_bytes))

    # ---- answers ---------------------------------------------------------------------------------------------

    def generate(self, ids: Int32, options: GenerationOptions, on_progress: OnProgress | None = None) -> Branches[TokenRun]:
        """One answer, as branch 0."""
        group = _Group(None)

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            job = await self._begin(ids, options)
            async for item in self._stream(group, {0: job}, [job], on_progress):
                yield item

        return Branches(read(), partial(self._drop, group))

    async def generate_whole(self, ids: Int32, options: GenerationOptions) -> TokenRun:
        """One answer, returned when it has ended."""
        job = await self._begin(ids, options)
        call: AwaitedAnswer[TokenRun] = AwaitedAnswer(self.turns.inbox(), partial(self._cancel, job))
        runs: list[TokenRun] = []
        job.on_run = runs.append
        job.on_end = lambda error: settle(call, None if error else TokenRun.concat(runs), error=error)
        self.turns.submit(job)
        return await call.answer()

    def continue_many(
        self,
        ids: Int32,
        n: int,
        options: GenerationOptions,
        priority: Priority,
        cache_salt: str,
        on_progress: OnProgress | None = None,
    ) -> Branches[TokenRun]:
        """`n` answers to one prompt, numbered from ``options.branch``."""
        group = _Group("branches")

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            first = await self._begin(ids, options, cache_salt)  # all answers share its seed
            first.priority = priority
            if first.constraint is not None and n > 1:
                await off_loop(first.constraint.ready, None)  # so that the mask is computed once
            jobs = {options.branch: first} | {options.branch + i: self._branch(first, options.branch + i) for i in range(1, n)}
            shared = {field.name: getattr(first, field.name) for field in fields(DecodingJob)}
            async for item in self._stream(group, jobs, [BranchesJob(**shared, jobs=tuple(jobs.values()))], on_progress):
                yield item

        return Branches(read(), partial(self._drop, group))

    def generate_many(
        self, prompts: Sequence[Int32], options: Sequence[GenerationOptions], on_progress: OnProgress | None = None
    ) -> Branches[TokenRun]:
        """An answer to each prompt; at most a full batch of them runs at a time."""
        group = _Group("prompts")

        async def read() -> AsyncGenerator[tuple[int, TokenRun], None]:
            jobs: dict[int, GenerateJob] = {}
            turn = JobGroup(one_by_one=True)
            with self.grammars.holding(each.grammar for each in options if each.grammar is not None):
                await self._compile_all(options)
                for i, (ids, own) in enumerate(zip(prompts, options, strict=True)):
                    with naming_prompt(i):
                        jobs[i] = await self._begin(ids, own)
                        jobs[i].turn = turn
            waiting = deque(jobs.values())
            self._queued[id(group)] = running_loop(), waiting

            def start_next() -> None:
                if waiting:
                    waiting[0].submitted = time.monotonic()
                    self.turns.submit(waiting[0])
                    waiting.popleft()

            def start() -> None:
                for _ in range(min(len(jobs), self._engine.scheduler.batch_rows)):
                    start_next()

            try:
                async for item in self._stream(group, jobs, start, on_progress, on_end=start_next):
                    yield item
            finally:
                left = bool(waiting)
                waiting.clear()
                del self._queued[id(group)]
                if left:  # these requests end without having been submitted: an adapter may be unused now
                    self._engine.call(lambda: None)

        return Branches(read(), partial(self._drop, group))

    async def beam_generate(
        self,
        ids: Int32,
        options: BeamOptions,
        adapters: Adapters,
        on_progress: OnProgress | None = None,
        on_step: OnStep | None = None,
    ) -> list[Hypothesis]:
        """The best continuations."""
        constraint = None
        if options.grammar is not None:
            await self._compile(options.grammar)
            constraint = self._constraint(ids, options.grammar, options.grammar_prefix)
        namespace, before = self.route(ids, adapters)
        job = BeamJob(ids, namespace, Priority.CHAT, before=before, options=options, constraint=constraint)
        hypotheses: list[Hypothesis] = await self._answer(job, on_progress, on_step)
        return hypotheses

    async def embed(
        self, paths: Sequence[Int32], pooling: Pooling, adapters: Adapters, on_progress: OnProgress | None = None
    ) -> Float32:
        """A vector for each text; equal ones are computed once."""
        rows_by_path: dict[bytes, list[int]] = {}
        for row, path in enumerate(paths):
            rows_by_path.setdefault(path.tobytes(), []).append(row)
        places = list(rows_by_path.values())
        different = [paths[rows[0]] for rows in places]
        routes = {self.route(path, adapters) for path in different}
        if len(routes) > 1 or any(before for _, before in routes):
            raise UnsupportedFeatureError(
                "an activated adapter of the stack begins in the middle of a text: embed without it (adapters=(), or pop_lora)"
            )
        no_ids = np.empty(0, np.int32)
        job = EmbedJob(no_ids, next(iter(routes))[0], Priority.BACKGROUND, paths=different, places=places, pooling=pooling)
        vectors: Float32 = await self._answer(job, on_progress)
        return vectors

    async def read(
        self,
        reading: str,
        ids: Int32,
        positions: Int32,
        options: Mapping[str, Any],
        adapters: Adapters,
        on_progress: OnProgress | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """The arrays of one of the `READINGS` at ascending positions.

        An ordinary query precedes it: it brings the path's KV into the cache, and its answer can be compared with the reading.
        A recurrent model can only continue from cached states: the path before the first position is queried as well.
        """
        if reading not in READINGS:
            raise InvalidRequestError(f"the engine has no reading {reading!r}: {nearest(reading, READINGS)}")
        own = READINGS[reading].options
        if sorted(options) != sorted(own):
            raise InvalidRequestError(f"the reading {reading!r} takes {', '.join(own)}, not {', '.join(options)}")
        first, last = int(positions[0]), int(positions[-1])
        following = int(ids[last + 1]) if last + 1 < len(ids) else NO_TOKEN
        path = ids[: last + 1]
        namespace, before = self.route(path, adapters)
        call: AwaitedAnswer[Float32] = AwaitedAnswer(self.turns.inbox(), self._engine.nudge)
        recurrent = "recurrent" in self._engine.backend.info.attention_kinds
        ends = [path, ids[:first]] if first and recurrent else [path]
        rows = RowCollector(call, len(ends))
        queries = []
        for i, end in enumerate(ends):
            inside = tuple(edge for edge in before if edge[0] < len(end))
            name = next((name for edge, name in before if edge >= len(end)), namespace)
            queries.append(QueryJob(end, name, Priority.BACKGROUND, before=inside, waiters=[(rows, i)]))
        self.turns.submit(self._dropping_vector(queries[-1]), *queries)
        ordinary = (await call.answer())[0].copy()
        job = READINGS[reading](
            path,
            namespace,
            Priority.BACKGROUND,
            before=before,
            info=self._engine.backend.info,
            positions=positions,
            following=following,
            ordinary=ordinary,
            **options,
        )
        answer: dict[str, npt.NDArray[Any]] = await self._answer(job, on_progress)
        return answer

    # ---- text ------------------------------------------------------------------------------------------------

    async def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, after a BOS where the model (or `add_bos`) asks for it."""
        return await off_loop(lambda: [self._ids_of(text) for text in texts])

    async def render_chat(
        self, messages: Sequence[Message], tools: Sequence[Message] | None, add_generation_prompt: bool
    ) -> list[int]:
        """Ids of a conversation; the template runs in a child process."""
        if self.text.template is None:
            raise UnsupportedFeatureError(
                f"{self._engine.backend.info.name} has no chat template; load it with one (chat_format='chatml', or another of "
                f"{', '.join(CHAT_FORMATS)}; chat_template_file=...), or continue plain text (generate from tokenize(text))"
            )
        render = partial(render_chat_ids, self.text.tokenizer, self.text.template, messages)
        return await off_loop(render, tools=tools, add_generation_prompt=add_generation_prompt)

    # ---- for the other operations ----------------------------------------------------------------------------

    def route(self, ids: Int32, adapters: Adapters, cache_salt: str = "") -> Route:
        """The namespaces of a request's KV, by its adapters (None: the current stack) and its salt."""
        return self._adapters.routing_of(adapters, cache_salt).route(ids)

    def path(self, ids: Int32, adapters: Adapters) -> Job:
        """A job that names a path and requests nothing."""
        namespace, before = self.route(ids, adapters)
        return Job(ids, namespace, before=before)

    def pending_jobs(self) -> list[Job]:
        """Jobs that were not submitted yet: those of this turn, and the rest of batches; any thread."""
        queued = [job for loop, jobs in list(self._queued.values()) if not (loop and loop.is_closed()) for job in list(jobs)]
        return [*self.turns.pending(), *queued]

    def end_turn(self) -> None:
        """Submits the jobs of the running loop's turn, and the rest of this loop's batches."""
        loop = running_loop()
        for owner, jobs in list(self._queued.values()):
            if loop is not None and owner is loop:
                self.turns.submit(*jobs)
                jobs.clear()
        self.turns.flush()

    def close(self) -> None:
        """Ends the threads and child processes of the text side."""
        self.grammars.close()
        if self.text.template is not None:
            self.text.template.close()

    # ---- jobs ------------------------------------------------------------------------------------------------

    async def _answer(
        self, job: AnsweredJob | BeamJob, on_progress: OnProgress | None, on_step: OnStep | None = None
    ) -> Any:  # the job decides the type
        """Submits a job and waits for its answer."""
        job.future = call = AwaitedAnswer[Any](self.turns.inbox(), partial(self._cancel, job))
        _report_progress(job, call, on_progress)
        check_callback(on_step, "on_step")
        if on_step is not None and isinstance(job, BeamJob):
            job.on_step = lambda step: call.report(on_step, step)
        self.turns.submit(job)
        return await call.answer()

    async def _stream(
        self,
        group: _Group,
        jobs: Mapping[int, GenerateJob],
        start: Sequence[Job] | Callable[[], None],
        on_progress: OnProgress | None,
        on_end: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Yields the jobs' runs, each with the number of its job, until all jobs have ended.

        Args:
            group: State of the stream.
            jobs: The jobs by their numbers.
            start: The jobs to submit, or a function that submits the first ones.
            on_progress: Called with the progress of the prompt.
            on_end: Called by the reader for each job that has ended.
        """
        stream = RunStream(self.turns.inbox(), on_progress=on_progress, dropped=group.dropped)
        group.jobs, group.open = jobs, set(jobs)
        for number, job in jobs.items():
            job.on_run = partial(group.run, stream, number)
            job.on_end = partial(group.end, stream, on_end, number)
            job.cancelled = number in group.dropped
        if callable(start):
            start()
        else:
            for each in start if on_progress is not None else ():
                each.on_progress = stream.progress
            self.turns.submit(*start)
        try:
            async for item in stream.runs():
                yield item
        finally:
            for job in jobs.values():
                job.cancelled = True
            if not callable(start):
                for each in start:
                    each.cancelled = True
            if group.open:
                self._engine.nudge()

    def _drop(self, group: _Group, branch: int) -> None:
        group.dropped.add(branch)
        if (job := group.jobs.get(branch)) is not None:
            self._cancel(job)

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        self._engine.nudge()

    def _dropping_vector(self, job: QueryJob) -> CallJob:
        """A call to submit before the job: drops its cached vector if its KV is not in memory, so that the KV is computed."""

        def look() -> None:
            cache = self._engine.scheduler.cache
            with cache.trie.lookup(job.spans(job.ids)) as lease:
                if lease.length < len(job.ids):
                    cache.vectors.drop(job.key)

        return CallJob(np.empty(0, np.int32), None, call=look)

    def settling(self, answer: Future[T], work: Callable[[], None]) -> Future[T]:
        """Runs `work`, which settles `answer` sooner or later, on the owner thread; an error of `work` settles it at once."""

        def failed(done: Future[None]) -> None:
            error = None if done.cancelled() else done.exception()
            if error is not None:
                settle(answer, error=error)

        self._engine.call(work).add_done_callback(failed)
        return answer

    async def _compile(self, grammar: Grammar) -> None:
        """Compiles a grammar off the loop."""
        if not self.grammars.ready(grammar):
            await off_loop(self.grammars.prepare, grammar)

    async def _compile_all(self, options: Sequence[GenerationOptions]) -> None:
        """Compiles the grammars of all prompts; an error names the first prompt of its grammar."""
        wanted: dict[Grammar, int] = {}  # grammar: its first prompt
        for i, each in enumerate(options):
            if each.grammar is not None and not self.grammars.ready(each.grammar):
                wanted.setdefault(each.grammar, i)
        if wanted:
            faults = await off_loop(self.grammars.prepare_all, wanted)
            for grammar, i in wanted.items():
                if (fault := faults[grammar]) is not None:
                    with naming_prompt(i):
                        raise fault

    async def _begin(self, ids: Int32, call: GenerationOptions, cache_salt: str = "") -> GenerateJob:
        """The job of an answer; slow steps run off the loop."""
        if call.grammar is not None:
            await self._compile(call.grammar)
        if call.speculative is not None:
            check_speculative(call.speculative, self._engine.backend.info)
        chosen = resolve_options(call, model=self.text.own.options, ends=self.ends).options if call.resolve else call
        chosen.check(self._engine.backend.info.vocab_size)
        if chosen.stages:
            chosen = replace(chosen, top_k=max(chosen.top_k, REPORTED))
        seed = fresh_seed() if chosen.seed is None else chosen.seed
        chosen = replace(chosen, seed=seed)
        plain = chosen.adapters is None and not cache_salt
        routing = self._adapters.routing if plain else self._adapters.routing_of(chosen.adapters, cache_salt)
        namespace, before = routing.plain or routing.route(ids)
        constraint = None
        if chosen.grammar is not None:
            constraint = self._constraint(ids, chosen.grammar, chosen.grammar_prefix)
            if chosen.sampling.banned_tokens:
                await off_loop(_check_banned, constraint, chosen.sampling.banned_tokens)
        return GenerateJob(
            ids,
            namespace,
            Priority.CHAT,
            before=before,
            options=chosen,
            eos=None if chosen.eos_token_ids is None else frozenset(chosen.eos_token_ids),
            sampler=make_sampler(chosen.sampling, seed, chosen.branch, pieces=lambda: self.byte_vocab),
            constraint=constraint,
            routing=None if routing.plain else routing,
        )

    def _branch(self, job: GenerateJob, branch: int) -> GenerateJob:
        """The same request with other random numbers; the grammar's state is forked together with its computed mask."""
        options, sampler = replace(job.options, branch=branch), replace(job.sampler, branch=branch)
        constraint = None if job.constraint is None else job.constraint.fork()
        return replace(job, options=options, sampler=sampler, constraint=constraint)

    def _constraint(self, ids: Int32, grammar: Grammar, prefix: int) -> Constraint:
        """The grammar's state after the last `prefix` tokens of the prompt, which begin the answer."""
        if prefix > len(ids):
            raise InvalidRequestError(f"grammar_prefix={prefix:,} of {len(ids):,} tokens: give it fewer")
        return self.grammars.constraint(grammar, ids[len(ids) - prefix :].tolist())

    def _ids_of(self, text: str) -> list[int]:
        tokenizer = self.text.tokenizer
        ids = tokenizer.encode(clean_text(text))
        bos = tokenizer.bos_token_id
        return [bos, *ids] if bos is not None and wants_bos(self._options, tokenizer) and ids[:1] != [bos] else ids


@dataclass(slots=True, eq=False)
class _Group:
    """The jobs of one stream. Their callbacks run on the owner thread.

    Attributes:
        what: The name of the jobs in error messages; None for a single job.
    """

    what: str | None
    jobs: Mapping[int, GenerateJob] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)  # jobs that have not ended
    dropped: set[int] = field(default_factory=set)
    failures: dict[int, BaseException] = field(default_factory=dict)

    def run(self, stream: RunStream, number: int, run: TokenRun) -> None:
        """Passes on a job's generated tokens."""
        stream.chunk(run, number)
        if stream.cancelled():
            self.jobs[number].cancelled = True

    def end(self, stream: RunStream, on_end: Callable[[], None] | None, number: int, error: BaseException | None) -> None:
        """Notes that a job has ended."""
        if number not in self.open:
            return
        self.open.remove(number)
        if error is not None:
            self.failures[number] = error
        if on_end is not None:
            stream.inbox.put(on_end)
        if not self.open:
            for dropped in self.dropped:
                self.failures.pop(dropped, None)
            if self.failures and self.what is not None:
                stream.end(joint_error(self.failures, self.what))
            else:
                stream.end(next(iter(self.failures.values()), None))


def _check_banned(constraint: Constraint, banned: Sequence[int]) -> None:
    """Raises `GrammarError` if all tokens that the grammar allows first are banned."""
    allowed = constraint.allowed()  # (vocab,)
    choices = int(np.count_nonzero(allowed))
    if choices and choices == int(np.count_nonzero(allowed[list(banned)])):
        raise GrammarError(
            f"all {choices:,} tokens that the grammar allows as the first are banned; ban fewer, or allow more in the grammar"
        )


def _report_progress(job: Job, reader: InboxReader[Any], on_progress: OnProgress | None) -> None:
    check_callback(on_progress)
    if on_progress is not None:
        job.on_progress = lambda progress: reader.report(on_progress, progress)


def _vocabulary(tokens: Sequence[bytes], text: TextSide) -> GrammarVocabulary:
    """The vocabulary of grammars. It does not refer to the model, which would delay freeing it."""
    tokenizer = text.tokenizer
    return GrammarVocabulary(tokens, text.eos_token_ids, frozenset(tokenizer.special_ids), tokenizer.encode)
