"""An import that ends at any of its writes: all of it or nothing is left, without dangling references."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from storage import SessionStore, StoreFullError
from storage.database import Database
from storage.tables import trash
from storage.transfer import importer
from tests.storage.helpers import chat, sql, with_store
from tests.storage.transfer.trees import as_json, as_portable, branching, leftovers


@pytest.fixture(params=[as_json, as_portable], ids=["json", "portable"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A session with branches, a model, a vocabulary and a current node, exported to a file."""
    source, made = tmp_path / "source.db", tmp_path / "trip.elsewise"
    request.param(source, with_store(source, branching), made)
    return made


@pytest.fixture(autouse=True)
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits after every row, both in writing and in clearing."""
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(trash, "SLICE_SECONDS", 0.0)


def import_until(path: Path, file: Path, place: int, fault: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Imports; at write number `place` it is cancelled, or from there on the disk is full. Returns whether it completed."""
    writes, real = 0, Database.write

    async def play(store: SessionStore) -> bool:
        work = asyncio.ensure_future(store.import_file(file))

        async def write(database: Database, job: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes == place and fault == "cancelled":
                work.cancel()
            if writes >= place and fault == "full":
                raise StoreFullError("sessions.db: the disk is full")
            return await real(database, job)

        with monkeypatch.context() as patch:
            patch.setattr(Database, "write", write)
            await asyncio.wait([work])
        return not work.cancelled() and work.exception() is None

    return with_store(path, play)


def check(path: Path, before: list[int], *, whole: bool) -> None:
    assert sql(path, "PRAGMA foreign_key_check") == []
    assert with_store(path, lambda store: store.verify()) == []
    assert with_store(path, lambda store: store.drop_unfinished_imports()) == 0
    if not whole:
        assert leftovers(path) == before


@pytest.mark.slow
def test_an_import_cancelled_at_any_write_leaves_all_or_nothing(
    path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(path, chat)
    before, place, ends = leftovers(path), 0, list[bool]()
    while not ends or not ends[-1]:
        place += 1
        whole = import_until(path, file, place, "cancelled", monkeypatch)
        check(path, before, whole=whole)
        ends.append(whole)
        assert place < 100
    assert place > 15, "one for each row at the least"
    assert len(with_store(path, lambda store: store.sessions())) == 2


@pytest.mark.slow
def test_the_remains_of_an_import_that_filled_the_disk_are_hidden_and_cleared_at_the_next_start(
    path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that cannot be deleted yet are hidden, and are deleted once there is room again."""
    with_store(path, chat)
    before, place = leftovers(path), 0
    while True:
        place += 1
        if import_until(path, file, place, "full", monkeypatch):
            break
        assert len(with_store(path, lambda store: store.sessions())) == 1
        cleared = with_store(path, lambda store: store.drop_unfinished_imports())
        assert cleared == int(place > 1)
        check(path, before, whole=False)
        assert place < 100
    assert place > 15
