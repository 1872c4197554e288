"""``elsewise.json``: what an imported model folder must consist of, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from resources.files import read_regular
from runtime.errors import ModelLoadError
from runtime.loading.digests import known_sha256, sha256_of, write_atomically

MANIFEST = "elsewise.json"
FORMAT = 1
_MAX_BYTES = 8 << 20  # it names each file of a model in some 200


class FileNote(msgspec.Struct, frozen=True):
    """One file; size in bytes, time in nanoseconds (a hint only: the SHA-256 decides)."""

    sha256: str
    size: int
    mtime_ns: int


class HubNote(msgspec.Struct, frozen=True):
    """The repository that a model was downloaded from."""

    repository: str  # org/name
    revision: str  # what was asked for: a branch, a tag or a commit
    commit: str  # what that was, in full
    endpoint: str  # of the hub


class Manifest(msgspec.Struct, frozen=True):
    """Where an imported model or adapter came from and what it consists of."""

    format: int
    id: str  # what `resolve` finds it by
    title: str  # what users see
    source: str  # the file or folder it was made from, by its own name
    source_sha256: str  # of the GGUF (of one that stays quantised, over that and the form); of a folder, over its files
    kind: Literal["gguf", "folder", "adapter"]
    parameters: int
    files: dict[str, FileNote]
    template_digest: str | None = None  # SHA-256 of the chat template's text, wherever it stands; None without one
    hub: HubNote | None = None


def notes_of(folder: Path) -> dict[str, FileNote]:
    """Size, time and SHA-256 of every file of a folder; reads all of them."""
    notes: dict[str, FileNote] = {}
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST and path.is_file():
            info = path.stat()
            notes[path.name] = FileNote(sha256_of(path), info.st_size, info.st_mtime_ns)
    return notes


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes ``elsewise.json``, durably."""
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


def read_manifest(folder: Path) -> Manifest | None:
    """The folder's manifest; None where it has none (a folder that was not imported).

    Raises:
        ModelLoadError: It is damaged, or newer than this version.
    """
    path = folder / MANIFEST
    try:
        data = read_regular(path, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror})") from fault
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise ModelLoadError(f"{path} is damaged ({fault}); import the model again") from fault
    if manifest.format > FORMAT:
        raise ModelLoadError(f"{path} was written by a newer version (format {manifest.format}); update this one")
    return manifest


def verify(folder: Path, manifest: Manifest) -> None:
    """Compares the files with their notes; those whose size and time are unchanged are not read.

    Raises:
        ModelLoadError: Names the first file that is missing or another one, and what to do.
    """
    for name, note in manifest.files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise missing(path, manifest)
        info = path.stat()
        if (info.st_size, info.st_mtime_ns) == (note.size, note.mtime_ns):
            continue
        found = known_sha256(path)
        if found != note.sha256:
            raise changed(path, found, note.sha256, manifest)


def missing(path: Path, manifest: Manifest | None) -> ModelLoadError:
    """A file is not there."""
    return ModelLoadError(f"{path} is missing; {_remedy(manifest)}")


def changed(path: Path, found: str, known: str, manifest: Manifest | None) -> ModelLoadError:
    """A file is not what it was, by its SHA-256."""
    when = "at import it was" if manifest else "when it was last read, with the same size and time, it was"
    return ModelLoadError(
        f"{path} is damaged or was changed: its SHA-256 is {found[:12]}..., {when} {known[:12]}...; {_remedy(manifest)}"
    )


def _remedy(manifest: Manifest | None) -> str:
    if manifest is None:
        return "put the file there again from where it came"
    if manifest.hub:
        again = f"fetch it again: elsewise models fetch {manifest.hub.repository}@{manifest.hub.commit}"
    else:
        again = "run make setup" if manifest.id == "smollm2" else f"import {manifest.source} again"
    return f"remove the model ({manifest.id}) and {again}"
