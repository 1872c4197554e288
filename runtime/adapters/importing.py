"""Adapters on the shelf: brought there, checked; and which are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.adapters.adapter import Kind
from runtime.adapters.folder import CONFIG, adapter_folder, read_header
from runtime.errors import AdapterError
from runtime.loading.digests import digest_of_all, known_sha256
from runtime.loading.manifest import FORMAT, Manifest, notes_of, write_manifest
from runtime.loading.paths import is_adapter, shelf_id
from runtime.loading.placing import copy_files, place_on_shelf, shelf_folders
from runtime.loading.progress import OnProgress, ignore


@dataclass(frozen=True, slots=True)
class ShelvedAdapter:
    """One adapter of the shelf, as the header of its weights describes it.

    Attributes:
        name: What `add_adapter`, `push_lora` and ``--adapter`` take.
        path: Its folder.
        bytes: Of its files.
        base: The model it says it was made for; empty where it says nothing.
        kind: Plain or activated.
        layout: "peft" or "mlx".
        parameters: Numbers in all.
        problem: Why it cannot be used; empty where it can.
    """

    name: str
    path: Path
    bytes: int
    base: str = ""
    kind: Kind = "lora"
    layout: str = ""
    parameters: int = 0
    problem: str = ""


def is_adapter_folder(path: str | Path) -> bool:
    """Whether a path is a folder with an adapter in it, by the names of its files."""
    return is_adapter(Path(path).expanduser())


def list_shelf_adapters() -> list[ShelvedAdapter]:
    """The adapters of the shelf, by name. Cheap: no weights are read."""
    return [shelf_adapter(folder) for folder in shelf_folders(adapters=True)]


def import_adapter(path: str | Path, name: str | None = None, progress: OnProgress = ignore) -> ShelvedAdapter:
    """Puts an adapter folder on the shelf: its configuration and its safetensors, checked and copied. Blocking.

    Args:
        path: The folder, in peft's layout or mlx-lm's; it is only read, and nothing else in it is opened.
        name: What it is found by later: ``name`` or ``org/name@revision``; made from the folder's name by default.
        progress: Called while bytes are copied; raising in it cancels the import.

    Returns:
        The adapter. One that is there already, from the same content and under that name, is not made again.

    Raises:
        AdapterError: Not an adapter, of a kind that is not supported, pickled (never opened), or damaged.
        ModelLoadError: The name is taken or cannot be one, or the disk is full.
    """
    source = adapter_folder(Path(path))
    header = read_header(source)
    header.read()  # NaN, infinity, a file that is cut short
    files = [source / CONFIG, header.weights]
    sha256 = digest_of_all({file.name: known_sha256(file) for file in files})

    def make(hidden: Path, adapter_id: str) -> None:
        copy_files(files, hidden, progress)
        manifest = Manifest(
            format=FORMAT,
            id=adapter_id,
            title=source.name,
            source=source.name,
            source_sha256=sha256,
            kind="adapter",
            parameters=header.parameters,
            files=notes_of(hidden),
        )
        write_manifest(hidden, manifest)

    def opened(folder: Path) -> Path:
        read_header(folder)
        return folder

    needed = sum(file.stat().st_size for file in files)
    return shelf_adapter(place_on_shelf(source, name, sha256, needed, make=make, opened=opened))


def shelf_adapter(folder: Path) -> ShelvedAdapter:
    """What a folder of the shelf holds; one that cannot be used says why."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    try:
        header = read_header(folder)
    except AdapterError as fault:
        return ShelvedAdapter(shelf_id(folder), folder, size, problem=str(fault))
    return ShelvedAdapter(shelf_id(folder), folder, size, header.base, header.kind, header.layout, header.parameters)
