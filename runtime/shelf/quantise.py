"""Quantises a plain model folder for mlx, in a child process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal, get_args

from runtime.backends.registry import check_backend
from runtime.errors import InvalidRequestError, ModelLoadError
from runtime.loading.architectures import libraries_knowing
from runtime.loading.child_process import run_converter
from runtime.loading.config import quantised_with
from runtime.loading.integrity import digest_of_all
from runtime.loading.model_folder import TEXT_FILES, ModelFolder, open_folder
from runtime.loading.paths import models_dir, shelf_id
from runtime.loading.progress import OnProgress, ignore_progress
from runtime.loading.safetensors import weights_of
from runtime.shelf.atomic_install import copy_files, find_folder, id_from, install

Bits = Literal[4, 8]
GROUP = 64  # weights that share a scale and a bias, mlx_lm's default
STAGE = "quantise"
_SLOWEST = 4 << 20  # bytes of weights per second, below which a conversion counts as hung
_PATIENCE = 180.0  # seconds in addition, for Python's imports
_SMALL = ("generation_config.json", *TEXT_FILES)
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # of one weight, by safetensors dtype


def convert_model(
    source: str | Path,
    bits: Bits = 4,
    name: str | None = None,
    progress: OnProgress = ignore_progress,
    *,
    title: str | None = None,
) -> ModelFolder:
    """Quantises a plain model folder for mlx and puts it on the shelf. Blocks; seconds to minutes.

    Args:
        source: A folder, or a model of the shelf by its name; it is only read.
        bits: 4 or 8 for each weight of embeddings and linear layers whose width is a multiple of 64.
        name: The id of the result; by default the source's with "-4bit" or "-8bit".
        progress: Called at least once a second with the bytes written; raising in it cancels and leaves no files.
        title: The title shown to users; by default the source's with the bits.

    Returns:
        The checked model. An existing one of the same content and name is returned as it is.

    Raises:
        InvalidRequestError: `bits` is neither 4 nor 8.
        BackendUnavailableError: mlx or mlx_lm is not installed.
        ModelLoadError: The source is quantised already, has no safetensors, or is of an architecture that mlx_lm does not
            know; the name is taken, the disk is full, or the conversion failed.
    """
    if bits not in get_args(Bits) or isinstance(bits, bool):
        raise InvalidRequestError(f"bits is 4 or 8, not {bits!r:.40}")
    check_backend("mlx")
    folder = _source(source)
    checked, needed = _checked(folder, bits)
    source_digest = digest_of_all({"weights": checked.weights_digest, "text": checked.text_digest, "bits": str(bits)})
    own = shelf_id(folder).partition("@")[0] if folder.parent == models_dir() else id_from(folder)

    def write(hidden: Path) -> int:
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        parameters = run_converter(
            "runtime.backends.mlx.quantise_child",
            folder,
            hidden,
            str(bits),
            str(GROUP),
            stage=STAGE,
            limit=_PATIENCE + size / _SLOWEST,
            progress=progress,
            environment={"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        copy_files([folder / file for file in _SMALL if (folder / file).is_file()], hidden, ignore_progress)
        return parameters

    return install(
        folder,
        name or f"{own}-{bits}bit",
        source_digest,
        needed,
        write=write,
        opened=partial(open_folder, backend="mlx"),
        kind="folder",
        title=title or f"{checked.name} ({bits} bit)",
        progress=progress,
    )


def _source(source: str | Path) -> Path:
    path = Path(source).expanduser()
    if path.is_file():
        raise ModelLoadError(f"{path}: a file, no model folder; import a GGUF file first: `elsewise models import {path}`")
    if path.is_dir():
        return path.absolute()
    found = find_folder(str(source))
    if found is None:
        raise ModelLoadError(f"{source}: no such folder, and nothing on the shelf is called so; fetch or import it first")
    return found


def _checked(folder: Path, bits: int) -> tuple[ModelFolder, int]:
    """The checked source, and the estimated bytes of the result."""
    checked = open_folder(folder, backend="mlx")
    method, had = quantised_with(checked.config)
    if method is not None:
        raise ModelLoadError(f"{folder}: quantised already ({had or method}{' bit' if had else ''}); convert the plain model")
    kind = str(checked.config.get("model_type"))
    if "mlx_lm" not in libraries_knowing(kind):
        raise ModelLoadError(f"{folder}: mlx_lm does not know the architecture {kind!r}; the hf engine runs it as it is")
    weights = weights_of(checked.weights, checked.config)
    if weights.dtype not in _BYTES:
        raise ModelLoadError(f"{folder}: weights are stored as {weights.dtype}; plain ones are {', '.join(_BYTES)}")
    quantised = weights.parameters * bits // 8 + weights.parameters // GROUP * 2 * _BYTES[weights.dtype]
    return checked, min(quantised * 11 // 10, weights.bytes)  # norms and narrow layers stay plain
