"""A workbench on a real store and a real small model, with an engine that fails on request."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from app.supervisor import Supervisor
from app.workbench import AppWorkbench, Services
from app.workbench.tree.session import UNTITLED
from runtime import (
    EngineDiedError,
    GenerationOptions,
    LanguageModel,
    LoadProgress,
    OnProgress,
    Priority,
    RuntimeFault,
    SamplingOptions,
    TokenRun,
    load,
)
from storage import SessionStore
from ui import Event, SessionView, TokensArrived, TurnView

PATIENCE_SECONDS = 20.0  # for a condition on a busy machine; one that holds takes no time
OPTIONS = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.8), seed=5)
WAYS = [  # of drawing
    SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05),
    SamplingOptions(temperature=1.5),
    SamplingOptions(temperature=0.0),
    SamplingOptions(temperature=1.2, repetition_penalty=1.3, logit_bias={4: 1.0}, xtc_probability=0.7, xtc_threshold=0.01),
]
COLUMNS = ("ids", "logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass", "origin", "finish", "draw")


@dataclass
class Engine:
    """The engine that the supervisor starts: the `fake` backend in this process. Its faults may be set at any time."""

    source: Any = "x"  # or a pair that starts with a `Behaviour`
    options: dict[str, Any] = field(default_factory=dict)
    refuses: list[BaseException] = field(default_factory=list)  # errors that the next starts raise
    loading: asyncio.Event | None = None  # a start waits for it
    dies_after: int | None = None  # tokens of an answer; once
    holds_after: int | None = None  # tokens after which an answer that begins now waits until it is cancelled
    gate: asyncio.Semaphore | None = None  # every token waits for it
    scores: asyncio.Event | None = None  # scoring waits for it
    on_look: Callable[[str], None] = lambda _what: None  # called before the model sees anything
    starts: int = 0
    tell: Callable[[LoadProgress], None] | None = None  # progress of the last start
    prompts: list[list[int]] = field(default_factory=list)
    tokenised: list[str] = field(default_factory=list)
    priorities: list[Priority] = field(default_factory=list)  # of scored texts
    drawn_as: list[Priority] = field(default_factory=list)  # of branches

    async def __call__(
        self, source: str, backend: str, *, on_progress: Callable[[LoadProgress], None] | None = None, **_: Any
    ) -> LanguageModel:
        self.starts += 1
        self.tell = on_progress
        self.on_look("start")
        if self.loading is not None:
            await self.loading.wait()
        if self.refuses:
            raise self.refuses.pop(0)
        return FrailModel(await asyncio.to_thread(load, self.source, backend="fake", **self.options), self)  # type: ignore[return-value]  # all other attributes are passed on


class FrailModel:
    """A model that can end in the middle of an answer, as if its process had died."""

    def __init__(self, model: LanguageModel, engine: Engine) -> None:
        self.model = model
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    async def tokenize_async(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        self._engine.tokenised.append(text)
        return await self.model.tokenize_async(text, add_special_tokens=add_special_tokens)

    async def score_run(
        self,
        ids: Sequence[int],
        top_k: int = 10,
        start: int = 0,
        *,
        adapters: Any = None,
        priority: Priority = Priority.INSPECTOR,
        cache_salt: str = "",
        on_progress: OnProgress | None = None,
    ) -> TokenRun:
        self._engine.on_look("score")
        self._engine.priorities.append(priority)
        if self._engine.scores is not None:
            await self._engine.scores.wait()
        under: dict[str, Any] = {"adapters": adapters, "priority": priority, "cache_salt": cache_salt}
        return await self.model.score_run(ids, top_k, start, on_progress=on_progress, **under)

    async def generate_runs(
        self, ids: Sequence[int], options: GenerationOptions | None, *, on_progress: OnProgress | None = None
    ) -> AsyncGenerator[TokenRun, None]:
        async def numbered() -> AsyncGenerator[tuple[int, TokenRun], None]:
            async with aclosing(self.model.generate_runs(ids, options, on_progress=on_progress)) as runs:
                async for run in runs:
                    yield 0, run

        async with aclosing(self._frail("generate", ids, numbered())) as tokens:
            async for _, token in tokens:
                yield token

    async def continue_many_runs(
        self,
        ids: Sequence[int],
        n: int,
        options: GenerationOptions | None,
        *,
        priority: Priority = Priority.CHAT,
        cache_salt: str = "",
        on_progress: OnProgress | None = None,
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        self._engine.drawn_as.append(priority)
        under: dict[str, Any] = {"priority": priority, "cache_salt": cache_salt}
        runs = self.model.continue_many_runs(ids, n, options, on_progress=on_progress, **under)
        first = 0 if options is None else options.branch
        async with aclosing(self._frail("continue", ids, in_turn(runs, range(first, first + n)))) as tokens:
            async for branch, token in tokens:
                yield branch, token

    async def _frail(
        self, what: str, ids: Sequence[int], numbered: AsyncGenerator[tuple[int, TokenRun], None]
    ) -> AsyncGenerator[tuple[int, TokenRun], None]:
        """Yields token by token, until the engine ends or is held."""
        engine, made, holds_after = self._engine, 0, self._engine.holds_after
        engine.on_look(what)
        engine.prompts.append(list(ids))
        async with aclosing(numbered) as runs:
            async for branch, run in runs:
                for at in range(len(run)):
                    if made == engine.dies_after:
                        engine.dies_after = None
                        raise EngineDiedError("the engine process has ended: signal 9 (SIGKILL)")
                    if made == holds_after:
                        await asyncio.Event().wait()
                    if engine.gate is not None:
                        await engine.gate.acquire()
                    made += 1
                    yield branch, run[at : at + 1]
                    await asyncio.sleep(0)


async def in_turn(
    runs: AsyncGenerator[tuple[int, TokenRun], None], branches: Sequence[int]
) -> AsyncGenerator[tuple[int, TokenRun], None]:
    """Yields one token of each branch in turn, as drawn; a late reader gets the tokens of each branch joined."""
    waiting: dict[int, deque[TokenRun]] = {branch: deque() for branch in branches}
    turns = deque(branches)  # branches that have not ended
    fault: RuntimeFault | None = None
    try:
        async with aclosing(runs):
            async for branch, run in runs:
                waiting[branch].extend(run[at : at + 1] for at in range(len(run)))
                while turns and waiting[turns[0]]:
                    of = turns.popleft()
                    token = waiting[of].popleft()
                    if not token.finish[-1]:
                        turns.append(of)
                    yield of, token
    except RuntimeFault as error:  # it follows the tokens that had arrived
        fault = error
    for of in turns:  # not reached, since another branch was cut off
        for token in waiting[of]:
            yield of, token
    if fault is not None:
        raise fault


@dataclass
class Scene:
    """The workbench, engine and store of a test."""

    path: Path
    engine: Engine
    store: SessionStore
    workbench: AppWorkbench
    events: list[Event]
    call: dict[str, Any]  # options of every answer

    @classmethod
    def open(cls, path: Path, engine: Engine, options: GenerationOptions = OPTIONS) -> Scene:
        store, call = SessionStore.open(path), dict[str, Any]()
        workbench = AppWorkbench(Services(store, Supervisor("x", start=engine), options, call))
        scene = cls(path, engine, store, workbench, [], call)
        scene.workbench.subscribe(scene.events.append)
        return scene

    async def new(self) -> int:
        """A session of its own, opened: New session would reuse one that is still empty."""
        return (await self.workbench.sessions.open(await self.store.create_session(UNTITLED))).session_id

    async def view(self, session_id: int) -> SessionView:
        return await self.workbench.sessions.open(session_id)

    async def last(self, session_id: int) -> TurnView:
        return (await self.view(session_id)).turns[-1]

    async def asked(self, text: str = "hello") -> int:
        """A new session with an answered message."""
        session_id = await self.new()
        await self.workbench.answers.send(session_id, text)
        return session_id

    async def stopped_after(self, tokens: int) -> int:
        """A new session whose answer was stopped after so many tokens, where the engine held it."""
        session_id = await self.new()
        sending = asyncio.create_task(self.workbench.answers.send(session_id, "hello"))
        await until(lambda: self.arrived(session_id) == tokens)
        self.workbench.answers.stop(session_id)
        await sending
        return session_id

    def arrived(self, session_id: int) -> int:
        """Tokens that were streamed so far."""
        return sum(len(e.run) for e in self.events if isinstance(e, TokensArrived) and e.session_id == session_id)

    async def path_ids(self, session_id: int) -> list[int]:
        ids: list[int] = TokenRun.concat([turn.run for turn in (await self.view(session_id)).turns]).ids.tolist()
        return ids


async def answered(s: Scene) -> tuple[int, TurnView]:
    """A new session, and the answer at its end."""
    session_id = await s.asked("where to?")
    return session_id, await s.last(session_id)


def rows(path: Path, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """The stored rows, read over a connection of its own that cannot write."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as conn:
        return conn.execute(statement, parameters).fetchall()


async def until(condition: Callable[[], object]) -> None:
    """Lets the loop run until the condition holds."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        await asyncio.sleep(0.002)


def words(text: str) -> list[int]:
    """The ids of text for the toy models: its bytes."""
    return list(text.encode())


def alternative(turn: TurnView, index: int) -> int:
    """The likeliest other token at a place."""
    return next(int(t) for t in turn.run.top_ids[index] if t != turn.run.ids[index])


def own_tokens(turn: TurnView) -> list[int]:
    """Indices of the tokens that do not come from the template."""
    return [i for i, origin in enumerate(turn.run.origin.tolist()) if origin != 0]


def assert_same_run(a: TokenRun, b: TokenRun) -> None:
    """Asserts that two runs have equal tokens and numbers."""
    assert a.token_bytes == b.token_bytes
    assert a.texts == b.texts
    for name in COLUMNS:
        left, right = getattr(a, name), getattr(b, name)
        if name.startswith("top_"):
            k = min(left.shape[1], right.shape[1])
            assert (a.top_ids[:, k:] < 0).all()
            assert (b.top_ids[:, k:] < 0).all()
            left, right = left[:, :k], right[:, :k]
        np.testing.assert_array_equal(left, right, err_msg=name)


def assert_same_view(a: SessionView, b: SessionView) -> None:
    """Asserts that everything saved of a session is equal; the place of its KV may differ."""
    assert (a.title, a.branches, a.branch_name, a.context_used) == (b.title, b.branches, b.branch_name, b.context_used)
    assert len(a.turns) == len(b.turns)
    for left, right in zip(a.turns, b.turns, strict=True):
        for name in ("node_id", "role", "status", "variants", "note", "stats"):
            assert getattr(left, name) == getattr(right, name), name
        assert_same_run(left.run, right.run)
