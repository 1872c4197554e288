"""The fake workbench's answers: streamed word by word, as the test sets them; drafts, columns, draws, the cache."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from runtime import Finish, LensRun, Origin, Pooling, TokenRun
from tests.ui.fake_state import FakeState
from tests.ui.spoken import run_of
from ui import (
    BeamSearchRules,
    BranchAdded,
    CacheCheck,
    CacheView,
    Column,
    ColumnKind,
    Columns,
    ColumnsChanged,
    ColumnTokens,
    Composition,
    Drawing,
    EngineState,
    Made,
    ModelRefusal,
    OnCompared,
    OnTransfer,
    Refusal,
    SessionBegun,
    SessionsChanged,
    SimilarTurn,
    SimilarTurns,
    StatusChanged,
    StatusView,
    TextFile,
    Tier,
    TokensArrived,
    TurnDepth,
    TurnDepthCost,
    TurnStats,
    TurnStatus,
    TurnView,
)


class _Group:
    def __init__(self, bench: FakeState) -> None:
        self._bench = bench


class FakeAnswers(_Group):
    async def score(self, session_id: int, progress: OnTransfer) -> int:
        self._bench.note("score_session", session_id)
        for done in (50, 100):
            progress(done, 200)
            await self._bench.pause()
        return self._bench.unscored

    def stop(self, session_id: int) -> None:
        self._bench.calls.append(("stop", session_id))
        self._bench.stopped.add(session_id)

    async def answer_call(self, session_id: int, node_id: int, results: Sequence[str]) -> None:
        self._bench.note("answer_call", session_id, node_id, results)

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        self._bench.note("send", session_id, text, *([] if replaces is None else [replaces]))
        user, before = self._bench.turn("user", [text]), list(self._bench.views[session_id].turns)
        if replaces is not None:
            before = before[: [turn.node_id for turn in before].index(replaces)]
            user = replace(user, variants=(replaces, user.node_id))
            self._bench.emit(BranchAdded(session_id, self._bench.views[session_id].turns[-1].node_id, user.node_id))
        self._bench.change(session_id, [*before, user])
        await self._stream(session_id)
        if not before:
            self._bench.emit(SessionBegun(session_id))

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        self._bench.note("branch", session_id, node_id, index, token_id)
        turns = self._bench.views[session_id].turns
        at = next(i for i, turn in enumerate(turns) if turn.node_id == node_id)
        picked = run_of(self._bench.vocabulary, [self._bench.vocabulary.bytes_of([token_id])[0].decode()], origin=Origin.PICKED)
        start = TokenRun.concat([turns[at].run[:index], picked])
        self._bench.change(session_id, turns[:at])
        await self._stream(session_id, start, beside=turns[at].variants, left=turns[-1].node_id)

    async def write(self, session_id: int, node_id: int, index: int, text: str) -> None:
        self._bench.note("write", session_id, node_id, index, text)
        turns = self._bench.views[session_id].turns
        at = next(i for i, turn in enumerate(turns) if turn.node_id == node_id)
        start = TokenRun.concat([turns[at].run[:index], run_of(self._bench.vocabulary, [text], origin=Origin.TYPED)])
        self._bench.change(session_id, turns[:at])
        await self._stream(session_id, start, beside=turns[at].variants, left=turns[-1].node_id)

    async def tokenise(self, text: str) -> None:
        self._bench.note("tokenise", text)

    async def suggest_title(self, session_id: int) -> str:
        self._bench.note("suggest_title", session_id)
        return "A boat in Lisbon"

    async def regenerate(self, session_id: int, node_id: int) -> None:
        self._bench.note("regenerate", session_id, node_id)

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        self._bench.note("regenerate_exactly", session_id, node_id)

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        return self._bench.made.get(node_id)

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        self._bench.note("open_as_text", session_id, node_id)

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        self._bench.note("continue_turn", session_id, node_id)

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        return self._bench.vocabulary.bytes_of(token_ids)

    def find_tokens(self, session_id: int, text: str, most: int) -> Sequence[int]:
        return self._bench.vocabulary.ids_with(text)[:most]

    async def _stream(
        self, session_id: int, start: TokenRun | None = None, beside: tuple[int, ...] = (), left: int | None = None
    ) -> None:
        self._bench.stopped.discard(session_id)
        node = self._bench.new_id()
        run = start if start is not None else run_of(self._bench.vocabulary, [])
        if left is not None:
            self._bench.emit(BranchAdded(session_id, left, node))
        turn = TurnView(node, "assistant", run, TurnStatus.WAITING, (*beside, node))
        self._bench.change(session_id, [*self._bench.views[session_id].turns, turn])
        self._bench.emit(SessionsChanged())
        status, note = TurnStatus.COMPLETE, ""
        for i, word in enumerate(self._bench.answer):
            await self._bench.pause()
            if session_id in self._bench.stopped:
                status, note = TurnStatus.PARTIAL, "stopped"
                break
            if self._bench.dies_after is not None and i >= self._bench.dies_after:
                status, note = TurnStatus.PARTIAL, "engine stopped; your text is kept. Send again to restart it"
                self._bench.emit(StatusChanged(StatusView(EngineState.DIED, "engine stopped; send again to restart it")))
                break
            piece = run_of(self._bench.vocabulary, [word], [0.4 + i])
            if self._bench.cuts_answers and i == len(self._bench.answer) - 1:
                piece = dataclasses.replace(piece, finish=np.full_like(piece.finish, Finish.LENGTH))
                status, note = TurnStatus.PARTIAL, "reached the length limit"
            run = TokenRun.concat([run, piece])
            streaming = replace(turn, run=run, status=TurnStatus.STREAMING)
            view = self._bench.views[session_id]
            self._bench.views[session_id] = replace(view, turns=(*view.turns[:-1], streaming))
            self._bench.emit(TokensArrived(session_id, node, piece))
            await asyncio.sleep(0)
        stats = TurnStats(312, 1, 0.18, 41.0, float(run.logprob.sum()))
        self._bench.change_turn(session_id, replace(turn, run=run, status=status, note=note, stats=stats, tier=Tier.WARM))


class FakeDrafts(_Group):
    async def score(self, session_id: int, text: str, replaces: int | None = None) -> TokenRun | None:
        self._bench.calls.append(("score_draft", session_id, text))
        if self._bench.slow_checks is not None:
            await self._bench.slow_checks.wait()
        words = [word for word in re.split(r"(?=\s)", text) if word]
        return run_of(self._bench.vocabulary, words, [self._bench.surprises.get(word.strip(), 3.1) for word in words])

    async def read_file(self, path: str) -> TextFile:
        self._bench.note("read_file", path)
        data = Path(path).read_bytes()  # noqa: ASYNC240  # a test may wait for it
        if b"\0" in data:
            raise Refusal(f"{Path(path).name} is no text: byte {data.index(0)} of {len(data)} is 0")
        return TextFile(Path(path).name, data.decode())

    async def leave_out(self, session_id: int, text: str) -> int:
        self._bench.note("leave_out", session_id, text)
        return 2

    async def compose(self, session_id: int, text: str, replaces: int | None = None, files: Sequence[str] = ()) -> Composition:
        self._bench.calls.append(("compose", session_id, text, *([] if replaces is None else [replaces])))
        used = sum(len(turn.run) for turn in self._bench.views[session_id].turns)
        return Composition(
            len(text.split()), None, used + len(text.split()), 8192, files=tuple(len(file.split()) for file in files)
        )


class FakeContinuations(_Group):
    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        self._bench.note("continue_many", session_id, node_id, index, n)
        await self._columns(session_id, ColumnKind.DRAWS, n)

    async def beams(
        self, session_id: int, node_id: int, index: int | None, width: int, rules: BeamSearchRules | None = None
    ) -> None:
        self._bench.note("beams", session_id, node_id, index, width, rules)
        await self._columns(session_id, ColumnKind.BEAMS, width)

    async def _columns(self, session_id: int, kind: ColumnKind, n: int) -> None:
        """Streams the words of each column in turn; a stop ends all."""
        self._bench.stopped.discard(session_id)
        view = Columns(session_id, kind, "… could visit", n, note="starting the engine…")
        self._bench.emit(ColumnsChanged(session_id, view))
        columns = [Column(self._bench.new_id(), run_of(self._bench.vocabulary, [])) for _ in range(n)]
        if kind is ColumnKind.BEAMS:
            columns = [replace(column, score=-0.5 - i / 4) for i, column in enumerate(columns)]
        view = replace(view, note="", columns=tuple(columns))
        self._bench.emit(ColumnsChanged(session_id, view))
        note = "reached the length limit"
        for i in range(max(len(words) for words in self._bench.ways)):
            await self._bench.pause()
            if session_id in self._bench.stopped:
                note = "stopped"
                break
            for k, column in enumerate(columns):
                words = self._bench.ways[k % len(self._bench.ways)]
                if i >= len(words):
                    continue
                piece = run_of(self._bench.vocabulary, [words[i]], [0.4 + (i * 5 + k * 3) % 9])
                run = TokenRun.concat([column.run, piece])
                columns[k] = replace(column, run=run, logprob=float(run.logprob.sum()))
                self._bench.emit(ColumnTokens(session_id, column.node_id, piece, columns[k].logprob or 0.0))
            await asyncio.sleep(0)
        ended = tuple(replace(column, running=False, note=note) for column in columns)
        self._bench.emit(ColumnsChanged(session_id, replace(view, columns=ended, running=False)))


class FakeDrawings(_Group):
    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        self._bench.note("preview", session_id, node_id, index, token_id, most)
        await self._bench.pause()
        return [word.encode() for word in self._bench.ghost[:most]]

    async def find(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        self._bench.calls.append(("drawing", session_id, node_id, index))
        return self._bench.drawn

    async def depth(self, session_id: int, node_id: int, index: int, also: Sequence[int] = ()) -> LensRun:
        self._bench.note("depth", session_id, node_id, index, *also)
        assert self._bench.layers is not None
        return self._bench.layers

    async def turn_depth_cost(self, session_id: int, node_id: int) -> TurnDepthCost:
        self._bench.note("turn_depth_cost", session_id, node_id)
        return TurnDepthCost(412, 3100)

    async def turn_depth(self, session_id: int, node_id: int, on_progress: Callable[[int, int], None]) -> TurnDepth:
        self._bench.note("turn_depth", session_id, node_id)
        found = self._bench.turn_layers
        assert found is not None
        for done in range(1, len(found.leads) + 1):
            await self._bench.pause()
            on_progress(done, len(found.leads))
        return found

    async def whole_row(self, session_id: int, node_id: int, index: int, *, here: bool = False) -> npt.NDArray[np.float32]:
        self._bench.note("whole_row", session_id, node_id, index, *(["here"] if here else []))
        await self._bench.pause()
        return self._bench.row


class FakeSimilar(_Group):
    async def find(self, session_id: int, node_id: int, pooling: Pooling, progress: OnCompared) -> SimilarTurns:
        self._bench.note("similar_turns", session_id, node_id, pooling)
        if self._bench.lacks_model:
            raise ModelRefusal(self._bench.lacks_model)
        turns = self._bench.views[session_id].turns
        others = [turn for turn in reversed(turns) if turn.node_id != node_id]
        for done in range(len(others)):
            progress("comparing turns", done, len(others))
            await self._bench.pause()
        here = [SimilarTurn(t.node_id, t.role, "".join(t.run.texts), 0.97 - 0.1 * i) for i, t in enumerate(others)]
        ids = {turn.node_id for turn in turns}
        rows = (
            *here,
            *(replace(row, on_path=row.node_id in ids) for row in self._bench.other_branches if row.node_id not in ids),
        )
        said = next(turn for turn in turns if turn.node_id == node_id) if node_id in ids else turns[0]
        words = "".join(said.run.texts)
        return SimilarTurns(session_id, node_id, words, pooling, "SmolLM2 135M Instruct", rows, self._bench.poolings, 4096)


class FakeCache(_Group):
    def view(self, session_id: int) -> CacheView | None:
        self._bench.calls.append(("cache", session_id))
        return self._bench.trie

    async def clear(self) -> None:
        self._bench.note("clear_cache")
        assert self._bench.trie is not None
        self._bench.trie = replace(
            self._bench.trie, edges=0, tokens=0, bytes=0, leases=0, largest=(), pins=0, kept=None, ended=""
        )

    async def keep_path(self, session_id: int, keep: bool) -> None:
        self._bench.note("keep_path", session_id, keep)
        assert self._bench.trie is not None
        self._bench.trie = replace(self._bench.trie, pins=int(keep), kept=312 if keep else None)

    async def check_uncached(self, session_id: int) -> CacheCheck:
        self._bench.note("check_uncached", session_id)
        await self._bench.pause()
        return self._bench.check
