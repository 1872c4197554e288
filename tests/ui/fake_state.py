"""The state of the fake workbench, which tests set and read: sessions, calls, and the answers of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from runtime import LensRun, Origin, Pooling
from tests.ui.spoken import Vocabulary, run_of
from ui import (
    BackendChoice,
    BranchDiff,
    CacheCheck,
    CacheView,
    ComparisonChoice,
    DataFacts,
    DiffPart,
    DiffSide,
    DownloadsChanged,
    DownloadView,
    Drawing,
    EdgeView,
    EngineState,
    Event,
    FitView,
    FolderView,
    HubFind,
    LoadChoice,
    Made,
    ModelChoice,
    ModelFacts,
    ModelPlan,
    Offer,
    OptionView,
    Refusal,
    SessionChanged,
    SessionSetup,
    SessionSummary,
    SessionView,
    SettingsView,
    ShelfModel,
    SimilarTurn,
    StatusView,
    TurnChanged,
    TurnDepth,
    TurnStatus,
    TurnView,
    WeightsForm,
)

HELD = CacheView(
    edges=4,
    tokens=313,
    bytes=14_400_000,
    budget=2_000_000_000,
    leases=2,
    leased_bytes=1_400_000,
    hits=7,
    misses=2,
    pins=0,
    working_bytes=0,
    found=312,
    ended="the text goes on otherwise here",
    largest=(EdgeView(" in April?", 40, 1_840_000, 1), EdgeView("<b>rains</b>\x1b[31m", 12, 552_000, 0, "poet × 0.5")),
)

FIT = FitView("hf", 8192, 1_200_000_000, 300_000_000, 700_000_000, 8_000_000_000, 5_000_000_000, 32_768)

PLAN = ModelPlan(
    repository="org/tiny",
    commit="4538886660382f4f1d1a",
    name="org/tiny@453888666038",
    files=[("config.json", 700), ("model.safetensors", 351_000_000)],
    size=351_000_700,
    disk=120_000_000_000,
    licence="apache-2.0",
    engines=("hf", "mlx"),
    context=40_960,
    fit=FIT,
)

QWEN = ComparisonChoice("qwen3", "hf", "Qwen3 <b>0.6B</b>", "0.6B · 4 bit · 335 MB")

NOW = ("kv_cache_bytes", "preset", "contrast", "motion", "scheme", "text_percent", "own_colours", "developer", "titles")

MODEL = ModelFacts(
    name="SmolLM2-135M-Instruct",
    fingerprint="3f2a9c51d07be8446a",
    architecture="LlamaForCausalLM",
    parameters=134_515_008,
    backend="hf",
    device="cpu",
    dtype="float32",
    context_length=8192,
    kv_bytes_per_token=46_080,
    warnings=("bfloat16 would be faster on this machine",),
)

DEFAULTS: dict[str, tuple[object, str]] = {
    "temperature": (0.8, "preset"),
    "top_k": (0, "default"),
    "top_p": (0.95, "preset"),
    "min_p": (0.05, "preset"),
    "typical_p": (1.0, "default"),
    "repetition_penalty": (1.1, "model"),
    "dry_multiplier": (0.0, "default"),
    "max_tokens": (1024, "preset"),
    "stop": ((), "default"),
    "seed": (None, "default"),
    "order": (("bias", "penalties", "temperature"), "default"),
    "logit_bias": ({}, "default"),
    "banned_tokens": ((), "default"),
}

IMPORTED = 2  # the session that every import returns

SAMPLE, TRIP = 1, 2

# requests that the window makes by itself: after a pause in a draft, when rows come into sight
ASKED_UNBIDDEN = frozenset(
    ("sessions", "models", "model_shelf", "tokenise", "tree", "row_texts", "earlier_texts", "turn_depth_cost")
)


class FakeState:
    """`calls` records every command.

    `answer` has the words of the next answers; `gate` (if set) is awaited before each word; `refusal` is raised by
    the next command of the user; after `dies_after` words the engine dies; `slow_checks` (if set) is awaited before
    a format is checked.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.refusal = ""
        self.gate: asyncio.Semaphore | None = None
        self.vocabulary = Vocabulary()
        self.surprises: dict[str, float] = {}  # bits of words of a draft; others have 3.1
        self.views: dict[int, SessionView] = {}
        self.bookmarks: set[tuple[int, int]] = set()  # rows of the tree
        self.summaries: dict[int, SessionSummary] = {}
        self._listeners: list[Callable[[Event], None]] = []
        self._next = 100
        self.answer: tuple[str, ...] = ("Because", " of", " the", " light", ".")
        self.dies_after: int | None = None
        self.cuts_answers = False  # at the maximum length of the request
        self.stopped: set[int] = set()
        self.ways: tuple[tuple[str, ...], ...] = (
            (" Paris", " in", " spring", ",", " when", " the", " cafés", " put", " out", " their", " chairs", "."),
            (" Kyoto", " for", " the", " cherry", " trees", ":", " the", " river", " is", " pink", "."),
            (" the", " coast", ",", " where", " it", " is", " warm", " already", "."),
        )
        self.ghost: tuple[str, ...] = (" when", " it", " rains")
        self.setups: dict[int, SessionSetup] = {}
        self.loaded: ModelFacts | None = MODEL
        self.slow_checks: asyncio.Event | None = None
        self.on_shelf = [
            ShelfModel(
                "smollm2", "SmolLM2-135M-Instruct", "/models/smollm2", 638_000_000, "float32, from GGUF", 8192, ("hf", "mlx"),
                fingerprint="f2f9db9051cdd5415756", loaded=True, convertible=True,
            ),
            ShelfModel(
                "org/qwen@abc", "org/qwen", "/models/org--qwen@abc", 335_000_000, "4 bit (mlx), download", 4096, ("mlx",)
            ),
        ]  # fmt: skip
        self.proposed = [
            Offer("SmolLM2 135M", "org/smol", 134_515_008, 269_000_000, "Apache-2.0", "trying things out", FIT),
            Offer("Qwen3 0.6B", "org/qwen3", 596_049_920, 1_192_000_000, "Apache-2.0", "thinking", FIT, best=True),
            Offer(
                "Llama 8B", "org/llama", 8_030_000_000, 16_060_000_000, "Llama 3.1", "long answers",
                replace(FIT, weights=32_000_000_000, longest=0), gated=True,
            ),
        ]  # fmt: skip
        self.plan = PLAN
        self.finds = [
            HubFind("org/tiny", "12 M parameters · 4 bit (mlx) · mit · 1,200 downloads last month"),
            HubFind("org/cuda", "7,000 M parameters · gptq", "its weights are quantised with gptq, which needs CUDA libraries"),
        ]
        self.shelf_fit: FitView | None = FIT
        self.forms: tuple[WeightsForm, ...] = (
            WeightsForm("float32"), WeightsForm("float16"), WeightsForm("int8", "27.93, float32 27.66 (+1.0 %)"),
        )  # fmt: skip
        self.set_weights = "auto"  # for all models
        self.gguf: tuple[int, int, bool, str] = (0, 538_000_000, False, "")  # of the next file: kept, float32, keeps, note
        self.own: dict[str, LoadChoice] = {}
        self.kept_token = ""
        self.problem = ""  # the finding of the next verification
        self.downloads: dict[str, DownloadView] = {}
        self.left_hints: frozenset[str] = frozenset()
        self.asking: asyncio.Event | None = None  # awaited by the hub
        self.held = SettingsView(
            choices={
                "backend": ["auto", "hf", "mlx"],
                "device": ["auto", "cpu"],
                "dtype": ["auto", "float32"],
                "weights": ["auto", "float16", "bfloat16", "int8", "int4"],
                "chat_format": ["auto", "none", "chatml"],
                "offload": ["none", "disk"],
                "draft_model": ["", "tiny"],
                "preset": ["", "greedy"],
            },
            data=DataFacts("/data/elsewise", 12_000_000, ["sessions.2026-11-21.db"]),
        )
        self.damage: Sequence[str] = ()
        self.slow_backup: asyncio.Event | None = None
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
        self.trash: set[int] = set()
        self.folder_views: dict[int, FolderView] = {}
        self.trie: CacheView | None = HELD
        self.check = CacheCheck(3.1e-6, 313, 49_152, same_first=True)
        self.comparison_choices = [
            ComparisonChoice("smollm2", "mlx", "SmolLM2 on mlx", problem="mlx is not here"),
            ComparisonChoice("smollm2", "hf", "SmolLM2 in bfloat16", adapters=(), dtype="bfloat16"),
            QWEN,
        ]
        self.keeps_model = False
        self.short_of_room = False
        self.by_bytes = False
        self.kl_from = 0
        self.wanted_all: list[bool] = []
        self.moved = (0.0, 0.5, -0.5, 1.5, -1.5, 4.0, -4.0)
        self.other_branches: list[SimilarTurn] = []
        self.unscored = 0  # tokens of a session
        self.lacks_model = ""  # the reason why no model can be used
        self.poolings: tuple[Pooling, ...] = ("mean", "last", "max")
        self.status = StatusView(EngineState.READY)
        self.closed = False
        self.drawn: Drawing | None = None
        self.layers: LensRun | None = None  # the result of `depth`
        self.turn_layers: TurnDepth | None = None  # the result of `turn_depth`, after a pause for each token
        self.row = np.log(np.full(4, 0.25, np.float32))
        self.before: dict[int, tuple[TurnView, ...]] = {}  # the turns that `show_earlier` adds
        self.gone: set[int] = set()  # nodes that cannot be selected any more
        self.paths: dict[int, tuple[TurnView, ...]] = {}  # paths replaced by another, by their last node
        self.made: dict[int, Made] = {}  # by node
        self.engines = [BackendChoice("hf", "", True), BackendChoice("vllm", "not built yet", False)]
        self.choices = [
            ModelChoice("smollm2", "SmolLM2 135M Instruct", "135M · float32 · 513 MB", loaded=True),
            ModelChoice("qwen3", "Qwen3 0.6B", "0.6B · 4 bit · 335 MB", loaded=False),
        ]

    def add(self, summary: SessionSummary, turns: Sequence[TurnView] = (), **more: object) -> None:
        """Adds a session to the store."""
        self.summaries[summary.session_id] = summary
        view = SessionView(summary.session_id, summary.title, tuple(turns), (), is_sample=summary.is_sample)
        self.views[summary.session_id] = replace(view, **more)

    def turn(self, role: str, words: Sequence[str], bits: Sequence[float] | None = None, **more: object) -> TurnView:
        """A finished turn with a new id."""
        node = self.new_id()
        origin = Origin.TYPED if role == "user" else Origin.SAMPLED
        turn = TurnView(node, role, run_of(self.vocabulary, words, bits, origin=origin), TurnStatus.COMPLETE, (node,))
        return replace(turn, **more)

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def new_id(self) -> int:
        self._next += 1
        return self._next

    def emit(self, event: Event) -> None:
        """Sends an event, as the app does."""
        for listener in self._listeners:
            listener(event)

    def asked(self, name: str) -> list[tuple[object, ...]]:
        """The arguments of every call of that name."""
        return [call[1:] for call in self.calls if call[0] == name]

    def note(self, *call: object) -> None:
        self.calls.append(call)
        if self.refusal and call[0] not in ASKED_UNBIDDEN:
            words, self.refusal = self.refusal, ""
            raise Refusal(words)

    async def pause(self) -> None:
        """Waits for the gate, if there is one."""
        if self.gate is not None:
            await self.gate.acquire()

    def change(self, session_id: int, turns: Sequence[TurnView]) -> None:
        self.views[session_id] = replace(self.views[session_id], turns=tuple(turns))
        self.emit(SessionChanged(self.views[session_id]))

    def change_turn(self, session_id: int, turn: TurnView) -> None:
        turns = (*self.views[session_id].turns[:-1], turn)
        self.views[session_id] = replace(self.views[session_id], turns=turns)
        self.emit(TurnChanged(session_id, turn))

    def show_download(self, view: DownloadView) -> None:
        """Sends an event with the state of one download."""
        self.downloads[view.repository] = view
        self.tell_downloads()

    def tell_downloads(self) -> None:
        self.emit(DownloadsChanged(tuple(self.downloads.values())))

    def held_setup(self, session_id: int) -> SessionSetup:
        options = [OptionView(name, value, source) for name, (value, source) in DEFAULTS.items()]
        fresh = SessionSetup(session_id, options=options, presets={"Elsewise's own": False, "greedy": False, "mine": True})
        fresh = replace(fresh, default_preset="greedy")
        return replace(self.setups.get(session_id, fresh), model=self.loaded)

    def keep_setup(self, session_id: int, **changes: object) -> SessionSetup:
        self.setups[session_id] = replace(self.held_setup(session_id), **changes)
        return self.held_setup(session_id)
