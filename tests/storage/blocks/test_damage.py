"""A damaged block file costs time and nothing else: returned blocks equal the stored ones, or are dropped."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from storage import BlockFile
from tests.reliability.damage import KB, PATHS, fill_blocks, flips_of_blocks, truncations_of_blocks
from tests.reliability.suite import Order
from tests.storage.blocks.helpers import BUDGET, block, chain, data, expected, key, keys
from tests.storage.helpers import sql


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "blocks.sqlite3"


def test_a_block_with_a_flipped_bit_is_never_returned(tmp_path: Path) -> None:
    tally = flips_of_blocks(Order(1, 30, tmp_path))
    assert tally.failures == []
    assert tally.seen["dropped and named"] >= 10, tally.seen


def test_a_truncated_file_is_moved_aside_and_created_anew(tmp_path: Path) -> None:
    tally = truncations_of_blocks(Order(1, 10, tmp_path))
    assert (tally.failures, tally.seen) == ([], {"moved aside and made anew": 10})


def test_a_damaged_block_is_dropped_with_all_its_descendants(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill_blocks(file)
    sql(
        file,
        "UPDATE kv_chunks SET data = zeroblob(9216) WHERE id >> 20 = (SELECT id FROM kv_blocks WHERE key = ?)",
        key("a", "b"),
    )
    with BlockFile(file, BUDGET) as store:
        assert store.leading(keys(*PATHS[0])) == 4  # no data was read yet
        assert store.get(keys(*PATHS[0])) == expected("a", nbytes=9 * KB)
        assert "fails its checksum" in caplog.text
        assert store.leading(keys(*PATHS[1])) == 1
        assert store.stats().damaged == 1
        assert store.stats().blocks == 1


def test_a_block_with_a_wrong_parent_is_dropped_and_can_be_stored_again(file: Path) -> None:
    fill_blocks(file)
    sql(file, "UPDATE kv_blocks SET parent = ? WHERE key = ?", key("x"), key("a", "b"))
    with BlockFile(file, BUDGET) as store:
        assert store.get(keys("a", "b")) == expected("a", nbytes=9 * KB)
        assert store.put(chain("a", "b", nbytes=9 * KB)) == 1
        assert store.stats().damaged == 1
        assert store.get(keys("a", "b")) == expected("a", "b", nbytes=9 * KB)


def test_a_cycle_of_parents_is_dropped_when_the_file_is_opened(file: Path) -> None:
    fill_blocks(file)
    with BlockFile(file, BUDGET) as store:
        store.put(chain("x", "y", nbytes=9 * KB))
        store.pin("chat", keys(*PATHS[0]))
        count = store.stats().blocks
    sql(file, "UPDATE kv_blocks SET parent = ? WHERE key = ?", key(*PATHS[0]), key("a"))
    with BlockFile(file, BUDGET) as store:  # with all its descendants, before any read
        assert (store.stats().blocks, store.stats().damaged) == (2, count - 2)
        assert store.get(keys(*PATHS[0])) == []
        assert store.get(keys("x", "y")) == expected("x", "y", nbytes=9 * KB)
        assert store.put(chain(*PATHS[0], nbytes=9 * KB)) == len(PATHS[0])
        assert store.get(keys(*PATHS[0])) == expected(*PATHS[0], nbytes=9 * KB)


def test_a_cycle_that_appears_while_the_file_is_open_is_dropped_when_it_is_read(file: Path) -> None:
    fill_blocks(file)
    with BlockFile(file, BUDGET) as store:
        change = "UPDATE kv_blocks SET parent = ? WHERE key = ?", [key(*PATHS[0]), key("a")]
        store._write(lambda conn: conn.execute(*change))  # noqa: SLF001  # the open file is locked for other connections
        assert store.get(keys(*PATHS[0])) == []
        assert (store.stats().blocks, store.evict(1 << 30)) == (0, 0)  # its descendants are dropped with it
        assert store.put(chain("n", "o")) == 2


def test_a_block_that_is_its_own_parent_is_dropped_and_one_with_a_missing_parent_stays(file: Path) -> None:
    fill_blocks(file)
    with BlockFile(file, BUDGET) as store:
        store.put(chain("x", "y"))
    sql(file, "UPDATE kv_blocks SET parent = key WHERE key = ?", key("a"))
    sql(file, "DELETE FROM kv_blocks WHERE key = ?", key("x"))
    with BlockFile(file, BUDGET) as store:
        assert store.stats().blocks == 1
        assert store.put(chain("x")) == 1  # now a path leads to x/y again
        assert store.get(keys("x", "y")) == expected("x", "y")


@pytest.mark.parametrize("used", [1 << 62, -(1 << 62), "text", 0.5])
def test_a_block_with_a_damaged_use_sequence_can_still_be_evicted(file: Path, used: object) -> None:
    with BlockFile(file, 200) as store:
        store.put([block("a")])
    sql(file, "UPDATE kv_blocks SET used = ?", used)
    with BlockFile(file, 200) as store:
        store.put([block("b")])
        store.put([block("c")])
        assert store.leading(keys("a")) == 0


@pytest.mark.parametrize("content", [b"", b"short", b"some text, long enough to be the header of a file" * 3, os.urandom(9000)])
def test_a_file_that_is_no_database_is_moved_aside(file: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(content)
    with BlockFile(file, BUDGET) as store:
        assert store.put(chain("a", "b")) == 2
    assert "moved to" in caplog.text
    [kept] = [p for p in file.parent.iterdir() if p != file]
    assert kept.read_bytes() == content


def test_a_database_of_another_program_is_moved_aside_unchanged(file: Path) -> None:
    for _ in range(2):  # the second one does not replace the first
        sql(file, "CREATE TABLE notes (id INTEGER)")
        before = file.read_bytes()
        with BlockFile(file, BUDGET) as store:
            assert store.stats().blocks == 0
        file.unlink()
    kept = sorted(p.name for p in file.parent.iterdir())
    assert kept == ["blocks.foreign-2.sqlite3", "blocks.foreign.sqlite3"]
    assert all((file.parent / name).read_bytes() == before for name in kept)


@pytest.mark.parametrize("links", [True, False])
def test_the_journal_of_another_programs_database_is_moved_with_it(
    file: Path, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: the files that a killed program leaves behind
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    with closing(sqlite3.connect(theirs / "notes.db", isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("CREATE TABLE notes (id INTEGER)")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        conn.execute("INSERT INTO notes VALUES (1), (2), (3)")
        for ending in ("", "-wal"):
            shutil.copy(theirs / f"notes.db{ending}", file.with_name(file.name + ending))
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    # when
    with BlockFile(file, BUDGET) as store:
        assert store.put(chain("a")) == 1
    # then
    assert sql(file.with_stem("blocks.foreign"), "SELECT count(*) FROM notes") == [(3,)]


def no_links(*_: object) -> None:
    raise OSError(errno.EPERM, "this file system has no links")


def test_a_file_of_a_newer_version_is_refused_and_unchanged(file: Path) -> None:
    fill_blocks(file)
    sql(file, "PRAGMA user_version = 2")
    before = file.read_bytes()
    with pytest.raises(OSError, match="newer version") as refused:
        BlockFile(file, BUDGET)
    assert refused.value.errno == errno.ENOTSUP
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_second_instance_cannot_open_the_file(file: Path) -> None:
    with BlockFile(file, BUDGET) as first:
        first.put(chain("a", "b"))
        with pytest.raises(OSError, match="another program") as refused:
            BlockFile(file, BUDGET)
        assert refused.value.errno == errno.EBUSY
        assert first.get(keys("a", "b")) == expected("a", "b")
    with BlockFile(file, BUDGET) as second:
        assert second.leading(keys("a", "b")) == 2


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="file"):
        BlockFile(tmp_path / "file" / "blocks.sqlite3", BUDGET)


@contextmanager
def limited(nbytes: int) -> Iterator[None]:
    """Limits the size of every file to `nbytes`, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_put_on_a_full_disk_changes_nothing(file: Path) -> None:
    with BlockFile(file, BUDGET) as store:
        store.put(chain("a", "b", nbytes=9 * KB))
        with limited(500 * KB):
            for _ in range(2):
                with pytest.raises(OSError, match="disk") as failed:
                    store.put([block("big", nbytes=4_000 * KB)])
                assert failed.value.errno in (errno.ENOSPC, errno.EIO)
            assert store.get(keys("a", "b")) == expected("a", "b", nbytes=9 * KB)
        assert store.stats().blocks == 2
        assert store.put([block("big", nbytes=4_000 * KB)]) == 1  # once there is room
        assert store.get([key("big")]) == [data("big", nbytes=4_000 * KB)]


def test_a_portable_file_that_is_no_database_is_refused_and_unchanged(file: Path, tmp_path: Path) -> None:
    there = tmp_path / "portable"
    there.write_bytes(b"not a database, but somebody's file" * 9)
    before = there.read_bytes()
    with BlockFile(file, BUDGET) as store:
        store.put(chain("a", "b"))
        with pytest.raises(OSError, match="portable"):
            store.copy_to(there, keys("a", "b"))
        assert store.stats().blocks == 2
    with pytest.raises(OSError, match="portable"):
        BlockFile(there, 0, read_only=True)
    assert there.read_bytes() == before


def test_blocks_are_copied_into_a_file_with_other_tables(file: Path, tmp_path: Path) -> None:
    there = tmp_path / "portable.sqlite3"
    sql(there, "CREATE TABLE notes (id INTEGER)")
    with pytest.raises(OSError, match="no KV blocks"):
        BlockFile(there, 0, read_only=True)
    with BlockFile(file, BUDGET) as store:
        store.put(chain("a", "b"))
        assert store.copy_to(there, keys("a", "b")) == 2
    with BlockFile(there, 0, read_only=True) as portable:
        assert portable.get(keys("a", "b")) == expected("a", "b")
    with closing(sqlite3.connect(there)) as conn:
        assert conn.execute("SELECT count(*) FROM notes").fetchone() == (0,)


def test_a_damaged_portable_file_is_read_and_never_replaced(file: Path, tmp_path: Path) -> None:
    there = tmp_path / "portable.sqlite3"
    with BlockFile(file, BUDGET) as store:
        store.put(chain("a", "b", nbytes=9 * KB))
        store.copy_to(there, keys("a", "b"))
    sql(there, "UPDATE kv_chunks SET data = x'00'")
    before = there.read_bytes()
    with BlockFile(there, 0, read_only=True) as portable:
        assert portable.get(keys("a", "b")) == []
        assert portable.stats().damaged == 1
    assert there.read_bytes() == before
