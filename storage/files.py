"""Durable file operations: atomic replacement, links, and syncs of folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from storage.errors import typed_errors


def ensure_file(path: Path) -> None:
    """Makes `path` (0600) and its folder (0700) if they are missing."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Syncs `folder`, which makes the names of its files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sidecar(path: Path, ending: str) -> Path:
    """The path with `ending` appended to its name, such as "-wal"."""
    return path.with_name(path.name + ending)


def free_name(target: Path) -> Path:
    """`target` if no file has that name, otherwise the next free numbered name like it."""
    names = [target, *(target.with_stem(f"{target.stem}-{n}") for n in range(2, 1000))]
    return next(name for name in names if not name.exists())


def keep_as(file: Path, name: Path) -> None:
    """Gives a file a second name by a link, or by a synced copy where links are not supported.

    Replaces a file of that name. Does not sync the folder.
    """
    name.unlink(missing_ok=True)
    try:
        os.link(file, name)
    except OSError:  # a file system without links
        ensure_file(name)
        shutil.copy2(file, name)
    with name.open("rb") as kept:
        os.fsync(kept.fileno())


def journal_of(path: Path) -> Path:
    """The path of a database's WAL; for a link, SQLite keeps it beside the target."""
    return sidecar(path.resolve(), "-wal")


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """An empty file beside `path` to write to. It replaces `path` at the end; after an error nothing is changed."""
    with typed_errors(path):
        draft = path.with_name(f".{path.name}.{os.getpid()}.part")
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            yield draft
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A binary file to write to, which replaces `path` at the end."""
    with draft_of(path) as draft, draft.open("wb") as file:
        yield file
