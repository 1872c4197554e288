"""An answer in work, as plain data: what it began with, what it cost so far, how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.workbench.prompt.recorder import Recorder
from app.workbench.tree.runs import EMPTY
from app.workbench.tree.session import WholeSession
from runtime import GenerationOptions, LanguageModel, TokenRun
from ui import AdapterChoice, TurnStats

if TYPE_CHECKING:
    from app.workbench.answers.provenance import Repeat
    from app.workbench.answers.resolve_options import Continued


@dataclass(frozen=True, slots=True)
class Given:
    """Tokens that a node begins with before any model is asked, and the model their numbers are of."""

    run: TokenRun
    fingerprint: str | None


@dataclass(slots=True)
class Answer:
    """An answer in work, from the moment its session is claimed."""

    session: WholeSession
    node_id: int = -1
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
    guesses: tuple[int, int] | None = None  # tokens guessed ahead, and the right ones; None: nobody guessed, or it was cut off
    made_with: Mapping[str, Any] = field(default_factory=dict)  # see `making`; empty where no model was asked
    strands: list[Answer] = field(default_factory=list)  # drawn side by side in its stead
    stack: tuple[AdapterChoice, ...] | None = None  # it keeps these adapters to its end
    repeats: Repeat | None = None  # the answer that this one is to be again
    continues: Continued | None = None  # the answer that this one goes on with
    changed: Sequence[str] = ()  # what it does not have of that one, in words
    first_token: float | None = None
    last_token: float = 0.0
    made: int = 0  # tokens
    logprob: float = 0.0  # nats, of the tokens made
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
        logprob=answer.logprob,
    )


def last_message(answer: Answer) -> int:
    """Tokens of the question that is being answered, with the header of its answer."""
    turns = answer.session.tree.turns(answer.node_id)[-2:]
    return sum(answer.session.turn_length(turn) for turn in turns)
