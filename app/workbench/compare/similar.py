"""The turns of a session, sorted by similarity to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct

from app.faults import not_loaded
from app.supervisor import Supervisor
from app.workbench.compare.similar_vectors import TurnText, Vector, VectorCache, VectorMaker, limit_of, poolings_of, turn_texts
from app.workbench.refusals import GONE
from app.workbench.sessions.open_sessions import OpenSessions
from app.workbench.setup.session_adapters import AdaptedModel, Adapters
from app.workbench.setup.values import spoken_name
from app.workbench.tree.outline import outline
from app.workbench.tree.session import OpenSession
from runtime import EngineDiedError, MemoryBudgetError, RuntimeFault, UnsupportedFeatureError
from storage import SessionStore
from ui import ModelRefusal, OnCompared, Refusal, SimilarTurn, SimilarTurns, translate

if TYPE_CHECKING:
    from runtime import LanguageModel, Pooling

WORDS: Final = 160  # characters shown of a turn


class _Turns(Struct, frozen=True):
    chosen: TurnText
    others: Sequence[TurnText]
    damaged: int  # number of turns left out


@dataclass(eq=False, repr=False)
class SimilarSearch:
    """Compares a turn with the others of its session (`ui.port.SimilarCommands`)."""

    _store: SessionStore  # texts of turns
    _supervisor: Supervisor
    _sessions: OpenSessions
    _adapters: Adapters  # loads a session's adapters
    _vectors: VectorCache

    async def find(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        """Compares a turn with all others.

        Raises:
            ModelRefusal: No model can be loaded, or it cannot make vectors.
            Refusal: There is nothing to compare, or the engine ended: the vectors so far are cached.
        """
        session = self._sessions.opened(session_id)
        turns = await self._turns(session, node_id)
        adapted = await self._adapted_model(session, progress)
        comparing = translate("Workbench", "comparing turns")
        maker = VectorMaker(adapted, pooling, self._vectors, lambda done, total: progress(comparing, done, total))
        vectors = await self._vectors_of(turns, adapted.model, maker)
        on_path = set(session.tree.ends(session.tip))
        names = _branch_names(session, [one.node_id for one in turns.others if one.node_id not in on_path])
        rows = await asyncio.to_thread(_rows, turns, vectors, on_path, names)
        return SimilarTurns(
            session_id=session.id,
            node_id=node_id,
            words=_words(turns.chosen.text),
            pooling=pooling,
            model=spoken_name(adapted.model.info),
            rows=rows,
            poolings=poolings_of(adapted.model),
            limit=limit_of(adapted.model),
            tokens=vectors[node_id].tokens,
            damaged=turns.damaged,
            computed=maker.computed,
        )

    async def _turns(self, session: OpenSession, node_id: int) -> _Turns:
        if node_id not in session.tree.nodes:
            raise Refusal(translate("Workbench", GONE))
        if node_id in session.states:
            raise Refusal(translate("Workbench", "this turn is still being written; look again when it has ended"))
        chosen: TurnText | None = None
        others: list[TurnText] = []
        damaged = 0
        async for one in turn_texts(self._store, session):
            if one.node_id == node_id:
                chosen = one
            elif one.damaged:
                damaged += 1
            elif one.text.strip():
                others.append(one)
        if chosen is None:
            raise Refusal(translate("Workbench", GONE))
        if chosen.damaged:
            raise Refusal(translate("Workbench", "this turn is damaged: its text cannot be relied on. Choose another one"))
        if not chosen.text.strip():
            raise Refusal(translate("Workbench", "this turn has no words to compare. Choose another one"))
        if not others:
            raise Refusal(translate("Workbench", "no other turn has words yet: send a message, then look again"))
        return _Turns(chosen, others, damaged)

    async def _adapted_model(self, session: OpenSession, progress: OnCompared) -> AdaptedModel:
        if self._supervisor.running is None:
            progress(translate("Workbench", "starting the engine"), 0, 0)
        try:
            model = await self._supervisor.model()
        except EngineDiedError as fault:
            raise Refusal(not_loaded(fault)) from fault
        except RuntimeFault as fault:
            raise ModelRefusal(not_loaded(fault)) from fault
        try:
            return await self._adapters.adapted(session, model)
        except EngineDiedError as fault:
            await self._supervisor.died(model)
            raise Refusal(translate("Workbench", "the engine stopped; try again to restart it")) from fault
        except RuntimeFault as fault:
            raise Refusal(str(fault)) from fault

    async def _vectors_of(self, turns: _Turns, model: LanguageModel, maker: VectorMaker) -> Mapping[int, Vector]:
        try:
            return await maker.vectors([turns.chosen, *turns.others])
        except RuntimeFault as fault:
            if self._supervisor.running is not model:  # it was replaced, or another request noticed its end
                words = translate("Workbench", "the model was changed; try again to compare with the new one")
                raise Refusal(words) from fault
            if isinstance(fault, EngineDiedError):
                await self._supervisor.died(model)
                words = translate(
                    "Workbench", "the engine stopped; {0:,} of {1:,} turns are done and remembered. Try again to restart it"
                )
                raise Refusal(words.format(maker.done, 1 + len(turns.others))) from fault
            if isinstance(fault, UnsupportedFeatureError):
                raise ModelRefusal(str(fault)) from fault
            if isinstance(fault, MemoryBudgetError):  # drops its place in the batch
                words = translate("Workbench", "a turn is too long to be compared: {0}")
                raise Refusal(words.format(str(fault).rpartition("]: ")[2])) from fault
            raise Refusal(str(fault)) from fault


def _rows(
    turns: _Turns, vectors: Mapping[int, Vector], on_path: Collection[int], names: Mapping[int, str]
) -> tuple[SimilarTurn, ...]:
    """Rows sorted by cosine similarity (the vectors have length 1); blocking, any thread."""
    others = np.stack([vectors[one.node_id].values for one in turns.others])  # (n, hidden)
    cosines = np.clip(others @ vectors[turns.chosen.node_id].values, -1.0, 1.0)  # (n,)
    rows = [
        SimilarTurn(
            node_id=one.node_id,
            role=one.role,
            words=_words(one.text),
            similarity=float(cosine),
            on_path=one.node_id in on_path,
            branch=names.get(one.node_id, ""),
            tokens=vectors[one.node_id].tokens,
        )
        for one, cosine in zip(turns.others, cosines, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.similarity))  # stable: equal ones stay in time order


def _branch_names(session: OpenSession, node_ids: Sequence[int]) -> dict[int, str]:
    """The outline names of the branches of nodes, by node."""
    names = {
        row.node_id: row.name for row in outline(session.tree, session.tip, session.pruned)
    }  # a node in several rows has the name of its last part
    nodes, found = session.tree.nodes, {}
    for node_id in node_ids:
        climbed: list[int] = []
        at: int | None = node_id
        while at is not None and at not in names:
            climbed.append(at)
            at = nodes[at].parent_id
        name = "" if at is None else names[at]
        names.update(dict.fromkeys(climbed, name))
        found[node_id] = name
    return found


def _words(text: str) -> str:
    return " ".join(text[: 4 * WORDS].split())[:WORDS]
