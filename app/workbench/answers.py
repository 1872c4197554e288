"""One answer from first to last token: prompt, scores, stream, disk. The window hears of every step."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from app.supervisor import Supervisor
from app.workbench.recorder import Recorder, chunk
from app.workbench.session import EMPTY, OpenSession, content_of
from app.workbench.tree import Segment
from runtime import EngineDiedError, Finish, GenerationOptions, LanguageModel, RuntimeFault, TokenRun, fresh_seed, texts_of
from storage import SessionStore
from ui import Event, SessionChanged, TokensArrived, TurnChanged, TurnStats, TurnStatus

log = logging.getLogger(__name__)

SCORED = ("logprob", "rank", "entropy", "top_ids", "top_logprobs", "covered_mass")


@dataclass(frozen=True, slots=True)
class Start:
    """What an answer starts from: the tokens its node begins with (header, picked token), unscored or not."""

    known: TokenRun


@dataclass(slots=True)
class Answer:
    """An answer in work."""

    session: OpenSession
    node_id: int
    began: float = field(default_factory=time.monotonic)
    stopping: bool = False
    finish: str = "cancelled"
    message: str = ""
    prompt: int = 0
    computed: int = 0
    first_token: float | None = None
    last_token: float = 0.0
    made: int = 0
    task: asyncio.Task[None] | None = None


class Answers:
    """Streams answers into open sessions.

    Args:
        store: Where nodes and tokens go.
        supervisor: Gives the model.
        tell: Takes events for the window.
        on_progress: Called when counters changed.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: Supervisor,
        tell: Callable[[Event], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._store = store
        self._supervisor = supervisor
        self._tell = tell
        self._progress = on_progress
        self.running: dict[int, Answer] = {}  # by session
        self._idle = asyncio.Event()
        self._idle.set()

    async def ended(self) -> None:
        """Returns when no answer is in work."""
        await self._idle.wait()

    async def run(
        self,
        session: OpenSession,
        node_id: int,
        options: GenerationOptions,
        prepare: Callable[[LanguageModel], Awaitable[Start]],
    ) -> None:
        """Streams the answer of an open node; returns when it has ended, however it did."""
        answer = Answer(session, node_id)
        options = replace(options, seed=fresh_seed() if options.seed is None else options.seed)
        self.running[session.id] = answer
        self._idle.clear()
        session.states[node_id] = TurnStatus.WAITING
        self._tell(SessionChanged(session.view()))
        answer.task = asyncio.create_task(self._stream(answer, options, prepare), name=f"answer {node_id}")
        try:
            await asyncio.wait([answer.task])
            self._judge(answer)
        finally:
            try:
                await self._finish(answer, options)
            finally:
                del self.running[session.id]
                if not self.running:
                    self._idle.set()

    def stop(self, session_id: int) -> None:
        """Ends a stream; what arrived is kept."""
        answer = self.running.get(session_id)
        if answer is not None and answer.task is not None:
            answer.stopping = True
            answer.task.cancel()

    async def _stream(
        self, answer: Answer, options: GenerationOptions, prepare: Callable[[LanguageModel], Awaitable[Start]]
    ) -> None:
        session, node_id = answer.session, answer.node_id
        model = await self._supervisor.model()
        start = await prepare(model)
        self._supervisor.busy(True)
        known = session.runs.setdefault(node_id, start.known)
        segments = session.tree.path(node_id)
        prompt = session.path_ids(segments)
        answer.prompt = len(prompt)
        recorder = Recorder(self._store, node_id, model.info.kv_fingerprint)
        try:
            scored = await self._score(model, session, segments, prompt)
            known = session.runs[node_id]
            recorder.add(known)
            session.states[node_id] = TurnStatus.STREAMING
            self._tell(TurnChanged(session.id, session.last_turn()))
            if len(known) and int(known.finish[-1]) == Finish.EOS:
                answer.finish = "eos"
                return
            try:
                async with aclosing(model.generate_runs(prompt, options)) as runs:
                    async for run in runs:
                        self._take(answer, run)
                        recorder.add(run)
            finally:
                answer.computed = scored + model.metrics().last_computed
        finally:
            await asyncio.shield(recorder.close())

    def _take(self, answer: Answer, run: TokenRun) -> None:
        now = time.monotonic()
        answer.first_token = answer.first_token or now
        answer.last_token = now
        answer.made += len(run)
        session, node_id = answer.session, answer.node_id
        session.runs[node_id] = healed(TokenRun.concat([session.runs.get(node_id, EMPTY), run]))
        finish = Finish(int(run.finish[-1]))
        if finish is not Finish.NONE:
            answer.finish = finish.label or ""
        self._tell(TokensArrived(session.id, node_id, run))
        self._progress()

    async def _score(
        self, model: LanguageModel, session: OpenSession, segments: Sequence[Segment], prompt: Sequence[int]
    ) -> int:
        """Gives every prompt token that has no numbers yet its numbers: on the screen and on the disk.

        Returns:
            Tokens that had to be computed for it.
        """
        path = TokenRun.concat([session.segment_run(segment) for segment in segments])
        unscored = np.flatnonzero(path.rank[1:] == 0) + 1
        if not unscored.size:
            return 0
        first = int(unscored[0])
        scored = await model.score_run(prompt, start=first)
        computed = model.metrics().last_computed
        at = 0
        for segment in segments:
            start, at = at, at + len(session.segment_run(segment))
            if at > first:
                begin = max(first - start, 0)
                part = scored[max(start - first, 0) : at - first]
                await self._keep_scores(model, session, segment.node.id, begin, part)
        for turn in session.turn_views():
            if turn.role != "assistant":
                self._tell(TurnChanged(session.id, turn))
        return computed

    async def _keep_scores(self, model: LanguageModel, session: OpenSession, node_id: int, begin: int, part: TokenRun) -> None:
        run = session.runs[node_id]
        end = begin + len(part)
        fresh = replace(run[begin:end], **{name: getattr(part, name) for name in SCORED})
        session.runs[node_id] = TokenRun.concat([run[:begin], fresh, run[end:]])
        if session.tree.nodes[node_id].status != "open":  # an open node is written by its recorder
            await self._store.rescore(node_id, chunk(fresh, model.info.kv_fingerprint, begin))

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _judge(self, answer: Answer) -> None:
        """Why the stream ended, in words for the turn."""
        task = answer.task
        assert task is not None
        if task.cancelled():
            answer.finish = "cancelled"
            return
        error = task.exception()
        if error is None:
            return
        answer.message = str(error)
        if isinstance(error, EngineDiedError):
            answer.finish, answer.message = "engine_died", ""
        else:
            answer.finish = "error"
            if not isinstance(error, RuntimeFault):
                log.error("an answer failed", exc_info=error)
                answer.message = f"something went wrong ({error}); your text is kept. The details are in the log"

    async def _finish(self, answer: Answer, options: GenerationOptions) -> None:
        session, node_id = answer.session, answer.node_id
        run = session.runs.get(node_id, EMPTY)
        stats = self._stats(answer, run, options)
        await self._store.finish_node(node_id, finish_reason=answer.finish, stats=stats, text=content_of(run))
        session.states.pop(node_id, None)
        if answer.first_token is not None:
            session.stats[node_id] = TurnStats(
                reused=stats["reused"],
                computed=stats["computed"],
                first_token_seconds=stats["first_token_seconds"],
                tokens_per_second=stats["tokens_per_second"],
                logprob=stats["logprob"],
            )
        if answer.finish == "engine_died":
            await self._supervisor.died()
        else:
            self._supervisor.busy(len(self.running) > 1)

    def _stats(self, answer: Answer, run: TokenRun, options: GenerationOptions) -> dict[str, Any]:
        """How the answer was made, as stored with it."""
        seconds = answer.last_token - (answer.first_token or 0.0)
        own = run.logprob[len(run) - answer.made :] if answer.made else run.logprob[:0]
        stats: dict[str, Any] = {
            "reused": max(answer.prompt - answer.computed, 0),
            "computed": answer.computed,
            "generated": answer.made,
            "first_token_seconds": None if answer.first_token is None else answer.first_token - answer.began,
            "tokens_per_second": (answer.made - 1) / seconds if answer.made > 1 and seconds > 0 else None,
            "logprob": finite(float(np.nansum(own))) if answer.made else None,
            "seed": options.seed,
            "sampling": {
                name: getattr(options.sampling, name)
                for name in ("temperature", "top_k", "top_p", "min_p")
                if getattr(options.sampling, name) is not None
            },
        }
        if answer.message:
            stats["message"] = answer.message
        return stats


def finite(value: float) -> float | None:
    """The value, or None for what JSON cannot hold."""
    return value if math.isfinite(value) else None


def healed(run: TokenRun) -> TokenRun:
    """The run with texts decoded as a whole, where a character was split over two pieces."""
    return replace(run, texts=texts_of(run.token_bytes)) if "\ufffd" in run.text else run
