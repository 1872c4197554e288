"""A workbench without an engine or a store: it keeps sessions in memory and says what the test tells it to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from runtime import Origin, TokenRun
from tests.ui.fake_answers import FakeAnswers
from tests.ui.fake_cache import FakeCache
from tests.ui.fake_models import FakeModels
from tests.ui.fake_second import FakeSecond
from tests.ui.fake_settings import FakeSettings
from tests.ui.fake_shelf import FakeShelf
from tests.ui.fake_similar import FakeSimilar
from tests.ui.fake_transfers import FakeTransfers
from tests.ui.spoken import run_of
from ui import (
    BackendChoice,
    Composition,
    Drawing,
    EngineState,
    Made,
    ModelChoice,
    SessionChanged,
    SessionSummary,
    SessionView,
    StatusView,
    TurnStatus,
    TurnView,
)

SAMPLE, TRIP = 1, 2


class FakeWorkbench(FakeModels, FakeSettings, FakeTransfers, FakeShelf, FakeCache, FakeSecond, FakeSimilar, FakeAnswers):
    """Satisfies `ui.port.Workbench`.

    `calls` records every command. `answer` is what the next answers say, word by word; `gate` (if set) is waited for
    before each word; `refusal` is raised by the next command; `dies_after` words the engine dies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.status = StatusView(EngineState.READY)
        self.closed = False
        self.drawn: Drawing | None = None
        self.row = np.log(np.full(4, 0.25, np.float32))
        self.before: dict[int, tuple[TurnView, ...]] = {}  # what `show_earlier` brings
        self.made: dict[int, Made] = {}  # by node
        self.engines = [BackendChoice("hf", "", True), BackendChoice("vllm", "not built yet", False)]
        self.choices = [
            ModelChoice("smollm2", "SmolLM2 135M Instruct", "135M · float32 · 513 MB", loaded=True),
            ModelChoice("qwen3", "Qwen3 0.6B", "0.6B · 4 bit · 335 MB", loaded=False),
        ]

    # ---- set-up ---------------------------------------------------------------------------------------------------

    def add(self, summary: SessionSummary, turns: Sequence[TurnView] = (), **more: object) -> None:
        """A session in the store."""
        self.summaries[summary.session_id] = summary
        view = SessionView(summary.session_id, summary.title, tuple(turns), (), is_sample=summary.is_sample)
        self.views[summary.session_id] = replace(view, **more)  # type: ignore[arg-type]  # fields by name

    def turn(self, role: str, words: Sequence[str], bits: Sequence[float] | None = None, **more: object) -> TurnView:
        """A finished turn with an id of its own."""
        node = self.new_id()
        origin = Origin.TYPED if role == "user" else Origin.SAMPLED
        turn = TurnView(node, role, run_of(self.vocabulary, words, bits, origin=origin), TurnStatus.COMPLETE, (node,))
        return replace(turn, **more)  # type: ignore[arg-type]  # fields by name

    # ---- the port -------------------------------------------------------------------------------------------------

    async def open_session(self, session_id: int) -> SessionView:
        self._note("open_session", session_id)
        return self.views[session_id]

    async def show_earlier(self, session_id: int) -> SessionView:
        self._note("show_earlier", session_id)
        view = self.views[session_id]
        self.views[session_id] = replace(view, turns=(*self.before.pop(session_id, ()), *view.turns), earlier=0)
        return self.views[session_id]

    async def send(self, session_id: int, text: str, replaces: int | None = None) -> None:
        self._note("send", session_id, text, *([] if replaces is None else [replaces]))
        user, before = self.turn("user", [text]), list(self.views[session_id].turns)
        if replaces is not None:
            before = before[: [turn.node_id for turn in before].index(replaces)]
            user = replace(user, variants=(replaces, user.node_id))
        self._change(session_id, [*before, user])
        await self._stream(session_id)

    async def branch(self, session_id: int, node_id: int, index: int, token_id: int) -> None:
        self._note("branch", session_id, node_id, index, token_id)
        turns = self.views[session_id].turns
        at = next(i for i, turn in enumerate(turns) if turn.node_id == node_id)
        picked = run_of(self.vocabulary, [self.vocabulary.bytes_of([token_id])[0].decode()], origin=Origin.PICKED)
        start = TokenRun.concat([turns[at].run[:index], picked])
        self._change(session_id, turns[:at])
        await self._stream(session_id, start, beside=turns[at].variants)

    async def regenerate(self, session_id: int, node_id: int) -> None:
        self._note("regenerate", session_id, node_id)

    async def regenerate_exactly(self, session_id: int, node_id: int) -> None:
        self._note("regenerate_exactly", session_id, node_id)

    def how_made(self, session_id: int, node_id: int) -> Made | None:
        return self.made.get(node_id)

    async def open_as_text(self, session_id: int, node_id: int) -> None:
        self._note("open_as_text", session_id, node_id)

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        self._note("continue_turn", session_id, node_id)

    async def select(self, session_id: int, node_id: int) -> SessionView:
        self._note("select", session_id, node_id)
        view = self.views[session_id]
        rows = tuple(replace(row, current=row.node_id == node_id) for row in view.branches)
        turns = tuple(replace(t, node_id=node_id) if node_id in t.variants else t for t in view.turns)
        self.views[session_id] = replace(view, branches=rows, turns=turns)
        return self.views[session_id]

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        self.calls.append(("compose", session_id, text, *([] if replaces is None else [replaces])))
        used = sum(len(turn.run) for turn in self.views[session_id].turns)
        return Composition(len(text.split()), None, used + len(text.split()), 8192)

    async def prune(self, session_id: int, node_id: int, start: int, pruned: bool) -> None:
        self._note("prune", session_id, node_id, start, pruned)
        view = self.views[session_id]
        rows = tuple(replace(r, pruned=pruned) if (r.node_id, r.start) == (node_id, start) else r for r in view.branches)
        self.views[session_id] = replace(view, branches=rows)
        self.emit(SessionChanged(self.views[session_id]))

    async def drawing(self, session_id: int, node_id: int, index: int) -> Drawing | None:
        self.calls.append(("drawing", session_id, node_id, index))
        return self.drawn

    async def whole_row(self, session_id: int, node_id: int, index: int) -> npt.NDArray[np.float32]:
        self._note("whole_row", session_id, node_id, index)
        return self.row

    async def models(self) -> Sequence[ModelChoice]:
        self._note("models")
        return self.choices

    async def choose_model(self, source: str) -> None:
        self._note("choose_model", source)
        self.choices = [replace(choice, loaded=choice.source == source) for choice in self.choices]

    def backends(self) -> Sequence[BackendChoice]:
        return self.engines

    async def choose_backend(self, name: str) -> None:
        self._note("choose_backend", name)
        self.engines = [replace(engine, chosen=engine.name == name) for engine in self.engines]

    def token_text(self, session_id: int, token_ids: Sequence[int]) -> Sequence[bytes]:
        return self.vocabulary.bytes_of(token_ids)

    async def close(self) -> bool:
        self.calls.append(("close",))
        self.closed = True
        return True
