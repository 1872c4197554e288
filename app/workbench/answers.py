"""Answers in work: one per session, from first to last token, on the screen and on the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from app.faults import not_loaded, too_long
from app.supervisor import Supervisor
from app.workbench.answer import Answer, last_message, live_stats
from app.workbench.ending import CUTS, Ending, stats_of
from app.workbench.growing import EMPTY
from app.workbench.making import made_with, plain_options, refusal, stack_made_with
from app.workbench.pick import began, leading_template
from app.workbench.prompt import check_tokens
from app.workbench.recorder import Recorder, ended_by
from app.workbench.refusals import BUSY
from app.workbench.scoring import score_prompt
from app.workbench.session import OpenSession, content_of
from app.workbench.setup.adapters import bring
from app.workbench.setup.guessing import guessed_by
from app.workbench.setup.setups import Asked, Setups
from app.workbench.speaker import Speaker
from runtime import (
    BackendUnavailableError,
    ContextOverflowError,
    EngineDiedError,
    Finish,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    PromptProgress,
    RuntimeFault,
    TokenRun,
    UnknownBackendError,
    fresh_seed,
)
from storage import SessionStore, StoreError
from ui import EngineState, Event, Refusal, SessionChanged, TokensArrived, TurnChanged, TurnStats, TurnStatus

log = logging.getLogger(__name__)
STATUS_SECONDS = 0.25  # between two looks at the counters while a stream runs
STARTING = "starting the engine…"
LONG_PROMPT = 256  # tokens still to be read that are worth a line

Prepare = Callable[[Speaker], Awaitable[TokenRun]]  # gives the tokens a node begins with: header, picked token


class Answers:
    """Streams answers into open sessions.

    Args:
        store: Where nodes and tokens go.
        supervisor: Gives the model.
        setups: What sessions ask for, and their presets.
        call: By the names of `GenerationOptions.from_mapping`; goes before the session, which goes before its preset.
        tell: Takes events for the window.
        on_progress: Called when counters changed.
        keep: Called with an answer that has ended and is written.
    """

    def __init__(
        self,
        store: SessionStore,
        supervisor: Supervisor,
        setups: Setups,
        call: Mapping[str, Any],
        tell: Callable[[Event], None],
        on_progress: Callable[[], None],
        keep: Callable[[Answer], None],
    ) -> None:
        self._store = store
        self._supervisor = supervisor
        self._setups = setups
        self._call = call
        self._tell = tell
        self._progress = on_progress
        self._keep = keep
        self.running: dict[int, Answer] = {}  # by session
        self._idle = asyncio.Event()
        self._idle.set()
        supervisor.subscribe(self._tell_start)

    @contextmanager
    def claim(self, session: OpenSession) -> Iterator[Answer]:
        """Keeps a session for one answer, until everything about it is written.

        Raises:
            Refusal: It is kept for another one.
        """
        self.check_idle(session.id)
        answer = self.running[session.id] = Answer(session)
        self._idle.clear()
        try:
            yield answer
        finally:
            del self.running[session.id]
            if not self.running:
                self._idle.set()

    def check_idle(self, session_id: int) -> None:
        """Refuses where an answer is in work."""
        if session_id in self.running:
            raise Refusal(BUSY)

    def options_of(self, node_id: int) -> GenerationOptions | None:
        """How the answer is drawn that is being written into a node; None where none is."""
        return next((answer.options for answer in self.running.values() if answer.node_id == node_id), None)

    async def speaker(self, session: OpenSession, model: LanguageModel) -> Speaker:
        """The model under the adapters of a session, which are brought in.

        Raises:
            RuntimeFault: One of them cannot be used.
        """
        return Speaker.of(model, await bring(model, self._setups.asked(session).adapters))

    def options_for(self, answer: Answer, speaker: Speaker) -> GenerationOptions:
        """How this model draws an answer that is none of `run`'s; `made_with` says so, too."""
        asked = self._setups.asked(answer.session)
        answer.options = seeded(asked.preset)
        return self._settled(answer, asked, speaker)

    async def ended(self) -> None:
        """Returns when no answer is in work."""
        await self._idle.wait()

    def stop(self, session_id: int) -> None:
        """Ends a stream; what arrived is kept."""
        answer = self.running.get(session_id)
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
            raise Refusal(f"{fault}. The answer on the screen is not saved yet; make room, then try again") from fault
        session.unsaved = None
        session.states.pop(ending.node_id, None)
        session.notes.pop(ending.node_id, None)

    async def model(self) -> LanguageModel:
        """The model that would answer.

        Raises:
            Refusal: There is none.
        """
        try:
            return await self._supervisor.model()
        except RuntimeFault as fault:
            raise Refusal(not_loaded(fault)) from fault

    async def run(self, answer: Answer, node_id: int, prepare: Prepare) -> None:
        """Streams the answer of an open node; returns when it has ended, however it did.

        Raises:
            StoreError: Its end could not be written; `settle` tries again.
        """
        answer.node_id, answer.session.states[node_id] = node_id, TurnStatus.WAITING
        if self._supervisor.running is None:
            answer.session.notes[node_id] = STARTING
        asked = self._setups.asked(answer.session)
        answer.options = seeded(asked.preset)
        if answer.repeats is not None:
            answer.options = answer.repeats.options
            asked = replace(asked, adapters=stack_made_with(answer.repeats.made))
        self._tell(SessionChanged(answer.session.view()))
        answer.task = asyncio.create_task(self._stream(answer, asked, prepare), name=f"answer {node_id}")
        if answer.stopping:
            answer.task.cancel()
        try:
            await asyncio.wait([answer.task])
        finally:
            answer.task.cancel()  # where it was our caller that was cancelled
            await asyncio.wait([answer.task])
            self._judge(answer)
            await self._finish(answer)
            self._keep(answer)

    # ---- the stream -------------------------------------------------------------------------------------------------

    async def _stream(self, answer: Answer, asked: Asked, prepare: Prepare) -> None:
        session, node_id = answer.session, answer.node_id
        try:
            model = answer.model = await self._supervisor.model()
            answer.began = time.monotonic()
        finally:
            if session.notes.get(node_id, "").startswith(STARTING):
                del session.notes[node_id]
        speaker = Speaker.of(model, await bring(model, asked.adapters))
        options = answer.options = self._settled(answer, asked, speaker)
        self._tell(TurnChanged(session.id, session.last_turn()))
        segments = session.tree.path(node_id)
        check_tokens(model, session, segments)
        known = await prepare(speaker)
        self._supervisor.busy(True)
        session.runs[node_id] = known
        prompt = session.path_ids(segments)
        answer.prompt = len(prompt)
        recorder = answer.recorder = Recorder(self._store, node_id, speaker.numbers)
        try:
            await score_prompt(speaker, self._store, session, segments, prompt, partial(self._read_on, answer, 0))
        finally:
            recorder.add(session.runs[node_id])
        for turn in session.turn_views():
            if turn.role != "assistant":
                self._tell(TurnChanged(session.id, turn))
        session.states[node_id] = TurnStatus.STREAMING
        self._tell(TurnChanged(session.id, session.last_turn()))
        if len(known) and int(known.finish[-1]) == Finish.EOS:
            answer.finish = "eos"
            return
        if options.grammar is not None:
            options = replace(options, grammar_prefix=own_length(session))
        read_on = partial(self._read_on, answer, answer.computed)
        async with aclosing(model.generate_runs(prompt, options, on_progress=read_on)) as runs:
            async for run in runs:
                self._take(answer, run)
                recorder.add(run)

    def _tell_start(self) -> None:
        """Answers that wait for the engine say how far it is."""
        if self._supervisor.state is not EngineState.STARTING:
            return
        for answer in self.running.values():
            session = answer.session
            if session.notes.get(answer.node_id, "").startswith(STARTING):
                session.notes[answer.node_id] = f"{STARTING} {self._supervisor.reason}"
                self._tell(TurnChanged(session.id, session.last_turn()))

    def _settled(self, answer: Answer, asked: Asked, speaker: Speaker) -> GenerationOptions:
        """How an answer is made, down to the last option; it is stored with it."""
        if answer.repeats is not None:
            why = refusal(answer.session.tree.nodes[answer.repeats.of], speaker)  # another one may have come meanwhile
            if why:
                raise InvalidRequestError(why)
            answer.made_with = {**answer.repeats.made, "options": plain_options(answer.options)}
            return answer.options
        said = guessed_by(asked.session, speaker.model.info)
        layer = said if speaker.adapters is None else {**said, "adapters": speaker.adapters}
        resolved = speaker.model.resolve_options(self._call, session=layer, preset=answer.options)
        chosen = [asked.preset.seed, asked.session.get("seed"), self._call.get("seed")] != [None] * 3
        answer.made_with = made_with(resolved, speaker, asked.adapters, seed_was_chosen=chosen)
        return resolved.options

    def _read_on(self, answer: Answer, before: int, progress: PromptProgress) -> None:
        """Counts what the prompt costs, on top of what was computed `before`; a long one says how far it is."""
        if answer.node_id not in answer.session.states:  # it has ended; this was on its way
            return
        answer.computed = before + progress.computed
        answer.reused = max(progress.reused - before, 0)  # what was computed a moment ago is found, but not saved
        session, node_id = answer.session, answer.node_id
        if progress.total - progress.done >= LONG_PROMPT:
            session.notes[node_id] = f"reading {progress.done:,} of {progress.total:,} tokens"
        elif session.notes.pop(node_id, None) is None:
            return
        self._tell(TurnChanged(session.id, session.last_turn()))

    def _take(self, answer: Answer, run: TokenRun) -> None:
        now = time.monotonic()
        answer.first_token = answer.first_token or now
        answer.last_token = now
        answer.made += len(run)
        session, node_id = answer.session, answer.node_id
        session.runs.extend(node_id, run)
        finish = Finish(int(run.finish[-1]))
        if finish is not Finish.NONE:
            answer.finish, answer.incomplete = finish.label or "", finish.incomplete
        answer.logprob += float(np.nansum(run.logprob))
        self._tell(TokensArrived(session.id, node_id, run))
        if now - answer.told > STATUS_SECONDS:
            answer.told = now
            session.stats[node_id] = live_stats(answer)
            self._progress()

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
        answer.finish, answer.message = "error", str(error)
        if isinstance(error, EngineDiedError):
            answer.finish = "engine_died"
            log.warning("the engine died: %s", error)
            answer.message = "" if answer.model is not None else not_loaded(error)
        elif isinstance(error, UnknownBackendError | BackendUnavailableError):
            answer.message, answer.hopeless = not_loaded(error), True
        elif isinstance(error, ContextOverflowError):
            answer.message = too_long(error, last_message(answer))
            answer.overflow = answer.hopeless = True
        elif not isinstance(error, RuntimeFault | StoreError):
            log.error("an answer failed", exc_info=error)
            answer.message = f"something went wrong ({error}); your text is kept. The details are in the log"

    async def _finish(self, answer: Answer) -> None:
        session, node_id, given = answer.session, answer.node_id, answer.given
        session.notes.pop(node_id, None)  # how far the reading was
        session.has_hope = session.has_hope and not answer.hopeless
        run = session.runs.get(node_id, EMPTY)
        if answer.recorder is None and given.fingerprint is not None and began(run):
            answer.recorder = Recorder(self._store, node_id, given.fingerprint)  # no model came, but the pick is kept
            answer.recorder.add(run)
        elif answer.recorder is None:
            session.runs[node_id] = run = EMPTY  # as on the disk
        cut = CUTS.get(answer.finish, Finish.NONE)
        session.runs[node_id] = run = ended_by(run, cut)
        stats = stats_of(answer, run)
        ending = Ending(node_id, answer.finish, answer.incomplete, stats, content_of(run), answer.recorder, cut)
        session.states.pop(node_id, None)
        if answer.first_token is not None:
            session.stats[node_id] = TurnStats(
                reused=stats.get("reused"),
                computed=stats.get("computed"),
                first_token_seconds=stats["first_token_seconds"],
                tokens_per_second=stats["tokens_per_second"],
                logprob=stats["logprob"],
            )
        try:
            await ending.save(self._store)
        except StoreError as fault:
            session.unsaved = ending
            session.states[node_id] = TurnStatus.PARTIAL
            session.notes[node_id] = f"not saved yet: {fault}"
            raise
        finally:
            if answer.finish == "engine_died" and answer.model is not None:
                await self._supervisor.died(answer.model)
            else:
                self._supervisor.busy(len(self.running) > 1)


def own_length(session: OpenSession) -> int:
    """Tokens of the turn at the end of the path that are the answer's own: what its form counts from."""
    run = session.turn_run(session.tree.turns(session.tip)[-1])
    return len(run) - leading_template(run)


def seeded(preset: GenerationOptions) -> GenerationOptions:
    """The preset, with a fresh seed where nobody chose one, and what each draw was made of."""
    return replace(preset, seed=fresh_seed() if preset.seed is None else preset.seed, stages=True)
