"""The models of this machine: the shelf, the hub, and downloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from ui.port.transfers import OnTransfer

Holds = Literal["model", "adapter"]  # what a folder or a repository holds
Kind = Literal["model", "adapter", "server"]  # of a row of the shelf


class ShelfModel(Struct, frozen=True):
    """One model or adapter of the shelf."""

    name: str  # identifies it
    title: str  # for users
    folder: str  # its path
    size: int  # bytes of its files
    form: str = ""  # "4 bit (mlx), download"
    context: int | None = None  # tokens; None if unknown
    engines: Sequence[str] = ()  # those that can run it
    last_used: float | None = None  # seconds since 1970; None if unknown
    fingerprint: str = ""  # hexadecimal; "" if its weights were never read
    problem: str = ""  # why it cannot be used; "" if it can
    loaded: bool = False  # is the model in use
    linked: bool = False  # stays in a folder elsewhere, which is not deleted with it
    kind: Kind = "model"  # a model, an adapter, or a model on a server, which has neither folder nor size here
    own_load: str = ""  # its own load options, in a few words; "" for those of the settings
    convertible: bool = False  # can be quantised for mlx


class FitView(Struct, frozen=True):
    """The memory that a model takes on this machine, in bytes, with the engine that would run it."""

    engine: str  # its name
    context: int  # tokens that it is computed for
    weights: int  # as the engine keeps them
    kv: int  # of the whole context
    working: int  # the engine itself, and one chunk of a prompt
    memory: int  # available on this machine
    free: int  # of `memory`, now
    longest: int  # the largest context that fits; 0 if none does
    loading: int = 0  # needed in addition while it is loaded

    @property
    def total(self) -> int:
        """The peak of all parts together."""
        return self.weights + self.kv + self.working + self.loading

    @property
    def fits(self) -> bool:
        """Whether it fits into the machine's memory."""
        return self.total <= self.memory


class ModelPlan(Struct, frozen=True):
    """The plan of a download, for which only the repository's configuration was fetched."""

    repository: str  # ``org/name``
    commit: str  # hexadecimal
    name: str  # its name on the shelf
    files: Sequence[tuple[str, int]]  # their names and sizes, in bytes
    size: int  # of all of them
    kept: int = 0  # bytes already downloaded
    disk: int = 0  # free bytes on the disk
    licence: str = ""  # as on its page; "" if unknown
    engines: Sequence[str] = ()  # those that can run it
    here: bool = False  # is on the shelf already
    kind: Holds = "model"
    base: str = ""  # the base model of an adapter
    context: int | None = None  # tokens that the model was made for; None if unknown
    fit: FitView | None = None  # None for an adapter, and if no engine here runs it
    own_context: int | None = None  # its stored context length; None: as in the settings

    @property
    def pinned(self) -> str:
        """The repository with the commit."""
        return f"{self.repository}@{self.commit}"


class Offer(Struct, frozen=True):
    """A model that Elsewise proposes, known without the network."""

    name: str  # for users
    wanted: str  # ``org/name``
    parameters: int  # numbers in all
    size: int  # bytes to fetch, about
    licence: str  # its name
    good_for: str  # a short phrase
    fit: FitView
    gated: bool = False  # its terms must be accepted first
    here: bool = False  # is on the shelf
    best: bool = False  # suits this machine: one of the few to begin with


class HubFind(Struct, frozen=True):
    """One search result of the hub."""

    source: str  # ``org/name``
    facts: str  # in a few words: numbers, weights, licence, downloads
    problem: str = ""  # why it cannot run here; "" if it can
    gated: bool = False  # its terms must be accepted first
    kind: Holds = "model"


class DownloadState(StrEnum):
    """PAUSED and FAILED keep the files so far, and can be continued; DONE is on the shelf."""

    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"


class DownloadView(Struct, frozen=True):
    """How far a repository of the hub is fetched, with the cause if it waits or failed."""

    repository: str  # identifies it
    state: DownloadState = DownloadState.RUNNING
    file: str = ""  # the present file
    file_done: int = 0  # bytes of the present file
    file_total: int = 0  # its size
    done: int = 0  # bytes of all files downloaded so far
    total: int = 0  # bytes of all files; 0 until known
    rate: float = 0.0  # bytes per second; 0 while nothing arrives
    eta: float | None = None  # remaining seconds; None if unknown
    step: str = "look up"  # "look up", "fetch", "wait", "check" or "install"
    note: str = ""  # why it waits or failed
    name: str = ""  # its name on the shelf, once installed
    kind: Holds = "model"  # known once installed


class ModelsChanged(Struct, frozen=True):
    """The shelf has changed."""


class DownloadsChanged(Struct, frozen=True):
    """The present state of all downloads."""

    downloads: tuple[DownloadView, ...]


Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class ServerModel:
    """A model on a server, to connect to."""

    url: str  # ``http://127.0.0.1:8000``, ``https://host/v1``
    name: str = ""  # its name here; "" names it after the address
    model: str = ""  # its id on the server; "" if the server has only one
    # API key; "" if the server needs none. Stored in the system keychain, and sent to that host only
    key: str = field(default="", repr=False)
    plain_http: bool = False  # unencrypted HTTP to another machine was confirmed


class GgufPlan(Struct, frozen=True):
    """The plan of the import of a GGUF file, from its header."""

    path: Path  # of the file
    kept: int  # bytes of its weights if they stay quantised; 0 if none can
    float32: int  # bytes of its weights in float32, for all engines
    keeps: bool = False  # by default the weights stay quantised
    note: str = ""  # which weights become float32 on mlx anyway, and why; "" if none do


class TokenView(Struct, frozen=True):
    """The state of the hub's token, which itself is never shown."""

    kept: bool  # a token is in the system keychain
    hub: str  # the hub's address
    variable: str = ""  # the environment variable whose token takes precedence; "" if none is set


class ShelfCommands(Protocol):
    """The shelf of models and the hub. Every coroutine may raise `Refusal`; only those that mention it use the network."""

    async def list(self) -> Sequence[ShelfModel]:
        """Models, then adapters, by name. Partial downloads are reported by `DownloadsChanged`."""

    async def verify(self, name: str, progress: OnTransfer) -> None:
        """Reads every file and compares it with its known checksum; a difference is refused. May be cancelled."""

    async def remove(self, name: str) -> int:
        """Deletes a model that is not loaded; returns the bytes freed."""

    async def add_folder(self, path: Path) -> str:
        """Adds a model folder, which stays where it is; returns its name on the shelf."""

    async def connect(self, server: ServerModel) -> str:
        """Asks a server for its capabilities, and adds its model to the shelf; returns its facts in words."""

    async def plan(self, wanted: str) -> ModelPlan:
        """Asks the hub for the plan of a download of ``ORG/NAME[@REVISION]``. May be cancelled."""

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        """The fit of a planned model with another context length."""

    async def offers(self) -> Sequence[Offer]:
        """The models that Elsewise proposes, the smallest first; without the network."""

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        """Asks the hub for text models by words, the most fetched first. May be cancelled."""

    def download(self, wanted: str) -> None:
        """Starts or resumes a download of ``ORG/NAME[@REVISION]`` from the hub, reported by `DownloadsChanged`."""

    async def pause_download(self, repository: str) -> None:
        """Pauses a download; the bytes downloaded are kept, also after a restart."""

    async def cancel_download(self, repository: str) -> int:
        """Cancels a download and deletes its bytes; returns how many. A finished one is only dismissed."""

    async def plan_gguf(self, path: Path) -> GgufPlan:
        """The plan of the import of a GGUF file; reads only its header."""

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        """Imports a GGUF file; returns its name on the shelf. If cancelled, nothing of it stays."""

    async def quantise(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        """Makes a quantised copy of a model for mlx; returns its name. If cancelled, nothing of it stays."""

    async def hub_token(self) -> TokenView:
        """The state of the token."""

    async def keep_hub_token(self, token: str) -> TokenView:
        """Stores a token in the system keychain; a refusal does not show it."""

    async def forget_hub_token(self) -> TokenView:
        """Removes the token from the keychain."""
