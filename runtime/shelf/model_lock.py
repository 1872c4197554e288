"""Who uses which model of the shelf, and when each was last used; across processes.

A loaded model holds a shared lock on a small file under ``.used`` in the models folder, whose time says when it was loaded.
The kernel lets go of it when the process ends, however it ends.
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
    """A model in use. It ends with `release`, with the object, or with the process.

    Args:
        handle: The file that is locked; None for a folder that is not on the shelf, which nobody removes.
    """

    def __init__(self, handle: int | None) -> None:
        self._release = None if handle is None else weakref.finalize(self, os.close, handle)

    def release(self) -> None:
        """Idempotent."""
        if self._release is not None:
            self._release()


def lock_model(folder: Path) -> ModelLock:
    """Marks a model as in use, and as used now. A shelf that cannot be written to keeps no such marks.

    Raises:
        ModelLoadError: It is being removed at this moment.
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
    """While nobody may load it.

    Raises:
        ModelLoadError: Somebody has it loaded.
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
    """When a model of the shelf was last loaded, in seconds since 1970; None where that is not known."""
    mark = _mark(folder)
    if mark is None:
        return None
    try:
        return mark.stat().st_mtime or None  # 0: made by a removal that did not happen
    except OSError:
        return None


def forget_last_use(folder: Path) -> None:
    """Removes the mark of a model that is no longer here."""
    mark = _mark(folder)
    if mark is not None:
        with contextlib.suppress(OSError):
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
