"""Finds adapter folders by path or id, reads them, and imports them onto the shelf. Pickles are never opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.adapters.adapter import AdapterKind
from runtime.adapters.layouts import (
    MLX_WEIGHTS,
    PEFT_WEIGHTS,
    AdapterHeader,
    read_mlx_header,
    read_peft_header,
)
from runtime.errors import AdapterError, ModelLoadError
from runtime.loading.integrity import (
    digest_of_all,
    known_sha256,
    read_manifest,
    verify,
)
from runtime.loading.model_folder import PICKLES, check_entries, read_json
from runtime.loading.paths import ADAPTER_CONFIG, is_adapter, is_model_id, models_dir, shelf_id, shelf_path
from runtime.loading.progress import OnProgress, counting_bytes, ignore_progress
from runtime.options.checking import shown
from runtime.shelf.atomic_install import copy_files, install, shelf_folders

_NAMED = 8  # most adapters that a message names
_NEVER_OPENED = (*PICKLES, ".npz")  # such files can run code


def read_header(source: str | Path) -> AdapterHeader:
    """Reads the configuration and the tensor shapes of an adapter folder, without the numbers.

    Args:
        source: A folder, or an id (``org/name``) on the shelf.

    Raises:
        AdapterError: Not found, not an adapter, of an unsupported kind, or damaged.
    """
    folder = adapter_folder(source)
    try:
        linked = check_entries(folder)
        manifest = read_manifest(folder)
        if manifest is not None:
            verify(folder, manifest)
        config = read_json(folder / ADAPTER_CONFIG)
    except ModelLoadError as fault:
        raise AdapterError(str(fault)) from fault
    if linked:
        raise AdapterError(f"{linked[0]}; put the file itself there")
    if config is None:
        what = "a whole model" if (folder / "config.json").is_file() else "no adapter"
        raise AdapterError(f"{folder}: no {ADAPTER_CONFIG}; this folder holds {what}")
    mlx = "peft_type" not in config and ("lora_parameters" in config or "fine_tune_type" in config)
    weights = MLX_WEIGHTS if mlx else PEFT_WEIGHTS
    if not (folder / weights).is_file():
        raise AdapterError(_no_weights(folder, weights))
    return read_mlx_header(folder, config) if mlx else read_peft_header(folder, config)


def adapter_folder(source: str | Path) -> Path:
    """The folder of an adapter.

    Raises:
        AdapterError: Not found; the message says where to look.
    """
    if not isinstance(source, str | Path) or "\0" in str(source):
        raise AdapterError(f"an adapter is a folder or an id on the shelf, not {shown(source)}")
    if not str(source).strip() or source == Path():
        raise AdapterError("no adapter was named; give a folder with adapter_config.json in it, or an id on the shelf")
    path = Path(source).expanduser()
    if path.is_dir():
        return path.absolute()
    if path.is_file():
        raise AdapterError(f"{path}: a file; give the folder that has {ADAPTER_CONFIG} and the weights")
    if isinstance(source, str) and is_model_id(source):
        return _shelved(source)
    raise AdapterError(
        f"{source}: no such folder; give a folder with {ADAPTER_CONFIG} in it, or an id on the shelf (there: {on_the_shelf()})"
    )


def name_of(folder: Path) -> str:
    """Default name of an adapter: its id on the shelf, or the folder's name."""
    return shelf_id(folder) if folder.parent == models_dir() else folder.name


def is_on_shelf(name: object) -> bool:
    """Whether a name is the id of an adapter on the shelf."""
    if not isinstance(name, str) or not is_model_id(name):
        return False
    try:
        return is_adapter(_shelved(name))
    except AdapterError:
        return False


def on_the_shelf() -> str:
    """Names of the shelf's adapters, for messages."""
    names = [shelf_id(folder) for folder in shelf_folders(adapters=True)]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}" if names else "none"


def _shelved(name: str) -> Path:
    exact = shelf_path(name)
    if exact.is_dir():
        return exact
    revisions = sorted(models_dir().glob(f"{exact.name}@*")) if "@" not in name else []
    if len(revisions) == 1:
        return revisions[0]
    if revisions:
        raise AdapterError(f"{name} is here in {len(revisions)} revisions; choose one: {', '.join(map(shelf_id, revisions))}")
    raise AdapterError(
        f"the adapter {name} is not in {models_dir()} (adapters there: {on_the_shelf()}); put one there with "
        f"`elsewise models fetch {name}` (or `elsewise models import FOLDER --name {name}`), or give the folder's path"
    )


def _no_weights(folder: Path, wanted: str) -> str:
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in _NEVER_OPENED)
    if pickles:
        return (
            f"{folder}: the weights are in {pickles[0]}, which is never opened because such files can run code; "
            f"save the adapter as safetensors ({wanted})"
        )
    return f"{folder}: {wanted} is missing; fetch the adapter again"


@dataclass(frozen=True, slots=True)
class ShelvedAdapter:
    """An adapter on the shelf, described by its header.

    Attributes:
        name: The name that `add_adapter`, `push_lora` and ``--adapter`` accept.
        path: Its folder.
        bytes: Bytes of its files.
        base: The model that it names as its base; empty if it names none.
        kind: "lora" (plain) or "alora" (activated).
        layout: "peft" or "mlx".
        parameters: The number of its parameters.
        problem: Why it cannot be used; empty if it can.
    """

    name: str
    path: Path
    bytes: int
    base: str = ""
    kind: AdapterKind = "lora"
    layout: str = ""
    parameters: int = 0
    problem: str = ""


def is_adapter_folder(path: str | Path) -> bool:
    """Whether a path is an adapter folder, by the names of its files."""
    return is_adapter(Path(path).expanduser())


def list_shelf_adapters() -> list[ShelvedAdapter]:
    """All adapters of the shelf, by name. Cheap: no weights are read."""
    return [shelf_adapter(folder) for folder in shelf_folders(adapters=True)]


def import_adapter(path: str | Path, name: str | None = None, progress: OnProgress = ignore_progress) -> ShelvedAdapter:
    """Copies the checked configuration and safetensors of an adapter folder onto the shelf. Blocks.

    Args:
        path: The folder, in peft's layout or mlx-lm's; it is only read, and no other file in it is opened.
        name: The id: ``name`` or ``org/name@revision``; derived from the folder's name by default.
        progress: Called while bytes are read or copied; raising in it cancels the import.

    Returns:
        The adapter. An existing one of the same content and name is returned as it is.

    Raises:
        AdapterError: Not an adapter, of an unsupported kind, pickled (never opened), or damaged.
        ModelLoadError: The name is taken or impossible, or the disk is full.
    """
    source = adapter_folder(Path(path))
    header = read_header(source)
    header.read()  # refuses NaN, infinity and truncated files
    files = [source / ADAPTER_CONFIG, header.weights]
    needed = sum(file.stat().st_size for file in files)
    on_read = counting_bytes(progress, needed)
    sha256 = digest_of_all({file.name: known_sha256(file, on_read) for file in files})

    def write(hidden: Path) -> int:
        copy_files(files, hidden, progress)
        return header.parameters

    def opened(folder: Path) -> Path:
        read_header(folder)
        return folder

    folder = install(
        source,
        name,
        sha256,
        needed,
        write=write,
        opened=opened,
        kind="adapter",
        title=source.name,
        progress=progress,
        copied=True,
    )
    return shelf_adapter(folder)


def shelf_adapter(folder: Path) -> ShelvedAdapter:
    """Describes the adapter in a folder of the shelf; if it cannot be read, `problem` says why."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    try:
        header = read_header(folder)
    except AdapterError as fault:
        return ShelvedAdapter(shelf_id(folder), folder, size, problem=str(fault))
    return ShelvedAdapter(shelf_id(folder), folder, size, header.base, header.kind, header.layout, header.parameters)
