"""Opening a store: new files, foreign files, newer and older ones, folders that are not writable."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
import sqlite_utils
from sqlite_utils import Migrations

from storage import (
    SessionStore,
    StoreDamagedError,
    StoreError,
    StoreMissingError,
    StoreNewerError,
    StoreReadOnlyError,
    schema,
)
from storage.migrations import m001_sessions, m002_places, m003_quarantine
from tests.storage.helpers import chat, sql, with_store


def fingerprint(folder: Path) -> dict[str, str]:
    """Digests of all files in `folder` except SQLite's shared index, which holds no data."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.endswith("-shm"))
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_a_new_store_is_accessible_to_its_owner_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        store = SessionStore.open(path)
        asyncio.run(chat(store))
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
        store.close_sync()
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert modes.keys() >= {"sessions.sqlite3", "sessions.sqlite3-wal"}
    assert set(modes.values()) == {0o600}


def test_a_folder_with_an_awkward_name_works(tmp_path: Path) -> None:
    path = tmp_path / "déjà ?mode=ro #1 100%" / "ses sions.sqlite3"
    with_store(path, chat)
    assert len(with_store(path, lambda store: store.sessions())) == 1
    assert {p.name for p in path.parent.iterdir()} == {path.name}


def pragmas(path: Path, *names: str) -> dict[str, object]:
    """The pragmas of a connection as the store opens it."""
    with closing(schema.open_sessions(path, read_only=False).conn) as conn:
        return {name: conn.execute(f"PRAGMA {name}").fetchone()[0] for name in names}


def test_the_pragmas_of_a_connection_are_set(path: Path) -> None:
    assert pragmas(path, "journal_mode", "synchronous", "foreign_keys", "trusted_schema", "auto_vacuum") == {
        "journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "trusted_schema": 0, "auto_vacuum": 2,
    }  # fmt: skip


def test_a_commit_on_macos_uses_fullfsync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")  # where fsync stops at the drive's cache
    assert pragmas(path, "fullfsync", "checkpoint_fullfsync") == {"fullfsync": 1, "checkpoint_fullfsync": 1}


def test_a_newer_store_is_refused_and_unchanged(path: Path) -> None:
    with_store(path, chat)
    sql(
        path,
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('elsewise.sessions', 'm999_future', '')",
    )
    before = fingerprint(path.parent)
    with pytest.raises(StoreNewerError, match="m999_future"):
        SessionStore.open(path)
    with pytest.raises(StoreNewerError):
        SessionStore.open(path, read_only=True)
    assert fingerprint(path.parent) == before


def test_a_newer_store_with_an_unmerged_wal_is_refused_and_unchanged(path: Path, tmp_path: Path) -> None:
    with_store(path, chat)
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('elsewise.sessions', 'm999_future')")
        conn.commit()
        for suffix in ("", "-wal"):  # the files that a killed process leaves
            shutil.copy(f"{path}{suffix}", f"{crashed / path.name}{suffix}")
    before = fingerprint(crashed)
    assert (crashed / f"{path.name}-wal").stat().st_size
    with pytest.raises(StoreNewerError):
        SessionStore.open(crashed / path.name)
    assert fingerprint(crashed) == before


@pytest.mark.parametrize("content", [b"just some text, long enough to be a header", os.urandom(8192)])
def test_a_file_that_is_no_database_is_refused_and_unchanged(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="not a database"):
        SessionStore.open(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused_and_unchanged(path: Path) -> None:
    path.parent.mkdir()
    sql(path, "CREATE TABLE notes (id INTEGER)")
    before = fingerprint(path.parent)
    with pytest.raises(StoreDamagedError, match="not one of Elsewise's databases"):
        SessionStore.open(path)
    assert fingerprint(path.parent) == before


def test_a_store_with_a_damaged_table_definition_is_refused_and_unchanged(path: Path) -> None:
    with_store(path, chat)
    whole = path.read_bytes()
    for old, new in (
        (b"title TEXT NOT NULL,\n    created", b"tit\xece TEXT NOT NULL,\n    created"),
        (b"at_byte INT", b"at_bite INT"),
    ):
        assert whole.count(old) == 1
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(StoreDamagedError):
            SessionStore.open(path)
        assert path.read_bytes() == whole.replace(old, new)


def test_a_damaged_view_definition_is_named_and_the_sessions_open(path: Path) -> None:
    with_store(path, chat)
    sql(path, "DROP VIEW turns")
    sql(path, "CREATE VIEW turns AS SELECT 1")
    sql(path, "CREATE VIEW mine AS SELECT 2")  # views of other tools are allowed
    found = with_store(path, lambda store: store.verify())
    assert [row.detail for row in found] == ["the definition of turns is not the one that was written"]


def test_a_truncated_store_is_refused_and_never_taken_for_empty(path: Path) -> None:
    async def several(store: SessionStore) -> None:
        for i in range(5):
            await chat(store, str(i), tokens=200)

    with_store(path, several)
    whole = path.read_bytes()
    refused = 0
    for keep in range(1, len(whole), len(whole) // 100):
        path.write_bytes(whole[:keep])
        with pytest.raises(StoreDamagedError):
            SessionStore.open(path).close_sync()
        assert path.read_bytes() == whole[:keep]
        refused += 1
    assert refused >= 100


@pytest.mark.parametrize("size", [0, 1, 99])
def test_a_store_truncated_to_a_few_bytes_is_not_taken_for_a_new_one(path: Path, size: int) -> None:
    with_store(path, chat)
    path.write_bytes(path.read_bytes()[:size])
    for read_only in (False, True):
        with pytest.raises(StoreDamagedError, match=f"has {size} bytes"):
            SessionStore.open(path, read_only=read_only)
    assert path.stat().st_size == size


def test_a_journal_without_its_database_is_refused_and_not_replayed(path: Path, tmp_path: Path) -> None:
    store = SessionStore.open(path)
    asyncio.run(chat(store))
    wal = path.with_name(path.name + "-wal").read_bytes()
    store.close_sync()
    path.unlink()
    path.with_name(path.name + "-wal").write_bytes(wal)
    with pytest.raises(StoreDamagedError, match="is missing, but its journal"):
        SessionStore.open(path)
    assert path.with_name(path.name + "-wal").read_bytes() == wal


def test_a_store_whose_creation_was_interrupted_is_created_again(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(path.name + ".new").write_bytes(b"half of a new store")
    assert with_store(path, lambda store: store.sessions()) == []
    assert {p.name for p in path.parent.iterdir()} == {path.name}


@pytest.mark.parametrize("read_only", [False, True])
def test_a_link_to_a_missing_file_is_reported_and_kept(path: Path, tmp_path: Path, read_only: bool) -> None:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(tmp_path / "unplugged" / "sessions.db")
    with pytest.raises(StoreMissingError, match=r"is a link to .*unplugged"):
        SessionStore.open(path, read_only=read_only)
    assert path.is_symlink()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_leftovers_of_killed_backups_and_recoveries_are_removed_when_the_store_is_opened(path: Path) -> None:
    with_store(path, chat)
    made, others = path.parent / "backups", [path.parent / "backups" / "notes.partial", path.parent / "backups" / "mine.db"]
    made.mkdir(exist_ok=True)
    left = [made / f"{path.stem}.daily-000001.2026-01-02.db{ending}" for ending in (".partial", ".partial-journal")]
    for file in (*left, *others):
        file.write_bytes(b"half")
    (path.parent / ".recovering-abc" / "x").mkdir(parents=True)
    SessionStore.open(path, read_only=True).close_sync()
    assert all(file.exists() for file in left), "one that only reads leaves everything"
    SessionStore.open(path).close_sync()
    assert not any(file.exists() for file in left)
    assert not (path.parent / ".recovering-abc").exists()
    assert all(file.exists() for file in others)


@pytest.mark.parametrize("place", ["/proc/elsewise", "file/data", "file"])
def test_a_path_that_is_not_writable_is_named(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / place / "sessions.sqlite3"
    with pytest.raises(StoreReadOnlyError, match=r"cannot be opened for writing .*; check its folder"):
        SessionStore.open(path)


def test_a_folder_in_place_of_the_database_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreReadOnlyError):
        SessionStore.open(path)


def test_a_full_disk_at_creation_is_a_store_error() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(StoreError):
        SessionStore.open(full)


def test_a_read_only_store_reads_and_refuses_writes(path: Path) -> None:
    with pytest.raises(StoreMissingError, match="no saved sessions"):
        SessionStore.open(path, read_only=True)
    writer = SessionStore.open(path)
    asyncio.run(chat(writer))

    async def read(store: SessionStore) -> None:
        assert [row.title for row in await store.sessions("paris")] == ["Paris"]
        assert await store.verify() == []
        with pytest.raises(StoreReadOnlyError, match="cannot be written"):
            await store.create_session("no")

    with_store(path, read, read_only=True)  # while the writer has it open
    writer.close_sync()
    with_store(path, read, read_only=True)


def test_an_older_store_is_migrated_after_a_verified_backup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_store(path, chat)
    future = grown(fails=False)
    monkeypatch.setattr(schema, "migrations", future)
    with pytest.raises(StoreReadOnlyError, match="brought up to date"):
        SessionStore.open(path, read_only=True)
    titles = with_store(path, lambda store: store.sessions())
    assert [row.title for row in titles] == ["Paris"]
    assert sql(path, "SELECT count(*) FROM moods") == [(0,)]
    [backup] = (path.parent / "backups").iterdir()
    assert backup.name == "sessions.before-m999_moods.sqlite3"
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    monkeypatch.undo()
    old = with_store(backup, lambda store: store.sessions())  # the old version can open the backup
    assert [row.title for row in old] == ["Paris"]
    with pytest.raises(StoreNewerError):
        SessionStore.open(path)


def test_a_failing_migration_leaves_the_old_store(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_store(path, chat)
    monkeypatch.setattr(schema, "migrations", grown(fails=True))
    with pytest.raises(StoreError, match="no such table: nowhere"):
        SessionStore.open(path)
    monkeypatch.undo()
    assert [row.title for row in with_store(path, lambda store: store.sessions())] == ["Paris"]
    with pytest.raises(sqlite3.OperationalError, match="no such table: moods"):
        sql(path, "SELECT * FROM moods")


def test_a_damaged_store_is_not_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_store(path, chat)
    [(root,)] = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'token_chunks_node'")
    raw = bytearray(path.read_bytes())
    raw[(root - 1) * 4096 : root * 4096] = bytes(4096)
    path.write_bytes(raw)
    monkeypatch.setattr(schema, "migrations", grown(fails=False))
    with pytest.raises(StoreDamagedError, match="nothing was changed"):
        SessionStore.open(path)
    assert not list((path.parent / "backups").iterdir())


def grown(*, fails: bool) -> Migrations:
    """Migrations of a possible next version."""
    future = Migrations("elsewise.sessions")
    future()(m001_sessions)
    future()(m002_places)
    future()(m003_quarantine)

    @future()
    def m999_moods(db: sqlite_utils.Database) -> None:
        db.execute("CREATE TABLE moods (id INTEGER)")
        if fails:
            db.execute("INSERT INTO nowhere VALUES (1)")

    return future
