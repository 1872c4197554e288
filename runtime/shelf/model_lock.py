"""Locks of loaded models across processes, and the time of their last use.

A loaded model holds a shared lock on a small file under ``.used`` in the models folder. The file's modification time is the
time of the last load. The kernel releases the lock when the process ends in any way.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from runtime.errors import ModelLoadError
from runtime.loading.paths import make_private, models_dir

_PLACE = ".used"


class ModelLock:
    """Marks a model as in use until `release`, or the end of this object or of the process.

    Args:
        handle: Descriptor of the locked file; None for a folder that is not on the shelf, or for a read-only shelf.
    """

    def __init__(self, handle: int | None) -> None:
        self._release = None if handle is None else weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        """Releases the lock. Idempotent."""
        if self._release is not None:
            self._release()


def lock_model(folder: Path) -> ModelLock:
    """Marks a model as in use and as used now; does nothing on a read-only shelf.

    Raises:
        ModelLoadError: The model is being removed at this moment.
    """
    handle = _opened(folder)
    if handle is None:
        return ModelLock(None)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as fault:
        os.close(handle)
        raise ModelLoadError(
            f"{folder.name.replace('--', '/')} is being removed from the shelf; choose another model"
        ) from fault
    with contextlib.suppress(OSError):
        os.utime(handle)
    return ModelLock(handle)


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[None]:
    """Prevents loads of a model while the context is active.

    Raises:
        ModelLoadError: The model is loaded, in this or another process.
    """
    handle = _opened(folder)
    try:
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as fault:
                name = folder.name.replace("--", "/")
                raise ModelLoadError(f"{name} is loaded (here or in another process); unload it before removing it") from fault
        yield
    finally:
        if handle is not None:
            os.close(handle)


def last_used(folder: Path) -> float | None:
    """Time of the last load, in seconds since 1970; None where it is unknown."""
    with contextlib.suppress(OSError):
        if (mark := _mark(folder)) is not None:
            return mark.stat().st_mtime or None  # 0: created by a failed removal
    return None


def forget_last_use(folder: Path) -> None:
    """Deletes the lock file of a removed model, and with it the time of its last use."""
    with contextlib.suppress(OSError):
        if (mark := _mark(folder)) is not None:
            mark.unlink()


def _mark(folder: Path) -> Path | None:
    return models_dir() / _PLACE / folder.name if folder.parent == models_dir() else None


def _opened(folder: Path) -> int | None:
    mark = _mark(folder)
    if mark is None:
        return None
    with contextlib.suppress(OSError):
        make_private(mark.parent)
        new = not mark.exists()
        handle = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if new:
            os.utime(handle, (0, 0))
        return handle
    return None
