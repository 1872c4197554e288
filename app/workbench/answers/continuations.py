"""Several continuations of one place, side by side: drawn by the sampler, or found by a beam search."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

from app.faults import STOPPED
from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer, RunningAnswers, continuation_node
from app.workbench.answers.columns import ContinuationGroup, Endings, beam_options, own_tokens_before, unscored_run
from app.workbench.answers.completion import CUTS, Ending, record_outcome, stats_of
from app.workbench.answers.provenance import found_with, plain_options
from app.workbench.answers.resolve_options import resolve_answer, with_seed
from app.workbench.answers.streaming import STARTING, reading_note
from app.workbench.prompt.prompt import Tokeniser, check_tokens
from app.workbench.prompt.recorder import Recorder, ended_by, score_prompt
from app.workbench.refusals import check_has
from app.workbench.sessions.copying import Copies
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import AdaptedModel, Adapters
from app.workbench.setup.setups import Asked, Setups
from app.workbench.tree.runs import EMPTY, content_of
from app.workbench.windows import Windows
from runtime import BeamStep, Finish, GenerationOptions, PromptProgress
from storage import SessionStore, StoreError
from ui import (
    BeamSearchRules,
    Column,
    ColumnKind,
    ColumnsChanged,
    ColumnTokens,
    Refusal,
    SessionChanged,
    SessionsChanged,
    in_window,
    translate,
)

log = logging.getLogger(__name__)
MOST_COLUMNS = 16
DRAWN_TOKENS = 64  # longest column; one that is kept can be continued


@dataclass(eq=False, repr=False)
class Continuations:
    """The use cases that make several siblings (`ui.port.ContinuationCommands`); each returns when all have ended."""

    _store: SessionStore
    _supervisor: Supervisor
    _sessions: OpenSessions
    _setups: Setups  # options and adapters of sessions
    _copies: Copies  # of the sample, which is never changed
    _running: RunningAnswers
    _adapters: Adapters  # loads those of an answer
    _tokeniser: Tokeniser  # text to ids
    _windows: Windows  # show columns and their tokens
    # the last one of each session, as long as anything refers to it
    _last: WeakValueDictionary[int, ContinuationGroup] = field(default_factory=WeakValueDictionary, init=False)

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        """Draws several continuations before token `index` of a turn, or at its end."""
        await self._run(session_id, node_id, index, ColumnKind.DRAWS, n)

    async def beams(
        self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamSearchRules | None = None
    ) -> None:
        await self._run(session_id, node_id, index, ColumnKind.BEAMS, width, rules)

    async def _run(
        self,
        session_id: int,
        node_id: int,
        index: int | None,
        kind: ColumnKind,
        wanted: int,
        rules: BeamSearchRules | None = None,
    ) -> None:
        """Raises `Refusal`, with nothing changed, if the place cannot be continued or no continuation has a token."""
        session = await self._sessions.whole(session_id, node_id)
        if not 2 <= wanted <= MOST_COLUMNS:
            raise Refusal(translate("Workbench", "{0} continuations: ask for 2 to {1}").format(wanted, MOST_COLUMNS))
        self._running.check_idle(session_id)
        if index is not None:
            check_has(self._supervisor.running, "branch")
        new = continuation_node(session, node_id, index)
        target = await self._copies.target(session)
        async with self._running.begin(target.session) as claimed:
            group = ContinuationGroup(target.session, target.place(new), kind, wanted, rules or BeamSearchRules())
            self._last[group.session.id] = group
            group.note = translate("Workbench", STARTING) if self._supervisor.running is None else ""
            self._show(group)
            asked = self._setups.asked(target.session)  # read now: they may change while a model is loaded
            claimed.options, claimed.back = with_seed(asked.preset), group.new.parent_id
            self._running.take_stack(claimed, asked.adapters)
            work = self._draw(group, claimed, asked) if kind is ColumnKind.DRAWS else self._search(group, claimed, asked)
            try:
                await claimed.work(work, f"{kind} of session {session_id}")
            finally:
                await self._end(group, claimed)

    def _show(self, group: ContinuationGroup) -> None:
        self._windows.tell(ColumnsChanged(group.session.id, group.view()))

    def _say(self, group: ContinuationGroup, words: str) -> None:
        """Sets the note of continuations that an engine fault ended."""
        group.say(words)
        if group.strands and self._last.get(group.session.id) is group:
            self._show(group)

    # ---- helpers ------------------------------------------------------------------------------------------------------

    async def _prompt(self, group: ContinuationGroup, claimed: Answer) -> tuple[AdaptedModel, list[int]]:
        """The model, and the ids before the place, which are scored first."""
        model = claimed.model = await self._supervisor.model()
        group.note, group.began = "", time.monotonic()
        self._supervisor.busy(True)
        self._show(group)
        adapted = await self._adapters.under(model, claimed.stack)  # loaded until the answers end
        segments = group.segments()
        check_tokens(model, group.session, segments)
        assert group.new.parent_id is not None  # the child of an answer, or its sibling
        await self._tokeniser.before(group.session, adapted, group.new.parent_id)
        prompt = group.session.path_ids(segments)
        await score_prompt(adapted, self._store, group.session, segments, prompt, partial(self._read_on, group, 0))
        return adapted, prompt

    def _read_on(self, group: ContinuationGroup, before: int, progress: PromptProgress) -> None:
        if progress.computed is not None and progress.reused is not None:
            group.computed = before + progress.computed
            group.reused = max(progress.reused - before, 0)
        note = reading_note(progress)
        if group.running and note != group.note:
            group.note = note
            self._show(group)

    async def _draw(self, group: ContinuationGroup, claimed: Answer, asked: Asked) -> None:
        adapted, prompt = await self._prompt(group, claimed)
        model, options = adapted.model, resolve_answer(claimed, asked, adapted)
        most = min(options.max_tokens or DRAWN_TOKENS, DRAWN_TOKENS)
        options = replace(options, max_tokens=most, speculative=None)  # the continuations share one forward per step already
        if options.sampling.temperature == 0.0:
            raise Refusal(
                translate("Workbench", "the temperature is 0, so all continuations would be the same. Raise it, or use beams")
            )
        if options.grammar is not None:
            options = replace(options, grammar_prefix=own_tokens_before(group))
        first = max(options.branch, await self._sessions.next_branch(group.session, options.seed))
        options = replace(options, branch=first)
        claimed.strands = group.strands
        strands = [await self._strand(group, adapted, replace(options, branch=first + k)) for k in range(group.wanted)]
        for strand in strands:
            strand.made_with = {**claimed.made_with, "options": plain_options(strand.options)}
            strand.prompt = len(prompt)
        self._show(group)
        read_on = partial(self._read_on, group, group.computed)
        async with aclosing(model.continue_many_runs(prompt, group.wanted, options, on_progress=read_on)) as runs:
            async for branch, run in runs:
                strand = strands[branch - options.branch]
                assert strand.recorder is not None
                ended = group.take(strand, run)
                strand.recorder.add(run)
                self._windows.tell(ColumnTokens(group.session.id, strand.node_id, run, strand.logprob))
                if ended:
                    self._show(group)

    async def _search(self, group: ContinuationGroup, claimed: Answer, asked: Asked) -> None:
        adapted, prompt = await self._prompt(group, claimed)
        model = adapted.model
        watched: list[list[int]] = [[]]

        def on_step(step: BeamStep) -> None:
            watched[:] = [[*watched[p], t] for p, t in zip(step.parents, step.tokens, strict=True)]
            if group.running:
                beams = zip(watched, step.logprobs, strict=True)
                group.beams = tuple(Column(-1 - i, unscored_run(model, ids), p) for i, (ids, p) in enumerate(beams))
                self._show(group)

        options = beam_options(resolve_answer(claimed, asked, adapted), group)
        read_on = partial(self._read_on, group, group.computed)
        found = await model.beam_generate(prompt, options, adapters=adapted.adapters, on_progress=read_on, on_step=on_step)
        group.scores = [hypothesis.score for hypothesis in found]
        for hypothesis in found:
            strand = await self._strand(group, adapted, GenerationOptions(adapters=adapted.adapters))
            assert strand.recorder is not None
            strand.made_with, strand.prompt = found_with(options, claimed.made_with), len(prompt)
            group.take(strand, hypothesis.run)
            strand.recorder.add(hypothesis.run)
            strand.logprob = hypothesis.logprob

    async def _strand(self, group: ContinuationGroup, adapted: AdaptedModel, options: GenerationOptions) -> Answer:
        """Adds a node for one continuation; the path shown does not change."""
        adding = asyncio.create_task(self._sessions.add(group.session, group.new, current=False), name="add a continuation")
        stopped = False
        while not adding.done():  # the store finishes a write it has begun: the node must not be lost
            try:
                await asyncio.wait([adding])
            except asyncio.CancelledError:
                stopped = True
        node = adding.result()
        group.session.runs[node.id] = EMPTY
        strand = Answer(group.session, node.id, options=options, began=group.began, model=adapted.model)
        strand.recorder = Recorder(self._store, node.id, adapted.fingerprint)
        group.strands.append(strand)
        if stopped:
            raise asyncio.CancelledError
        return strand

    # ---- the end ------------------------------------------------------------------------------------------------------

    async def _end(self, group: ContinuationGroup, claimed: Answer) -> None:
        """Writes all continuations, and removes those without a token."""
        record_outcome(claimed)
        finish, message = claimed.finish, claimed.message
        if finish == "engine_died":
            message = message or STOPPED
        group.running, group.note, group.beams = False, message, ()
        endings = [self._ending(group, strand, finish) for strand in group.strands]
        unsaved = Endings(endings, group.session)
        try:
            await unsaved.save(self._store)
        except StoreError as fault:
            group.session.unsaved = unsaved
            group.note = translate("Workbench", "not saved yet: {0}").format(in_window(str(fault)))
            for ending in unsaved.left:
                group.session.notes[ending.node_id] = group.note
        await self._drop_silent(group)
        if group.strands:
            self._running.report_end(group.strands, partial(self._say, group))
        elif claimed.finish == "engine_died" and group.session.tip is not None:  # no continuation has a token
            claimed.node_id = group.session.tip
            self._running.report_end([claimed], partial(self._say, group))
        if finish == "engine_died" and claimed.model is not None:
            await self._supervisor.died(claimed.model)
        else:
            self._supervisor.busy(len(self._running) > 1)
        await self._sessions.refresh(group.session)
        self._windows.tell(ColumnsChanged(group.session.id, group.view() if group.strands else None))
        self._windows.tell(SessionChanged(group.session.view()))
        self._windows.tell(SessionsChanged())
        self._windows.refresh_status()
        if message and not group.strands:
            raise Refusal(message)

    def _ending(self, group: ContinuationGroup, strand: Answer, finish: str) -> Ending:
        if strand.node_id not in group.ended:
            strand.finish = finish
        strand.reused, strand.computed = group.reused, group.computed
        cut = CUTS.get(strand.finish, Finish.NONE)
        run = group.session.runs[strand.node_id] = ended_by(group.session.runs.get(strand.node_id, EMPTY), cut)
        stats = stats_of(strand, run)
        if group.scores:
            place = group.strands.index(strand)
            stats |= {"beams": group.wanted, "score": group.scores[place]}
            del stats["seed"], stats["sampling"]  # nothing was drawn
        return Ending(strand.node_id, strand.finish, strand.incomplete, stats, content_of(run), strand.recorder, cut)

    async def _drop_silent(self, group: ContinuationGroup) -> None:
        """Removes continuations that ended before their first token."""
        for strand in list(group.strands):
            if strand.made:
                continue
            try:
                await self._store.discard_node(strand.node_id)
            except StoreError as fault:  # leaves the empty node
                log.info("an empty continuation stays: %s", fault)
            else:
                group.session.forget(strand.node_id)
            group.strands.remove(strand)
