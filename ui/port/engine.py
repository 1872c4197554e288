"""The engine: what it is doing, and which model it runs on which backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from ui.port.turns import Tier


class EngineState(StrEnum):
    """What the engine is doing."""

    NONE = "none"  # no model chosen
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DIED = "died"


@dataclass(frozen=True, slots=True)
class StatusView:
    """The status bar."""

    engine: EngineState
    reason: str = ""  # plain words: "loading SmolLM2", "engine stopped; send again to restart it"
    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    reused: int | None = None  # prompt tokens found in the cache
    computed: int | None = None  # prompt tokens pushed through the model
    kv_bytes: int = 0
    kv_budget: int = 0
    tiers: Mapping[Tier, int] = field(default_factory=dict)  # turns of the shown path per tier
    disk_note: str = ""  # why KV is not kept on disk

    @property
    def lacks_model(self) -> bool:
        """Whether one was to be loaded and could not be: what needs one waits until another is chosen."""
        return self.engine is EngineState.NONE and bool(self.reason)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """One model on the shelf."""

    source: str
    label: str
    detail: str  # "135M · float32 · 513 MB"
    loaded: bool  # it is the one in use


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """One engine that can run models, or why it cannot."""

    name: str
    problem: str  # empty: it can run here
    chosen: bool


class EngineCommands(Protocol):
    """Model and backend. Every coroutine may raise `Refusal`; how the engine is comes as `StatusChanged`."""

    @property
    def status(self) -> StatusView:
        """As last told."""

    async def models(self) -> Sequence[ModelChoice]:
        """What is on the shelf."""

    async def choose_model(self, source: str) -> None:
        """Loads another model from the next request on."""

    def backends(self) -> Sequence[BackendChoice]:
        """The engines that are known, registered ones too."""

    async def choose_backend(self, name: str) -> None:
        """Runs the model on another engine from the next request on."""
