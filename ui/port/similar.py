"""The turns of a session in the order of how much they are like one of them, by what the model in use makes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ui.port.second import OnCompared
from ui.port.sessions import SessionView

if TYPE_CHECKING:
    from runtime import Pooling


@dataclass(frozen=True, slots=True)
class SimilarTurn:
    """One turn beside the one that was asked about.

    Attributes:
        node_id: Its last node.
        role: system, user, assistant, tool.
        words: The first of them, on one line.
        similarity: The cosine of the two turns' vectors, -1 to 1.
        on_path: Whether it is part of the path shown.
        branch: What its branch is called, where it is not.
        tokens: That it has, where only the first of them were compared; 0: all of it was.
    """

    node_id: int
    role: str
    words: str
    similarity: float
    on_path: bool = True
    branch: str = ""
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class SimilarTurns:
    """All turns that have words, the most similar first. Vectors are remembered in memory; nothing of it is saved.

    Attributes:
        session_id: Whose turns.
        node_id: The turn that the others were compared with.
        words: The first of its words.
        pooling: How vectors were made of hidden states.
        model: What the model is called that made them.
        rows: The other turns.
        poolings: What this model can be asked for.
        limit: Tokens that are compared of a turn.
        tokens: That the turn asked about has, where that is more; else 0.
        damaged: Turns that were left out since what is stored of them cannot be trusted.
        computed: Tokens that were pushed through the model for this, padding too; 0: all vectors were remembered.
    """

    session_id: int
    node_id: int
    words: str
    pooling: Pooling
    model: str
    rows: tuple[SimilarTurn, ...]
    poolings: tuple[Pooling, ...]
    limit: int
    tokens: int = 0
    damaged: int = 0
    computed: int = 0


class SimilarCommands(Protocol):
    """Turns that are alike. Every coroutine may raise `Refusal`."""

    async def similar_turns(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """Compares a turn with all others of its session, on all branches that are in sight; behind everything else.

        What the model made of a turn is remembered until the app ends: of the same text nothing is computed again. May be
        cancelled; what was made by then stays.

        Raises:
            ModelRefusal: No model can be asked: another one may be chosen.
        """

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        """Shows a path through a turn, the one that is shown if it is on it, from before that turn on."""
