"""An answer in work, as plain data; all answers in work, one for each session; the places where they begin."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from app.workbench.prompt.recorder import Recorder
from app.workbench.refusals import GONE
from app.workbench.setup.adapters import Adapters
from app.workbench.tree.runs import EMPTY, began, content_of
from app.workbench.tree.session import OpenSession, WholeSession
from runtime import Finish, GenerationOptions, LanguageModel, Origin, TokenRun
from storage import NewNode, SessionStore, StoreError
from ui import BUSY, AdapterChoice, Refusal, TurnStats, translate

if TYPE_CHECKING:
    from app.workbench.answers.provenance import Repeat
    from app.workbench.answers.resolve_options import Continued


class Given(Struct, frozen=True):
    """Tokens that a node begins with before any model is asked, and the model their numbers are of."""

    run: TokenRun
    fingerprint: str | None


@dataclass(slots=True)
class Answer:
    """An answer in work, from the moment its session is claimed."""

    session: WholeSession
    node_id: int = -1
    before: int | None = None  # the end of the path when it was claimed
    given: Given = field(default_factory=lambda: Given(EMPTY, None))
    options: GenerationOptions = field(default_factory=GenerationOptions)  # how it is drawn, the model's own say included
    began: float = field(default_factory=time.monotonic)  # when there was a model to ask
    seed: int | None = None  # drawn for it alone, where the chosen one would say the same again
    stopping: bool = False
    finish: str = "cancelled"
    incomplete: bool = False  # the model ended it before it had its form
    message: str = ""
    back: int | None = None  # where the session goes back to if its form lets nothing begin here; None: it stays, failed
    refused: str = ""  # that it did, in words
    overflow: bool = False  # the prompt did not fit into the context
    foreign: bool = False  # the path's tokens are another tokenizer's
    unloaded: bool = False  # there was no model that could be loaded
    hopeless: bool = False  # the same again can only fail again
    model: LanguageModel | None = None
    recorder: Recorder | None = None
    reused: int = 0  # tokens of the prompt found in the cache
    computed: int = 0  # tokens of the prompt pushed through the model
    prompt: int = 0  # its tokens
    request: int = 0  # its number, by which the model knows what it took
    guesses: tuple[int, int] | None = None  # tokens guessed ahead, and the right ones; None: no guesses, or cut off
    made_with: Mapping[str, Any] = field(default_factory=dict)  # see `making`; empty where no model was asked
    strands: list[Answer] = field(default_factory=list)  # drawn side by side in its stead
    stack: tuple[AdapterChoice, ...] | None = None  # it keeps these adapters to its end
    repeats: Repeat | None = None  # the answer that this one is to be again
    continues: Continued | None = None  # the answer that this one goes on with
    changed: Sequence[str] = ()  # what it does not have of that one, in words
    first_token: float | None = None
    last_token: float = 0.0
    made: int = 0  # tokens
    logprob: float = 0.0  # nats, of the tokens made; NaN where one of them has none
    told: float = 0.0  # when the status bar last heard
    task: asyncio.Task[None] | None = None

    async def work(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Lets `work` be its task; returns when that has ended, which a cancelled caller makes it do at once."""
        self.task = asyncio.create_task(work, name=name)
        if self.stopping:
            self.task.cancel()
        try:
            await asyncio.wait([self.task])
        finally:
            self.task.cancel()
            await asyncio.wait([self.task])


def live_stats(answer: Answer) -> TurnStats:
    """How a stream is doing."""
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
    """Tokens of the question that is being answered, with the header of its answer."""
    turns = answer.session.tree.turns(answer.node_id)[-2:]
    return sum(answer.session.turn_length(turn) for turn in turns)


OnNote = Callable[[str], None]  # takes a note for all answers that were made side by side
OnEnd = Callable[[Sequence[Answer], OnNote | None], None]


class RunningAnswers:
    """Locks each session while an answer is made in it, until everything about the answer is written.

    Args:
        store: Where answers are written.
        adapters: An answer keeps those on its stack to its end.

    Attributes:
        on_end: Listeners, each called with answers that have ended and are written: one, or those of one place.
        on_idle: Called when no session is locked any more.
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
        """How many there are."""
        return len(self._by_session)

    def __iter__(self) -> Iterator[Answer]:
        """Those of now."""
        return iter(tuple(self._by_session.values()))

    def __contains__(self, session_id: int) -> bool:
        """Whether an answer is made in that session."""
        return session_id in self._by_session

    @contextmanager
    def claim(self, session: WholeSession) -> Iterator[Answer]:
        """Locks a session for one answer.

        Raises:
            Refusal: It is locked for another one.
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

    def take_stack(self, answer: Answer, stack: tuple[AdapterChoice, ...] | None) -> None:
        """The adapters of an answer, which stay loaded to its end."""
        answer.stack = stack
        self._adapters.use(("answer", answer.session.id), stack or ())

    def report_end(self, answers: Sequence[Answer], note_all: OnNote | None = None) -> None:
        """Tells the listeners."""
        for listener in self.on_end:
            listener(answers, note_all)

    def check_idle(self, session_id: int) -> None:
        """Refuses where an answer is in work."""
        if session_id in self._by_session:
            raise Refusal(translate("Workbench", BUSY))

    def options_of(self, node_id: int) -> GenerationOptions | None:
        """How the answer is drawn that is being written into a node; None where none is."""
        at_work = (one for answer in self for one in (answer, *answer.strands))
        return next((one.options for one in at_work if one.node_id == node_id), None)

    async def ended(self) -> None:
        """Returns when no answer is in work."""
        await self._idle.wait()

    def stop(self, session_id: int) -> None:
        """Ends a stream; what arrived is kept."""
        answer = self._by_session.get(session_id)
        if answer is not None:
            answer.stopping = True
            if answer.task is not None:
                answer.task.cancel()

    async def settle(self, session: OpenSession) -> None:
        """Writes what could not be written at the end of an answer.

        Raises:
            Refusal: It still cannot be written.
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


def point(session: WholeSession, node_id: int, index: int | None) -> NewNode:
    """A continuation of an answer in front of token `index`, or of its end, as a node to be added.

    Raises:
        Refusal: It cannot be continued there.
    """
    if index is not None:
        return beside(session, node_id, index)
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


def beside(session: WholeSession, node_id: int, index: int) -> NewNode:
    """A run that leaves an answer in front of token `index`.

    Raises:
        Refusal: There is no such token, or it is not the answer's own.
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
    if offset == 0 and not node.turn_start:  # beside the run, not inside it
        return replace(new, parent_id=node.parent_id, at_token=node.at_token, at_byte=node.at_byte)
    return new
