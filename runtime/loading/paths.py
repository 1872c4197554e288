"""The models folder, ids of models and their folders, private files."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import BinaryIO

import platformdirs

from runtime.errors import ModelLoadError

ADAPTER_CONFIG = "adapter_config.json"
_ID = re.compile(r"[A-Za-z0-9][\w.+-]*(/[A-Za-z0-9][\w.+-]*)?(@[\w.+-]+)?", re.ASCII)


def models_dir() -> Path:
    """The folder of all models: ``ELSEWISE_MODELS``, or ``models`` under the user data folder."""
    chosen = os.environ.get("ELSEWISE_MODELS")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_data_dir("elsewise")) / "models"


def is_model_id(text: str) -> bool:
    """Whether a text has the form of an id: ``name``, ``org/name`` or ``org/name@revision``."""
    return len(text) <= 200 and _ID.fullmatch(text) is not None and ".." not in text and "--" not in text


def shelf_path(model_id: str) -> Path:
    """The folder of an id, which need not exist.

    Raises:
        ModelLoadError: Not the form of an id.
    """
    if not is_model_id(model_id):
        raise ModelLoadError(f"{model_id!r} cannot be a model's name: org/name@revision, of letters, digits and '._-+'")
    return models_dir() / model_id.replace("/", "--")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, by the names of its files; a whole model has a config.json."""
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def shelf_id(folder: Path) -> str:
    """The id of a folder on the shelf."""
    return folder.name.replace("--", "/")


def ensure_models_dir() -> Path:
    """The models folder, created if missing, readable by its owner alone.

    Raises:
        ModelLoadError: It cannot be created.
    """
    folder = models_dir()
    try:
        make_private(folder)
    except OSError as fault:
        raise ModelLoadError(
            f"the models folder {folder} cannot be made ({fault.strerror}); check its permissions (or set `ELSEWISE_MODELS`)"
        ) from fault
    return folder


def make_private(folder: Path) -> None:
    """Creates a folder and its missing parents for the owner alone, whatever the umask; an existing one is unchanged.

    Raises:
        OSError: It cannot be created.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):  # `parents=True` would create parents with the mode of the umask
        path.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def create_private(path: Path) -> BinaryIO:
    """Opens a new file for writing, readable by its owner alone whatever the umask."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
