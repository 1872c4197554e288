"""Removal of empty sessions and failed answers, the trash, and copies of sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import sqlite_utils
from msgspec.structs import replace as replace_struct

from storage import InvalidRowError, NewNode, SessionStore, StoreDamagedError
from storage.database import Database, transaction
from storage.rows import Role
from storage.schema import open_sessions
from storage.tables import trash
from storage.transfer import importer
from storage.transfer.session_reader import SessionSource
from tests.storage.helpers import chat, chunk, ids, sql, with_store

NEW = "New session"
ROLES: Final[tuple[Role, ...]] = ("user", "assistant")


def test_empty_sessions_are_dropped_and_all_others_stay(store: SessionStore) -> None:
    async def run() -> None:
        # given: two empty sessions, one of them with the root that a failed message left behind
        await store.create_session(NEW)
        await store.add_node(NewNode(await store.create_session(NEW), None, "system"))
        # and some that are not empty, or must be kept
        open_one = await store.create_session(NEW)
        pinned = await store.create_session(NEW)
        await store.pin_session(pinned)
        stay = [
            open_one,
            pinned,
            await store.create_session("named by hand"),
            await store.create_session(NEW, is_sample=True),
            (await chat(store, NEW))[0],
        ]
        prompted = await store.create_session(NEW)
        await store.add_node(NewNode(prompted, None, "system", "You are a poet."))
        # when
        assert await store.drop_empty_sessions(NEW, keep=[open_one]) == 2
        # then
        assert {row.id for row in await store.sessions()} == {*stay, prompted}
        assert await store.drop_empty_sessions(NEW, keep=[open_one]) == 0
        assert await store.verify() == []

    asyncio.run(run())


def test_damaged_flags_delete_nothing(path: Path) -> None:
    async def fill(store: SessionStore) -> None:
        await store.create_session(NEW)
        await chat(store, "thrown away by a flipped bit")

    with_store(path, fill)
    sql(path, "UPDATE sessions SET created = 1 WHERE id = 1")
    sql(path, "UPDATE sessions SET trashed = 1 WHERE id = 2")

    async def tidy(store: SessionStore) -> None:
        assert await store.drop_empty_sessions(NEW) == 0
        assert await store.purge_trash() == 0
        assert len(await store.sessions()) == 2

    with_store(path, tidy)


def test_a_session_that_lost_its_nodes_to_damage_is_not_dropped_as_empty(path: Path) -> None:
    async def fill(store: SessionStore) -> None:
        await chat(store, NEW)

    with_store(path, fill)
    sql(path, "DELETE FROM nodes")
    assert with_store(path, lambda store: store.drop_empty_sessions(NEW)) == 0


def test_a_large_session_is_purged_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "SLICE_SECONDS", 0)
    count = 2 * trash.SLICE + 3

    async def purge(store: SessionStore) -> int:
        session = await store.create_session("long")
        node = await store.add_node(NewNode(session, None, "assistant", status="open"))
        for at in range(count):
            await store.append_chunk(node, chunk(at, 1))
        await store.trash_session(session)
        purging = asyncio.ensure_future(store.purge_trash(days=0))
        seen = set()
        while not purging.done():  # reads happen between the slices
            await asyncio.sleep(0)
            seen.add(sum(len(tiles) for tiles in (await store.load_tokens([node])).values()))
        assert await purging == 1
        return len(seen)

    assert with_store(path, purge) >= 2
    for table in ("sessions", "nodes", "token_chunks", "search"):
        assert sql(path, f"SELECT count(*) FROM {table}") == [(0,)]


async def wide(store: SessionStore, title: str, count: int) -> int:
    """A session of many turns with few tokens each."""
    session, parent = await store.create_session(title), None
    for n in range(count):
        role = ROLES[n % 2]
        parent = await store.add_node(NewNode(session, parent, role, f"turn {n}"), chunk(0, 1), current=True)
    return session


def test_many_turns_are_deleted_and_copied_in_slices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "SLICE_SECONDS", 0)
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0)
    writes: list[int] = []  # rows that each transaction added or deleted
    real = Database.write

    def rows(db: Any) -> int:
        sql = "SELECT (SELECT count(*) FROM nodes) + (SELECT count(*) FROM token_chunks)"
        return int(db.execute(sql).fetchone()[0])

    async def counting(self: Database, job: Callable[[Any], Any]) -> Any:
        def counted(db: Any) -> Any:
            before = rows(db)
            result = job(db)
            writes.append(abs(rows(db) - before))
            return result

        return await real(self, counted)

    async def run(store: SessionStore) -> None:
        session = await wide(store, "long", 40)
        monkeypatch.setattr(Database, "write", counting)
        made = await store.copy_session(session, "copy")
        assert (len(writes) >= 40, len(made.nodes), max(writes) <= 2) == (True, 40, True)
        writes.clear()
        await store.trash_session(session)
        assert await store.purge_trash(days=0) == 1
        assert (len(writes) >= 40, max(writes) <= 2) == (True, True)
        assert [row.title for row in await store.sessions()] == ["copy"]
        assert await store.verify() == []

    with_store(path, run)


def test_the_remains_of_a_killed_deletion_or_copy_are_hidden_and_cleared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "SLICE_SECONDS", 0)
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0)

    async def prepare(store: SessionStore) -> tuple[int, int]:
        session = await wide(store, "long", 6)
        await store.set_session_setup(session, {"options": {}})
        await store.trash_session(session)
        return session, await wide(store, "source", 6)

    def killed(session: int, source: int) -> None:
        """A few slices of a deletion and one of a copy, as the store would commit them."""
        with closing(open_sessions(path, read_only=False).conn) as conn:
            db = sqlite_utils.Database(conn, execute_plugins=False)
            for _ in range(3):
                assert not transaction(db, lambda db: trash.purge_slice(db, session))
            parts = list(SessionSource(path, source, "copy").parts())
            transaction(db, lambda db: importer.fill(db, importer.ImportState(), parts[:1]))

    async def look(store: SessionStore) -> None:
        assert [row.title for row in await store.sessions()] == ["source"]
        assert await store.trashed_sessions() == []
        assert await store.verify() == []
        assert await store.drop_unfinished_imports() == 2
        assert await store.verify() == []

    killed(*with_store(path, prepare))
    with_store(path, look)
    assert sql(path, "SELECT (SELECT count(*) FROM nodes), (SELECT count(*) FROM settings)") == [(6, 0)]


def test_a_copy_of_a_session_that_is_being_written_is_consistent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "SLICE_SECONDS", 0)

    async def run(store: SessionStore) -> None:
        session = await wide(store, "source", 20)
        tip = (await store.load_session(session)).nodes[-1].id
        copying = asyncio.ensure_future(store.copy_session(session, "copy"))
        await asyncio.sleep(0.02)
        for n in range(5):
            await store.add_node(NewNode(session, tip, "user", f"meanwhile {n}"), current=True)
            assert await store.drop_unfinished_imports() == 0
        made = await copying
        tree = await store.load_session(made.session_id)
        assert tree.session.current_node in {node.id for node in tree.nodes}
        assert 20 <= len(tree.nodes) <= 25
        assert await store.verify() == []

    with_store(path, run)


def test_an_empty_session_with_a_setup_is_not_dropped(store: SessionStore) -> None:
    async def run() -> None:
        kept, unset = await store.create_session(NEW), await store.create_session(NEW)
        await store.set_session_setup(kept, {"options": {"temperature": 0.3}})
        await store.set_session_setup(unset, {})
        assert await store.drop_empty_sessions(NEW) == 1
        assert [row.id for row in await store.sessions()] == [kept]
        assert await store.session_setup(kept) == {"options": {"temperature": 0.3}}

    asyncio.run(run())


def test_a_failed_answer_without_text_can_be_discarded(store: SessionStore) -> None:
    async def run() -> None:
        session, user, answer = await chat(store)
        failed = await store.add_node(NewNode(session, user, "assistant", status="open"), current=True)
        await store.append_chunk(
            failed, replace_struct(chunk(0, 2), columns={**chunk(0, 2).columns, "origin": np.zeros(2, np.uint8)})
        )
        with pytest.raises(InvalidRowError):
            await store.discard_node(failed)  # it is still open
        await store.finish_node(failed, finish_reason="error", stats={"message": "no model"}, text="")
        assert [row.branches for row in await store.sessions()] == [2]
        # when
        await store.discard_node(failed)
        # then nothing of it is left, and its question is the end of the path
        tree = await store.load_session(session)
        assert [node.id for node in tree.nodes] == [user, answer]
        assert tree.session.current_node == user
        assert tree.session.branches == 1
        assert await store.load_tokens([failed]) == {}
        assert await store.verify() == []
        # an answer with text cannot be discarded, nor can a node with children
        for node in (answer, user):
            with pytest.raises(InvalidRowError):
                await store.discard_node(node)

    asyncio.run(run())


def test_discarding_the_only_answer_leaves_its_question_as_the_tip(store: SessionStore) -> None:
    async def run() -> None:
        session = await store.create_session("first")
        user = await store.add_node(NewNode(session, None, "user", "hello"))
        failed = await store.add_node(
            NewNode(session, user, "assistant", status="partial", finish_reason="error"), current=True
        )
        await store.discard_node(failed)
        [row] = await store.sessions()
        assert (row.branches, row.current_node) == (1, user)
        assert await store.verify() == []

    asyncio.run(run())


def test_a_copy_of_a_session_is_equal_and_independent(store: SessionStore) -> None:
    async def run() -> None:
        session, user, answer = await chat(store, "Paris", tokens=6)
        await store.rescore(answer, chunk(0, 6, logprob=-2.0))
        inside = NewNode(session, answer, "assistant", "or Rome", at_token=2, at_byte=3, turn_start=False, finish_reason="eos")
        branch = await store.add_node(inside, chunk(0, 2), current=True)
        await store.pin_session(session)
        # when
        made = await store.copy_session(session, "Paris (copy)")
        # then
        old, new = await store.load_session(session), await store.load_session(made.session_id)
        assert list(made.nodes) == [user, answer, branch]
        assert (new.session.title, new.session.pinned, new.session.branches) == ("Paris (copy)", False, 2)
        assert new.session.current_node == made.nodes[branch]
        for before, after in zip(old.nodes, new.nodes, strict=True):
            parent = None if before.parent_id is None else made.nodes[before.parent_id]
            assert replace(before, id=after.id, session_id=made.session_id, parent_id=parent) == after
        tokens = await store.load_tokens([answer, made.nodes[answer]])
        assert ids(tokens[answer]) == ids(tokens[made.nodes[answer]])
        assert [t.columns["logprob"].tolist() for t in tokens[made.nodes[answer]]] == [[-2.0] * 6]
        assert [row.id for row in await store.sessions("copy")] == [made.session_id]
        assert {row.id for row in await store.sessions("Rome")} == {session, made.session_id}
        assert await store.verify() == []
        # and changes of one do not affect the other
        await store.add_node(NewNode(made.session_id, made.nodes[branch], "user", "more"))
        assert len((await store.load_session(session)).nodes) == 3

    asyncio.run(run())


@pytest.mark.parametrize(
    "damage", ["UPDATE nodes SET text = 'other'", "UPDATE token_chunks SET count = 1", "UPDATE sessions SET branches = 9"]
)
def test_a_damaged_session_is_not_copied(path: Path, damage: str) -> None:
    with_store(path, chat)
    sql(path, damage)

    async def attempt(store: SessionStore) -> None:
        with pytest.raises(StoreDamagedError, match="sessions verify"):
            await store.copy_session(1, "copy")
        assert len(await store.sessions()) == 1

    with_store(path, attempt)
