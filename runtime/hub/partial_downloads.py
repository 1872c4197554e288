"""Partial downloads: one hidden folder per repository, which is never listed as a model."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from runtime.errors import DownloadError
from runtime.hub.child_protocol import DownloadPlan, HubFile, shelf_name
from runtime.loading.integrity import write_atomically
from runtime.loading.paths import make_private, models_dir

_FOLDER = ".fetching"
_NOTE = "fetch.json"


class Unfinished(msgspec.Struct, frozen=True):
    """A download that was stopped, or is running in some process."""

    repository: str
    revision: str
    commit: str
    total: int  # bytes
    kept: int = 0  # received bytes

    @property
    def name(self) -> str:
        """Its future id on the shelf."""
        return shelf_name(self.repository, self.commit)

    @property
    def source(self) -> str:
        """The id with which `fetch_any` resumes it at the same commit."""
        return f"{self.repository}@{self.commit}"


class PartialDownload:
    """The folder of a repository's download, locked for one process.

    Files are named by their digest, so files shared by two commits are fetched once.

    Raises:
        DownloadError: Another process is fetching the repository ("taken"), or the folder cannot be created ("space").
    """

    def __init__(self, repository: str) -> None:
        self._repository = repository
        self.folder = _folder(repository)
        self._handle = -1

    def __enter__(self) -> Self:
        while True:
            try:
                make_private(self.folder)
                handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # another process removed the folder at this moment
            except OSError as fault:
                way_out = "check its permissions (or set `ELSEWISE_MODELS`)"
                raise DownloadError(f"{self.folder} cannot be made ({fault.strerror}); {way_out}", "space") from fault
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.folder.exists() and self.folder.stat().st_ino == os.fstat(handle).st_ino:
                    self._handle = handle
                    return self
            except OSError as fault:
                os.close(handle)
                raise DownloadError(f"{self._repository} is being fetched by another process; wait for it", "taken") from fault
            os.close(handle)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # if empty
        os.close(self._handle)

    def write_note(self, plan: DownloadPlan) -> None:
        """Writes the note of a download, and removes files that the download does not need."""
        wanted = {f"{file.oid}.part" for file in plan.files}
        for path in self.folder.iterdir():
            if path.name not in wanted:
                path.unlink(missing_ok=True)
        note = Unfinished(plan.repository, plan.revision, plan.commit, plan.bytes)
        write_atomically(self.folder / _NOTE, msgspec.json.encode(note))

    def bytes(self) -> int:
        return _size(self.folder)

    def clear(self) -> None:
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)


def unfinished_downloads() -> list[Unfinished]:
    """All unfinished downloads, sorted by repository."""
    found = []
    with contextlib.suppress(OSError):
        for folder in sorted((models_dir() / _FOLDER).iterdir()):
            with contextlib.suppress(OSError, msgspec.DecodeError):
                note = msgspec.json.decode((folder / _NOTE).read_bytes(), type=Unfinished)
                found.append(msgspec.structs.replace(note, kept=_size(folder)))
    return found


def discard_download(name: str) -> int | None:
    """Removes an unfinished download, by its repository or its id on the shelf.

    Returns:
        The freed bytes; None without such a download.

    Raises:
        DownloadError: The download is running in another process ("taken").
    """
    repository = name.partition("@")[0]
    if not any(note.repository == repository and name in (note.repository, note.name) for note in unfinished_downloads()):
        return None
    with PartialDownload(repository) as partial:
        freed = partial.bytes()
        partial.clear()
        shutil.rmtree(partial.folder, ignore_errors=True)
    return freed


def kept_bytes(repository: str, files: Iterable[HubFile]) -> list[int]:
    """Count of received bytes of each file, in the given order."""
    return [_received(_folder(repository) / f"{file.oid}.part", file.size) for file in files]


def _received(path: Path, most: int) -> int:
    try:
        return min(path.stat().st_size, most)
    except OSError:
        return 0


def _folder(repository: str) -> Path:
    return models_dir() / _FOLDER / repository.replace("/", "--")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.part"))
