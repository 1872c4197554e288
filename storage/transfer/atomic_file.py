"""Files that are there when they are whole, and not before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from storage.database import sync_folder
from storage.errors import typed_errors


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; what is there at the end takes its place, and after an error nothing changes."""
    with typed_errors(path):
        handle = os.open(_beside(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.close(handle)
        draft = _beside(path)
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
    """A file to write in binary; it takes its place when it is whole."""
    with draft_of(path) as draft, draft.open("wb") as file:
        yield file


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")
