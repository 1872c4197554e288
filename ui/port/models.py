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
    """One model or adapter of the shelf.

    Attributes:
        name: What it is opened by.
        title: What users see.
        folder: Where it is.
        size: Bytes of its files.
        form: "4 bit (mlx), download".
        context: Tokens, where it says how many.
        engines: Those that can run it.
        last_used: Seconds since 1970; None where it was not noted.
        fingerprint: Hexadecimal; "" where its weights were never read.
        problem: Why it cannot be used; "" where it can.
        loaded: It is the one in use here.
        linked: It stays in a folder elsewhere, which removing it leaves alone.
        kind: A model, an adapter, or a model on a server, which has neither folder nor size here.
        own_load: What it alone is loaded with, in a few words; "" where the settings hold.
        convertible: It can be quantised for mlx.
    """

    name: str
    title: str
    folder: str
    size: int
    form: str = ""
    context: int | None = None
    engines: Sequence[str] = ()
    last_used: float | None = None
    fingerprint: str = ""
    problem: str = ""
    loaded: bool = False
    linked: bool = False
    kind: Kind = "model"
    own_load: str = ""
    convertible: bool = False


class FitView(Struct, frozen=True):
    """What a model takes on this machine, in bytes, by the engine that would run it.

    Attributes:
        engine: Its name.
        context: Tokens that it is reckoned for.
        weights: As the engine keeps them.
        kv: Of the whole context.
        working: The engine itself, and one chunk of a prompt.
        loading: What more is needed for a moment, while it is loaded.
        memory: What the machine has for it.
        free: Of that, what is free now.
        longest: The largest context that there is room for; 0 where there is none for any.
    """

    engine: str
    context: int
    weights: int
    kv: int
    working: int
    memory: int
    free: int
    longest: int
    loading: int = 0

    @property
    def total(self) -> int:
        """Everything together, at its highest."""
        return self.weights + self.kv + self.working + self.loading

    @property
    def fits(self) -> bool:
        """Into the machine's memory, with all else at rest."""
        return self.total <= self.memory


class ModelPlan(Struct, frozen=True):
    """What fetching a repository means; nothing but its configuration was fetched to find out.

    Attributes:
        repository: ``org/name``.
        commit: What is fetched, hexadecimal.
        name: What it will be called on the shelf.
        files: Their names and sizes, in bytes.
        size: Of all of them.
        kept: Bytes that are here from a download that was stopped.
        disk: Bytes free where it goes.
        licence: As its page says; "" where it does not.
        engines: Those that can run it.
        here: It is on the shelf already.
        kind: A model, or an adapter.
        base: The model that an adapter says it was made for.
        context: Tokens that the model was made for, where it says so.
        fit: Into this machine; None for an adapter, and where no engine here runs it.
        own_context: Tokens that it alone is to be loaded with; None: as all models.
    """

    repository: str
    commit: str
    name: str
    files: Sequence[tuple[str, int]]
    size: int
    kept: int = 0
    disk: int = 0
    licence: str = ""
    engines: Sequence[str] = ()
    here: bool = False
    kind: Holds = "model"
    base: str = ""
    context: int | None = None
    fit: FitView | None = None
    own_context: int | None = None

    @property
    def pinned(self) -> str:
        """What is fetched, exactly."""
        return f"{self.repository}@{self.commit}"


class Offer(Struct, frozen=True):
    """A model that Elsewise proposes, known without the network.

    Attributes:
        name: For users.
        wanted: ``org/name``, to download it.
        parameters: Numbers in all.
        size: Bytes to fetch, about.
        licence: Its name.
        good_for: A short phrase.
        fit: Into this machine, on its own engine.
        gated: Its owners want consent first.
        here: It is on the shelf.
        best: It suits this machine: one of the few to begin with.
    """

    name: str
    wanted: str
    parameters: int
    size: int
    licence: str
    good_for: str
    fit: FitView
    gated: bool = False
    here: bool = False
    best: bool = False


class HubFind(Struct, frozen=True):
    """What the hub says of a repository that it found.

    Attributes:
        source: ``org/name``.
        facts: In a few words: numbers, weights, licence, downloads.
        problem: Why it cannot run here; "" where it can.
        gated: Its owners want consent first.
        kind: A model, or an adapter.
    """

    source: str
    facts: str
    problem: str = ""
    gated: bool = False
    kind: Holds = "model"


class DownloadState(StrEnum):
    """How a download is."""

    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    DONE = "done"


class Download(Struct, frozen=True):
    """One download; in `RUNNING` its numbers move.

    Attributes:
        repository: What it is known by.
        state: How it is.
        file: That is being worked on.
        file_done: Bytes of it.
        file_total: Its size.
        done: Bytes of all files that are here.
        total: Of so many; 0 until that is known.
        rate: Bytes a second; 0 where nothing moves.
        eta: Seconds that are left; None where it is not known.
        step: "look up", "fetch", "wait", "check" or "install".
        note: Why it waits, or why it failed.
        name: What it is called on the shelf, once it is there.
        kind: What it turned out to be, once it is there.
    """

    repository: str
    state: DownloadState = DownloadState.RUNNING
    file: str = ""
    file_done: int = 0
    file_total: int = 0
    done: int = 0
    total: int = 0
    rate: float = 0.0
    eta: float | None = None
    step: str = "look up"
    note: str = ""
    name: str = ""
    kind: Holds = "model"


class ModelsChanged(Struct, frozen=True):
    """Another model stands on the shelf, or one less."""


class DownloadsChanged(Struct, frozen=True):
    """How all downloads are now."""

    downloads: tuple[Download, ...]


Bits = Literal[4, 8]


@dataclass(frozen=True, slots=True)
class Server:
    """A model on a server that is to be connected to.

    Attributes:
        url: ``http://127.0.0.1:8000``, ``https://host/v1``.
        name: What it is called here; "" names it after the address.
        model: Its id there; "" where the server has one.
        key: The server's; "" where it wants none. It goes into the system keychain, and to that host alone.
        plain_http: Unencrypted HTTP to another machine was confirmed.
    """

    url: str
    name: str = ""
    model: str = ""
    key: str = field(default="", repr=False)
    plain_http: bool = False


class GgufPlan(Struct, frozen=True):
    """What taking in a GGUF file means, by its header.

    Attributes:
        path: Of the file.
        kept: Bytes of its weights where they stay quantised; 0 where none can.
        float32: Bytes of its weights in float32, for all engines.
        keeps: They stay quantised unless asked otherwise.
        note: What becomes float32 on mlx all the same, and why; "" where all stays as it is.
    """

    path: Path
    kept: int
    float32: int
    keeps: bool = False
    note: str = ""


class TokenView(Struct, frozen=True):
    """Whether private models can be asked for. The token itself is never shown.

    Attributes:
        kept: One is in the system keychain.
        hub: The address that it is for.
        variable: Of the environment, whose token is used before that one; "" where none is set.
    """

    kept: bool
    hub: str
    variable: str = ""


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
