"""Imports onto the shelf: a GGUF file is converted, a model folder is copied."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal

from resources.files import kind_of_file, open_regular
from runtime.backends.registry import default_backend
from runtime.errors import ModelLoadError
from runtime.loading.child_process import run_converter
from runtime.loading.config import MLX_GROUPS
from runtime.loading.gguf.convert import CheckedGguf, check_gguf
from runtime.loading.gguf.quants import KEPT
from runtime.loading.gguf.weights import kept_form
from runtime.loading.integrity import digest_of_all, known_sha256, read_manifest
from runtime.loading.model_folder import INDEX, SETTINGS_FILES, TEXT_FILES, ModelFolder, open_folder, weight_files
from runtime.loading.paths import create_private
from runtime.loading.progress import OnProgress, counting_bytes, ignore_progress
from runtime.shelf.atomic_install import copy_files, install, shelf_folders

PATIENCE_SECONDS = 120.0  # time limit of a conversion, in addition to the seconds that grow with the file
_SLOWEST = 2 << 20  # bytes of GGUF per second, below which a conversion counts as hung
SOURCE = "source.gguf"  # copy of the imported file


def import_model(
    path: str | Path,
    name: str | None = None,
    progress: OnProgress = ignore_progress,
    *,
    title: str | None = None,
    keep: bool = False,
    keep_quantised: bool | None = None,
) -> ModelFolder:
    """Puts a GGUF file (converted) or a model folder (copied) on the shelf. Blocks; seconds to minutes.

    Args:
        path: The file or folder; it is only read.
        name: The id: ``name`` or ``org/name@revision``; by default derived from the file's name, with "-mlx" if the weights
            stay quantised.
        progress: Called at least once a second; raising in it cancels the import.
        title: The title shown to users; by default `name`, or else the name of the file or folder.
        keep: Whether to keep a copy of the GGUF file, as ``source.gguf``.
        keep_quantised: For a GGUF file. True keeps quantised weights, without rounding, for mlx, and for hf on a processor;
            False converts all weights to float32, for every device; None is True where mlx is the default backend.

    Returns:
        The checked model. An existing one of the same content and name is returned as it is.

    Raises:
        ModelLoadError: The source is damaged or not supported, the name is taken, the disk is full, or no tensor can stay
            quantised.
    """
    source = Path(path).expanduser().absolute()
    quantised = False
    kind: Literal["gguf", "folder"]
    if source.is_file():
        checked = check_gguf(source)
        quantised = _stays_quantised(checked, keep_quantised)
        needed = checked.written_bytes(quantised=quantised)
        tell = counting_bytes(progress, source.stat().st_size)
        kind, sha256 = "gguf", form_digest(known_sha256(source, tell), quantised=quantised)
    elif source.is_dir():
        if keep_quantised is not None:
            raise ModelLoadError(f"{source}: a folder is taken as it is; to quantise one: `elsewise models convert {source}`")
        open_folder(source, backend="mlx")
        needed = sum(file.stat().st_size for file in _wanted(source))
        tell = counting_bytes(progress, needed)
        kind, sha256 = "folder", digest_of_all({file.name: known_sha256(file, tell) for file in _wanted(source)})
    else:
        what = kind_of_file(source.stat().st_mode) if source.exists() else "no such file or folder"
        raise ModelLoadError(f"{source}: {what}; give a model folder or a GGUF file")

    def write(hidden: Path) -> int:
        if kind == "folder":
            copy_files(_wanted(source), hidden, progress)
            return 0
        options = ("--keep-quantised",) if quantised else ()
        limit = PATIENCE_SECONDS + source.stat().st_size / _SLOWEST
        parameters = run_converter(
            "runtime.loading.gguf.convert", source, hidden, *options, stage="convert", limit=limit, progress=progress
        )
        if keep:
            with open_regular(source) as there, create_private(hidden / SOURCE) as here:
                shutil.copyfileobj(there, here, 8 << 20)
        return parameters

    return install(
        source,
        name,
        sha256,
        needed,
        write=write,
        opened=partial(open_folder, backend="mlx"),
        kind=kind,
        title=title or name or (source.stem if kind == "gguf" else source.name),
        suffix="-mlx" if quantised else "",
        progress=progress,
        copied=kind == "folder",
    )


def _stays_quantised(checked: CheckedGguf, wanted: bool | None) -> bool:
    """Whether weights stay quantised.

    Raises:
        ModelLoadError: `wanted` is True, and no weights can stay quantised.
    """
    if wanted is None:
        return plan_of(checked).keeps
    if wanted and not checked.keepable:
        forms = ", ".join(KEPT)
        raise ModelLoadError(
            f"{checked.header.path}: no matrix of it is quantised ({forms} can be kept); import it as float32 (`--float32`)"
        )
    return wanted


def form_digest(sha256: str, *, quantised: bool) -> str:
    """Identifies an import of a GGUF file: the file's SHA-256, or for quantised weights a SHA-256 over it and the form."""
    return digest_of_all({"gguf": sha256, "weights": "quantised"}) if quantised else sha256


def find_imported(sha256: str) -> Path | None:
    """The folder on the shelf with this `form_digest`; None without one."""
    for folder in shelf_folders():
        with contextlib.suppress(ModelLoadError):  # skip damaged folders
            manifest = read_manifest(folder)
            if manifest is not None and manifest.source_sha256 == sha256:
                return folder
    return None


def _wanted(folder: Path) -> list[Path]:
    """The files to import from a model folder: safetensors, configs, tokenizer and template; no other file is opened."""
    small = [folder / name for name in (*SETTINGS_FILES, *TEXT_FILES, INDEX)]
    return [*(file for file in small if file.is_file()), *weight_files(folder)]


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The two forms of an import's weights.

    Attributes:
        kept: Bytes of the quantised form, for mlx, and for hf on a processor; 0 if no weights can stay quantised.
        float32: Bytes of the float32 form, for every device.
        keeps: Whether the quantised form is the default: it is possible, and mlx is the default backend.
        widened: Matrices in GGUF formats that MLX lacks: their share of all weights, by format. mlx loads them as float32 from
            either form.
    """

    kept: int
    float32: int
    keeps: bool
    widened: Mapping[str, float]

    @property
    def note(self) -> str:
        """A note about weights that mlx loads as float32 in either case; empty without any."""
        shares = " and ".join(f"{form} ({100 * share:.0f} % of the weights)" for form, share in self.widened.items())
        return f"{shares} becomes float32 when mlx loads it: MLX has no form that is exactly it" if shares else ""


def plan_import(path: str | Path) -> ImportPlan:
    """Plans an import from the header of a GGUF file alone. Blocks for less than a second.

    Raises:
        ModelLoadError: The file is missing, damaged, or of a kind that cannot be converted.
    """
    source = Path(path).expanduser().absolute()
    if not source.is_file():
        raise ModelLoadError(f"{source}: no such file")
    return plan_of(check_gguf(source))


def plan_of(checked: CheckedGguf) -> ImportPlan:
    """The plan for a checked file."""
    numbers: Counter[str] = Counter()
    for tensor in checked.tensors:
        form = kept_form(checked.header, tensor)
        if form is not None and form.group not in MLX_GROUPS:
            numbers[checked.header.tensors[tensor.source].format.name] += prod(tensor.shape)
    return ImportPlan(
        kept=checked.written_bytes(quantised=True) if checked.keepable else 0,
        float32=checked.written_bytes(quantised=False),
        keeps=checked.keepable and default_backend() == "mlx",
        widened={name: count / checked.parameters for name, count in sorted(numbers.items())},
    )
