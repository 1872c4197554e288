"""``elsewise.json``: what an imported model folder must consist of, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from runtime.errors import ModelLoadError
from runtime.loading.digests import known_sha256, sha256_of, write_atomically

MANIFEST = "elsewise.json"
FORMAT = 1


class FileNote(msgspec.Struct, frozen=True):
    """One file; size in bytes, time in nanoseconds (a hint only: the SHA-256 decides)."""

    sha256: str
    size: int
    mtime_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """Where an imported model or adapter came from and what it consists of."""

    format: int
    id: str  # what `resolve` finds it by
    title: str  # what users see
    source: str  # the file or folder it was made from, by its own name
    source_sha256: str  # of the GGUF; of a folder, over its files
    kind: Literal["gguf", "folder", "adapter"]
    parameters: int
    files: dict[str, FileNote]
    template_digest: str | None = None  # SHA-256 of the chat template's text, wherever it stands; None without one


def notes_of(folder: Path) -> dict[str, FileNote]:
    """Size, time and SHA-256 of every file of a folder; reads all of them."""
    notes: dict[str, FileNote] = {}
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST:
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
        data = path.read_bytes()
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


def verify(folder: Path, manifest: Manifest, *, fully: bool = False) -> None:
    """Compares the files with their notes; those whose size and time are unchanged are read only if asked to.

    Raises:
        ModelLoadError: Names the first file that is missing or another one, and what to do.
    """
    for name, note in manifest.files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise ModelLoadError(f"{path} is missing; {_remedy(manifest)}")
        info = path.stat()
        if not fully and (info.st_size, info.st_mtime_ns) == (note.size, note.mtime_ns):
            continue
        found = sha256_of(path) if fully else known_sha256(path)
        if found != note.sha256:
            raise ModelLoadError(
                f"{path} is damaged or was changed: its SHA-256 is {found[:12]}..., at import it was {note.sha256[:12]}...; "
                f"{_remedy(manifest)}"
            )


def _remedy(manifest: Manifest) -> str:
    again = "run make setup" if manifest.id == "smollm2" else f"import {manifest.source} again"
    return f"remove the model ({manifest.id}) and {again}"
