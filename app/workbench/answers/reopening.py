"""Restarts an engine that died during an answer, and reads the session into it again: once, with a note."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from app.faults import not_loaded
from app.supervisor import Supervisor
from app.workbench.answers.answer import Answer, OnNote, RunningAnswers
from app.workbench.background import BackgroundTasks
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import Adapters
from app.workbench.tree.session import WholeSession
from app.workbench.windows import Windows
from runtime import EngineDiedError, RuntimeFault
from ui import QT_TRANSLATE_NOOP, Refusal, SessionChanged, in_window, translate

log = logging.getLogger(__name__)
UNDER_WAY = QT_TRANSLATE_NOOP(
    "Workbench", "engine stopped; your text is kept. Starting it again, and reading this session anew…"
)
DONE = QT_TRANSLATE_NOOP(
    "Workbench", "engine stopped; it was started again, and this session was reopened from its text: go on where it stopped"
)
AGAIN = QT_TRANSLATE_NOOP(
    "Workbench",
    "engine stopped, and stopped again while this session was reopened; your text is kept. Send again to restart it",
)


class _Lost(Struct, frozen=True):
    """The answers that a dead engine left unfinished."""

    session: WholeSession
    node_ids: Sequence[int]
    note_all: OnNote | None

    @property
    def tip(self) -> int | None:
        """The first lost answer that is still in the tree, else the session's tip."""
        nodes = self.session.tree.nodes
        return next((node_id for node_id in self.node_ids if node_id in nodes), self.session.tip)


@dataclass(eq=False, repr=False)
class Reopening:
    """Restarts an engine that died during an answer, for that session. All members belong to the window's loop."""

    _sessions: OpenSessions
    _supervisor: Supervisor  # starts the engine
    _adapters: Adapters  # loads the session's adapters
    _running: RunningAnswers  # reports ended answers; a running answer starts the engine itself
    _tasks: BackgroundTasks
    _windows: Windows  # show the note
    # reopened sessions that have had no successful answer since
    _tried: set[int] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._running.on_end.append(self._after)

    def _after(self, answers: Sequence[Answer], note_all: OnNote | None) -> None:
        """Reopens the session of an answer that an engine fault ended, unless it was just reopened."""
        session = answers[0].session
        died = [answer for answer in answers if answer.finish == "engine_died"]
        if not died:
            if any(answer.made and answer.finish != "error" for answer in answers):  # an empty answer proves nothing
                self._tried.discard(session.id)
        elif died[0].model is not None and session.id not in self._tried:  # else the engine died while it loaded
            self._tried.add(session.id)
            lost = _Lost(session, [answer.node_id for answer in died], note_all)
            self._tasks.start(self._reopen(lost), f"reopen session {session.id}")

    async def _reopen(self, lost: _Lost) -> None:
        session = lost.session
        self._say(lost, translate("Workbench", UNDER_WAY))
        model = None
        try:
            model = await self._supervisor.model()
            adapted = await self._adapters.adapted(session, model)
            whole = await self._sessions.whole(session.id, lost.tip)
            ids = whole.path_ids(session.tree.path(lost.tip))
            if 0 < len(ids) <= model.info.context_length:
                await model.cache_kv_async(ids, adapters=adapted.adapters)
        except EngineDiedError as fault:
            if model is not None:
                await self._supervisor.died(model)
            self._say(lost, translate("Workbench", AGAIN) if model is not None else not_loaded(fault))
        except (RuntimeFault, Refusal) as fault:
            log.info("session %d was not reopened: %s", session.id, fault)
            words = translate("Workbench", "engine stopped, and this session could not be reopened: {0}")
            self._say(lost, words.format(in_window(str(fault))))
        else:
            await self._sessions.find_warm(session)
            self._say(lost, translate("Workbench", DONE))

    def _say(self, lost: _Lost, words: str) -> None:
        """Sets the note of each lost turn that is still in the tree, and of its continuations."""
        session = lost.session
        for node_id in lost.node_ids:
            if node_id in session.tree.nodes and node_id not in session.states:
                session.notes[node_id] = words
        if lost.note_all is not None:
            lost.note_all(words)
        if session.id not in self._running:
            self._windows.tell(SessionChanged(session.view()))
