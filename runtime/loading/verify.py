"""Every byte of a model on the shelf, read again on demand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from runtime.loading.check import SETTINGS_FILES, TEXT_FILES, weight_files
from runtime.loading.digests import remember_sha256, remembered_sha256, sha256_of
from runtime.loading.manifest import changed, missing, read_manifest
from runtime.loading.paths import ADAPTER_CONFIG, is_adapter
from runtime.loading.progress import OnProgress, Progress
from runtime.loading.safetensors import check_safetensors


def verify_folder(folder: Path, progress: OnProgress) -> None:
    """Reads each file once: against the SHA-256 taken at import, or the one that is remembered from when it was last read.

    Args:
        folder: A model's or an adapter's.
        progress: Hears of bytes; raising in it stops.

    Raises:
        ModelLoadError: Names the first file that is missing or another one.
    """
    manifest = read_manifest(folder)
    files = [folder / name for name in manifest.files] if manifest else _wanted(folder)
    for file in files:
        if file.parent != folder or not file.is_file():
            raise missing(file, manifest)
    tell = _summed(progress, sum(file.stat().st_size for file in files))
    for file in files:
        note = manifest.files[file.name] if manifest else None
        known = note.sha256 if note else remembered_sha256(file)
        found = sha256_of(file, tell)
        if known is not None and found != known:
            raise changed(file, found, known, manifest)
        if note is None:
            remember_sha256(file, found)
        if file.suffix == ".safetensors":
            check_safetensors(file)


def _wanted(folder: Path) -> list[Path]:
    """What a folder that was put here by hand consists of."""
    if is_adapter(folder):
        return [folder / ADAPTER_CONFIG, *sorted(folder.glob("*.safetensors"))]
    small = [folder / name for name in (*SETTINGS_FILES, *TEXT_FILES)]
    return [*weight_files(folder), *(file for file in small if file.is_file())]


def _summed(progress: OnProgress, total: int) -> Callable[[int], None]:
    """Takes the bytes of every read, and tells how many of all there are by now."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        progress(Progress("verify", done, total))

    return tell
