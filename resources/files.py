"""Files from elsewhere: only regular ones are opened, and no more of them is read than a stated limit."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path, *, limit: int | None = None) -> BinaryIO:
    """A regular file, opened to read its bytes; never waits for a pipe, a socket or a device.

    Args:
        path: Links are followed.
        limit: Bytes that it may have.

    Raises:
        OSError: It cannot be opened, is not a regular file, or is larger; `strerror` says which of these, for messages.
    """
    _check(path, path.stat(), limit)  # before it is opened: opening a device can already do something
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check(path, os.fstat(handle), limit)  # it may be another file by now
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path, limit: int) -> bytes:
    """All bytes of a regular file.

    Args:
        path: Links are followed.
        limit: Bytes that it may have.

    Raises:
        OSError: As `open_regular`.
    """
    with open_regular(path, limit=limit) as stream:
        return stream.read(os.fstat(stream.fileno()).st_size)  # no more, if it grows while it is read


def is_file(path: Path) -> bool:
    """Whether a file is there; of a name that comes from elsewhere, which may be longer than a name can be."""
    try:
        return path.is_file()
    except OSError:
        return False


def kind_of_file(mode: int) -> str | None:
    """What a file is that is not a regular one, in words; None for a regular one.

    Args:
        mode: `st_mode`.
    """
    return None if stat.S_ISREG(mode) else next((words for holds, words in _KINDS if holds(mode)), "not a regular file")


def _check(path: Path, info: os.stat_result, limit: int | None) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = kind_of_file(info.st_mode)
    if kind is not None:
        raise OSError(errno.EINVAL, f"it is {kind}; only regular files are read", str(path))
    if limit is not None and info.st_size > limit:
        raise OSError(errno.EFBIG, f"{info.st_size:,} bytes; at most {limit:,} bytes are read", str(path))
