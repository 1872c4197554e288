"""An engine that died under an answer: the session is opened again from what is on the disk, once, and says so."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.faults import not_loaded
from app.supervisor import Supervisor
from app.workbench.answer import Answer
from app.workbench.chores import Chores
from app.workbench.session import OpenSession
from app.workbench.sessions import Sessions
from app.workbench.setup.setups import Setups
from runtime import EngineDiedError, RuntimeFault
from ui import Event, Refusal, SessionChanged

log = logging.getLogger(__name__)
UNDER_WAY = "engine stopped; your text is kept. Starting it again, and reading this session anew…"
DONE = "engine stopped; it was started again, and this session was reopened from its text: go on where it stopped"
AGAIN = "engine stopped, and stopped again while this session was reopened; your text is kept. Send again to restart it"


class Reopening:
    """Starts an engine anew for the session whose answer it took down. All members belong to the window's loop.

    Args:
        sessions: The open sessions.
        supervisor: Starts the engine.
        setups: Know the adapters of a session.
        chores: Take what nobody waits for.
        busy: Whether an answer is in work in a session: that one starts the engine by itself.
        tell: Takes events for the window.
    """

    def __init__(
        self,
        sessions: Sessions,
        supervisor: Supervisor,
        setups: Setups,
        chores: Chores,
        busy: Callable[[int], bool],
        tell: Callable[[Event], None],
    ) -> None:
        self._sessions = sessions
        self._supervisor = supervisor
        self._setups = setups
        self._chores = chores
        self._busy = busy
        self._tell = tell
        self._tried: set[int] = set()  # sessions that were reopened, and in which nothing has gone well since

    def after(self, answer: Answer) -> None:
        """An answer has ended; where the engine died under it, its session is reopened soon, unless it was just before."""
        session_id = answer.session.id
        if answer.finish != "engine_died":
            self._tried.discard(session_id)
        elif answer.model is not None and session_id not in self._tried:  # else the engine died while it was loaded
            self._tried.add(session_id)
            self._chores.start(self._reopen(answer.session, answer.node_id), f"reopen session {session_id}")

    async def _reopen(self, session: OpenSession, node_id: int) -> None:
        self._say(session, node_id, UNDER_WAY)
        model = None
        try:
            model = await self._supervisor.model()
            speaker = await self._setups.speaker(session, model)
            ids = session.path_ids(session.tree.path(node_id))
            if 0 < len(ids) <= model.info.context_length:
                await model.cache_kv_async(ids, adapters=speaker.adapters)
        except EngineDiedError as fault:
            if model is not None:
                await self._supervisor.died(model)
            self._say(session, node_id, AGAIN if model is not None else not_loaded(fault))
        except (RuntimeFault, Refusal) as fault:
            log.info("session %d was not reopened: %s", session.id, fault)
            self._say(session, node_id, f"engine stopped, and this session could not be reopened: {fault}")
        else:
            await self._sessions.find_warm(session)
            self._say(session, node_id, DONE)

    def _say(self, session: OpenSession, node_id: int, words: str) -> None:
        """Under the turn, where it still stands."""
        if node_id not in session.tree.nodes or node_id in session.states:
            return
        session.notes[node_id] = words
        if not self._busy(session.id):
            self._tell(SessionChanged(session.view()))
