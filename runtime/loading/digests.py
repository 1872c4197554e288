"""SHA-256 of files, remembered by path, size and time so that the second look is free."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from resources.files import open_regular
from runtime.errors import ModelLoadError
from runtime.loading.paths import make_private, models_dir

_CHUNK = 1 << 20


def sha256_of(path: Path, tell: Callable[[int], None] | None = None) -> str:
    """The file's SHA-256 as hex; reads all of it, and tells the bytes of each read.

    Raises:
        ModelLoadError: It cannot be read.
    """
    try:
        with open_regular(path) as stream:
            digest = hashlib.sha256()
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                if tell is not None:
                    tell(len(chunk))
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); check the file and its permissions") from fault
    return digest.hexdigest()


def known_sha256(path: Path) -> str:
    """The same, computed only if the file's size or time is another than when it was last asked for.

    What is remembered lies under the models folder, never beside the file.
    """
    kept = remembered_sha256(path)
    if kept is not None:
        return kept
    sha256 = sha256_of(path)
    remember_sha256(path, sha256)
    return sha256


def remembered_sha256(path: Path) -> str | None:
    """The SHA-256 that is remembered of a file with this path, size and time; None where none is.

    Raises:
        ModelLoadError: It cannot be looked at.
    """
    note = _note(path)
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(_place(path).read_text())
        if isinstance(kept, dict) and isinstance(kept.get("sha256"), str) and note.items() <= kept.items():
            return str(kept["sha256"])
    return None


def remember_sha256(path: Path, sha256: str) -> None:
    """Keeps it for `remembered_sha256`."""
    note, place = _note(path), _place(path)
    with contextlib.suppress(OSError):  # a read-only models folder costs time, nothing else
        make_private(place.parent)
        write_atomically(place, json.dumps({**note, "sha256": sha256}).encode())


def forget_digests(paths: Iterable[Path]) -> None:
    """What is remembered of files that are no longer here."""
    for path in paths:
        with contextlib.suppress(OSError):
            _place(path).unlink()


def _note(path: Path) -> dict[str, str | int]:
    try:
        info = path.stat()
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); check the file and its permissions") from fault
    return {"path": str(path.absolute()), "size": info.st_size, "mtime_ns": info.st_mtime_ns}


def _place(path: Path) -> Path:
    return models_dir() / ".digests" / f"{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()}.json"


def digest_of_all(files: Mapping[str, str]) -> str:
    """One SHA-256 over several files' names and SHA-256s; independent of their order."""
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
    """Makes a folder of files durable: their content, then their names."""
    for path in folder.iterdir():
        sync_folder(path)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes names that were created or renamed in a folder durable (or a file's content)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
