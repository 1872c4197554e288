"""The engine's state, loading a model into it, and its cache."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from ui.port.models import FitView
from ui.port.refusals import QT_TRANSLATE_NOOP, translate
from ui.port.turns import Tier


class EngineState(StrEnum):
    """What the engine is doing."""

    NONE = "none"  # no model chosen
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DIED = "died"


class Need(NamedTuple):
    """What a control needs of the model that runs, and what is said beside it where the model does not have that."""

    capability: str  # as `runtime.LanguageModel.lacks` names it
    words: str  # {0}: the model


NEEDS: Final = {  # by control
    "branch": Need("token_ids", QT_TRANSLATE_NOOP("Needs", "{0} returns no token ids, so a branch cannot start at a token.")),
    "beams": Need("beam_generate", QT_TRANSLATE_NOOP("Needs", "{0} has no beam search.")),
    "score": Need("scores", QT_TRANSLATE_NOOP("Needs", "{0} does not score texts.")),
    "draft": Need("kv", QT_TRANSLATE_NOOP("Needs", "{0} is on a server, to which nothing is sent before Send.")),
    "depth": Need("lens", QT_TRANSLATE_NOOP("Needs", "{0} is on a server, which does not show its layers.")),
    "cache": Need(
        "kv", QT_TRANSLATE_NOOP("Needs", "The KV of {0} is on its server: it cannot be pinned, cleared or checked from here.")
    ),
    "adapters": Need(
        "adapters",
        QT_TRANSLATE_NOOP(
            "Needs", "{0} is on a server, which takes no adapters from here. Connect to one that it has by its own name."
        ),
    ),
    "speculation": Need("speculative", QT_TRANSLATE_NOOP("Needs", "The server of {0} decides about speculation.")),
    "similar": Need("embed", QT_TRANSLATE_NOOP("Needs", "{0} makes no embeddings, which are needed to compare turns.")),
    "ban": Need("banned_tokens", QT_TRANSLATE_NOOP("Needs", "{0} cannot ban tokens.")),
    "server": Need("kv", QT_TRANSLATE_NOOP("Needs", "{0} is on a server: give other programs that server’s address.")),
}


def lacking(control: str, model: str, lacks: Collection[str]) -> str:
    """Why a control does nothing with this model; "" where it has what is needed."""
    need = NEEDS[control]
    return translate("Needs", need.words).format(model) if need.capability in lacks else ""


class StatusView(Struct, frozen=True):
    """The status bar."""

    engine: EngineState
    reason: str = ""  # plain words: "loading SmolLM2", "engine stopped; send again to restart it"
    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    reused: int | None = None  # prompt tokens found in the cache
    computed: int | None = None  # prompt tokens pushed through the model
    kv_bytes: int = 0
    kv_budget: int = 0
    tiers: Mapping[Tier, int] = {}  # turns of the shown path per tier
    disk_note: str = ""  # why KV is not kept on disk
    model: str = ""  # the name of the one that runs
    load_share: float = 0.0  # of the weights that a start under way has read, 0 to 1
    serving: str = ""  # where other programs can ask it; "" while the server is off
    lacks: frozenset[str] = frozenset()  # what models on this machine have and that one does not: see `NEEDS`
    written_by: str = ""  # that of the one that made the last answer of the path, where it is another one

    @property
    def lacks_model(self) -> bool:
        """Whether one was to be loaded and could not be: what needs one waits until another is chosen."""
        return self.engine is EngineState.NONE and bool(self.reason)

    def lacking(self, control: str) -> str:
        """Why a control does nothing with the model that runs; "" where it has what is needed."""
        return lacking(control, self.model, self.lacks)


class ModelChoice(Struct, frozen=True):
    """One model on the shelf."""

    source: str
    label: str
    detail: str  # "135M · float32 · 513 MB"
    loaded: bool  # it is the one in use
    last_used: float | None = None  # seconds since 1970


class BackendChoice(Struct, frozen=True):
    """One engine that can run models, or why it cannot."""

    name: str
    problem: str  # empty: it can run here
    chosen: bool


class LoadChoice(Struct, frozen=True):
    """What holds for one model alone, and is remembered with it; None and "auto": as the settings have it."""

    context: int | None = None  # tokens
    weights: str = "auto"  # float32, float16, bfloat16, int8, int4: of linear layers, on a processor (hf)


class WeightsForm(Struct, frozen=True):
    """A form that weights can be held in."""

    name: str  # as `LoadChoice.weights` has it
    cost: str = ""  # the perplexity of a fixed text with it and without; "" where it was not measured


class LoadPlan(Struct, frozen=True):
    """What loading a model of the shelf means."""

    choice: LoadChoice  # what it is reckoned for
    fit: FitView | None  # what it takes then; None where that is not known
    most: int | None = None  # tokens that the model was made for, where it says so
    forms: Sequence[WeightsForm] = ()  # that its weights can be held in here; empty where there is no choice
    set_context: int | None = None  # tokens that the settings have for every model; None: those that it was made for
    set_weights: str = "auto"  # the form that the settings have; "auto": the engine's own


class ModelCommands(Protocol):
    """Which model answers, on which engine, loaded how. Every coroutine may raise `Refusal`; none asks the network."""

    async def list(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""

    async def choose(self, source: str) -> None:
        """Loads another model from the next request on."""

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, registered ones too."""

    async def choose_backend(self, name: str) -> None:
        """Runs the model on another engine from the next request on."""

    async def stop_loading(self) -> None:
        """Ends the start that is under way, with the requests that wait for it; the next one loads the model again."""

    async def reload(self) -> None:
        """Loads the model anew with what is set."""

    async def grow_context(self) -> None:
        """Loads the model with all the context it has, from the next request on."""

    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        """What loading a model of the shelf takes: with a choice, or with the one that is remembered with it."""

    async def open(self, name: str, choice: LoadChoice) -> None:
        """Remembers the choice with the model, and takes it from the next request on."""

    async def remember_context(self, name: str, context: int) -> None:
        """A model, here or to be fetched, is loaded with so many tokens from its next start on; others are as they were."""


class EdgeView(Struct, frozen=True):
    """One edge of the trie: its last words, its tokens, its bytes, how many running requests hold it, and its adapters."""

    tail: str
    tokens: int
    bytes: int
    leases: int
    adapters: str = ""  # which it was computed under, in words; empty for the model alone


class CacheView(Struct, frozen=True):
    """The trie at one moment, and what it has of the path that is shown."""

    edges: int
    tokens: int
    bytes: int
    budget: int
    leases: int  # held by running requests, pins among them
    leased_bytes: int
    hits: int  # lookups that found something; `misses` those that found nothing
    misses: int
    pins: int
    working_bytes: int  # of prompts and answers in work, beside `bytes`
    found: int  # tokens that the last request found
    ended: str  # why its prefix ended there; "" where none was asked for
    kept: int | None = None  # tokens at the beginning of the path shown that are pinned; None where it is not pinned
    largest: tuple[EdgeView, ...] = ()  # the edges with the most bytes


class CacheCheck(Struct, frozen=True):
    """What the cache answers beside what the model answers without it."""

    difference: float  # the largest |difference| of all log-probabilities, nats
    tokens: int  # of the path, that both had before them
    entries: int  # of the vocabulary
    same_first: bool  # both have the same token in the first place


class CacheCommands(Protocol):
    """The cache of the model that runs. Every coroutine may raise `Refusal`."""

    def view(self, session_id: int) -> CacheView | None:
        """As the engine last told; None where no model runs. Makes no request."""

    async def clear(self) -> None:
        """Drops all KV in memory, that of pinned paths too; what running answers hold goes when they end."""

    async def keep_path(self, session_id: int, keep: bool) -> None:
        """Keeps what is held of the path that is shown in memory, or lets it go; other text does not push it out."""

    async def check_uncached(self, session_id: int) -> CacheCheck:
        """Asks the model for what follows the path that is shown twice: from the cache, and computed anew without it."""
