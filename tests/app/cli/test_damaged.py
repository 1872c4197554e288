"""`elsewise sessions verify` and `recover` with a damaged sessions file."""

from __future__ import annotations

import asyncio
import gzip
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from storage import DataFolderLock, NewNode, SessionStore
from tests.app.cli.conftest import Elsewise

GOLDEN = Path(__file__).parents[2] / "storage" / "golden"


@pytest.fixture
def damaged(data: Path) -> Path:
    """A sessions file that lost its end."""
    path = data / "sessions.db"
    store = SessionStore.open(path)

    async def fill() -> None:
        for i in range(30):
            session = await store.create_session(f"chat {i}")
            await store.add_node(NewNode(session, None, "user", f"question {i} " * 40), current=True)
        await store.close()

    asyncio.run(fill())
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - 3 * 4096])
    return path


def test_verify_names_the_damaged_file_and_the_command_that_recovers_it(elsewise: Elsewise, damaged: Path) -> None:
    before = damaged.read_bytes()
    done = elsewise("sessions", "verify")
    assert done.code == 1
    assert f"the whole file: {damaged}" in done.out
    assert f"elsewise --data-dir {damaged.parent} sessions recover" in done.err
    assert f"elsewise --data-dir {damaged.parent}-fresh" in done.err
    assert damaged.read_bytes() == before


def test_recover_saves_the_readable_rows(elsewise: Elsewise, damaged: Path) -> None:
    before = damaged.read_bytes()
    done = elsewise("sessions", "recover")
    assert done.code == 0
    kept = damaged.with_name("sessions.damaged.db")
    assert f"the damaged file is kept as {kept}" in done.out
    assert "lost: " in done.out
    assert kept.read_bytes() == before
    assert len(elsewise("sessions", "list").out.splitlines()) > 10
    assert elsewise("sessions", "search", "question").code == 0


def test_recover_is_refused_under_an_open_window_and_without_a_readable_file(elsewise: Elsewise, damaged: Path) -> None:
    before = damaged.read_bytes()
    lock = DataFolderLock(damaged.parent, "window")
    assert lock.acquire()
    done = elsewise("sessions", "recover")
    lock.release()
    assert (done.code, done.out) == (1, "")
    assert "in use by" in done.err
    damaged.write_bytes(b"nothing")
    done = elsewise("sessions", "recover")
    assert (done.code, done.out) == (1, "")
    assert "nothing in it can be read; it was left as it is" in done.err
    assert damaged.read_bytes() == b"nothing" != before
    damaged.unlink()
    assert elsewise("sessions", "recover").code == 1


def test_a_sound_file_is_not_recovered(elsewise: Elsewise, data: Path) -> None:
    assert elsewise("ask", "hi", "--session", "A", "--backend", "fake", "--max-tokens", "2").code == 0
    before = (data / "sessions.db").read_bytes()
    done = elsewise("sessions", "recover")
    assert (done.code, done.out) == (0, "")
    assert "is sound: there is nothing to recover, it was left as it is" in done.err
    assert (data / "sessions.db").read_bytes() == before
    assert not (data / "sessions.damaged.db").exists()


def test_a_newer_file_is_not_recovered_into_an_older_one(elsewise: Elsewise, data: Path) -> None:
    assert elsewise("ask", "hi", "--session", "A", "--backend", "fake", "--max-tokens", "2").code == 0
    with closing(sqlite3.connect(data / "sessions.db")) as conn:
        conn.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('elsewise.sessions', 'm999_later', 'x')"
        )
        conn.commit()
    before = (data / "sessions.db").read_bytes()
    done = elsewise("sessions", "recover")
    assert (done.code, done.out) == (1, "")
    assert "written by a newer version" in done.err
    assert (data / "sessions.db").read_bytes() == before


def test_a_sound_file_of_an_earlier_version_is_not_recovered(elsewise: Elsewise, data: Path) -> None:
    data.mkdir()
    (data / "sessions.db").write_bytes(gzip.decompress((GOLDEN / "v001.sqlite3.gz").read_bytes()))
    listed = elsewise("sessions", "recover")
    assert (listed.code, listed.out) == (0, "")
    assert "is sound: there is nothing to recover" in listed.err
    assert elsewise("sessions", "verify").err.endswith("sound\n")
    assert not (data / "sessions.damaged.db").exists()
    assert len(list((data / "backups").glob("sessions.before-*"))) == 1
