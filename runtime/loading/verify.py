"""Every byte of a model on the shelf, read again on demand."""

from __future__ import annotations

from runtime.errors import ModelLoadError
from runtime.loading.manifest import read_manifest, verify
from runtime.loading.paths import is_model_id, shelf_path


def verify_model(name: str) -> None:
    """Compares every file of a model on the shelf with the SHA-256 taken at import.

    Raises:
        ModelLoadError: It is not here, has no manifest, or a file differs.
    """
    folder = shelf_path(name) if is_model_id(name) else None
    manifest = read_manifest(folder) if folder is not None else None
    if folder is None or manifest is None:
        raise ModelLoadError(f"{name}: not on the shelf; 'elsewise models list' names what is")
    verify(folder, manifest, fully=True)
