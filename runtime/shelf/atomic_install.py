"""Atomic installs on the shelf: files are written into a hidden folder, which is renamed when it is complete.

After an error, a cancellation or kill -9 before the rename, the shelf lists no partial model; the next import deletes the
hidden folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeVar

import filelock
import msgspec

from resources.files import open_regular
from runtime.errors import AdapterError, ModelLoadError
from runtime.loading.integrity import (
    FORMAT,
    FileNote,
    HubNote,
    ShelfManifest,
    file_notes,
    read_manifest,
    sync_all,
    sync_folder,
    template_digest,
    write_manifest,
)
from runtime.loading.model_folder import chat_template_of, read_json
from runtime.loading.paths import create_private, ensure_models_dir, is_adapter, is_model_id, models_dir, shelf_id, shelf_path
from runtime.loading.progress import OnProgress, Progress, counting_bytes, ignore_progress

T = TypeVar("T")

HIDDEN = ".importing-"  # prefix of folders that are being written or removed
_COMMIT_DIGITS = 7  # fewest digits that select a commit, as many as git shows
_LOCK_SECONDS = 900.0  # longest wait for another import, which may be converting a large file
_SPARE_BYTES = 256 << 20  # free disk space that an import must leave


def install(
    source: Path,
    name: str | None,
    sha256: str,
    needed: int,
    *,
    write: Callable[[Path], int],
    opened: Callable[[Path], T],
    kind: Literal["gguf", "folder", "adapter"],
    title: str,
    made_from: str = "",
    suffix: str = "",
    sums: Mapping[str, str] | None = None,
    hub: HubNote | None = None,
    progress: OnProgress = ignore_progress,
    copied: bool = False,
) -> T:
    """Installs a folder with its manifest on the shelf, atomically; returns an existing sound one of the same content.

    Args:
        source: The source file or folder, for names and messages.
        name: The id on the shelf; None derives it from the source's name.
        sha256: SHA-256 of the source's content.
        needed: Bytes that the folder takes on the disk.
        write: Writes all files but ``elsewise.json`` into a folder; returns the number of parameters.
        opened: Checks a folder and reads it; its result for the installed folder is returned.
        kind: The kind of the source.
        title: The title shown to users.
        made_from: The source that the manifest names; its file name by default.
        suffix: Appended to a derived name.
        sums: Known SHA-256 of written files, by name; the other files are read to compute it.
        hub: The repository that the source was downloaded from.
        progress: Called while the import waits for another one, and while it reads the written files; raising in it cancels.
        copied: Whether `write` copies files of `source` unchanged.

    Raises:
        ModelLoadError: The name is taken or impossible, the disk is full, or another import holds the shelf too long.
    """
    with _only_one_import(ensure_models_dir(), progress) as shelf:
        model_id, present = _find_place(name, source, sha256, opened, suffix, copied=copied)
        if present is not None:
            return present
        free = shutil.disk_usage(shelf).free
        if needed + _SPARE_BYTES > free:
            raise ModelLoadError(
                f"{source.name} needs {needed / 1e9:,.1f} GB in {shelf}, {free / 1e9:,.1f} GB are free; "
                "free some space (or set `ELSEWISE_MODELS`)"
            )
        hidden = Path(tempfile.mkdtemp(prefix=HIDDEN, dir=shelf))
        try:
            parameters = write(hidden)
            written = sum(path.stat().st_size for path in hidden.iterdir() if path.is_file())
            template = chat_template_of(hidden, read_json(hidden / "tokenizer_config.json") or {})
            manifest = ShelfManifest(
                format=FORMAT,
                id=model_id,
                title=title,
                source=made_from or source.name,
                source_sha256=sha256,
                kind=kind,
                parameters=parameters,
                files=file_notes(hidden, sums, counting_bytes(progress, written)),
                template_digest=None if template is None else template_digest(template),
                hub=hub,
            )
            write_manifest(hidden, manifest)
            opened(hidden)
            place = shelf_path(model_id)
            if place.is_dir() and not place.is_symlink() and place.samefile(source):  # only the manifest is added
                notes = {}
                for file, note in manifest.files.items():
                    info = (place / file).stat()
                    notes[file] = FileNote(note.sha256, info.st_size, info.st_mtime_ns)
                write_manifest(place, msgspec.structs.replace(manifest, files=notes))
            else:
                sync_all(hidden)
                _publish(hidden, place)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
        return opened(shelf_path(model_id))


def shelf_folders(*, adapters: bool = False) -> list[Path]:
    """The folders of all models (or all adapters) on the shelf, complete or not, by name; without hidden ones."""
    try:
        folders = sorted(
            path for path in models_dir().iterdir() if not path.name.startswith(".") and (path.is_dir() or path.is_symlink())
        )
    except OSError:
        return []
    return [folder for folder in folders if is_adapter(folder) == adapters]


def link_on_shelf(source: Path, name: str | None) -> Path:
    """Links a model folder onto the shelf; copies nothing.

    Args:
        source: A folder that was checked.
        name: The id on the shelf; None derives one from the folder's name.

    Returns:
        The link.

    Raises:
        ModelLoadError: The name is taken or impossible, or the shelf is read-only.
    """
    model_id = name or id_from(source)
    place = shelf_path(model_id)
    with _only_one_import(ensure_models_dir()):
        if place.is_symlink() and place.resolve() == source.resolve():
            return place
        if place.exists() or place.is_symlink():
            raise ModelLoadError(f"another model is called {model_id!r}; choose another name (`--name`) or remove it")
        if source.resolve().is_relative_to(models_dir().resolve()):
            raise ModelLoadError(f"{source} is on the shelf already")
        place.symlink_to(source.resolve(), target_is_directory=True)
        sync_folder(place.parent)
    return place


def find_folder(model_id: str, *, adapters: bool = False) -> Path | None:
    """The folder of a model or adapter by its full id; None if there is none.

    The id of a model (or of an adapter, with `adapters`) without a revision finds its only revision. A downloaded one is also
    found by its requested revision and by the first digits of its commit.

    Raises:
        ModelLoadError: Several revisions match.
    """
    if not is_model_id(model_id):
        return None
    exact = shelf_path(model_id)
    if exact.is_dir() or exact.is_symlink():
        return exact
    repository, _, revision = model_id.partition("@")
    found = [
        folder
        for folder in shelf_folders(adapters=adapters)
        if folder.name.startswith(f"{shelf_path(repository).name}@") and (not revision or _is_revision(folder, revision))
    ]
    if len(found) > 1:
        names = ", ".join(shelf_id(folder) for folder in found)
        raise ModelLoadError(f"{model_id} is here in {len(found)} revisions; choose one: {names}")
    return found[0] if found else None


def _is_revision(folder: Path, revision: str) -> bool:
    with contextlib.suppress(ModelLoadError):
        manifest = read_manifest(folder)
        if manifest is not None and manifest.hub is not None:
            hub = manifest.hub
            return revision == hub.revision or (len(revision) >= _COMMIT_DIGITS and hub.commit.startswith(revision))
    return False


def copy_files(files: Sequence[Path], target: Path, progress: OnProgress) -> None:
    """Copies files into a folder, readable by their owner alone; reports bytes."""
    on_copy = counting_bytes(progress, sum(file.stat().st_size for file in files), "copy")
    for file in files:
        with open_regular(file) as there, create_private(target / file.name) as here:
            while chunk := there.read(8 << 20):
                here.write(chunk)
                on_copy(len(chunk))


@contextlib.contextmanager
def _only_one_import(shelf: Path, progress: OnProgress = ignore_progress) -> Iterator[Path]:
    """Holds the lock that serialises the imports of all processes; deletes the hidden folders of interrupted ones."""
    began = time.monotonic()

    def waits() -> bool:
        progress(Progress("wait", int(time.monotonic() - began), 0))
        return False

    lock = filelock.FileLock(shelf / ".lock", timeout=_LOCK_SECONDS, mode=0o600)
    try:
        with lock.acquire(cancel_check=waits):
            for remains in shelf.glob(f"{HIDDEN}*"):
                shutil.rmtree(remains, ignore_errors=True)
            yield shelf
    except filelock.Timeout as fault:
        raise ModelLoadError(f"another import has held {shelf} for {_LOCK_SECONDS:,.0f} s; wait for it or end it") from fault
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        way_out = "; free some space (or set `ELSEWISE_MODELS`)" if full else ""
        raise ModelLoadError(f"{fault.filename or shelf}: {fault.strerror or fault}{way_out}") from fault


def _find_place(
    name: str | None, source: Path, sha256: str, opened: Callable[[Path], T], suffix: str, *, copied: bool
) -> tuple[str, T | None]:
    """The id of an import, and the result of `opened` if a sound folder with this id and content exists, else None."""
    model_id = name or f"{id_from(source)}{suffix}"
    holder = _holder(model_id, source, copied=copied)
    if holder is not None and (isinstance(holder, Path) or holder.source_sha256 != sha256):
        if name is not None:
            what = "adapter" if is_adapter(shelf_path(model_id)) else "model"
            origin = "put there by hand" if isinstance(holder, Path) else f"from {holder.source}"
            raise ModelLoadError(f"another {what} is called {name!r} ({origin}); choose another name or remove it")
        model_id = f"{model_id}-{sha256[:8]}"
        holder = _holder(model_id, source, copied=copied)
    if isinstance(holder, ShelfManifest):
        with contextlib.suppress(ModelLoadError, AdapterError):  # a damaged import is replaced
            return model_id, opened(shelf_path(model_id))
    return model_id, None


def _holder(model_id: str, source: Path, *, copied: bool) -> ShelfManifest | Path | None:
    """What holds an id: the manifest of an import, the path of a folder, file or link that must not be replaced, or None."""
    folder = shelf_path(model_id)
    try:
        manifest = read_manifest(folder)
    except ModelLoadError:  # a damaged import is replaced
        return None
    if manifest is not None:
        return manifest
    free = folder.is_dir() and ((copied and folder.samefile(source)) or not any(folder.iterdir()))
    return folder if os.path.lexists(folder) and not free else None


def id_from(source: Path) -> str:
    """An id derived from the name of a file or folder."""
    stem = source.stem if source.is_file() else source.name
    cleaned = re.sub(r"[^A-Za-z0-9._+]+", "-", stem, flags=re.ASCII).strip("-._+")
    return re.sub(r"\.{2,}|-{2,}", "-", cleaned)[:100] or "model"


def _publish(hidden: Path, final: Path) -> None:
    """Renames the finished folder to `final`; replaces a damaged one there."""
    if final.exists():
        aside = Path(tempfile.mkdtemp(prefix=HIDDEN, dir=final.parent))
        final.rename(aside / "old")
        hidden.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        hidden.rename(final)
    sync_folder(final.parent)
