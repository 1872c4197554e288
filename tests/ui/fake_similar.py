"""The part of the fake workbench that is about turns that are alike."""

from __future__ import annotations

from dataclasses import replace

from runtime import Pooling
from tests.ui.fake_base import FakeBase
from ui import ModelRefusal, OnCompared, SessionView, SimilarTurn, SimilarTurns


class FakeSimilar(FakeBase):
    """All other turns of the path, the last one first, and `elsewhere` behind them; in steps of a turn each."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[SimilarTurn] = []  # turns of other branches
        self.lacks_model = ""  # why none can be asked
        self.poolings: tuple[Pooling, ...] = ("mean", "last", "max")

    async def similar_turns(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        self._note("similar_turns", session_id, node_id, pooling)
        if self.lacks_model:
            raise ModelRefusal(self.lacks_model)
        turns = self.views[session_id].turns
        others = [turn for turn in reversed(turns) if turn.node_id != node_id]
        for done in range(len(others)):
            progress("comparing turns", done, len(others))
            await self._pass()
        here = [SimilarTurn(t.node_id, t.role, "".join(t.run.texts), 0.97 - 0.1 * i) for i, t in enumerate(others)]
        ids = {turn.node_id for turn in turns}
        rows = (*here, *(replace(row, on_path=row.node_id in ids) for row in self.elsewhere if row.node_id not in ids))
        said = next(turn for turn in turns if turn.node_id == node_id) if node_id in ids else turns[0]
        words = "".join(said.run.texts)
        return SimilarTurns(session_id, node_id, words, pooling, "SmolLM2 135M Instruct", rows, self.poolings, 4096)

    async def show_turn(self, session_id: int, node_id: int) -> SessionView:
        self._note("show_turn", session_id, node_id)
        view = self.views[session_id]
        at = next(i for i, turn in enumerate(view.turns) if node_id in turn.variants)
        turns = (*view.turns[:at], replace(view.turns[at], node_id=node_id))
        self.views[session_id] = replace(view, turns=turns)
        return self.views[session_id]
