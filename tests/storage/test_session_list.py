"""Order, pins and trash of the session list, and branch counts."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from storage import NewNode, SessionStore
from tests.storage.helpers import chat, chunk, sql, with_store


async def titles(store: SessionStore, query: str = "") -> list[str]:
    return [row.title for row in await store.sessions(query)]


def test_pinned_sessions_come_first_then_the_most_recently_changed(store: SessionStore) -> None:
    async def run() -> None:
        a = await store.create_session("a")
        for title in ("b", "c"):
            await store.create_session(title)
        assert await titles(store) == ["c", "b", "a"]
        await store.pin_session(a)
        assert await titles(store) == ["a", "c", "b"]
        await store.pin_session(a, False)
        await store.rename_session(a, "A")  # not a change of content: the position stays
        assert await titles(store) == ["c", "b", "A"]
        await store.add_node(NewNode(a, None, "user", "news"))
        assert await titles(store) == ["A", "c", "b"]

    asyncio.run(run())


def test_the_order_of_sessions_and_nodes_does_not_depend_on_the_clock(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        session, user, _ = await chat(store, "old")
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now - 10 * 365 * 86_400)  # the clock is set back ten years
        await store.create_session("new")
        late = await store.add_node(NewNode(session, user, "assistant", "again"))
        assert await titles(store) == ["old", "new"]
        nodes = (await store.load_session(session)).nodes
        assert [node.seq for node in nodes] == [1, 2, 3]
        assert nodes[-1].id == late

    asyncio.run(run())


def test_the_trash_keeps_a_session_for_its_days(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        session, _, answer = await chat(store, "thrown away")
        await chat(store, "kept")
        await store.trash_session(session)
        assert await titles(store) == ["kept"]
        assert [row.title for row in await store.trashed_sessions()] == ["thrown away"]
        assert await titles(store, "thrown") == []
        assert await store.purge_trash() == 0
        await store.restore_session(session)
        assert await titles(store) == ["kept", "thrown away"]
        await store.trash_session(session)
        now = time.time()
        monkeypatch.setattr("time.time", lambda: now + 31 * 86_400)
        assert await store.purge_trash() == 1
        assert await store.trashed_sessions() == []
        assert await store.load_tokens([answer]) == {}
        assert await titles(store) == ["kept"]
        assert await store.verify() == []

    asyncio.run(run())


def test_a_session_trashed_while_the_clock_is_behind_stays_for_its_days(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        now = time.time()
        assert await store.purge_trash() == 0  # as at every start
        session, _, _ = await chat(store, "thrown away")
        # given a clock that is years behind, under which the session is changed and trashed
        monkeypatch.setattr("time.time", lambda: now - 10 * 365 * 86_400)
        await store.rename_session(session, "thrown away, renamed")
        await store.trash_session(session)
        assert await store.purge_trash() == 0
        # when the clock is right again
        monkeypatch.setattr("time.time", lambda: now + 86_400)
        assert await store.purge_trash() == 0
        (row,) = await store.trashed_sessions()
        assert row.trashed_at is not None
        assert row.trashed_at >= now
        monkeypatch.setattr("time.time", lambda: now + 31 * 86_400)
        assert await store.purge_trash() == 1

    asyncio.run(run())


@pytest.mark.slow
def test_purging_the_trash_leaves_no_rows(path: Path) -> None:
    async def purge(store: SessionStore) -> None:
        parent = None
        session = await store.create_session("deep")
        for i in range(1_200):  # deeper than SQLite nests triggers
            parent = await store.add_node(NewNode(session, parent, "user", f"turn {i}"), chunk(0, 1) if i % 100 == 0 else None)
        await store.trash_session(session)
        assert await store.purge_trash(days=0) == 1

    with_store(path, purge)
    for table in ("sessions", "nodes", "token_chunks", "search"):
        assert sql(path, f"SELECT count(*) FROM {table}") == [(0,)]


def test_the_branch_count_is_the_number_of_tips(store: SessionStore) -> None:
    async def run() -> None:
        session, user, answer = await chat(store, tokens=6)

        async def branches() -> int:
            return (await store.load_session(session)).session.branches

        assert await branches() == 1
        await store.add_node(NewNode(session, answer, "user", "goes on"))
        assert await branches() == 1
        await store.add_node(NewNode(session, answer, "assistant", "leaves inside", at_token=3, turn_start=False))
        assert await branches() == 2
        await store.add_node(NewNode(session, answer, "user", "another at the end", at_token=6))
        assert await branches() == 3
        await store.add_node(NewNode(session, user, "assistant", "regenerated"))
        assert await branches() == 4
        await store.add_node(NewNode(session, None, "user", "another root"))
        assert await branches() == 5
        assert await store.verify() == []

    asyncio.run(run())


def test_samples_are_marked_and_unfinished_imports_are_hidden(path: Path) -> None:
    async def make(store: SessionStore) -> None:
        await store.create_session("sample", is_sample=True)
        await store.create_session("half imported")

    with_store(path, make)
    from storage.tables.checksums import checksum  # only the importer sets this flag

    columns = [row[1] for row in sql(path, "PRAGMA table_info(sessions)")]
    row = dict(zip(columns, sql(path, "SELECT * FROM sessions WHERE id = 2")[0], strict=True)) | {"importing": 1}
    sql(path, "UPDATE sessions SET importing = 1, sha256 = ? WHERE id = 2", checksum("sessions", row))

    async def read(store: SessionStore) -> list[tuple[str, bool]]:
        return [(row.title, row.is_sample) for row in await store.sessions()]

    assert with_store(path, read) == [("sample", True)]
