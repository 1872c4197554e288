"""The part of the fake workbench that says something: answers, columns, previews."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from runtime import TokenRun
from tests.ui.fake_base import FakeBase
from tests.ui.spoken import run_of
from ui import (
    BeamRules,
    Column,
    ColumnKind,
    Columns,
    ColumnsChanged,
    ColumnTokens,
    EngineState,
    SessionChanged,
    SessionsChanged,
    StatusChanged,
    StatusView,
    Tier,
    TokensArrived,
    TurnChanged,
    TurnStats,
    TurnStatus,
    TurnView,
)


class FakeAnswers(FakeBase):
    """Says word by word what the test told it to; after `dies_after` words the engine dies."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: tuple[str, ...] = ("Because", " of", " the", " light", ".")
        self.dies_after: int | None = None
        self._stopped: set[int] = set()
        self.ways: tuple[tuple[str, ...], ...] = (
            (" Paris", " in", " spring", ",", " when", " the", " cafés", " put", " out", " their", " chairs", "."),
            (" Kyoto", " for", " the", " cherry", " trees", ":", " the", " river", " is", " pink", "."),
            (" the", " coast", ",", " where", " it", " is", " warm", " already", "."),
        )
        self.ghost: tuple[str, ...] = (" when", " it", " rains")

    def stop(self, session_id: int) -> None:
        self.calls.append(("stop", session_id))
        self._stopped.add(session_id)

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        self._note("continue_many", session_id, node_id, index, n)
        await self._columns(session_id, ColumnKind.DRAWS, n)

    async def beams(self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamRules | None = None) -> None:
        self._note("beams", session_id, node_id, index, width, rules)
        await self._columns(session_id, ColumnKind.BEAMS, width)

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        self._note("preview", session_id, node_id, index, token_id, most)
        await self._pass()
        return [word.encode() for word in self.ghost[:most]]

    def _change(self, session_id: int, turns: Sequence[TurnView]) -> None:
        self.views[session_id] = replace(self.views[session_id], turns=tuple(turns))
        self.emit(SessionChanged(self.views[session_id]))

    def _turn_change(self, session_id: int, turn: TurnView) -> None:
        turns = (*self.views[session_id].turns[:-1], turn)
        self.views[session_id] = replace(self.views[session_id], turns=turns)
        self.emit(TurnChanged(session_id, turn))

    async def _columns(self, session_id: int, kind: ColumnKind, n: int) -> None:
        """Each says its words one after the other; a stop ends all."""
        self._stopped.discard(session_id)
        view = Columns(session_id, kind, "… could visit", n, note="starting the engine…")
        self.emit(ColumnsChanged(session_id, view))
        columns = [Column(self.new_id(), run_of(self.vocabulary, [])) for _ in range(n)]
        if kind is ColumnKind.BEAMS:
            columns = [replace(column, score=-0.5 - i / 4) for i, column in enumerate(columns)]
        view = replace(view, note="", columns=tuple(columns))
        self.emit(ColumnsChanged(session_id, view))
        note = "reached the length limit"
        for i in range(max(len(words) for words in self.ways)):
            await self._pass()
            if session_id in self._stopped:
                note = "stopped"
                break
            for k, column in enumerate(columns):
                words = self.ways[k % len(self.ways)]
                if i >= len(words):
                    continue
                piece = run_of(self.vocabulary, [words[i]], [0.4 + (i * 5 + k * 3) % 9])
                run = TokenRun.concat([column.run, piece])
                columns[k] = replace(column, run=run, logprob=float(run.logprob.sum()))
                self.emit(ColumnTokens(session_id, column.node_id, piece, columns[k].logprob or 0.0))
            await asyncio.sleep(0)
        ended = tuple(replace(column, running=False, note=note) for column in columns)
        self.emit(ColumnsChanged(session_id, replace(view, columns=ended, running=False)))

    async def _stream(self, session_id: int, start: TokenRun | None = None, beside: tuple[int, ...] = ()) -> None:
        self._stopped.discard(session_id)
        node = self.new_id()
        run = start if start is not None else run_of(self.vocabulary, [])
        turn = TurnView(node, "assistant", run, TurnStatus.WAITING, (*beside, node))
        self._change(session_id, [*self.views[session_id].turns, turn])
        self.emit(SessionsChanged())
        status, note = TurnStatus.COMPLETE, ""
        for i, word in enumerate(self.answer):
            await self._pass()
            if session_id in self._stopped:
                status, note = TurnStatus.PARTIAL, "stopped"
                break
            if self.dies_after is not None and i >= self.dies_after:
                status, note = TurnStatus.PARTIAL, "engine stopped; your text is kept. Send again to restart it"
                self.emit(StatusChanged(StatusView(EngineState.DIED, "engine stopped; send again to restart it")))
                break
            piece = run_of(self.vocabulary, [word], [0.4 + i])
            run = TokenRun.concat([run, piece])
            streaming = replace(turn, run=run, status=TurnStatus.STREAMING)
            view = self.views[session_id]
            self.views[session_id] = replace(view, turns=(*view.turns[:-1], streaming))
            self.emit(TokensArrived(session_id, node, piece))
            await asyncio.sleep(0)
        stats = TurnStats(312, 1, 0.18, 41.0, float(run.logprob.sum()))
        self._turn_change(session_id, replace(turn, run=run, status=status, note=note, stats=stats, tier=Tier.WARM))
