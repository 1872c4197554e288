"""Finds the checked model folder of an id, a folder or a GGUF file. Never downloads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from resources.files import kind_of_file
from runtime.backends.registry import default_backend
from runtime.errors import ModelLoadError, ModelMissingError
from runtime.loading.config import quantised_with
from runtime.loading.gguf.convert import check_gguf
from runtime.loading.integrity import known_sha256, read_manifest, remembered_sha256
from runtime.loading.model_folder import PICKLES, ModelFolder, open_folder, read_json
from runtime.loading.paths import is_model_id, models_dir
from runtime.loading.progress import LoadProgress, Progress, counting_bytes, current_listener
from runtime.shelf.atomic_install import find_folder
from runtime.shelf.importing import find_imported, form_digest, import_model

EMBEDDED = "smollm2"
# For error messages: only commands that work.
WAYS_IN = (
    f"fetch the small default model with: `elsewise models get {EMBEDDED}`, or import one that you have with: "
    "`elsewise models import FOLDER` (or `FILE.gguf`)"
)


def resolve(source: str | Path, *, backend: str = "hf", fits: Callable[[int], None] | None = None) -> ModelFolder:
    """The model folder behind a source. Blocks: hashing and converting take seconds the first time.

    Args:
        source: ``"smollm2"``, an id on the shelf (``name``, ``org/name``, ``org/name@revision``), a model folder, or a
            GGUF file (converted onto the shelf, or found there by its SHA-256).
        backend: "hf" or "mlx"; weights in a form that it cannot read are refused.
        fits: As for `open_folder`.

    Raises:
        ModelMissingError: Not found; names the command that fetches it.
        ModelLoadError: Damaged, or not supported.
    """
    if not str(source).strip() or source == Path():
        raise ModelLoadError("no model was named; give a folder, a GGUF file, or a name on the shelf (`elsewise models list`)")
    if isinstance(source, str) and is_model_id(source):
        shelved = find_folder(source)
        if shelved is not None:
            return open_folder(shelved, backend=backend, fits=fits)
    path = Path(source).expanduser()
    try:
        path.is_dir()
    except OSError as fault:  # a name that no file system accepts
        raise ModelMissingError(f"{source!s:.80}: {fault.strerror}; {WAYS_IN}", str(source)) from None
    if path.is_dir():
        return open_folder(path.absolute(), backend=backend, fits=fits)
    if path.is_file():
        return _from_file(path.absolute(), backend)
    if path.exists():
        raise ModelLoadError(f"{path}: {kind_of_file(path.stat().st_mode)}; give a model folder or a GGUF file")
    raise ModelMissingError(_missing_message(source, path), str(source))


def only_for_mlx(source: str | Path) -> bool:
    """Whether only mlx can read a source: a folder quantised for it, unless it was imported from a GGUF file."""
    path = Path(source).expanduser()
    shelved = find_folder(source) if isinstance(source, str) and is_model_id(source) else None
    folder = shelved or (path if path.is_dir() and str(source).strip() else None)
    if folder is None:
        return False
    try:
        manifest = read_manifest(folder)
        imported = manifest is not None and manifest.kind == "gguf"
        return not imported and quantised_with(read_json(folder / "config.json") or {})[0] == "mlx"
    except ModelLoadError:  # `open_folder` reports it
        return False


def _from_file(path: Path, backend: str) -> ModelFolder:
    if path.suffix.lower() in PICKLES:
        raise ModelLoadError(f"{path}: a pickle, which is never opened because it can run code; choose safetensors or GGUF")
    if path.suffix.lower() == ".safetensors":
        raise ModelLoadError(f"{path}: weights alone are no model; give the folder that has them and config.json")
    if remembered_sha256(path) is None:
        check_gguf(path)  # reads the header alone: a damaged file is refused before minutes of hashing
    listener = current_listener()

    def tell(progress: Progress) -> None:
        if listener is not None:
            listener(LoadProgress(progress.done, progress.total, "importing"))

    digest = known_sha256(path, counting_bytes(tell, path.stat().st_size))
    for quantised in _forms(backend):
        found = find_imported(form_digest(digest, quantised=quantised))
        if found is not None:
            return open_folder(found, backend=backend)
    return import_model(path, progress=tell, keep_quantised=None if backend == "mlx" else False)


def _forms(backend: str) -> tuple[bool, ...]:
    """The imported forms of a GGUF file (True: quantised), the best for a backend first."""
    return (True, False) if backend == default_backend() == "mlx" else (False, True)


def _missing_message(source: str | Path, path: Path) -> str:
    if source == EMBEDDED:
        return f"smollm2 is not in {models_dir()}; fetch it with: `elsewise models get smollm2`"
    if isinstance(source, Path) or path.is_absolute() or path.suffix or not is_model_id(source):
        return f"{source}: no such file or folder; {WAYS_IN}"
    if "/" in source:
        return f"{source} is not in {models_dir()}; fetch it with: `elsewise models fetch {source}`; {WAYS_IN}"
    return f"no model is called {source!r} here (`elsewise models list` shows them); {WAYS_IN}"
