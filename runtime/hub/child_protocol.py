"""What the hub's child process is asked, what it answers, and the values both consist of."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import msgspec

from runtime.errors import DownloadError

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.+/-]*", re.ASCII)
Kind = Literal["model", "adapter"]  # what a repository holds
_NAME_DIGITS = 12  # of a commit, in the name of a model


@dataclass(frozen=True, slots=True)
class HubId:
    """``org/name@revision``: a repository, and a branch, a tag or a commit in it."""

    repository: str
    revision: str = "main"

    @classmethod
    def parse(cls, text: str) -> Self:
        """From what a user wrote; without a revision it is the branch main.

        Raises:
            DownloadError: It cannot be one ("unsuitable").
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
    """What a downloaded model is called on the shelf."""
    return f"{repository}@{commit[:_NAME_DIGITS]}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        name: In the repository's top folder.
        size: Bytes.
        oid: Git's SHA-1 of it, or for a large file the SHA-256 of its content.
        large: Which of the two.
    """

    name: str
    size: int
    oid: str
    large: bool


@dataclass(frozen=True, slots=True)
class DownloadPlan:
    """What fetching a model or an adapter means, before a byte of its weights is fetched.

    Attributes:
        repository: ``org/name``.
        revision: What was asked for.
        commit: What that is at this moment; the download is pinned to it.
        files: That are taken; all others stay where they are.
        left: Names of files that are not taken.
        kept: Bytes that are here from a download that was stopped.
        free: Bytes on the disk of the models folder.
        config: Its ``config.json``, or ``adapter_config.json``.
        here: The name on the shelf, where this very commit is there already.
        backends: Which of "hf" and "mlx" can run it.
        kind: What it is.
        context: Tokens that a model was made for, where its configuration says so.
        licence: As its page says, in a word; empty where it does not.
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
    kind: Kind = "model"
    context: int | None = None
    licence: str = ""

    @property
    def name(self) -> str:
        """What it will be called on the shelf."""
        return shelf_name(self.repository, self.commit)

    @property
    def bytes(self) -> int:
        """Of all files that are taken."""
        return sum(file.size for file in self.files)

    @property
    def weights(self) -> int:
        """Bytes of the weights among them."""
        return sum(file.size for file in self.files if file.name.endswith(".safetensors"))


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """One report. Several files come side by side; a report is of one of them, and of all together.

    Attributes:
        file: That it is of; empty where it is none.
        file_done: Bytes of it, what was here before among them.
        file_total: Its size.
        done: Bytes of all files.
        total: Of so many.
        rate: Bytes a second, of the last seconds; 0 where nothing moves.
        eta: Seconds that are left at that rate; None where nobody can say.
        state: "look up", "fetch", "wait" (for a server, see `note`), "check" or "install".
        note: Why it waits.
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


OnDownload = Callable[[DownloadProgress], None]  # may raise to stop: what is here is kept, and the exception goes through


@dataclass(frozen=True, slots=True)
class HubModel:
    """What a hub says of a repository that it found, before anything of it is looked up.

    Attributes:
        source: ``ORG/NAME``, as `plan_download` and `fetch_model` take it.
        kind: A model, or an adapter for one.
        backends: Which of "hf" and "mlx" can run it, as far as that can be told; none where `problem` says why.
        problem: Why it cannot run here, or why nobody can tell before it is looked up.
        parameters: Numbers in all, where the hub says so.
        quantisation: "4 bit (mlx)", a foreign method's name; None for plain weights.
        licence: As the hub names it; empty where it does not.
        gated: Its owners want consent, given on its page.
        private: Only those whom its owners let see it.
        downloads: In the last month.
        likes: Of people.
    """

    source: str
    kind: Kind = "model"
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
    """The child's only order; on its standard input, because others can read a process's arguments."""

    what: Literal["plan", "fetch", "search", "who"]
    repository: str = ""
    kind: Kind | None = None
    query: str = ""
    limit: int = 0
    token: str = ""  # for the hub; empty for huggingface_hub's own choice

    def __repr__(self) -> str:  # no token in logs
        return f"Order({self.what!r}, {self.repository or self.query!r})"


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: how far it is, what it will fetch, the name that it is done under, what it found, or why it cannot."""

    progress: DownloadProgress | None = None
    plan: DownloadPlan | None = None
    name: str = ""
    found: tuple[HubModel, ...] | None = None
    error: str = ""
    reason: str = ""
    kept: int = 0
