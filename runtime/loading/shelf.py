"""What models are on this machine's shelf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.errors import ModelLoadError
from runtime.loading.importer import shelf_folders
from runtime.loading.manifest import read_manifest


@dataclass(frozen=True, slots=True)
class ShelfEntry:
    """One model. `name` is what `resolve` takes."""

    name: str
    title: str  # what users see
    source: str  # the file or folder it was made from
    path: Path
    bytes: int
    parameters: int | None
    format: str  # "float32, from GGUF", "folder"
    complete: bool  # every file is there at its size; content is verified when it is loaded
    problem: str = ""  # why it is not complete


def list_models() -> list[ShelfEntry]:
    """The shelf, by name. Cheap: no weights are read."""
    return [_entry(folder) for folder in shelf_folders()]


def _entry(folder: Path) -> ShelfEntry:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    name = folder.name.replace("--", "/")
    try:
        manifest = read_manifest(folder)
    except ModelLoadError as fault:
        return ShelfEntry(name, name, "", folder, size, None, "unknown", complete=False, problem=str(fault))
    if manifest is None:
        problem = "" if (folder / "config.json").is_file() else "no config.json"
        return ShelfEntry(name, name, "", folder, size, None, "folder", complete=not problem, problem=problem)
    missing = [
        file
        for file, note in manifest.files.items()
        if not (folder / file).is_file() or (folder / file).stat().st_size != note.size
    ]
    return ShelfEntry(
        name=name,
        title=manifest.title,
        source=manifest.source,
        path=folder,
        bytes=size,
        parameters=manifest.parameters or None,
        format="float32, from GGUF" if manifest.kind == "gguf" else "folder",
        complete=not missing,
        problem=f"{missing[0]} is missing or of another size" if missing else "",
    )
