"""A workbench without an engine or a store: it keeps sessions in memory and says what the test tells it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from runtime import Finish, Origin, TokenRun
from tests.ui.fake_settings import FakeSettings
from tests.ui.fake_setup import FakeSetups
from tests.ui.fake_transfers import FakeTransfers
from ui import (
    BackendChoice,
    BranchDiff,
    BranchRow,
    Column,
    ColumnKind,
    Columns,
    ColumnsChanged,
    ColumnTokens,
    Composition,
    DiffPart,
    DiffSide,
    Drawing,
    EngineState,
    Event,
    ExportKind,
    FolderView,
    ImportResult,
    Made,
    ModelChoice,
    OnTransfer,
    Refusal,
    SessionChanged,
    SessionsChanged,
    SessionSummary,
    SessionView,
    StatusChanged,
    StatusView,
    Tier,
    TokensArrived,
    TrashedSession,
    TurnChanged,
    TurnStats,
    TurnStatus,
    TurnView,
)

OTHERS = (" Paris", " Rome", " Lisbon", " Kyoto", " Prague", " a", " the", " our", " some", " Oslo")
SHARES = (0.412, 0.221, 0.098, 0.061, 0.044, 0.032, 0.029, 0.02, 0.015, 0.01)
SAMPLE, TRIP = 1, 2


class Vocabulary:
    """Ids for words as they come; the alternatives have the first ones."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        for word in OTHERS:
            self.id_of(word)

    def id_of(self, word: str) -> int:
        return self._ids.setdefault(word, 1000 + len(self._ids))

    def bytes_of(self, ids: Sequence[int]) -> list[bytes]:
        known = {token_id: word.encode() for word, token_id in self._ids.items()}
        return [known.get(token_id, b"") for token_id in ids]


def run_of(
    vocabulary: Vocabulary, words: Sequence[str], bits: Sequence[float] | None = None, *, origin: Origin = Origin.SAMPLED
) -> TokenRun:
    """Tokens with a surprisal in bits each; the ten alternatives are always the same cities."""
    n = len(words)
    plain = TokenRun.unscored([vocabulary.id_of(w) for w in words], [w.encode() for w in words], words, origin)
    surprise = np.array(bits if bits is not None else [0.3] * n, np.float32)
    top = np.array([[vocabulary.id_of(w) for w in OTHERS]] * n, np.int32).reshape(n, len(OTHERS))
    return replace(
        plain,
        logprob=(-surprise * np.log(2)).astype(np.float32),
        rank=np.array([_rank(word, b) for word, b in zip(words, surprise, strict=True)], np.int32),
        entropy=(surprise * 0.5 + 0.4).astype(np.float32),
        top_ids=top,
        top_logprobs=np.log(np.array([SHARES] * n, np.float32)).reshape(n, len(OTHERS)),
        covered_mass=np.full(n, sum(SHARES), np.float32),
        draw=np.full(n, 0.783 if origin is Origin.SAMPLED else np.nan, np.float32),
    )


def _rank(word: str, bits: float) -> int:
    return OTHERS.index(word) + 1 if word in OTHERS else 1 + int(bits)


def ended(run: TokenRun, finish: Finish) -> TokenRun:
    """The same run, its last token carrying why it ended."""
    marks = run.finish.copy()
    marks[-1:] = int(finish)
    return replace(run, finish=marks)


class FakeWorkbench(FakeSetups, FakeSettings, FakeTransfers):
    """Satisfies `ui.port.Workbench`.

    `calls` records every command. `answer` is what the next answers say, word by word; `gate` (if set) is waited for
    before each word; `refusal` is raised by the next command; `dies_after` words the engine dies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.status = StatusView(EngineState.READY)
        self.answer: tuple[str, ...] = ("Because", " of", " the", " light", ".")
        self.gate: asyncio.Semaphore | None = None
        self.refusal = ""
        self.dies_after: int | None = None
        self.closed = False
        self.vocabulary = Vocabulary()
        self.drawn: Drawing | None = None
        self.row = np.log(np.full(4, 0.25, np.float32))
        self.ways: tuple[tuple[str, ...], ...] = (
            (" Paris", " in", " spring", ",", " when", " the", " cafés", " put", " out", " their", " chairs", "."),
            (" Kyoto", " for", " the", " cherry", " trees", ":", " the", " river", " is", " pink", "."),
            (" the", " coast", ",", " where", " it", " is", " warm", " already", "."),
        )
        self.ghost: tuple[str, ...] = (" when", " it", " rains")
        self.views: dict[int, SessionView] = {}
        self.summaries: dict[int, SessionSummary] = {}
        self.before: dict[int, tuple[TurnView, ...]] = {}  # what `show_earlier` brings
        self.trash: set[int] = set()
        self.made: dict[int, Made] = {}  # by node
        self.shelf: dict[int, FolderView] = {}
        self.engines = [BackendChoice("hf", "", True), BackendChoice("vllm", "not built yet", False)]
        self.choices = [
            ModelChoice("smollm2", "SmolLM2 135M Instruct", "135M · float32 · 513 MB", loaded=True),
            ModelChoice("qwen3", "Qwen3 0.6B", "0.6B · 4 bit · 335 MB", loaded=False),
        ]
        self._listener: Callable[[Event], None] = lambda _event: None
        self._stopped: set[int] = set()
        same, more = DiffSide(" in the rain", 3, -1.5), DiffSide(" of 上海 🌧 עברית", 6, None)
        parts = (
            DiffPart(False, DiffSide(" Lisbon", 1, -3.25), DiffSide(" Paris", 1, -0.8)),
            DiffPart(True, same, same),
            DiffPart(False, DiffSide("", 0, None), more),
        )
        stem = DiffSide("Where should we go?\nWe could visit", 12, -20.0)
        self.diff = BranchDiff(
            "Lisbon <b>when</b> it rains", "Paris", stem, parts, DiffSide("", 4, -4.75), DiffSide("", 10, -2.3)
        )
        self._next = 100

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

    def new_id(self) -> int:
        self._next += 1
        return self._next

    def emit(self, event: Event) -> None:
        """News, as the app would tell it."""
        self._listener(event)

    def asked(self, name: str) -> list[tuple[object, ...]]:
        """The arguments of every call of that name."""
        return [call[1:] for call in self.calls if call[0] == name]

    # ---- the port -------------------------------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listener = listener

    async def sessions(self, query: str = "") -> Sequence[SessionSummary]:
        self._note("sessions", query)
        held = [s for s in self.summaries.values() if s.session_id not in self.trash and query.lower() in s.title.lower()]
        return sorted(held, key=lambda s: (not s.pinned, -s.updated))

    async def open_session(self, session_id: int) -> SessionView:
        self._note("open_session", session_id)
        return self.views[session_id]

    async def folders(self) -> Sequence[FolderView]:
        return list(self.shelf.values())

    async def create_folder(self, name: str) -> int:
        self._note("create_folder", name)
        folder = FolderView(self.new_id(), name)
        self.shelf[folder.folder_id] = folder
        return folder.folder_id

    async def rename_folder(self, folder_id: int, name: str) -> None:
        self._note("rename_folder", folder_id, name)
        self.shelf[folder_id] = FolderView(folder_id, name)

    async def remove_folder(self, folder_id: int) -> None:
        self._note("remove_folder", folder_id)
        del self.shelf[folder_id]

    async def move_session(self, session_id: int, folder_id: int | None) -> None:
        self._note("move_session", session_id, folder_id)
        self.summaries[session_id] = replace(self.summaries[session_id], folder_id=folder_id)

    async def tag_session(self, session_id: int, tags: Sequence[str]) -> None:
        self._note("tag_session", session_id, *tags)
        self.summaries[session_id] = replace(self.summaries[session_id], tags=tuple(tags))

    async def arrange_sessions(self, session_ids: Sequence[int]) -> None:
        self._note("arrange_sessions", *session_ids)

    async def trashed_sessions(self) -> Sequence[TrashedSession]:
        return [TrashedSession(each, self.summaries[each].title, 30) for each in sorted(self.trash)]

    async def empty_trash(self, session_ids: Sequence[int]) -> int:
        self._note("empty_trash", *session_ids)
        for each in session_ids:
            self.trash.discard(each)
            del self.summaries[each]
        return len(session_ids)

    async def show_earlier(self, session_id: int) -> SessionView:
        self._note("show_earlier", session_id)
        view = self.views[session_id]
        self.views[session_id] = replace(view, turns=(*self.before.pop(session_id, ()), *view.turns), earlier=0)
        return self.views[session_id]

    async def new_session(self) -> SessionView:
        self._note("new_session")
        view = SessionView(self.new_id(), "", (), ())
        self.views[view.session_id] = view
        return view

    async def rename_session(self, session_id: int, title: str) -> None:
        self._note("rename_session", session_id, title)
        self.summaries[session_id] = replace(self.summaries[session_id], title=title)

    async def pin_session(self, session_id: int, pinned: bool) -> None:
        self._note("pin_session", session_id, pinned)
        self.summaries[session_id] = replace(self.summaries[session_id], pinned=pinned)

    async def trash_session(self, session_id: int) -> bool:
        self._note("trash_session", session_id)
        self.trash.add(session_id)
        turns = self.views[session_id].turns
        return bool(turns) and turns[-1].status is TurnStatus.STREAMING

    async def restore_session(self, session_id: int) -> None:
        self._note("restore_session", session_id)
        self.trash.discard(session_id)

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

    async def continue_turn(self, session_id: int, node_id: int) -> None:
        self._note("continue_turn", session_id, node_id)

    async def select(self, session_id: int, node_id: int) -> SessionView:
        self._note("select", session_id, node_id)
        view = self.views[session_id]
        rows = tuple(replace(row, current=row.node_id == node_id) for row in view.branches)
        turns = tuple(replace(t, node_id=node_id) if node_id in t.variants else t for t in view.turns)
        self.views[session_id] = replace(view, branches=rows, turns=turns)
        return self.views[session_id]

    def stop(self, session_id: int) -> None:
        self.calls.append(("stop", session_id))
        self._stopped.add(session_id)

    async def compose(self, session_id: int, text: str, replaces: int | None = None) -> Composition:
        self.calls.append(("compose", session_id, text, *([] if replaces is None else [replaces])))
        used = sum(len(turn.run) for turn in self.views[session_id].turns)
        return Composition(len(text.split()), None, used + len(text.split()), 8192)

    async def continue_many(self, session_id: int, node_id: int, index: int | None, n: int) -> None:
        self._note("continue_many", session_id, node_id, index, n)
        await self._columns(session_id, ColumnKind.DRAWS, n)

    async def beams(self, session_id: int, node_id: int, index: int | None, width: int) -> None:
        self._note("beams", session_id, node_id, index, width)
        await self._columns(session_id, ColumnKind.BEAMS, width)

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

    async def preview(self, session_id: int, node_id: int, index: int, token_id: int, most: int) -> Sequence[bytes]:
        self._note("preview", session_id, node_id, index, token_id, most)
        if self.gate is not None:
            await self.gate.acquire()
        return [word.encode() for word in self.ghost[:most]]

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

    async def export_session(self, session_id: int, kind: ExportKind, path: Path, progress: OnTransfer) -> None:
        self._note("export_session", session_id, kind, path)
        await self._transferred(progress)

    async def import_file(self, path: Path, progress: OnTransfer) -> ImportResult:
        self._note("import_file", path)
        await self._transferred(progress)
        return ImportResult((TRIP,), ("2 things were left out",), path.name.endswith(".kv.elsewise"))

    async def take_kv(self, session_ids: Sequence[int], path: Path, progress: OnTransfer) -> int:
        self._note("take_kv", session_ids, path)
        await self._transferred(progress)
        return 1234

    async def _transferred(self, progress: OnTransfer) -> None:
        for done in range(3):
            if self.gate is not None:
                await self.gate.acquire()
            progress(done + 1, 3)

    async def compare(self, session_id: int, left: int, right: int) -> BranchDiff:
        self._note("compare", session_id, left, right)
        return self.diff

    async def close(self) -> None:
        self.calls.append(("close",))
        self.closed = True

    # ---- how it answers -------------------------------------------------------------------------------------------

    def _note(self, *call: object) -> None:
        self.calls.append(call)
        if self.refusal and call[0] not in ("sessions", "models"):
            words, self.refusal = self.refusal, ""
            raise Refusal(words)

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
            if self.gate is not None:
                await self.gate.acquire()
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
            if self.gate is not None:
                await self.gate.acquire()
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


def spring_trip(now: float) -> FakeWorkbench:
    """The scene of the drawing: a pinned session with branches, a few others, a busy engine."""
    bench = FakeWorkbench()
    where = bench.turn("user", ["Where", " should", " we", " go", " in", " April", "?"], [1, 0.2, 0.1, 0.2, 2, 3.5, 0.1])
    words = "You| could| visit| Lisbon| when| it| rains|:| the| trams| are| empty|,| the| tiles| shine|,| and| every| second"
    words += "| bakery| has| a| window| seat|."
    bits = [0.2, 1, 2, 8.4, 2, 0.2, 3.6, 0.1, 1, 2, 0.3, 6, 0.1, 0.2, 1, 4, 0.1, 0.2, 1, 2, 6, 0.2, 0.2, 2, 4, 0.1]
    visit = bench.turn("assistant", words.split("|"), bits, tier=Tier.WARM, stats=TurnStats(312, 1, 0.18, 41.0, -23.9))
    visit = replace(visit, variants=(41, visit.node_id, 43))
    why = bench.turn("user", ["Why", " there", "?"], [0.3, 3.5, 0.1], tier=Tier.DISK)
    late = ["Because", " the", " city", " is", " built", " for", " slow", " mornings"]
    last = bench.turn("assistant", late, [0.2, 2, 1, 0.2, 4, 0.2, 5.5, 2], status=TurnStatus.STREAMING)
    rows = (
        BranchRow(where.node_id, 0, "", "Where should we go?", None, on_path=True, current=False),
        BranchRow(41, 1, "… visit", "Paris in spring", -18.2, on_path=False, current=False),
        BranchRow(visit.node_id, 1, "… visit", "Lisbon when it rains", -23.9, on_path=True, current=True),
        BranchRow(51, 2, "", "Why? → The light there", -31.0, on_path=False, current=False),
        BranchRow(52, 2, "", "Why? → Because few people", -29.4, on_path=True, current=False),
        BranchRow(43, 1, "", "… visit Rome", -20.7, on_path=False, current=False),
    )
    day = 86400.0
    bench.add(
        SessionSummary(TRIP, "A spring trip", now, 3, pinned=True, is_sample=False),
        [replace(where, tier=Tier.WARM), visit, why, last],
        branches=rows,
        branch_name="rainy ending",
        context_used=372,
    )
    for session_id, (title, age, branches) in enumerate(
        [
            ("Why proofs by contradiction", 60.0, 2),
            ("Names for a small boat", 90.0, 8),
            ("Recipe without an oven", 2 * day, 1),
            ("Letter to the council", 3 * day, 4),
        ],
        start=3,
    ):
        bench.add(SessionSummary(session_id, title, now - age, branches, pinned=False, is_sample=False))
    tiers = {Tier.WARM: 3, Tier.DISK: 1, Tier.COLD: 1}
    bench.status = StatusView(EngineState.READY, "", 41.0, 0.18, 312, 1, 14_000_000, 2_000_000_000, tiers)
    return bench
