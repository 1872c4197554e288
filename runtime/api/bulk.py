"""Scores and likeliest tokens for a stream of many texts, in bounded memory.

Inputs are read as they are needed and results are yielded as they are completed; neither is held in memory as a whole. The
requests in flight share forwards and the KV of their common prefixes, as all requests do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Generator,
    Iterable,
    Sequence,
    Sized,
)
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from runtime.adapters.uses import Adapters
from runtime.aio import LoopThread, twin_of
from runtime.api.checks import RequestChecks, check_fits, request_terms
from runtime.api.progress import ShowProgress, reporting
from runtime.errors import InvalidRequestError, NonFiniteLogitsError, OptionError, RuntimeFault
from runtime.options.checking import check_callback, check_value, shown, whole
from runtime.options.priority import Priority
from runtime.records import TokenRun, TopLogprobs
from runtime.text.utf8 import clean_text

if TYPE_CHECKING:
    from runtime.api.language_model import LanguageModel

TextsOrIds = Iterable[str | Sequence[int]] | AsyncIterable[str | Sequence[int]]
Batch = int | Literal["auto"]
OnFault = Callable[[int, RuntimeFault], None]  # the text's number
Answer = TypeVar("Answer")

AUTO_TEXTS = 128  # in flight, or fewer where these have more than `AUTO_TOKENS` tokens
AUTO_TOKENS = 1 << 16
READ_AT_ONCE = 32  # texts that are tokenised in one call


async def score_many(
    model: LanguageModel,
    texts: TextsOrIds,
    top_k: int = 10,
    *,
    batch: Batch = "auto",
    ordered: bool = True,
    skip: Container[int] = (),
    adapters: Adapters = None,
    priority: Priority = Priority.BACKGROUND,
    progress: ShowProgress = False,
    on_fault: OnFault | None = None,
) -> AsyncGenerator[tuple[int, TokenRun], None]:
    """Scores many texts: ``(number, run)`` for each, in bounded memory; called without await.

    Results that were yielded before an interruption are complete; pass the numbers of their texts as `skip` to resume.

    Args:
        model: The model that scores them.
        texts: A synchronous or asynchronous iterable of texts or token ids; read as results are taken.
        top_k: Alternatives recorded per token.
        batch: Texts in flight; "auto": up to 128 texts or 65,536 tokens.
        ordered: True: results come in the order of the texts; False: in the order of completion.
        skip: Numbers (from 0) of texts that are read, but not computed.
        adapters: As for `next_token_logprobs`.
        priority: The order of these texts among waiting requests.
        progress: True draws a tqdm bar; a callable gets the number of texts done and the total (None: not known).
        on_fault: Gets the number and the error of a text that cannot be scored (`InvalidRequestError`: empty, too long;
            `NonFiniteLogitsError`); the other texts continue. Any other error (an unreachable server, full memory), and without
            `on_fault` every error, is raised with the number as a note.
    """
    request_terms(adapters, priority, "")  # else every text would be at fault
    work = partial(model.score_run, top_k=top_k, adapters=adapters, priority=priority)
    stream = _Bulk(model, batch, ordered, skip, on_fault).answers(texts, work, progress)
    async with aclosing(stream) as answers:
        async for answer in answers:
            yield answer


async def top_many(
    model: LanguageModel,
    texts: TextsOrIds,
    n: int = 20,
    *,
    chosen: Sequence[int] = (),
    batch: Batch = "auto",
    ordered: bool = True,
    skip: Container[int] = (),
    adapters: Adapters = None,
    priority: Priority = Priority.BACKGROUND,
    progress: ShowProgress = False,
    on_fault: OnFault | None = None,
) -> AsyncGenerator[tuple[int, TopLogprobs], None]:
    """The `n` likeliest next tokens after each of many texts: ``(number, TopLogprobs)``; otherwise as `score_many`.

    Args:
        model: The model to ask.
        texts: As for `score_many`.
        n: As for `top_logprobs`.
        chosen: Ids whose values are returned whatever their rank.
        batch: As for `score_many`, like the following arguments.
        ordered: Whether results come in the order of the texts.
        skip: Numbers of texts that are not computed.
        adapters: As for `next_token_logprobs`.
        priority: The order of these texts among waiting requests.
        progress: A tqdm bar, or a callable.
        on_fault: Gets the errors of single texts.
    """
    request_terms(adapters, priority, "")  # else every text would be at fault
    RequestChecks(model.info.vocab_size, model.info.context_length).optional_ids(chosen, "chosen")
    work = partial(model.top_logprobs, n=n, chosen=chosen, adapters=adapters, priority=priority)
    stream = _Bulk(model, batch, ordered, skip, on_fault).answers(texts, work, progress)
    async with aclosing(stream) as answers:
        async for answer in answers:
            yield answer


@dataclass(frozen=True, slots=True)
class _Bulk:
    """One call of `score_many` or `top_many`."""

    model: LanguageModel
    batch: Batch
    ordered: bool
    skip: Container[int]
    on_fault: OnFault | None

    async def answers(
        self, texts: TextsOrIds, work: Callable[[Sequence[int]], Awaitable[Answer]], progress: ShowProgress
    ) -> AsyncGenerator[tuple[int, Answer], None]:
        """Yields (number, answer of `work`) for each input."""
        if isinstance(texts, str | bytes) or not isinstance(texts, Iterable | AsyncIterable):
            raise InvalidRequestError(f"texts is an iterable of texts or of token ids, not {shown(texts)}")
        if self.batch != "auto":
            check_value("batch", self.batch, whole(1, of="texts"))
        if isinstance(self.skip, str | bytes) or not isinstance(self.skip, Container):
            raise InvalidRequestError(f"skip is a set or range of numbers, not {shown(self.skip)}")
        check_callback(self.on_fault, "on_fault")
        flight: deque[tuple[int, int, asyncio.Task[Answer]]] = deque()  # number, tokens
        inputs = self._inputs(texts)
        with reporting(progress, "text") as say:
            try:
                more, done, total = True, 0, len(texts) if isinstance(texts, Sized) else None
                while more or flight:
                    while more and self._room(flight):
                        try:
                            number, ids = await anext(inputs)
                        except StopAsyncIteration:
                            more = False
                        else:
                            tokens = 0 if ids is None or isinstance(ids, RuntimeFault) else len(ids)
                            flight.append((number, tokens, asyncio.ensure_future(_worked(ids, work))))
                    if flight:
                        place = await self._next(flight)
                        number, _, task = flight[place]
                        del flight[place]
                        answer = self._answer(number, task)
                        if answer is not None:
                            yield number, answer
                        done += 1
                        say(done, total)
            finally:
                for _, _, task in flight:
                    task.cancel()
                await asyncio.gather(*(task for _, _, task in flight), return_exceptions=True)
                await inputs.aclose()

    def _room(self, flight: Sequence[tuple[int, int, Any]]) -> bool:
        if self.batch != "auto":
            return len(flight) < self.batch
        return len(flight) < AUTO_TEXTS and sum(tokens for _, tokens, _ in flight) < AUTO_TOKENS

    async def _next(self, flight: Sequence[tuple[int, int, asyncio.Task[Any]]]) -> int:
        """The place of the finished task whose answer is yielded next."""
        if self.ordered:
            await asyncio.wait([flight[0][2]])
            return 0
        if not any(task.done() for _, _, task in flight):
            await asyncio.wait([task for _, _, task in flight], return_when=asyncio.FIRST_COMPLETED)
        return next(place for place, (_, _, task) in enumerate(flight) if task.done())

    def _answer(self, number: int, task: asyncio.Task[Answer | None]) -> Answer | None:
        try:
            return task.result()
        except RuntimeFault as fault:
            about_text = isinstance(fault, InvalidRequestError | NonFiniteLogitsError) and not isinstance(fault, OptionError)
            if self.on_fault is None or self.model.ended is not None or not about_text:
                fault.add_note(f"text {number:,}")
                raise
            self.on_fault(number, fault)
            return None

    async def _inputs(self, texts: TextsOrIds) -> AsyncGenerator[tuple[int, Sequence[int] | RuntimeFault | None], None]:
        """Number and ids of each input; a fault for an unusable input, None for a skipped one."""
        size = READ_AT_ONCE if self.batch == "auto" else min(self.batch, READ_AT_ONCE)
        held: list[tuple[int, str | Sequence[int] | RuntimeFault | None]] = []
        number = 0
        async for text in _iterated(texts):
            held.append((number, None if number in self.skip else self._checked(text)))
            number += 1
            if len(held) == size:
                for item in await self._tokenised(held):
                    yield item
                held = []
        for item in await self._tokenised(held):
            yield item

    def _checked(self, text: object) -> str | Sequence[int] | RuntimeFault:
        try:
            if isinstance(text, str):
                check_fits(self.model, text, stage="text")
                return text
            return self._ids(text)
        except RuntimeFault as fault:
            return fault

    def _ids(self, ids: Any) -> Sequence[int]:
        info = self.model.info
        return RequestChecks(info.vocab_size, info.context_length).ids(ids, "text")  # type: ignore[return-value]  # an array of ids

    async def _tokenised(
        self, held: Sequence[tuple[int, str | Sequence[int] | RuntimeFault | None]]
    ) -> list[tuple[int, Sequence[int] | RuntimeFault | None]]:
        texts = [clean_text(text) for _, text in held if isinstance(text, str)]
        ids = iter(await self.model.transport.call("tokenize", texts=texts))
        found: list[tuple[int, Sequence[int] | RuntimeFault | None]] = []
        for number, text in held:
            if not isinstance(text, str):
                found.append((number, text))
                continue
            try:
                found.append((number, self._ids(next(ids))))
            except RuntimeFault as fault:
                found.append((number, fault))
        return found


async def _worked(ids: Sequence[int] | RuntimeFault | None, work: Callable[[Sequence[int]], Awaitable[Answer]]) -> Any:
    if isinstance(ids, RuntimeFault):
        raise ids
    return None if ids is None else await work(ids)


async def _iterated(texts: TextsOrIds) -> AsyncIterator[str | Sequence[int]]:
    if isinstance(texts, AsyncIterable):
        async for text in texts:
            yield text
    else:
        for text in texts:
            yield text


def on_a_loop(member: Callable[..., AsyncGenerator[Answer, None]]) -> Callable[..., Generator[Answer, None, None]]:
    """The blocking twin of an async generator that makes tasks; the generator runs on a loop in a thread of its own."""

    def twin(*arguments: Any, **named: Any) -> Generator[Answer, None, None]:
        source = member(*arguments, **named)
        waits: list[asyncio.Task[Any]] = []

        async def following() -> Answer:
            waits[:] = [task for task in (asyncio.current_task(),) if task is not None]
            return await anext(source)

        async def closed() -> None:
            for task in waits:  # still running where Ctrl-C interrupted the wait
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
            await source.aclose()

        thread = LoopThread("bulk")
        try:
            while True:
                try:
                    item = thread.submit(following()).result()
                except StopAsyncIteration:
                    return
                yield item
        finally:
            thread.submit(closed()).result()
            thread.stop()
            thread.join()

    return twin_of(member, twin)
