"""The models on this machine's shelf: listing, verifying, removing."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from resources.files import is_file
from runtime.errors import ModelLoadError
from runtime.loading.config import describe
from runtime.loading.integrity import (
    ShelfManifest,
    changed_file,
    digest_of_all,
    file_stamp,
    forget_digests,
    missing_file,
    read_manifest,
    remember_sha256,
    remembered_sha256,
    sha256_of,
)
from runtime.loading.measurements import forget_measurements
from runtime.loading.model_folder import SETTINGS_FILES, TEXT_FILES, ModelFolder, open_folder, read_json, weight_files
from runtime.loading.paths import ADAPTER_CONFIG, is_adapter, models_dir, shelf_id
from runtime.loading.progress import OnProgress, counting_bytes, ignore_progress
from runtime.loading.safetensors import check_safetensors, weights_of
from runtime.shelf.atomic_install import HIDDEN, find_folder, link_on_shelf, shelf_folders
from runtime.shelf.model_lock import exclusive_lock, forget_last_use, last_used


@dataclass(frozen=True, slots=True)
class ShelfEntry:
    """One model of the shelf.

    Attributes:
        name: The name that `load` and ``--model`` accept.
        title: The title shown to users.
        source: The file, folder or repository that it was made from.
        path: Its folder.
        bytes: Bytes of its files.
        parameters: The number of its parameters; None if it is unknown.
        format: "float32, from GGUF", "from GGUF" (weights stayed quantised), "folder", "download", "link" (to the folder in
            `source`).
        complete: Whether every file exists, with its size where that is known; the load verifies the content.
        problem: Why it is not complete; empty if it is.
        architecture: ``model_type`` of its config.
        quantisation: "4 bit (mlx)", or another method's name; None for plain weights.
        dtype: The dtype of most weights on disk ("F32", "BF16"); empty if no header was read.
        context: The context length in tokens; None if its config has none.
        backends: The backends that can run it, installed or not, of "hf" and "mlx".
        fingerprint: SHA-256 of weights and config; None if the weights were never read.
        last_used: Time of the last load in seconds since 1970; None for never or unknown.
        commit: The commit of a download; empty otherwise.
        weights: Bytes of its tensors; 0 if no header was read.
    """

    name: str
    title: str
    source: str
    path: Path
    bytes: int
    parameters: int | None
    format: str
    complete: bool
    problem: str = ""
    architecture: str = ""
    quantisation: str | None = None
    dtype: str = ""
    context: int | None = None
    backends: tuple[str, ...] = ()
    fingerprint: str | None = None
    last_used: float | None = None
    commit: str = ""
    weights: int = 0


class ModelShelf:
    """The models of this machine in `models_dir`, shared by all processes. All methods block."""

    def models(self) -> list[ShelfEntry]:
        """All models, by name. Cheap: no weights are read."""
        return [_entry(folder) for folder in shelf_folders()]

    def find(self, name: str) -> ShelfEntry:
        """One model, with parameters, dtype and bytes from the headers of its weights.

        Raises:
            ModelLoadError: Not on the shelf.
        """
        entry = _entry(self.folder(name))
        if entry.complete:
            config = read_json(entry.path / "config.json") or {}
            weights = weights_of(weight_files(entry.path), config)
            entry = replace(entry, parameters=weights.parameters, dtype=weights.dtype, weights=weights.bytes)
        return entry

    def config(self, name: str) -> dict[str, Any]:
        """The unchanged ``config.json`` of a model; empty if it has none.

        Raises:
            ModelLoadError: Not on the shelf, or not JSON.
        """
        return read_json(self.folder(name) / "config.json") or {}

    def folder(self, name: str) -> Path:
        """The folder of a model or an adapter.

        Raises:
            ModelLoadError: Not on the shelf.
        """
        found = find_folder(name) or find_folder(name, adapters=True)
        if found is None:
            raise ModelLoadError(f"{name}: not on the shelf (`elsewise models list` names what is)")
        return found

    def open(self, name: str, *, backend: str = "hf") -> ModelFolder:
        """A model, checked for a backend.

        Raises:
            ModelLoadError: Not on the shelf, damaged, or not supported by the backend.
        """
        return open_folder(self.folder(name), backend=backend)

    def add(self, path: str | Path, name: str | None = None) -> ShelfEntry:
        """Links a model folder onto the shelf; its files are neither copied nor, later, removed.

        Args:
            path: The folder.
            name: The id; derived from the folder's name by default.

        Raises:
            ModelLoadError: Not a sound model folder, or the name is taken or impossible.
        """
        source = Path(path).expanduser().absolute()
        open_folder(source, backend="mlx")
        return _entry(link_on_shelf(source, name))

    def verify(self, name: str, progress: OnProgress = ignore_progress) -> None:
        """Reads every file once and compares it with its SHA-256 from the import, or from the last read.

        Args:
            name: A model or an adapter.
            progress: Called with the bytes read so far; raising in it stops.

        Raises:
            ModelLoadError: Not on the shelf, or a file is missing or changed; the message names the first one.
        """
        folder = self.folder(name)
        manifest = read_manifest(folder)
        files = [folder / file for file in manifest.files] if manifest else _wanted(folder)
        for file in files:
            if file.parent != folder or not is_file(file):
                raise missing_file(file, manifest)
        on_read = counting_bytes(progress, sum(file.stat().st_size for file in files), "verify")
        for file in files:
            note = manifest.files[file.name] if manifest else None
            known = note.sha256 if note else remembered_sha256(file)
            stamp = file_stamp(file)
            found = sha256_of(file, on_read)
            if known is not None and found != known:
                raise changed_file(file, found, known, manifest)
            if note is None:
                remember_sha256(file, found, stamp)
            if file.suffix == ".safetensors":
                check_safetensors(file)

    def remove(self, name: str) -> int:
        """Deletes a model or an adapter from the shelf.

        Returns:
            The freed bytes; 0 for a link, whose folder stays.

        Raises:
            ModelLoadError: Not on the shelf, loaded in some process, or not removable; the model is still complete then.
        """
        folder = self.folder(name)
        with exclusive_lock(folder):
            if folder.is_symlink():
                folder.unlink()
                forget_last_use(folder)
                return 0
            freed = _size(folder)
            digest = _entry(folder).fingerprint
            names = [path for path in folder.iterdir() if path.is_file()]
            try:
                aside = Path(tempfile.mkdtemp(prefix=HIDDEN, dir=models_dir()))
                folder.rename(aside / "removed")  # atomically: half a model is never listed
            except OSError as fault:
                raise ModelLoadError(f"{folder} cannot be removed ({fault.strerror}); check its permissions") from fault
            shutil.rmtree(aside, ignore_errors=True)  # the next import removes remains of a crash
            forget_digests(names)
            forget_last_use(folder)
            if digest is not None and all(entry.fingerprint != digest for entry in self.models()):
                forget_measurements(digest)
        return freed


def list_models() -> list[ShelfEntry]:
    """All models of the shelf, by name. Cheap: no weights are read."""
    return ModelShelf().models()


def _entry(folder: Path) -> ShelfEntry:
    name = shelf_id(folder)
    plain = ShelfEntry(name, name, "", folder, _size(folder), None, "unknown", complete=False, last_used=last_used(folder))
    if not folder.is_dir():
        return replace(plain, format="link", problem=f"{folder.readlink()} is not there")
    try:
        manifest = read_manifest(folder)
    except ModelLoadError as fault:
        return replace(plain, problem=str(fault))
    plain = replace(plain, **_described(folder))
    if manifest is None:
        problem = _missing(folder)
        digest = None if problem else _digest(folder, manifest)
        linked = folder.is_symlink()
        where = str(folder.resolve()) if linked else ""
        form = "link" if linked else "folder"
        return replace(plain, format=form, source=where, complete=not problem, problem=problem, fingerprint=digest)
    missing_file = [
        file
        for file, note in manifest.files.items()
        if not is_file(folder / file) or (folder / file).stat().st_size != note.size
    ]
    return replace(
        plain,
        title=manifest.title,
        source=manifest.source,
        parameters=manifest.parameters or None,
        format=_format(manifest, plain),
        backends=("hf", *plain.backends) if manifest.kind == "gguf" and plain.backends == ("mlx",) else plain.backends,
        complete=not missing_file,
        problem=f"{missing_file[0]} is missing or of another size" if missing_file else "",
        fingerprint=None if missing_file else _digest(folder, manifest),
        commit=manifest.hub.commit if manifest.hub else "",
    )


def _format(manifest: ShelfManifest, entry: ShelfEntry) -> str:
    if manifest.kind == "gguf":
        return "from GGUF" if entry.quantisation else "float32, from GGUF"
    return "download" if manifest.hub else "folder"


def _described(folder: Path) -> Mapping[str, Any]:
    try:
        return asdict(describe(read_json(folder / "config.json") or {}))
    except ModelLoadError:  # reported by the load
        return {}


def _digest(folder: Path, manifest: ShelfManifest | None) -> str | None:
    """The digest that `open_folder` computes, if the SHA-256 of every file is known already; else None."""
    with contextlib.suppress(ModelLoadError):
        known: dict[str, str] = {}
        for file in (*weight_files(folder), folder / "config.json"):
            noted = manifest.files.get(file.name) if manifest else None
            sha256 = noted.sha256 if noted else remembered_sha256(file)
            if sha256 is None:
                return None
            known[file.name] = sha256
        return digest_of_all(known)
    return None


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _missing(folder: Path) -> str:
    """Problems of a folder without a manifest; reads the headers of its weights."""
    problems = [f"no {name}" for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    try:
        for file in weight_files(folder):
            check_safetensors(file)
    except ModelLoadError as fault:
        problems.append(str(fault).removeprefix(f"{folder}: "))
    return "; ".join(problems)


def _wanted(folder: Path) -> list[Path]:
    """The files of a folder without a manifest."""
    if is_adapter(folder):
        return [folder / ADAPTER_CONFIG, *sorted(folder.glob("*.safetensors"))]
    small = [folder / name for name in (*SETTINGS_FILES, *TEXT_FILES)]
    return [*weight_files(folder), *(file for file in small if file.is_file())]
