"""A damaged file: everything readable is saved into a new one, and the damaged one is kept."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from storage import NewNode, SessionStore, StoreDamagedError, StoreError, StoreMissingError, salvage
from storage.repair.backup import KEPT
from storage.tables import checksums
from tests.storage.helpers import chat, chunk, sql, with_store

SESSIONS = 12
PAGE = 4096


async def fill(store: SessionStore) -> None:
    for i in range(SESSIONS):
        session, _, answer = await chat(store, f"chat {i}", tokens=60)
        await store.add_node(NewNode(session, answer, "user", f"and then in chat {i}?"), chunk(0, 5), current=True)
    await store.save_vocabulary("digest", [b"token"] * 50)
    await store.set_setting("theme", "dark")


async def texts(store: SessionStore) -> dict[str, list[str]]:
    """The texts that a person could read, by session."""
    found: dict[str, list[str]] = {}
    for row in await store.sessions():
        title = row.title if row.title not in found else f"{row.title} {row.id}"
        found[title] = [node.text for node in (await store.load_session(row.id)).nodes]
    return found


def tokens_of(path: Path) -> int:
    return int(sql(path, "SELECT sum(count) FROM token_chunks")[0][0])


def test_everything_in_an_intact_file_is_salvaged(path: Path) -> None:
    with_store(path, fill)
    before, tokens = with_store(path, texts), tokens_of(path)
    seen: list[tuple[str, int, int]] = []
    found = salvage(path, lambda *step: seen.append(step))
    assert (found.sessions, found.turns, found.lost) == (SESSIONS, 3 * SESSIONS, ())
    assert with_store(path, texts) == before
    assert tokens_of(path) == tokens
    assert with_store(path, lambda store: store.verify()) == []
    assert with_store(path, lambda store: store.setting("theme")) == "dark"
    assert {what for what, _, _ in seen} == set(checksums.COVERED)
    assert all(done <= of for _, done, of in seen)
    assert sorted(p.name for p in path.parent.iterdir()) == ["sessions.damaged.sqlite3", path.name]
    # and a new message can be written
    assert with_store(path, lambda store: chat(store, "new"))


def test_the_readable_part_of_a_truncated_file_is_salvaged(path: Path) -> None:
    with_store(path, fill)
    before, whole = with_store(path, texts), path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3 // PAGE * PAGE + 100])
    with pytest.raises(StoreDamagedError, match=r"damaged|cut short"):
        SessionStore.open(path)
    cut = path.read_bytes()
    # when
    found = salvage(path)
    # then the damaged file is unchanged, and the new one opens with most of the texts
    assert found.kept.read_bytes() == cut
    assert found.lost
    after = with_store(path, texts)
    words = {text for session in after.values() for text in session}
    assert len(words & {text for session in before.values() for text in session}) > SESSIONS
    assert path.stat().st_mode & 0o777 == 0o600


def break_header(raw: bytearray) -> None:
    raw[:40] = bytes(40)


def break_magic(raw: bytearray) -> None:
    raw[3] ^= 0x40


def break_definition(raw: bytearray) -> None:
    at = raw.find(b"CREATE TABLE nodes")
    raw[at : at + 12] = b"CREATE TABLX"


def break_the_list(raw: bytearray) -> None:
    at = next(at for at in range(PAGE, len(raw), PAGE) if raw[at] == 0x0D and b"chat 3" in raw[at : at + PAGE])
    raw[at : at + 200] = bytes([0xEE]) * 200


@pytest.mark.slow
@pytest.mark.parametrize("damage", [break_header, break_magic, break_definition, break_the_list])
def test_a_store_too_damaged_to_open_is_salvaged_in_full(path: Path, damage: Callable[[bytearray], None]) -> None:
    with_store(path, fill)
    before = {text for session in with_store(path, texts).values() for text in session}
    raw = bytearray(path.read_bytes())
    damage(raw)
    path.write_bytes(raw)
    with pytest.raises(StoreDamagedError):
        SessionStore.open(path)
    assert path.read_bytes() == raw
    found = salvage(path)
    assert found.kept.read_bytes() == raw
    after = {text for session in with_store(path, texts).values() for text in session}
    assert before <= after


def test_turns_of_a_lost_session_are_listed_under_a_recovered_title(path: Path) -> None:
    with_store(path, fill)
    sql(path, "PRAGMA foreign_keys = OFF")
    sql(path, "DELETE FROM sessions WHERE id = 4")
    sql(path, "DELETE FROM nodes WHERE id = 1")
    salvage(path)
    found = with_store(path, texts)
    assert found["Recovered: Where should we go?"] == ["Where should we go?", "answer in chat 3", "and then in chat 3?"]
    # a session without its first turn is named as damaged
    assert found["chat 0"] == ["answer in chat 0", "and then in chat 0?"]
    assert {row.title for row in with_store(path, lambda store: store.verify())} == {"chat 0"}


def test_an_unmerged_journal_is_salvaged_too_and_kept(path: Path, tmp_path: Path) -> None:
    # given: the files that a killed app leaves
    async def write(store: SessionStore) -> None:
        await fill(store)
        (tmp_path / "left").mkdir()
        for file in path.parent.iterdir():
            shutil.copy(file, tmp_path / "left" / file.name)

    with_store(path, write)
    left = tmp_path / "left" / path.name
    assert (tmp_path / "left" / f"{path.name}-wal").stat().st_size
    found = salvage(left)
    assert found.sessions == SESSIONS
    assert found.kept.with_name(f"{found.kept.name}-wal").exists()
    assert with_store(left, lambda store: store.verify()) == []


@pytest.mark.parametrize("links", [True, False])
def test_both_damaged_files_are_on_the_disk_before_the_journal_is_removed(
    path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_store(path, fill)
    journal = path.with_name(f"{path.name}-wal")
    journal.write_bytes(b"what was not merged")
    synced, at_unlink = set[int](), list[set[int]]()
    real_sync, real_unlink = os.fsync, Path.unlink

    def sync(handle: int) -> None:
        real_sync(handle)
        synced.add(os.fstat(handle).st_ino)

    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self == journal:
            at_unlink.append(set(synced))
        real_unlink(self, missing_ok)

    def no_links(*_: object) -> None:
        raise OSError(errno.EPERM, "this file system has no links")

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "unlink", unlink)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    kept = salvage(path).kept
    assert at_unlink
    assert {kept.stat().st_ino, kept.with_name(f"{kept.name}-wal").stat().st_ino} <= at_unlink[0]


@pytest.mark.parametrize("content", [b"", b"not a database", b"x" * 100_000])
def test_a_file_without_any_readable_row_is_left_unchanged(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match="nothing in it can be read"):
        salvage(path)
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_latest_backup_is_kept_when_a_recovery_loses_something(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_store(path, fill)
    days = iter([f"2031-05-{day:02}" for day in range(1, 2 + 2 * KEPT)])
    monkeypatch.setattr("storage.repair.backup.today", lambda: next(days))
    before = with_store(path, texts)
    backup = with_store(path, lambda store: store.back_up_daily())
    assert backup is not None
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3 // PAGE * PAGE])
    # when it is recovered, and several days pass
    found = salvage(path)
    for _ in range(KEPT):
        with_store(path, lambda store: store.set_aside_damage())
        with_store(path, lambda store: store.back_up_daily())
    # then the former backup has another name, which the report gives
    kept = backup.with_name("sessions.before-recovery.sqlite3")
    assert kept.name in found.lost[0]
    assert not backup.exists()
    assert with_store(kept, texts, read_only=True) == before


def test_the_latest_backup_is_salvaged_when_nothing_in_the_file_is_readable(path: Path) -> None:
    with_store(path, fill)
    before = with_store(path, texts)
    backup = with_store(path, lambda store: store.back_up_daily())
    assert backup is not None
    worse = backup.with_name(backup.name.replace("000001", "000002"))
    for broken in (path, worse):
        broken.write_bytes(b"x" * 100_000)
    found = salvage(path)
    assert found.sessions == SESSIONS
    assert [backup.name in words for words in found.lost] == [True]
    assert with_store(path, texts) == before
    assert found.kept.read_bytes() == worse.read_bytes()
    assert backup.exists()


def test_salvaging_a_missing_file_is_a_missing_store_error(path: Path) -> None:
    with pytest.raises(StoreMissingError):
        salvage(path)


def test_a_cancelled_salvage_changes_nothing(path: Path) -> None:
    with_store(path, fill)
    raw = path.read_bytes()

    def stop(what: str, _done: int, _of: int) -> None:
        if what == "token_chunks":
            raise InterruptedError

    with pytest.raises((InterruptedError, StoreError)):
        salvage(path, stop)
    assert path.read_bytes() == raw
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("damage", ["the page that all rows stand under", "the number of the last row"])
def test_a_salvage_of_unreadable_rows_can_be_cancelled(path: Path, damage: str) -> None:
    with_store(path, fill)
    if damage == "the number of the last row":
        sql(path, "UPDATE sqlite_sequence SET seq = 1 << 40 WHERE name = 'token_chunks'")
    else:
        [(root,)] = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = 'token_chunks'")
        with path.open("r+b") as file:
            file.seek((root - 1) * PAGE)
            file.write(b"\xff" * PAGE)
    raw, reports = path.read_bytes(), 0

    def stop(what: str, _done: int, _of: int) -> None:
        nonlocal reports
        reports += what == "token_chunks"
        if reports == 4:
            raise InterruptedError

    tracemalloc.start()
    try:
        with pytest.raises((InterruptedError, StoreError)):
            salvage(path, stop)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert reports == 4
    assert path.read_bytes() == raw
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("recovered", [False, True])
def test_the_journal_is_found_beside_the_target_of_a_link(path: Path, tmp_path: Path, recovered: bool) -> None:
    # given: files that a killed app left, with all pages but the first in the journal, and a link to them
    far, link = tmp_path / "far" / path.name, tmp_path / "near" / "sessions.db"
    far.parent.mkdir()
    link.parent.mkdir()
    link.symlink_to(far)
    with_store(path, fill)
    before = with_store(path, texts)
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA wal_autocheckpoint = 0")
        conn.execute("VACUUM")
        for ending in ("", "-wal"):
            shutil.copy(f"{path}{ending}", f"{far}{ending}")
    size = far.stat().st_size
    with far.open("r+b") as file:
        file.seek(PAGE)
        file.write(b"\xff" * (size - PAGE))
    # when
    if recovered:
        found = salvage(link)
        assert found.sessions == SESSIONS
        assert found.kept.with_name(f"{found.kept.name}-wal").exists()
    # then
    assert with_store(link, texts) == before
    assert with_store(link, lambda store: store.verify()) == []
    assert link.is_symlink()


def test_a_second_recovery_keeps_both_damaged_files(path: Path) -> None:
    with_store(path, fill)
    first, second = salvage(path), salvage(path)
    assert first.kept != second.kept
    assert first.kept.exists()
    assert second.kept.exists()


def sweep(path: Path, times: int, seed: int) -> int:
    """Breaks random pages; the recovered store must open, and lists no text that was never written."""
    with_store(path, fill)
    whole = path.read_bytes()
    before = {text for session in with_store(path, texts).values() for text in session}
    rng, saved = random.Random(seed), 0
    for _ in range(times):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(raw) // PAGE) * PAGE
            raw[at : at + PAGE] = rng.randbytes(PAGE)
        path.write_bytes(raw)
        try:
            salvage(path)
        except StoreDamagedError:
            continue
        after = {text for session in with_store(path, texts).values() for text in session}
        assert after <= before
        saved += len(after)
    return saved


@pytest.mark.slow
def test_broken_pages_lose_only_their_own_content(path: Path) -> None:
    assert sweep(path, times=6, seed=3) > 6 * SESSIONS


@pytest.mark.slow
def test_many_broken_pages_lose_only_their_own_content(path: Path) -> None:
    assert sweep(path, times=150, seed=4) > 150 * SESSIONS
