"""Streams answers, one per session, from the first to the last token, to the screen and to the disk."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

from msgspec.structs import replace as replace_struct

from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer, RunningAnswers, live_stats
from app.workbench.answers.completion import CUTS, Ending, record_outcome, stats_of
from app.workbench.answers.provenance import stack_made_with
from app.workbench.answers.resolve_options import resolve_answer, with_seed
from app.workbench.prompt.prompt import check_tokens
from app.workbench.prompt.recorder import Recorder, ended_by, first_unscored, score_prompt
from app.workbench.setup.session_adapters import AdaptedModel, Adapters
from app.workbench.setup.setups import Asked, Setups
from app.workbench.tree.runs import EMPTY, began, content_of, leading_template
from app.workbench.tree.session import WholeSession
from app.workbench.tree.tree import PathSegment
from app.workbench.tree.turn_notes import turn_stats
from app.workbench.windows import Windows
from runtime import Finish, Priority, PromptProgress, RuntimeFault, TokenRun
from storage import SessionStore, StoreError
from ui import QT_TRANSLATE_NOOP, EngineState, SessionChanged, TokensArrived, TurnChanged, TurnStatus, in_window, translate

log = logging.getLogger(__name__)

STATUS_SECONDS = 0.25  # between two updates of the status bar while an answer runs
STARTING = QT_TRANSLATE_NOOP("Workbench", "starting the engine…")
LONG_PROMPT = 256  # progress is shown while at least this many tokens are still to be read

Prepare = Callable[[AdaptedModel], Awaitable[TokenRun]]  # the tokens that a node begins with: header, picked token


@dataclass(eq=False, repr=False)
class Streaming:
    """Streams answers into open sessions."""

    _store: SessionStore
    _supervisor: Supervisor
    _setups: Setups  # options and adapters of sessions
    _adapters: Adapters  # loads an answer's adapters
    _running: RunningAnswers
    _windows: Windows  # show tokens and turns

    def __post_init__(self) -> None:
        self._supervisor.subscribe(self._tell_start)

    async def run(self, answer: Answer, node_id: int, prepare: Prepare) -> None:
        """Streams the answer of an open node; returns when it has ended or failed.

        Raises:
            StoreError: Its end could not be written; `settle` tries again.
        """
        answer.node_id, answer.session.states[node_id] = node_id, TurnStatus.WAITING
        if self._supervisor.running is None:
            answer.session.notes[node_id] = translate("Workbench", STARTING)
        asked = self._setups.asked(answer.session)
        answer.options = with_seed(asked.preset)
        if answer.repeats is not None:
            answer.options = answer.repeats.options
            asked = replace_struct(asked, adapters=stack_made_with(answer.repeats.made))
        self._running.take_stack(answer, asked.adapters)
        self._windows.tell(SessionChanged(answer.session.view()))
        try:
            await answer.work(self._stream(answer, asked, prepare), f"answer {node_id}")
        finally:
            record_outcome(answer)
            await self._finish(answer)
            if not answer.refused:
                self._running.report_end([answer])

    async def score(self, session: WholeSession, adapted: AdaptedModel, on_progress: Callable[[PromptProgress], None]) -> None:
        """Scores the tokens of a session's path that have no numbers, and saves them.

        Raises:
            RuntimeFault: The model fails.
            StoreError: The numbers cannot be saved.
        """
        segments = session.tree.path(session.tip)
        await score_prompt(adapted, self._store, session, segments, session.path_ids(segments), on_progress)

    # ---- the stream -------------------------------------------------------------------------------------------------

    async def _stream(self, answer: Answer, asked: Asked, prepare: Prepare) -> None:
        session, node_id = answer.session, answer.node_id
        try:
            model = answer.model = await self._supervisor.model()
            answer.began = time.monotonic()
        finally:
            if session.notes.get(node_id, "").startswith(translate("Workbench", STARTING)):
                del session.notes[node_id]
        adapted = await self._adapters.under(model, answer.stack)  # loaded until the answer ends
        options = resolve_answer(answer, asked, adapted)
        self._windows.tell(TurnChanged(session.id, session.last_turn()))
        segments = session.tree.path(node_id)
        check_tokens(model, session, segments)
        before = [session.runs.get(segment.node.id) for segment in segments]
        known = await prepare(adapted)
        self._supervisor.busy(True)
        session.runs[node_id] = known
        prompt = session.path_ids(segments)
        answer.prompt = len(prompt)
        recorder = answer.recorder = Recorder(self._store, node_id, adapted.fingerprint)
        ends = bool(len(known)) and Finish(int(known.finish[-1])).by_eos
        typed = model.has("scores") and not ends and first_unscored(session, segments) == len(prompt) - 1
        try:
            if not typed:
                await score_prompt(adapted, self._store, session, segments, prompt, partial(self._read_on, answer, 0))
        finally:
            recorder.add(session.runs[node_id])
        after = [session.runs.get(segment.node.id) for segment in segments]
        changed = {segment.node.id for segment, old, new in zip(segments, before, after, strict=True) if new is not old}
        for turn, view in zip(session.tree.turns(session.tip, session.earlier), session.turn_views(), strict=True):
            if turn.role != "assistant" and any(segment.node.id in changed for segment in turn.segments):
                self._windows.tell(TurnChanged(session.id, view))
        session.states[node_id] = TurnStatus.STREAMING
        self._windows.tell(TurnChanged(session.id, session.last_turn()))
        if ends:
            answer.finish = "eos"
            return
        if options.grammar is not None:
            options = replace(options, grammar_prefix=own_length(session))
        read_on = partial(self._read_on, answer, answer.computed)
        scoring: asyncio.Task[None] | None = None
        try:
            async with aclosing(model.generate_runs(prompt, options, on_progress=read_on)) as runs:
                async for run in runs:
                    self._take(answer, run)
                    recorder.add(run)
                    if typed and scoring is None:
                        scoring = asyncio.create_task(self._score_typed(answer, adapted, recorder, segments, prompt))
            if scoring is not None:
                await scoring
        finally:
            if scoring is not None:
                scoring.cancel()
                await asyncio.gather(scoring, return_exceptions=True)
        if options.speculative is not None and (took := model.metrics().request(answer.request)) is not None:
            answer.guesses = took.drafted, took.accepted

    async def _score_typed(
        self, answer: Answer, adapted: AdaptedModel, recorder: Recorder, segments: Sequence[PathSegment], prompt: Sequence[int]
    ) -> None:
        """Scores the one typed token while the answer already streams, so that its first token does not wait for it.

        The token before it is computed once more, as if it were scored first; the answer's counters leave that out.
        """
        session, model = answer.session, adapted.model
        at = len(session.runs[answer.node_id]) - answer.made - 1
        try:
            if model.has("kv"):  # keeps the logits after the token before, which are all that the score needs
                await model.top_logprobs(prompt[:-1], 1, adapters=adapted.adapters, priority=Priority.CHAT)
            await score_prompt(adapted, self._store, session, segments, prompt, lambda _: None)
            await recorder.rescore(session.runs[answer.node_id][at : at + 1], at)
        except (RuntimeFault, StoreError) as fault:  # the next answer on this path tries again
            log.info("a typed token of node %d has no numbers yet: %s", answer.node_id, fault)
        self._windows.tell(TurnChanged(session.id, session.last_turn()))

    def _tell_start(self) -> None:
        """Shows the progress of the engine's start in the answers that wait for it."""
        if self._supervisor.state is not EngineState.STARTING:
            return
        for answer in self._running:
            session = answer.session
            if session.notes.get(answer.node_id, "").startswith(translate("Workbench", STARTING)):
                session.notes[answer.node_id] = f"{translate('Workbench', STARTING)} {self._supervisor.reason}"
                self._windows.tell(TurnChanged(session.id, session.last_turn()))

    def _read_on(self, answer: Answer, before: int, progress: PromptProgress) -> None:
        """Updates a prompt's counters, of which `before` tokens were computed earlier; shows the progress of a long one."""
        if answer.node_id not in answer.session.states:  # late: the answer has ended
            return
        answer.request = progress.request
        if progress.computed is not None and progress.reused is not None:
            answer.computed = before + progress.computed
            answer.reused = max(progress.reused - before, 0)  # of the cached tokens, `before` were computed for this answer
        session, node_id = answer.session, answer.node_id
        if note := reading_note(progress):
            session.notes[node_id] = note
        elif session.notes.pop(node_id, None) is None:
            return
        self._windows.tell(TurnChanged(session.id, session.last_turn()))

    def _take(self, answer: Answer, run: TokenRun) -> None:
        now = time.monotonic()
        answer.take(run, now)
        session, node_id = answer.session, answer.node_id
        self._windows.tell(TokensArrived(session.id, node_id, run))
        if now - answer.reported > STATUS_SECONDS:
            answer.reported = now
            session.stats[node_id] = live_stats(answer)
            self._windows.refresh_status()

    # ---- the end ----------------------------------------------------------------------------------------------------

    async def _finish(self, answer: Answer) -> None:
        session, node_id, given = answer.session, answer.node_id, answer.given
        session.notes.pop(node_id, None)  # the progress of its prompt
        session.model_changed = session.model_changed and not (answer.hopeless or answer.unloaded or answer.foreign)
        run = session.runs.get(node_id, EMPTY)
        if answer.recorder is None and given.fingerprint is not None and began(run):
            answer.recorder = Recorder(self._store, node_id, given.fingerprint)  # no model ran: keeps the picked token
            answer.recorder.add(run)
        elif answer.recorder is None:
            session.runs[node_id] = run = EMPTY  # as on the disk
        cut = CUTS.get(answer.finish, Finish.NONE)
        session.runs[node_id] = run = ended_by(run, cut)
        stats = stats_of(answer, run)
        text = "" if answer.refused else content_of(run)  # the store takes back only nodes without text
        ending = Ending(node_id, answer.finish, answer.incomplete, stats, text, answer.recorder, cut)
        session.states.pop(node_id, None)
        if answer.first_token is not None:
            session.stats[node_id] = turn_stats(stats)
        try:
            await ending.save(self._store)
        except StoreError as fault:
            session.unsaved = ending
            session.states[node_id] = TurnStatus.PARTIAL
            session.notes[node_id] = translate("Workbench", "not saved yet: {0}").format(in_window(str(fault)))
            raise
        finally:
            if answer.finish == "engine_died" and answer.model is not None:
                await self._supervisor.died(answer.model)
            else:
                self._supervisor.busy(len(self._running) > 1)


def reading_note(progress: PromptProgress) -> str:
    """The progress of a long prompt, in words; "" once less than `LONG_PROMPT` tokens are left."""
    if progress.total - progress.done < LONG_PROMPT:
        return ""
    return translate("Workbench", "reading {0:,} of {1:,} tokens").format(progress.done, progress.total)


def own_length(session: WholeSession) -> int:
    """Tokens of the last turn of the path, without the template's: the prefix that its grammar has already read."""
    run = session.turn_run(session.tree.turns(session.tip)[-1])
    return len(run) - leading_template(run)
