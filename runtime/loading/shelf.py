"""What models are on this machine's shelf."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.errors import ModelLoadError
from runtime.loading.check import check_safetensors, weight_files
from runtime.loading.manifest import read_manifest
from runtime.loading.paths import shelf_id
from runtime.loading.placing import shelf_folders


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
    complete: bool  # every file is there (at its size, where that is known); content is verified when it is loaded
    problem: str = ""  # why it is not complete


def list_models() -> list[ShelfEntry]:
    """The models of the shelf, by name. Cheap: no weights are read."""
    return [_entry(folder) for folder in shelf_folders()]


def _entry(folder: Path) -> ShelfEntry:
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    name = shelf_id(folder)
    try:
        manifest = read_manifest(folder)
    except ModelLoadError as fault:
        return ShelfEntry(name, name, "", folder, size, None, "unknown", complete=False, problem=str(fault))
    if manifest is None:
        problem = _missing(folder)
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


def _missing(folder: Path) -> str:
    """What keeps a folder that was put here by hand from being a model; of its weights the headers are read."""
    problems = [f"no {name}" for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    try:
        for file in weight_files(folder):
            check_safetensors(file)
    except ModelLoadError as fault:
        problems.append(str(fault).removeprefix(f"{folder}: "))
    return "; ".join(problems)
