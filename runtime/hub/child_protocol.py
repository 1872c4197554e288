"""Messages between a process and its hub child: orders, replies, and their values (plans, progress, search results)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec

from runtime.errors import DownloadError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.+/-]*", re.ASCII)
RepositoryKind = Literal["model", "adapter"]
_NAME_DIGITS = 12  # digits of the commit in an id on the shelf


@dataclass(frozen=True, slots=True)
class HubId:
    """``org/name@revision``: a repository, and a branch, a tag or a commit in it."""

    repository: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses an id; the revision is the branch main by default.

        Raises:
            DownloadError: The text is not an id ("unsuitable").
        """
        repository, at, revision = text.strip().partition("@")
        if not at:
            revision = "main"
        sound = len(text) <= 200 and _REPOSITORY.fullmatch(repository) and _REVISION.fullmatch(revision)
        if not sound or ".." in text or "--" in repository or "//" in text:
            raise DownloadError(f"{text[:200]!r} is no repository: give org/name, or org/name@revision", "unsuitable")
        return cls(repository, revision)

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}"


def shelf_name(repository: str, commit: str) -> str:
    """Id of a download on the shelf."""
    return f"{repository}@{commit[:_NAME_DIGITS]}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        name: Path in the repository.
        size: In bytes.
        oid: Git's SHA-1, or for a large file the SHA-256 of its content.
        large: Whether `oid` is the SHA-256.
    """

    name: str
    size: int
    oid: str
    large: bool


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """A download, before any byte of its weights is fetched.

    Attributes:
        repository: ``org/name``.
        revision: Requested revision.
        commit: Commit of the revision at this moment; the download is pinned to it.
        files: Files to fetch.
        left: Names of files that are not fetched.
        kept: Bytes that a stopped download has received already.
        free: Free bytes on the disk of the models folder.
        config: Its ``config.json``, or ``adapter_config.json``.
        here: Its id on the shelf if this commit is installed already; else empty.
        backends: Those of "hf" and "mlx" that can run it.
        kind: A model or an adapter.
        context: Context length in tokens; None where the configuration has none.
        licence: Short name of the licence, as on the repository's page; empty where unknown.
    """

    repository: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]
    left: tuple[str, ...] = ()
    kept: int = 0
    free: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)
    here: str = ""
    backends: tuple[str, ...] = ()
    kind: RepositoryKind = "model"
    context: int | None = None
    licence: str = ""

    @property
    def name(self) -> str:
        """Its future id on the shelf."""
        return shelf_name(self.repository, self.commit)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def weights(self) -> int:
        """Bytes of the safetensors files."""
        return sum(file.size for file in self.files if file.name.endswith(".safetensors"))


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Progress of one file, and of all files of a download together; several files are fetched side by side.

    Attributes:
        file: Name of the file; empty for none.
        file_done: Its received bytes, earlier ones included.
        file_total: Its size.
        done: Received bytes of all files.
        total: Sizes of all files.
        rate: Bytes per second over the last seconds; 0 while nothing moves.
        eta: Seconds left at that rate; None where unknown.
        state: "look up", "fetch", "wait" (for a server, see `note`), "check" or "install".
        note: Reason of a wait.
    """

    file: str = ""
    file_done: int = 0
    file_total: int = 0
    done: int = 0
    total: int = 0
    rate: float = 0.0
    eta: float | None = None
    state: str = "fetch"
    note: str = ""


OnDownload = Callable[[DownloadProgress], None]  # may raise to stop: received bytes are kept, and the exception propagates


@dataclass(frozen=True, slots=True)
class HubModel:
    """A search result of a hub.

    Attributes:
        source: ``ORG/NAME``, for `plan_download` and `fetch_model`.
        kind: A model or an adapter.
        backends: Those of "hf" and "mlx" that can run it, as far as is known; none with a `problem`.
        problem: Why it cannot run here, or why that is unknown before a look-up.
        parameters: Count of weights; None where the hub does not have it.
        quantisation: "4 bit (mlx)", or the name of another method; None for plain weights.
        licence: As the hub names it; empty where unknown.
        gated: Its licence must be accepted on its page.
        private: Visible to some users only.
        downloads: Downloads in the last month.
        likes: Likes in all.
    """

    source: str
    kind: RepositoryKind = "model"
    backends: tuple[str, ...] = ()
    problem: str = ""
    parameters: int | None = None
    quantisation: str | None = None
    licence: str = ""
    gated: bool = False
    private: bool = False
    downloads: int = 0
    likes: int = 0


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """An order to a child, sent on its standard input because other users can read the arguments of a process."""

    what: Literal["plan", "fetch", "search", "whoami"]
    repository: str = ""
    kind: RepositoryKind | None = None
    query: str = ""
    limit: int = 0
    token: str = ""  # for the hub; empty for huggingface_hub's own choice

    def __repr__(self) -> str:  # no token in logs
        return f"Order({self.what!r}, {self.repository or self.query!r})"


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: progress, the plan, the id of the finished download (or an owner's name), search results, an error."""

    progress: DownloadProgress | None = None
    plan: DownloadPlan | None = None
    name: str = ""
    found: tuple[HubModel, ...] | None = None
    error: str = ""
    reason: str = ""
    kept: int = 0
