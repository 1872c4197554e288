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
    """A capability of the model that a control needs, and the words shown if the model lacks it."""

    capability: str  # as `runtime.LanguageModel.lacks` names it
    words: str  # {0}: the model's name


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
    """Why a control is disabled with this model; "" if it is not."""
    need = NEEDS[control]
    return translate("Needs", need.words).format(model) if need.capability in lacks else ""


class StatusView(Struct, frozen=True):
    """What the status bar shows of the engine, its KV and its answer."""

    engine: EngineState
    reason: str = ""  # plain words: "loading SmolLM2", "engine stopped; send again to restart it"
    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    reused: int | None = None  # prompt tokens found in the cache
    computed: int | None = None  # prompt tokens pushed through the model
    kv_bytes: int = 0
    kv_budget: int = 0
    tiers: Mapping[Tier, int] = {}  # turns of the shown path per tier
    disk_note: str = ""  # why KV is not stored on disk
    model: str = ""  # the name of the running model
    load_share: float = 0.0  # of the weights read while a model is loading, 0 to 1
    serving: str = ""  # the server's address; "" while the server is off
    lacks: frozenset[str] = frozenset()  # capabilities that the running model lacks: see `NEEDS`
    written_by: str = ""  # the name of the model of the path's last answer, if it is another one

    @property
    def lacks_model(self) -> bool:
        """Whether a model failed to load: commands that need one are disabled until another is chosen."""
        return self.engine is EngineState.NONE and bool(self.reason)

    def lacking(self, control: str) -> str:
        """Why a control is disabled with the running model; "" if it is not."""
        return lacking(control, self.model, self.lacks)


class ModelChoice(Struct, frozen=True):
    """One model on the shelf."""

    source: str
    label: str
    detail: str  # "135M · float32 · 513 MB"
    loaded: bool  # is the model in use
    last_used: float | None = None  # seconds since 1970


class BackendChoice(Struct, frozen=True):
    """One engine that can run models, or the reason why it cannot."""

    name: str
    problem: str  # "": it can run here
    chosen: bool


class LoadChoice(Struct, frozen=True):
    """The load options stored with one model; None and "auto" mean those of the settings."""

    context: int | None = None  # tokens
    weights: str = "auto"  # float32, float16, bfloat16, int8, int4: of linear layers, on a processor (hf)


class WeightsForm(Struct, frozen=True):
    """A form that weights can be held in."""

    name: str  # as in `LoadChoice.weights`
    cost: str = ""  # the perplexity of a fixed text with and without it; "" if not measured


class LoadPlan(Struct, frozen=True):
    """What loading a model of the shelf takes."""

    choice: LoadChoice  # the options of this plan
    fit: FitView | None  # the memory needed; None if unknown
    most: int | None = None  # tokens that the model was made for; None if unknown
    forms: Sequence[WeightsForm] = ()  # available for its weights here; empty if there is no choice
    set_context: int | None = None  # tokens in the settings, for every model; None: those that it was made for
    set_weights: str = "auto"  # the form in the settings; "auto": the engine's own


class ModelCommands(Protocol):
    """The model in use, its engine and load options. Every coroutine may raise `Refusal`; none uses the network."""

    async def list(self) -> Sequence[ModelChoice]:
        """The models on the shelf."""

    async def choose(self, source: str) -> None:
        """Loads another model from the next request on."""

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, registered ones too."""

    async def choose_backend(self, name: str) -> None:
        """Runs the model on another engine from the next request on."""

    async def stop_loading(self) -> None:
        """Stops the loading under way and the requests that wait for it; the next request loads the model again."""

    async def reload(self) -> None:
        """Loads the model again with the present settings."""

    async def grow_context(self) -> None:
        """Loads the model with its whole context, from the next request on."""

    async def load_plan(self, name: str, choice: LoadChoice | None = None) -> LoadPlan:
        """What loading a model of the shelf takes, with `choice` or the stored one."""

    async def open(self, name: str, choice: LoadChoice) -> None:
        """Stores the choice with the model, and uses the model from the next request on."""

    async def remember_context(self, name: str, context: int) -> None:
        """Stores the context length of one model, on the shelf or not downloaded yet; used from its next start on."""


class EdgeView(Struct, frozen=True):
    """One edge of the trie: its last words, tokens, bytes, leases of running requests, and adapters."""

    tail: str
    tokens: int
    bytes: int
    leases: int
    adapters: str = ""  # that it was computed with, in words; "" for the base model


class CacheView(Struct, frozen=True):
    """The trie at one moment, and what it has of the path shown."""

    edges: int
    tokens: int
    bytes: int
    budget: int
    leases: int  # of running requests and pins
    leased_bytes: int
    hits: int  # lookups that found something; `misses`: that found nothing
    misses: int
    pins: int
    working_bytes: int  # of running prompts and answers, not part of `bytes`
    found: int  # tokens that the last request found
    ended: str  # why the prefix found ended there; "" without a request
    kept: int | None = None  # pinned tokens at the beginning of the path shown; None if it is not pinned
    largest: tuple[EdgeView, ...] = ()  # the edges with the most bytes


class CacheCheck(Struct, frozen=True):
    """The comparison of the model's results with and without the cache."""

    difference: float  # the largest |difference| of all log-probabilities, nats
    tokens: int  # of the path, before the compared position
    entries: int  # of the vocabulary
    same_first: bool  # the likeliest token is the same


class CacheCommands(Protocol):
    """The cache of the running model. Every coroutine may raise `Refusal`."""

    def view(self, session_id: int) -> CacheView | None:
        """As the engine last reported it; None if no model runs. Makes no request."""

    async def clear(self) -> None:
        """Drops all KV in memory, pinned paths included; KV leased by running answers is dropped when they end."""

    async def keep_path(self, session_id: int, keep: bool) -> None:
        """Pins the KV of the path shown in memory, or unpins it."""

    async def check_uncached(self, session_id: int) -> CacheCheck:
        """Computes the distribution after the path shown twice: with the cache and without it."""
