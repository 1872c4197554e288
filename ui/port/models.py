"""The models of this machine: what is on the shelf, what could be fetched, what is being fetched."""

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

    name: str  # what it is opened by
    title: str  # what users see
    folder: str  # where it is
    size: int  # bytes of its files
    form: str = ""  # "4 bit (mlx), download"
    context: int | None = None  # tokens, where it says how many
    engines: Sequence[str] = ()  # those that can run it
    last_used: float | None = None  # seconds since 1970; None where it was not noted
    fingerprint: str = ""  # hexadecimal; "" where its weights were never read
    problem: str = ""  # why it cannot be used; "" where it can
    loaded: bool = False  # it is the one in use here
    linked: bool = False  # it stays in a folder elsewhere, which removing it leaves alone
    kind: Kind = "model"  # a model, an adapter, or a model on a server, which has neither folder nor size here
    own_load: str = ""  # what it alone is loaded with, in a few words; "" where the settings hold
    convertible: bool = False  # it can be quantised for mlx


class FitView(Struct, frozen=True):
    """What a model takes on this machine, in bytes, by the engine that would run it."""

    engine: str  # its name
    context: int  # tokens that it is reckoned for
    weights: int  # as the engine keeps them
    kv: int  # of the whole context
    working: int  # the engine itself, and one chunk of a prompt
    memory: int  # what the machine has for it
    free: int  # of that, what is free now
    longest: int  # the largest context that there is room for; 0 where there is none for any
    loading: int = 0  # what more is needed for a moment, while it is loaded

    @property
    def total(self) -> int:
        """Everything together, at its highest."""
        return self.weights + self.kv + self.working + self.loading

    @property
    def fits(self) -> bool:
        """Into the machine's memory, with all else at rest."""
        return self.total <= self.memory


class ModelPlan(Struct, frozen=True):
    """What fetching a repository means; nothing but its configuration was fetched to find out."""

    repository: str  # ``org/name``
    commit: str  # what is fetched, hexadecimal
    name: str  # what it will be called on the shelf
    files: Sequence[tuple[str, int]]  # their names and sizes, in bytes
    size: int  # of all of them
    kept: int = 0  # bytes that are here from a download that was stopped
    disk: int = 0  # bytes free where it goes
    licence: str = ""  # as its page says; "" where it does not
    engines: Sequence[str] = ()  # those that can run it
    here: bool = False  # it is on the shelf already
    kind: Holds = "model"  # a model, or an adapter
    base: str = ""  # the model that an adapter says it was made for
    context: int | None = None  # tokens that the model was made for, where it says so
    fit: FitView | None = None  # into this machine; None for an adapter, and where no engine here runs it
    own_context: int | None = None  # tokens that it alone is to be loaded with; None: as all models

    @property
    def pinned(self) -> str:
        """What is fetched, exactly."""
        return f"{self.repository}@{self.commit}"


class Offer(Struct, frozen=True):
    """A model that Elsewise proposes, known without the network."""

    name: str  # for users
    wanted: str  # ``org/name``, to download it
    parameters: int  # numbers in all
    size: int  # bytes to fetch, about
    licence: str  # its name
    good_for: str  # a short phrase
    fit: FitView  # into this machine, on its own engine
    gated: bool = False  # its owners want consent first
    here: bool = False  # it is on the shelf
    best: bool = False  # it suits this machine: one of the few to begin with


class HubFind(Struct, frozen=True):
    """What the hub says of a repository that it found."""

    source: str  # ``org/name``
    facts: str  # in a few words: numbers, weights, licence, downloads
    problem: str = ""  # why it cannot run here; "" where it can
    gated: bool = False  # its owners want consent first
    kind: Holds = "model"  # a model, or an adapter


class DownloadState(StrEnum):
    """How a download is."""

    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"


class Download(Struct, frozen=True):
    """One download; in `RUNNING` its numbers move."""

    repository: str  # what it is known by
    state: DownloadState = DownloadState.RUNNING  # how it is
    file: str = ""  # that is being worked on
    file_done: int = 0  # bytes of it
    file_total: int = 0  # its size
    done: int = 0  # bytes of all files that are here
    total: int = 0  # of so many; 0 until that is known
    rate: float = 0.0  # bytes a second; 0 where nothing moves
    eta: float | None = None  # seconds that are left; None where it is not known
    step: str = "look up"  # "look up", "fetch", "wait", "check" or "install"
    note: str = ""  # why it waits, or why it failed
    name: str = ""  # what it is called on the shelf, once it is there
    kind: Holds = "model"  # what it turned out to be, once it is there


class ModelsChanged(Struct, frozen=True):
    """Another model stands on the shelf, or one less."""


class DownloadsChanged(Struct, frozen=True):
    """How all downloads are now."""

    downloads: tuple[Download, ...]


Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class Server:
    """A model on a server that is to be connected to."""

    url: str  # ``http://127.0.0.1:8000``, ``https://host/v1``
    name: str = ""  # what it is called here; "" names it after the address
    model: str = ""  # its id there; "" where the server has one
    # the server's; "" where it wants none. It goes into the system keychain, and to that host alone
    key: str = field(default="", repr=False)
    plain_http: bool = False  # unencrypted HTTP to another machine was confirmed


class GgufPlan(Struct, frozen=True):
    """What taking in a GGUF file means, by its header."""

    path: Path  # of the file
    kept: int  # bytes of its weights where they stay quantised; 0 where none can
    float32: int  # bytes of its weights in float32, for all engines
    keeps: bool = False  # they stay quantised unless asked otherwise
    note: str = ""  # what becomes float32 on mlx all the same, and why; "" where all stays as it is


class TokenView(Struct, frozen=True):
    """Whether private models can be asked for. The token itself is never shown."""

    kept: bool  # one is in the system keychain
    hub: str  # the address that it is for
    variable: str = ""  # of the environment, whose token is used before that one; "" where none is set


class ShelfCommands(Protocol):
    """The shelf of models and the hub. Every coroutine may raise `Refusal`; only those that say so ask the network."""

    async def list(self) -> Sequence[ShelfModel]:
        """Models, then adapters, by name. What is here of downloads that were stopped is told (`DownloadsChanged`)."""

    async def verify(self, name: str, progress: OnTransfer) -> None:
        """Reads every file once and compares it with what is known of it; a difference is the refusal. May be cancelled."""

    async def remove(self, name: str) -> int:
        """Deletes one that is not loaded; the bytes that are free again."""

    async def add_folder(self, path: Path) -> str:
        """Puts a model folder on the shelf that stays where it is; its name there."""

    async def connect(self, server: Server) -> str:
        """Asks a server what it is and can do, and puts its model on the list; what is known of it, in words."""

    async def plan(self, wanted: str) -> ModelPlan:
        """Asks the hub what fetching ``ORG/NAME[@REVISION]`` means. May be cancelled."""

    async def fit(self, plan: ModelPlan, context: int) -> FitView | None:
        """Whether a model that was planned fits with so many tokens."""

    async def offers(self) -> Sequence[Offer]:
        """The models that Elsewise proposes, the smallest first; without the network."""

    async def search_hub(self, words: str) -> Sequence[HubFind]:
        """Asks the hub for text models by words, the most fetched first. May be cancelled."""

    def download(self, wanted: str) -> None:
        """Asks the hub for ``ORG/NAME[@REVISION]``, or goes on with it; `DownloadsChanged` says how far it is."""

    async def pause_download(self, repository: str) -> None:
        """Stops it; what has arrived is kept, also over a restart."""

    async def cancel_download(self, repository: str) -> int:
        """Stops it for good and deletes what has arrived: so many bytes. One that is done is only not told any more."""

    async def plan_gguf(self, path: Path) -> GgufPlan:
        """What taking in a GGUF file means; nothing but its header is read."""

    async def import_gguf(self, path: Path, progress: OnTransfer, *, keep_quantised: bool) -> str:
        """Takes a GGUF file onto the shelf; its name there. May be cancelled: nothing of it stays then."""

    async def quantise(self, name: str, bits: Bits, progress: OnTransfer) -> str:
        """Makes one for mlx out of a plain model, beside it on the shelf; its name. May be cancelled: nothing stays then."""

    async def hub_token(self) -> TokenView:
        """Whether there is one."""

    async def keep_hub_token(self, token: str) -> TokenView:
        """Puts it into the system keychain, in place of another; a refusal does not show it."""

    async def forget_hub_token(self) -> TokenView:
        """Removes it from there."""
