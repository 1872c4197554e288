"""What all members of the in-process model share: the engine, the text side, checking, submitting."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence, Sized
from functools import partial
from typing import TypeVar

from runtime.adapters.registry import Registry
from runtime.adapters.stacks import Route
from runtime.adapters.uses import Adapters
from runtime.aio import Mailbox
from runtime.engine import Engine
from runtime.errors import InvalidRequestError
from runtime.grammar.grammars import Grammars, Vocabulary
from runtime.info import ModelInfo
from runtime.model.text import TextSide
from runtime.options.load import LoadOptions
from runtime.records import Int32
from runtime.scheduler.ids import check_ids
from runtime.scheduler.jobs import GenerateJob, Job
from runtime.shelf.model_lock import ModelLock

T = TypeVar("T")
Held = tuple[asyncio.AbstractEventLoop, deque[GenerateJob]]  # requests that begin when others of their batch have ended


class Core:
    """State of a model in this process, and the way to its owner thread.

    Args:
        engine: The owner thread with its backend.
        text: Tokenizer and template.
        options: What was asked for at load.
        names: What the model is called, by anybody; () where that is not known, None where the backend alone says.
        in_use: What keeps the shelf from removing the model's folders.
    """

    def __init__(
        self,
        engine: Engine,
        text: TextSide,
        options: LoadOptions,
        names: tuple[str, ...] | None = None,
        in_use: Sequence[ModelLock] = (),
    ) -> None:
        self._engine = engine
        self._in_use = in_use
        self._text = text.within(engine.backend.info.vocab_size)
        self._options = options
        self._ends = self._text.ends(engine.backend.info.vocab_size)
        self._byte_vocab = text.tokenizer.byte_vocab(engine.backend.info.vocab_size)
        self._eos = frozenset(text.eos_token_ids)
        self._described: tuple[ModelInfo, ModelInfo] | None = None  # the backend's own, and as `info` gives it
        self._grammars = Grammars(partial(_vocabulary, self._byte_vocab, self._text))
        self._turns: dict[asyncio.AbstractEventLoop, list[Job]] = {}
        self._held: dict[int, Held] = {}  # by batch
        self._mailboxes: dict[asyncio.AbstractEventLoop, Mailbox] = {}
        self._names = (self.info.name,) if names is None else names
        self._adapters = Registry(self.info.kv_fingerprint, self.info.vocab_size)

    @property
    def info(self) -> ModelInfo:
        """What is known of the model."""
        own = self._engine.backend.info
        if self._described is None or self._described[0] is not own:
            self._described = own, self._text.described(own)
        return self._described[1]

    def _check(self, ids: Sequence[int] | Int32) -> Int32:
        return check_ids(ids, vocab=self.info.vocab_size, context=self.info.context_length)

    def _route(self, ids: Int32, adapters: Adapters = None) -> Route:
        """What a request's KV belongs to, under the adapters it asks for (None: the stack in force)."""
        return self._adapters.routing(adapters).route(ids)

    def _mailbox(self) -> Mailbox:
        """Carries what the owner thread says to the running loop: one wake-up for all that is said at one moment."""
        loop = asyncio.get_running_loop()
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            for known in [known for known in list(self._mailboxes) if known.is_closed()]:
                self._mailboxes.pop(known, None)
            mailbox = self._mailboxes[loop] = Mailbox(loop)
        return mailbox

    def _cancel(self, job: Job) -> None:
        job.cancelled = True
        self._engine.nudge()

    def _submit_with_turn(self, job: Job) -> None:
        """What one turn of the event loop asks for reaches the scheduler as one batch."""
        loop = asyncio.get_running_loop()
        jobs = self._turns.setdefault(loop, [])
        jobs.append(job)
        if len(jobs) == 1:
            loop.call_soon(self._end_turn, loop)

    def _end_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._turns.get(loop, [])
        try:
            self._engine.submit(jobs)
        except Exception as error:  # noqa: BLE001  # closed meanwhile: the waiters are told
            for job in jobs:
                job.fail(error)
        finally:  # not before they have arrived: at no moment is a request nowhere
            self._turns.pop(loop, None)


def _vocabulary(tokens: Sequence[bytes], text: TextSide) -> Vocabulary:
    """Of no model: a model that its grammars referred to would be freed late."""
    tokenizer = text.tokenizer
    return Vocabulary(tokens, text.eos_token_ids, frozenset(tokenizer.special_ids), tokenizer.encode)


def some(items: Sequence[T]) -> Sequence[T]:
    """The items; an empty list is a mistake worth a message."""
    if not isinstance(items, Sized):
        raise InvalidRequestError(f"a batch is a list of sequences of token ids, not {type(items).__name__}")
    if not len(items):
        raise InvalidRequestError("an empty batch: give at least one sequence of token ids")
    return items
