"""Running answers: the state of one, the registry that locks its session, and the nodes where answers begin."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from app.workbench.prompt.recorder import Recorder
from app.workbench.refusals import GONE
from app.workbench.setup.session_adapters import Adapters
from app.workbench.tree.runs import EMPTY, began, content_of
from app.workbench.tree.session import OpenSession, WholeSession
from runtime import Finish, GenerationOptions, LanguageModel, Origin, TokenRun
from storage import NewNode, SessionStore, StoreError
from ui import BUSY, AdapterChoice, Refusal, TurnStats, translate

if TYPE_CHECKING:
    from app.workbench.answers.provenance import Repeat
    from app.workbench.answers.resolve_options import Continued


class Given(Struct, frozen=True):
    """The tokens that a node begins with, known before a model runs, and the fingerprint of the model that scored them."""

    run: TokenRun
    fingerprint: str | None


@dataclass(slots=True)
class Answer:
    """A running answer, from the moment its session is claimed."""

    session: WholeSession
    node_id: int = -1
    before: int | None = None  # the tip when the session was claimed
    given: Given = field(default_factory=lambda: Given(EMPTY, None))
    options: GenerationOptions = field(default_factory=GenerationOptions)  # resolved, with the model's defaults
    began: float = field(default_factory=time.monotonic)  # time when the model was ready
    seed: int | None = None  # the fresh seed of a regeneration: the chosen one would repeat the answer
    stopping: bool = False
    finish: str = "cancelled"
    incomplete: bool = False  # the model ended it before its output format was complete
    message: str = ""
    back: int | None = None  # the tip to return to if the output format allows nothing here; None: the failed node stays
    refused: str = ""  # the message if the output format allows nothing here
    overflow: bool = False  # the prompt did not fit into the context
    foreign: bool = False  # the path's tokens are another tokenizer's
    unloaded: bool = False  # no model could be loaded
    hopeless: bool = False  # a retry under this model can only fail
    model: LanguageModel | None = None
    recorder: Recorder | None = None
    reused: int = 0  # tokens of the prompt found in the cache
    computed: int = 0  # tokens of the prompt that were computed
    prompt: int = 0  # tokens of the prompt
    request: int = 0  # number of the request in the model's metrics
    guesses: tuple[int, int] | None = None  # drafted and accepted tokens; None: no speculation, or cut off
    made_with: Mapping[str, Any] = field(default_factory=dict)  # see `provenance.made_with`; empty without a model
    strands: list[Answer] = field(default_factory=list)  # continuations that are drawn instead of this answer
    stack: tuple[AdapterChoice, ...] | None = None  # its adapters, which stay loaded until it ends
    repeats: Repeat | None = None  # the answer to be repeated exactly
    continues: Continued | None = None  # the stopped answer to be continued
    changed: Sequence[str] = ()  # options that differ from those of `continues`, in words
    first_token: float | None = None
    last_token: float = 0.0
    made: int = 0  # tokens generated
    logprob: float = 0.0  # nats, sum over the generated tokens; NaN if one has no log-probability
    reported: float = 0.0  # when the status bar was last updated
    task: asyncio.Task[None] | None = None

    async def work(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Runs `work` as the answer's task until it ends; cancelling the caller cancels the task."""
        self.task = asyncio.create_task(work, name=name)
        if self.stopping:
            self.task.cancel()
        try:
            await asyncio.wait([self.task])
        finally:
            self.task.cancel()
            await asyncio.wait([self.task])

    def take(self, run: TokenRun, now: float) -> bool:
        """Adds and counts tokens that arrived `now`; returns whether they end the answer."""
        self.last_token = now
        self.first_token = self.first_token or now
        self.made += len(run)
        self.logprob += float(np.sum(run.logprob))
        self.session.runs.extend(self.node_id, run)
        finish = Finish(int(run.finish[-1]))
        if finish is Finish.NONE:
            return False
        self.finish, self.incomplete = finish.label or "", finish.incomplete
        return True


def live_stats(answer: Answer) -> TurnStats:
    """Counters of a running answer."""
    first = answer.first_token or answer.last_token
    seconds = answer.last_token - first
    return TurnStats(
        reused=answer.reused,
        computed=answer.computed,
        first_token_seconds=first - answer.began,
        tokens_per_second=(answer.made - 1) / seconds if answer.made > 1 and seconds > 0 else None,
        logprob=None if math.isnan(answer.logprob) else answer.logprob,
    )


def last_message(answer: Answer) -> int:
    """The number of tokens of the question and of its answer's header."""
    turns = answer.session.tree.turns(answer.node_id)[-2:]
    return sum(answer.session.turn_length(turn) for turn in turns)


OnNote = Callable[[str], None]  # sets one note for all continuations of a place
OnEnd = Callable[[Sequence[Answer], OnNote | None], None]


class RunningAnswers:
    """Locks each session while an answer is made in it, until everything about the answer is written.

    Args:
        store: Where answers are written.
        adapters: Those on the stack of a running answer stay loaded.

    Attributes:
        on_end: Listeners, called with an answer that has ended and is written, or with all continuations of a place.
        on_idle: Called when the last session is unlocked.
    """

    def __init__(self, store: SessionStore, adapters: Adapters) -> None:
        self._store = store
        self._adapters = adapters
        self._by_session: dict[int, Answer] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.on_end: list[OnEnd] = []
        self.on_idle: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_session)

    def __iter__(self) -> Iterator[Answer]:
        """Iterates over a copy: answers may end meanwhile."""
        return iter(tuple(self._by_session.values()))

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._by_session

    @contextmanager
    def claim(self, session: WholeSession) -> Iterator[Answer]:
        """Locks a session for one answer.

        Raises:
            Refusal: It is locked already.
        """
        self.check_idle(session.id)
        answer = self._by_session[session.id] = Answer(session, before=session.tip)
        self._idle.clear()
        try:
            yield answer
        finally:
            del self._by_session[session.id]
            if not self._by_session:
                self._idle.set()
                self.on_idle()
            self._adapters.drop(("answer", session.id))
            self._adapters.free(answer.stack or ())

    @asynccontextmanager
    async def begin(self, session: WholeSession) -> AsyncIterator[Answer]:
        """Locks a session for one answer, and retries the last write of the previous answer if it failed.

        Raises:
            Refusal: It is locked already, or the write fails again.
        """
        with self.claim(session) as answer:
            await self.settle(session)
            yield answer

    def take_stack(self, answer: Answer, stack: tuple[AdapterChoice, ...] | None) -> None:
        """Keeps these adapters loaded until the answer ends."""
        answer.stack = stack
        self._adapters.use(("answer", answer.session.id), stack or ())

    def report_end(self, answers: Sequence[Answer], note_all: OnNote | None = None) -> None:
        for listener in self.on_end:
            listener(answers, note_all)

    def check_idle(self, session_id: int) -> None:
        """Raises `Refusal` while an answer runs in the session."""
        if session_id in self._by_session:
            raise Refusal(translate("Workbench", BUSY))

    def options_of(self, node_id: int) -> GenerationOptions | None:
        """Options of the running answer that writes into a node; None if there is none."""
        running = (one for answer in self for one in (answer, *answer.strands))
        return next((one.options for one in running if one.node_id == node_id), None)

    async def ended(self) -> None:
        """Waits until no answer runs."""
        await self._idle.wait()

    def stop(self, session_id: int) -> None:
        """Cancels a session's answer; the tokens so far are kept."""
        answer = self._by_session.get(session_id)
        if answer is not None:
            answer.stopping = True
            if answer.task is not None:
                answer.task.cancel()

    async def settle(self, session: OpenSession) -> None:
        """Retries the last write of an answer, if it failed.

        Raises:
            Refusal: It fails again.
        """
        ending = session.unsaved
        if ending is None:
            return
        try:
            await ending.save(self._store)
        except StoreError as fault:
            raise Refusal(
                translate("Workbench", "{0}. The answer on the screen is not saved yet; make room, then try again").format(
                    fault
                )
            ) from fault
        session.unsaved = None
        session.states.pop(ending.node_id, None)
        session.notes.pop(ending.node_id, None)


def continuation_node(session: WholeSession, node_id: int, index: int | None) -> NewNode:
    """The node to add for a continuation of an answer before token `index`, or at its end.

    Raises:
        Refusal: It cannot be continued there.
    """
    if index is not None:
        return sibling_node(session, node_id, index)
    node = session.tree.nodes.get(node_id)
    if node is None:
        raise Refusal(translate("Workbench", GONE))
    run = session.runs.get(node_id, EMPTY)
    if node.role != "assistant" or not began(run):
        raise Refusal(translate("Workbench", "there is no answer to continue; click a token of one to continue from there"))
    if Finish(int(run.finish[-1])).by_eos:
        raise Refusal(
            translate(
                "Workbench", "the answer is complete; the model ended it itself. Click one of its tokens to continue from there"
            )
        )
    return NewNode(session.id, node_id, "assistant", turn_start=False, status="open")


def sibling_node(session: WholeSession, node_id: int, index: int) -> NewNode:
    """The node to add for a branch that leaves an answer before token `index`.

    Raises:
        Refusal: There is no such token, or the template or the user wrote it.
    """
    place = session.locate(node_id, index)
    if place is None:
        raise Refusal(translate("Workbench", GONE))
    node, offset = place
    run = session.runs.get(node.id, EMPTY)
    if node.role != "assistant":
        raise Refusal(translate("Workbench", "this is your own text; edit the message to change it"))
    if offset >= len(run) or int(run.origin[offset]) == Origin.TEMPLATE:
        raise Refusal(translate("Workbench", "this token belongs to the template, not to the answer"))
    byte = len(content_of(run[:offset]).encode())
    new = NewNode(session.id, node.id, "assistant", at_token=offset, at_byte=byte, turn_start=False, status="open")
    if offset == 0 and not node.turn_start:  # a sibling of the run, not a branch inside it
        return replace(new, parent_id=node.parent_id, at_token=node.at_token, at_byte=node.at_byte)
    return new
