"""The workbench's members about turns that are alike (`ui.SimilarCommands`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from app.supervisor import Supervisor
from app.workbench.answers.streaming import Answers
from app.workbench.compare.similar_vectors import Vectors
from app.workbench.refusals import GONE
from app.workbench.sessions.open_sessions import Sessions
from app.workbench.setup.setups import Setups
from app.workbench.tree.reading import read
from storage import SessionStore
from ui import Event, OnCompared, Refusal, SessionChanged, SessionView, SimilarTurns, translate

if TYPE_CHECKING:
    from runtime import Pooling


class SimilarMembers(ABC):
    """See `ui.SimilarCommands`."""

    supervisor: Supervisor
    _store: SessionStore
    _sessions: Sessions
    _answers: Answers
    _setups: Setups
    _vectors: Vectors

    @abstractmethod
    def _tell(self, event: Event) -> None:
        """Tells the windows."""

    @abstractmethod
    def _refresh_status(self) -> None:
        """Tells the windows how the engine is."""

    async def similar_turns(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """A turn beside all others of its session."""
        from app.workbench.compare.similar import Looking  # the window opens without it

        looking = Looking(self._store, self.supervisor, self._setups.speaker, self._vectors)
        return await looking.look(self._sessions.opened(session_id), node_id, pooling, progress)

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        """A path through a turn, from before it on; another path than the one shown only where no answer is in work."""
        session = self._sessions.opened(session_id)
        if node_id not in session.tree.nodes:
            raise Refusal(translate("Workbench", GONE))
        if node_id not in session.tree.ends(session.tip):
            self._answers.check_idle(session_id)
            await self._sessions.move(session, node_id)
        session.step_back_to(node_id)
        await read(self._store, session, session.missing())
        view = session.view()
        self._tell(SessionChanged(view))
        self._refresh_status()
        return view
