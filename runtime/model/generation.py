"""Tokens drawn one after the other, as records, runs, ids or text."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing
from dataclasses import replace
from operator import index
from typing import Any

import numpy as np

from runtime.adapters.uses import Adapters, check_adapters
from runtime.completion import Completion
from runtime.errors import GrammarError, InvalidRequestError
from runtime.grammar.constraint import Constraint
from runtime.grammar.source import Grammar
from runtime.info import OnProgress, PromptProgress
from runtime.language_model import Message
from runtime.model.core import some
from runtime.model.texts import TextMembers
from runtime.options.checking import check_callback
from runtime.options.generation import GenerationOptions, given
from runtime.options.priority import Priority
from runtime.options.resolution import resolve_options
from runtime.options.sampling import SamplingOptions
from runtime.records import Finish, Int32, TokenRecord, TokenRun
from runtime.sampling.chain import Sampler, make_sampler
from runtime.sampling.draw import fresh_seed
from runtime.sampling.report import SHOWN
from runtime.scheduler.jobs import GenerateJob
from runtime.speculation.draft import check_speculative
from runtime.text.pieces import check_fits

Arrival = TokenRun | PromptProgress | BaseException | None  # what the owner thread tells; None: the end


class GenerationMembers(TextMembers):
    """`generate`, `sample`, `complete` and their kin; see `LanguageModel`."""

    async def generate(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> AsyncGenerator[TokenRecord, None]:
        """Records as they come."""
        runs = self.generate_runs(ids, given(options, named), on_progress=on_progress)
        try:
            async for run in runs:
                for record in run:
                    yield record
        finally:
            await runs.aclose()

    async def generate_runs(
        self, ids: Sequence[int], options: GenerationOptions | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRun, None]:
        """Whatever has arrived."""
        await self._compiled(options)
        job = self._generation(ids, options)
        mailbox, arrived, news = self._mailbox(), deque[Arrival](), asyncio.Event()

        def tell(item: Arrival) -> None:
            arrived.append(item)
            mailbox.post(news.set)
            if mailbox.loop.is_closed():  # nobody listens any more
                job.cancelled = True

        job.on_run = job.on_end = tell
        check_callback(on_progress)
        if on_progress is not None:
            job.on_progress = tell
        self._submit_with_turn(job)
        try:
            while True:
                await news.wait()
                news.clear()
                runs, ended, error = taken(arrived, on_progress)
                if runs:
                    yield TokenRun.concat(runs)
                if error is not None:
                    raise error
                if ended:
                    return
        finally:
            self._cancel(job)

    def generate_sync(
        self,
        ids: Sequence[int],
        options: GenerationOptions | None = None,
        *,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> Iterator[TokenRecord]:
        """Blocking."""
        with closing(self._runs_sync(self._generation(ids, given(options, named)), on_progress)) as runs:
            for run in runs:
                yield from run

    def _runs_sync(self, job: GenerateJob, on_progress: OnProgress | None = None) -> Generator[TokenRun, None, None]:
        """Whatever has arrived, blocking."""
        arrived: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        job.on_run = job.on_end = arrived.put
        check_callback(on_progress)
        if on_progress is not None:
            job.on_progress = arrived.put
        self._engine.submit([job])
        try:
            while (item := arrived.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, TokenRun):
                    yield item
                    self._engine.check_process()  # its reader may have been forked meanwhile
                elif on_progress is not None:
                    on_progress(item)
        finally:
            self._cancel(job)

    async def sample(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[int]:
        """genlm-backend's call: ids without the eos."""
        eos = eos_set(eos_token_ids)
        if max_tokens == 0 and not isinstance(max_tokens, bool):  # as genlm: nothing is drawn, which is no mistake
            self._check(prompt_token_ids)
            return []
        options = GenerationOptions(
            max_tokens=max_tokens,
            sampling=SamplingOptions(temperature=temperature),
            top_k=0,
            seed=seed,
            resolve=False,
            adapters=None if adapters is None else check_adapters(adapters),
        )
        job = self._generation(prompt_token_ids, options)
        job.eos = eos
        done: Future[list[int]] = Future()
        ids: list[int] = []

        def on_run(run: TokenRun) -> None:
            ids.extend(t for t, f in zip(run.ids.tolist(), run.finish.tolist(), strict=True) if f != Finish.EOS)

        def on_end(error: BaseException | None) -> None:
            if done.set_running_or_notify_cancel():
                if error is None:
                    done.set_result(ids)
                else:
                    done.set_exception(error)

        job.on_run, job.on_end = on_run, on_end
        self._submit_with_turn(job)
        try:
            return await asyncio.wrap_future(done)
        finally:
            self._cancel(job)

    async def batch_sample(
        self,
        prompt_token_ids_list: Sequence[Sequence[int]],
        max_tokens: int,
        eos_token_ids: Sequence[int],
        temperature: float = 1.0,
        seed: int | None = None,
        *,
        adapters: Adapters = None,
    ) -> list[list[int]]:
        """Several prompts in one batch."""
        prompts = some(prompt_token_ids_list)
        each = (self.sample(prompt, max_tokens, eos_token_ids, temperature, seed, adapters=adapters) for prompt in prompts)
        return list(await asyncio.gather(*each))

    async def complete(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        """Text in, text out."""
        self._check_prompt(prompt)
        ids = await (self.tokenize_async(prompt) if isinstance(prompt, str) else self.render_chat_async(prompt))
        async with aclosing(self.generate_runs(ids, given(options, named))) as runs:
            return completed([run async for run in runs])

    def complete_sync(
        self,
        prompt: str | Sequence[Message],
        options: GenerationOptions | None = None,
        **named: Any,
    ) -> Completion:
        """Blocking."""
        self._check_prompt(prompt)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self.render_chat(prompt)
        with closing(self._runs_sync(self._generation(ids, given(options, named)))) as runs:
            return completed(list(runs))

    def _check_prompt(self, prompt: object) -> None:
        if isinstance(prompt, bytes) or not isinstance(prompt, Sequence):
            raise InvalidRequestError(f"complete takes a text or a list of messages, not {type(prompt).__name__}")
        texts = [prompt] if isinstance(prompt, str) else [m.get("content") for m in prompt if isinstance(m, Mapping)]
        check_fits(self, *(text for text in texts if isinstance(text, str)))

    async def _compiled(self, options: GenerationOptions | None) -> None:
        """Compiles the grammar off the loop, so that `_generation` need not do it on it."""
        await self._compile(given(options).grammar)

    async def _compile(self, grammar: Grammar | None) -> None:
        """As `_compiled`."""
        if grammar is not None and not self._grammars.ready(grammar):
            await asyncio.to_thread(self._grammars.prepare, grammar)

    def _generation(self, ids: Sequence[int] | Int32, options: GenerationOptions | None) -> GenerateJob:
        call = given(options)
        if call.speculative is not None:
            check_speculative(call.speculative, self.info)
        chosen = resolve_options(call, model=self._text.own.options, ends=self._ends).options if call.resolve else call
        chosen.check_within(self.info.vocab_size)
        if chosen.stages:
            chosen = replace(chosen, top_k=max(chosen.top_k, SHOWN))
        if chosen.seed is None:
            chosen = replace(chosen, seed=fresh_seed())
        checked = self._check(ids)
        routing = self._adapters.routing(chosen.adapters)
        namespace, before = routing.route(checked)
        return GenerateJob(
            checked,
            namespace,
            Priority.CHAT,
            before=before,
            options=chosen,
            eos=None if chosen.eos_token_ids is None else frozenset(chosen.eos_token_ids),
            sampler=self._sampler(chosen),
            constraint=self._constraint(checked, chosen.grammar, chosen.grammar_prefix, chosen.sampling.banned_tokens),
            routing=routing if routing.invocations else None,
        )

    def _branch(self, job: GenerateJob, branch: int) -> GenerateJob:
        """The same request with other random numbers; the grammar's state is forked, with the mask that is known."""
        options = replace(job.options, branch=branch)
        return replace(
            job,
            options=options,
            sampler=self._sampler(options),
            constraint=None if job.constraint is None else job.constraint.fork(),
        )

    def _sampler(self, options: GenerationOptions) -> Sampler:
        """Of options that were checked."""
        assert options.seed is not None  # who resolves them draws one
        pieces = self._byte_vocab  # not by way of the model, which a request must not keep alive
        return make_sampler(options.sampling, options.seed, options.branch, pieces=lambda: pieces)

    def _constraint(
        self, ids: Int32, grammar: Grammar | None, prefix: int, banned: Sequence[int] | None = None
    ) -> Constraint | None:
        """The state of the answer's grammar, its beginning at the end of the prompt included."""
        if grammar is None:
            return None
        if prefix > len(ids):
            raise InvalidRequestError(f"grammar_prefix={prefix:,} of {len(ids):,} tokens: give it fewer")
        constraint = self._grammars.constraint(grammar, ids[len(ids) - prefix :].tolist())
        if banned:
            allowed = constraint.allowed()  # (vocab,)
            choices = int(np.count_nonzero(allowed))
            if choices and choices == int(np.count_nonzero(allowed[list(banned)])):
                raise GrammarError(
                    f"all {choices:,} tokens that the grammar allows as the first are banned; "
                    "ban fewer, or allow more in the grammar"
                )
        return constraint


def completed(runs: Sequence[TokenRun]) -> Completion:
    """The text of a whole answer, without the name of the eos that ended it."""
    pieces = [text for run in runs for text, end in zip(run.texts, run.by_eos.tolist(), strict=True) if not end]
    return Completion("".join(pieces), Finish(int(runs[-1].finish[-1])) if runs else Finish.NONE)


def eos_set(eos_token_ids: Iterable[int]) -> frozenset[int]:
    """The ids that end an answer.

    Raises:
        InvalidRequestError: Not a collection of whole numbers.
    """
    try:
        return frozenset(index(token) for token in eos_token_ids)
    except TypeError:
        raise InvalidRequestError(f"eos_token_ids is a list of token ids, not {eos_token_ids!r:.80}") from None


def taken(arrived: deque[Arrival], on_progress: OnProgress | None) -> tuple[list[TokenRun], bool, BaseException | None]:
    """Empties the queue: runs, whether the end was among them, and its error; progress is passed on."""
    runs: list[TokenRun] = []
    while arrived:
        item = arrived.popleft()
        if isinstance(item, TokenRun):
            runs.append(item)
        elif not isinstance(item, PromptProgress):
            return runs, True, item
        elif on_progress is not None:
            on_progress(item)
    return runs, False, None
