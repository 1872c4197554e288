"""Folders, tags and the manual order of sessions: saved, found, and never a reason to lose a session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from storage import InvalidRowError, SessionStore, StoreDamagedError, UnknownRowError, salvage
from tests.storage.helpers import chat, sql, with_store


async def titles(store: SessionStore, query: str = "") -> list[str]:
    return [row.title for row in await store.sessions(query)]


async def several(store: SessionStore, count: int = 4) -> list[int]:
    return [(await chat(store, f"s{n}"))[0] for n in range(count)]


def test_a_folder_holds_sessions_and_removing_it_keeps_them(store: SessionStore) -> None:
    async def run() -> None:
        ids = await several(store)
        trips = await store.places.create_folder("  Trips \n of 2031 ")
        await store.places.create_folder("Work")
        await store.places.move(ids[0], trips)
        await store.places.move(ids[1], trips)
        assert [(f.name, f.damaged) for f in await store.places.folders()] == [("Trips of 2031", False), ("Work", False)]
        assert {row.id: row.folder_id for row in await store.sessions()} == {
            ids[0]: trips, ids[1]: trips, ids[2]: None, ids[3]: None,
        }  # fmt: skip
        await store.places.rename_folder(trips, "Voyages")
        await store.places.move(ids[1], None)
        assert [f.name for f in await store.places.folders()] == ["Voyages", "Work"]
        await store.places.remove_folder(trips)
        assert [f.name for f in await store.places.folders()] == ["Work"]
        assert {row.folder_id for row in await store.sessions()} == {None}
        assert len(await store.sessions()) == 4
        assert await store.verify() == []

    asyncio.run(run())


def test_a_manual_order_applies_to_pinned_sessions(store: SessionStore) -> None:
    async def run() -> None:
        ids = await several(store)
        for each in ids[:3]:
            await store.pin_session(each)
        await store.places.arrange([ids[0], ids[2], ids[1]])
        assert await titles(store) == ["s0", "s2", "s1", "s3"]
        await store.pin_session(ids[3])  # newly pinned: first
        assert await titles(store) == ["s3", "s0", "s2", "s1"]
        await store.pin_session(ids[1], False)
        await store.pin_session(ids[1])  # its former position is forgotten
        assert await titles(store) == ["s3", "s1", "s0", "s2"]
        assert await store.verify() == []

    asyncio.run(run())


def test_sessions_are_found_by_their_tags(store: SessionStore) -> None:
    async def run() -> None:
        ids = await several(store, 3)
        await store.places.set_tags(ids[0], ["#Trip", "spring", "TRIP", "日本"])
        await store.places.set_tags(ids[1], ["trip"])
        rows = {row.id: row.tags for row in await store.sessions()}
        assert rows == {ids[0]: ("Trip", "spring", "日本"), ids[1]: ("trip",), ids[2]: ()}
        assert await titles(store, "#tri") == ["s1", "s0"]
        assert await titles(store, "#trip #日") == ["s0"]
        assert await titles(store, "#trip answer s1") == ["s1"]
        assert await titles(store, "#none") == []
        assert await titles(store, "#") == []
        await store.places.set_tags(ids[0], [])
        assert await titles(store, "#trip") == ["s1"]
        assert await store.verify() == []

    asyncio.run(run())


def test_invalid_names_tags_and_ids_are_refused(store: SessionStore) -> None:
    async def run() -> None:
        session = (await several(store, 1))[0]
        with pytest.raises(InvalidRowError, match="1 to 200"):
            await store.places.create_folder(" \n ")
        with pytest.raises(InvalidRowError, match="201 characters"):
            await store.places.set_tags(session, ["x" * 201])
        with pytest.raises(InvalidRowError, match="at most 50"):
            await store.places.set_tags(session, [f"t{n}" for n in range(51)])
        with pytest.raises(UnknownRowError, match="no folder 77"):
            await store.places.move(session, 77)
        with pytest.raises(UnknownRowError, match="no session 99"):
            await store.places.arrange([session, 99])
        assert await store.places.folders() == []
        assert [row.tags for row in await store.sessions()] == [()]

    asyncio.run(run())


def test_an_empty_session_in_a_folder_or_with_a_tag_stays(store: SessionStore) -> None:
    async def run() -> None:
        kept = [await store.create_session("New session") for _ in range(3)]
        await store.places.move(kept[0], await store.places.create_folder("f"))
        await store.places.set_tags(kept[1], ["t"])
        assert await store.drop_empty_sessions("New session") == 1
        assert {row.id for row in await store.sessions()} == set(kept[:2])

    asyncio.run(run())


def test_a_damaged_place_is_named_and_its_session_stays_in_the_list(path: Path) -> None:
    async def fill(store: SessionStore) -> int:
        session = (await chat(store, "a"))[0]
        await store.places.move(session, await store.places.create_folder("f"))
        await store.places.set_tags(session, ["t"])
        return session

    session = with_store(path, fill)
    sql(path, "UPDATE places SET tags = '[\"x\"]'")
    sql(path, "UPDATE folders SET name = 'g'")

    async def look(store: SessionStore) -> None:
        [row] = await store.sessions()
        assert (row.damaged, row.folder_id, row.tags) == (False, None, ())
        assert [(f.name, f.damaged) for f in await store.places.folders()] == [("g", True)]
        assert [(d.kind, d.title) for d in await store.verify()] == [("folder", None), ("place", "a")]
        await store.places.set_tags(session, ["new"])  # saving the values again repairs them
        await store.places.rename_folder(1, "f")
        assert await store.verify() == []
        assert [row.tags for row in await store.sessions()] == [("new",)]

    with_store(path, look)


def test_a_damaged_place_stays_named_until_its_own_values_are_set_again(path: Path) -> None:
    async def fill(store: SessionStore) -> None:
        folder = await store.places.create_folder("Project notes")
        for session in await several(store, 2):
            await store.places.move(session, folder)
            await store.places.set_tags(session, ["x", "y"])

    with_store(path, fill)
    sql(path, 'UPDATE places SET tags = \'["x","z"]\' WHERE id = 1')
    sql(path, "UPDATE folders SET name = 'Projekt'")

    async def use(store: SessionStore) -> None:
        await store.places.arrange([2, 1])
        await store.pin_session(1)
        with pytest.raises(StoreDamagedError, match="set its tags anew"):
            await store.places.move(1, None)
        assert [(f.name, f.damaged) for f in await store.places.folders()] == [("Projekt", True)]
        assert [d.kind for d in await store.verify()] == ["folder", "place"]
        assert {row.id: (row.folder_id, row.tags) for row in await store.sessions()} == {1: (None, ()), 2: (1, ("x", "y"))}
        # when the damaged values themselves are set
        await store.places.rename_folder(1, "Project notes")
        await store.places.set_tags(1, ["x", "y"])
        await store.places.move(1, 1)
        assert await store.verify() == []
        assert {row.folder_id for row in await store.sessions()} == {1}

    with_store(path, use)


def test_a_folder_with_a_damaged_place_in_it_can_be_removed(path: Path) -> None:
    async def fill(store: SessionStore) -> None:
        await store.places.move((await several(store, 1))[0], await store.places.create_folder("f"))

    with_store(path, fill)
    sql(path, "UPDATE places SET tags = '[\"z\"]'")

    async def use(store: SessionStore) -> None:
        await store.places.remove_folder(1)
        assert [d.kind for d in await store.verify()] == ["place"]

    with_store(path, use)


def test_deleting_a_session_for_good_deletes_its_place(path: Path) -> None:
    async def run(store: SessionStore) -> None:
        a, b, c = await several(store, 3)
        await store.places.move(a, await store.places.create_folder("f"))
        for each in (a, b):
            await store.trash_session(each)
        rows = await store.trashed_sessions()
        assert [row.id for row in rows] == [b, a]
        assert all(row.trashed_at is not None for row in rows)
        assert await store.empty_trash([a, c]) == 1  # c is not in the trash
        assert [row.id for row in await store.trashed_sessions()] == [b]
        assert [row.id for row in await store.sessions()] == [c]
        assert await store.verify() == []

    with_store(path, run)
    assert sql(path, "SELECT count(*) FROM places") == [(0,)]


def test_emptying_the_trash_frees_disk_space(path: Path) -> None:
    async def fill(store: SessionStore) -> int:
        session = (await chat(store, "big", tokens=30_000))[0]
        await chat(store, "small")
        return session

    session = with_store(path, fill)
    before = path.stat().st_size

    async def empty(store: SessionStore) -> None:
        await store.trash_session(session)
        await store.empty_trash([session])

    with_store(path, empty)
    assert path.stat().st_size < before / 3


def test_salvage_keeps_folders_and_tags(path: Path) -> None:
    async def fill(store: SessionStore) -> None:
        session = (await chat(store, "a"))[0]
        await store.places.move(session, await store.places.create_folder("f"))
        await store.places.set_tags(session, ["t"])

    with_store(path, fill)
    salvage(path)

    async def look(store: SessionStore) -> None:
        [folder] = await store.places.folders()
        assert [(row.folder_id, row.tags) for row in await store.sessions()] == [(folder.id, ("t",))]
        assert await store.verify() == []

    with_store(path, look)
