"""Files of every former version: opened and migrated by the current code, or unchanged when the migration is interrupted."""

from __future__ import annotations

import gzip
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlite_utils

from storage import SessionStore, StoreDamagedError, salvage
from storage.repair.backup import back_up
from storage.schema import migration_names
from tests.storage.faults import fired, run, under
from tests.storage.helpers import sql, with_store

GOLDEN = sorted((Path(__file__).parent / "golden").glob("v*.sqlite3.gz"))
NAMES = migration_names()
OLDER = GOLDEN[: len(NAMES) - 1]


def unpacked(golden: Path, path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = gzip.decompress(golden.read_bytes())
    path.write_bytes(content)
    return content


async def contents(store: SessionStore) -> object:
    assert await store.verify() == []
    seen: list[object] = []
    for row in [*await store.sessions(), *await store.trashed_sessions()]:
        tree = await store.load_session(row.id)
        tokens = await store.load_tokens([node.id for node in tree.nodes])
        counts = [sum(tile.count for tile in tokens[node.id]) for node in tree.nodes]
        seen.append((row.title, row.pinned, row.trashed, row.is_sample, [n.text for n in tree.nodes], counts))
    return seen


def check(store_contents: object) -> None:
    """The contents of every golden file."""
    asked = "Where should we go?"
    trip = ["Where should we go in April?", "answer in A spring trip", "Lisbon, the Alfama"]
    assert store_contents == [
        ("日本語のタイトル 🙂", True, False, False, [asked, "answer in 日本語のタイトル 🙂"], [4, 6]),
        ("Sample", False, False, True, ["hello"], [0]),
        ("A spring trip", False, False, False, trip, [4, 6, 5]),
        ("thrown away", False, True, False, [asked, "answer in thrown away"], [4, 6]),
    ]


@pytest.mark.parametrize("golden", OLDER, ids=lambda each: each.name)
def test_a_file_of_an_older_version_is_migrated_after_a_backup(golden: Path, path: Path) -> None:
    unpacked(golden, path)
    check(with_store(path, contents))
    assert [row[0] for row in sql(path, "SELECT name FROM _sqlite_migrations ORDER BY id")] == NAMES
    [backup] = (path.parent / "backups").iterdir()
    assert sql(backup, "SELECT count(*) FROM _sqlite_migrations")[0][0] < len(NAMES)
    every = "SELECT id, text FROM nodes ORDER BY id"
    assert sql(backup, every) == sql(path, every) != []


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda each: each.name)
def test_a_damaged_file_of_an_older_version_is_salvaged_into_the_current_one(golden: Path, path: Path) -> None:
    content = bytearray(unpacked(golden, path))
    content[16 * 4096 : 16 * 4096 + 8] = bytes(8)
    path.write_bytes(content)
    found = salvage(path)
    assert found.sessions >= 3
    assert [row[0] for row in sql(path, "SELECT name FROM _sqlite_migrations ORDER BY id")] == NAMES


def test_a_file_of_the_current_version_opens_unchanged(path: Path) -> None:
    before = unpacked(GOLDEN[-1], path)
    check(with_store(path, contents))
    assert not (path.parent / "backups").exists()  # no migration
    assert path.read_bytes()[100:4096] == before[100:4096]  # the schema after the file header


def test_there_is_a_golden_file_for_every_version(path: Path) -> None:
    versions = [int(golden.name[1:4]) for golden in GOLDEN]
    assert versions == list(range(1, len(NAMES) + 1))
    for golden, version in zip(GOLDEN, versions, strict=True):
        unpacked(golden, path)
        assert [name for (name,) in sql(path, "SELECT name FROM _sqlite_migrations ORDER BY id")] == NAMES[:version]


def migrate(path: Path, fault: str, log: Path) -> list[list[object]]:
    """Opens the file in a process that is killed, or whose disk fails."""
    return run(under("vfs", [sys.executable, "-m", "tests.storage.writer", str(path), "0", "0"], path, fault, log))


def check_whole(path: Path) -> bool:
    """The next start finds everything, in the old or the new version; returns whether it was the old one."""
    applied = sql(path, "SELECT count(*) FROM _sqlite_migrations")[0][0]
    assert applied in range(1, len(NAMES) + 1)
    check(with_store(path, contents))
    return bool(applied < len(NAMES))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["pwrite64:signal=SIGKILL:when={k}", "pwrite64:error=ENOSPC:when={k}+"])
@pytest.mark.parametrize("step", [29, pytest.param(7, marks=pytest.mark.slow)])
def test_an_interrupted_migration_leaves_the_old_or_the_new_version(
    path: Path, tmp_path: Path, fault: str, step: int, tell: Callable[[str], None]
) -> None:
    faults = old = 0
    places = range(1, 60, step)
    for k in places:
        copy, log = tmp_path / f"{k}" / path.name, tmp_path / f"{k}.log"
        unpacked(GOLDEN[0], copy)
        migrate(copy, fault.format(k=k), log)
        faults += fired(log)
        old += check_whole(copy)
        shutil.rmtree(copy.parent)
    tell(f"migration, {fault}: {faults} faults fired, {old} of {len(places)} found the old version")
    assert faults >= 1
    assert 0 < old <= len(places)


def test_a_migration_is_stopped_when_its_backup_differs_from_the_original(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = unpacked(GOLDEN[0], path)

    def on_a_bad_disk(db: sqlite_utils.Database, target: Path) -> Path:
        made = back_up(db, target)
        sql(made, "UPDATE nodes SET text = 'flipped' WHERE id = 1")
        return made

    monkeypatch.setattr("storage.repair.backup.back_up", on_a_bad_disk)
    with pytest.raises(StoreDamagedError, match=r"1 rows of the backup .* are not what they are in the original; nothing was"):
        SessionStore.open(path)
    assert list((path.parent / "backups").iterdir()) == []
    assert path.read_bytes() == before


def test_a_row_damaged_before_a_migration_does_not_block_it(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unpacked(GOLDEN[0], path)
    sql(path, "UPDATE nodes SET text = 'flipped' WHERE id = 1")
    damage = with_store(path, lambda store: store.verify())
    assert {row.node_id for row in damage} == {1}
    [backup] = (path.parent / "backups").iterdir()
    assert sql(backup, "SELECT text FROM nodes WHERE id = 1") == [("flipped",)]
    assert "1 rows are damaged, here and in the backup" in caplog.text
    caplog.clear()
