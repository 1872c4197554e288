"""SHA-256 of files, and ``elsewise.json``, the manifest of an imported folder.

Digests are cached under the models folder by path, size and modification time; nothing is written next to the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from resources.files import is_file, open_regular, read_regular
from runtime.errors import ModelLoadError
from runtime.loading.paths import make_private, models_dir

_CHUNK = 1 << 20


def sha256_of(path: Path, on_read: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file as hex; reads all of it and calls `on_read` with the number of bytes of each read.

    Raises:
        ModelLoadError: It cannot be read.
    """
    try:
        with open_regular(path) as stream:
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if on_read is not None:
                    on_read(len(chunk))
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); check the file and its permissions") from fault
    return digest.hexdigest()


def known_sha256(path: Path, on_read: Callable[[int], None] | None = None) -> str:
    """SHA-256 of a file: the remembered one, or else computed by `sha256_of` and remembered."""
    remembered = remembered_sha256(path)
    if remembered is not None:
        return remembered
    stamp = file_stamp(path)
    sha256 = sha256_of(path, on_read)
    remember_sha256(path, sha256, stamp)
    return sha256


def remembered_sha256(path: Path) -> str | None:
    """The SHA-256 remembered for a file's path, size and modification time; None without one.

    Raises:
        ModelLoadError: The file cannot be read.
    """
    stamp = file_stamp(path)
    with contextlib.suppress(OSError, ValueError, RecursionError):
        record = json.loads(_digest_file(path).read_text())
        if isinstance(record, dict) and isinstance(record.get("sha256"), str) and stamp.items() <= record.items():
            return str(record["sha256"])
    return None


def remember_sha256(path: Path, sha256: str, stamp: Mapping[str, str | int]) -> None:
    """Stores a SHA-256 for `remembered_sha256`, unless the file has changed since `stamp`.

    Args:
        path: The file.
        sha256: Of its content.
        stamp: Its `file_stamp` from before it was read.
    """
    if file_stamp(path) != stamp:
        return
    file = _digest_file(path)
    with contextlib.suppress(OSError):  # with a read-only models folder, the file is hashed again next time
        make_private(file.parent)
        write_atomically(file, json.dumps({**stamp, "sha256": sha256}).encode())


def forget_digests(paths: Iterable[Path]) -> None:
    """Removes the remembered digests of removed files."""
    for path in paths:
        with contextlib.suppress(OSError):
            _digest_file(path).unlink()


def file_stamp(path: Path) -> dict[str, str | int]:
    """Path, size and modification time of a file; equal stamps mean that it has not changed.

    Raises:
        ModelLoadError: It cannot be read.
    """
    try:
        info = path.stat()
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); check the file and its permissions") from fault
    return {"path": str(path.absolute()), "size": info.st_size, "mtime_ns": info.st_mtime_ns}


def _digest_file(path: Path) -> Path:
    return models_dir() / ".digests" / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()}.json"


def digest_of_all(files: Mapping[str, str]) -> str:
    """One SHA-256 over the names and SHA-256s of several files, independent of their order."""
    lines = "".join(f"{name} {files[name]}\n" for name in sorted(files))
    return hashlib.sha256(lines.encode()).hexdigest()


def template_digest(source: str) -> str:
    """SHA-256 hex of a chat template's text in UTF-8."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Writes the whole file or nothing, durably."""
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sync_all(folder: Path) -> None:
    """Flushes the content of a folder's files, then their names, to the disk."""
    for path in folder.iterdir():
        sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Flushes the names in a folder, or the content of a file, to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


MANIFEST = "elsewise.json"
FORMAT = 1
_MAX_BYTES = 8 << 20  # of a manifest; each file of a model takes about 200


class FileNote(msgspec.Struct, frozen=True):
    """State of one file at import. The SHA-256 is compared only where size or modification time has changed."""

    sha256: str
    size: int
    mtime_ns: int


class HubNote(msgspec.Struct, frozen=True):
    """The hub repository that a model or adapter was downloaded from."""

    repository: str  # org/name
    revision: str  # requested: a branch, a tag or a commit
    commit: str  # in full
    endpoint: str  # of the hub


class ShelfManifest(msgspec.Struct, frozen=True):
    """Origin and files of an imported model or adapter."""

    format: int
    id: str  # on the shelf
    title: str  # shown to users
    source: str  # name of the imported file or folder; for a download the repository and its revision
    source_sha256: str  # of a GGUF file (`form_digest`), or over the files of a folder (`digest_of_all`)
    kind: Literal["gguf", "folder", "adapter"]
    parameters: int
    files: dict[str, FileNote]
    template_digest: str | None = None  # SHA-256 of the chat template's text; None without one
    hub: HubNote | None = None


def file_notes(
    folder: Path, sums: Mapping[str, str] | None = None, on_read: Callable[[int], None] | None = None
) -> dict[str, FileNote]:
    """Size, modification time and SHA-256 of each file of a folder; hashes files whose SHA-256 is not in `sums`."""
    notes: dict[str, FileNote] = {}
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST and path.is_file():
            info, sha256 = path.stat(), (sums or {}).get(path.name) or sha256_of(path, on_read)
            notes[path.name] = FileNote(sha256, info.st_size, info.st_mtime_ns)
    return notes


def write_manifest(folder: Path, manifest: ShelfManifest) -> None:
    """Writes ``elsewise.json``, durably."""
    write_atomically(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))


def read_manifest(folder: Path) -> ShelfManifest | None:
    """The manifest of a folder; None for a folder that was not imported.

    Raises:
        ModelLoadError: The manifest is damaged, or newer than this version.
    """
    path = folder / MANIFEST
    try:
        data = read_regular(path, _MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror})") from fault
    try:
        manifest = msgspec.json.decode(data, type=ShelfManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise ModelLoadError(f"{path} is damaged ({fault}); import the model again") from fault
    if manifest.format > FORMAT:
        raise ModelLoadError(f"{path} was written by a newer version (format {manifest.format}); update this one")
    return manifest


def verify(folder: Path, manifest: ShelfManifest) -> None:
    """Compares files with the manifest; does not read files of unchanged size and modification time.

    Raises:
        ModelLoadError: Names the first missing or changed file, and the remedy.
    """
    for name, note in manifest.files.items():
        path = folder / name
        if Path(name).name != name or not is_file(path):
            raise missing_file(path, manifest)
        info = path.stat()
        if (info.st_size, info.st_mtime_ns) == (note.size, note.mtime_ns):
            continue
        found = known_sha256(path)
        if found != note.sha256:
            raise changed_file(path, found, note.sha256, manifest)


def missing_file(path: Path, manifest: ShelfManifest | None) -> ModelLoadError:
    """The error for a missing file."""
    return ModelLoadError(f"{path} is missing; {_remedy(manifest)}")


def changed_file(path: Path, found: str, known: str, manifest: ShelfManifest | None) -> ModelLoadError:
    """The error for a file whose SHA-256 has changed."""
    when = "at import it was" if manifest else "when it was last read, with the same size and time, it was"
    return ModelLoadError(
        f"{path} is damaged or was changed: its SHA-256 is {found[:12]}..., {when} {known[:12]}...; {_remedy(manifest)}"
    )


def _remedy(manifest: ShelfManifest | None) -> str:
    if manifest is None:
        return "put the file there again from where it came"
    if manifest.hub:
        again = f"fetch it again: `elsewise models fetch {manifest.hub.repository}@{manifest.hub.commit}`"
    elif manifest.id == "smollm2":
        again = "fetch it again: `elsewise models get smollm2`"
    else:
        again = f"import {manifest.source} again"
    return f"remove the model ({manifest.id}) and {again}"
