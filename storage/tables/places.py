"""Folders of sessions, tags, and the manual order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlite_utils

from storage.database import Database, fetch, require, scalar
from storage.errors import InvalidRowError, StoreDamagedError
from storage.rows import FolderRow
from storage.tables import checksums, sessions
from storage.tables.text import clean, to_json

LONGEST_NAME: Final = 200  # characters of a folder's name or of a tag
MOST_TAGS: Final = 50
_NOWHERE: Final[Mapping[str, Any]] = {"folder_id": None, "place": None, "tags": "[]"}


class Places:
    """The part of `SessionStore` for folders, tags and order; raises the errors listed there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def folders(self) -> list[FolderRow]:
        """All folders, in order."""
        return await self._database.read(_folders)

    async def create_folder(self, name: str) -> int:
        """Adds a folder after the others; returns its id.

        Raises:
            InvalidRowError: The name is empty, or longer than `LONGEST_NAME` characters.
        """
        return await self._database.write(lambda db: _create_folder(db, name))

    async def rename_folder(self, folder_id: int, name: str) -> None:
        """Renames a folder.

        Raises:
            InvalidRowError: As for `create_folder`.
        """
        await self._database.write(lambda db: _rename_folder(db, folder_id, name))

    async def remove_folder(self, folder_id: int) -> None:
        """Removes a folder; its sessions go back to the list, and none is deleted."""
        await self._database.write(lambda db: _remove_folder(db, folder_id))

    async def move(self, session_id: int, folder_id: int | None) -> None:
        """Moves a session into a folder, or (None) back into the list, ordered by its last change.

        Raises:
            StoreDamagedError: The row of the session's place fails its checksum; setting the tags again repairs it.
        """
        await self._database.write(lambda db: _move(db, session_id, folder_id))

    async def set_tags(self, session_id: int, tags: Iterable[str]) -> None:
        """Sets the tags of a session, without duplicates regardless of case.

        Raises:
            InvalidRowError: More than `MOST_TAGS` tags, or a tag of more than `LONGEST_NAME` characters.
        """
        words = list(tags)
        await self._database.write(lambda db: change(db, session_id, tags=to_json(_tags(words))))

    async def arrange(self, session_ids: Sequence[int]) -> None:
        """Sets the manual order in one group (the pinned sessions, or a folder); the group's other sessions come first."""
        ids = list(session_ids)
        await self._database.write(lambda db: _arrange(db, ids))


def _folders(db: sqlite_utils.Database) -> list[FolderRow]:
    """All folders, including damaged ones."""
    rows = fetch(db, "SELECT * FROM folders ORDER BY place, id")
    return [FolderRow(row["id"], str(row["name"]), damaged=not checksums.intact("folders", row)) for row in rows]


def _create_folder(db: sqlite_utils.Database, name: str) -> int:
    place = scalar(db, "SELECT ifnull(max(place), 0) + 1 FROM folders")
    return checksums.insert(db, "folders", {"name": _named(name), "place": int(place)})


def _rename_folder(db: sqlite_utils.Database, folder_id: int, name: str) -> None:
    """Renames a folder, which repairs a damaged one."""
    row = require(db, "folders", folder_id)
    place = row["place"] if isinstance(row["place"], int) else 0
    checksums.put(db, "folders", {"id": folder_id, "place": place, "name": _named(name)})


def _remove_folder(db: sqlite_utils.Database, folder_id: int) -> None:
    require(db, "folders", folder_id)
    for row in fetch(db, "SELECT id FROM places WHERE folder_id = ?", [folder_id]):
        change(db, row["id"], folder_id=None, place=None)
    db.execute("DELETE FROM folders WHERE id = ?", [folder_id])


def _arrange(db: sqlite_utils.Database, session_ids: Sequence[int]) -> None:
    for place, session_id in enumerate(session_ids):
        change(db, session_id, place=place)


def _move(db: sqlite_utils.Database, session_id: int, folder_id: int | None) -> None:
    if folder_id is not None:
        require(db, "folders", folder_id)
    for row in _place(db, session_id):
        if not checksums.intact("places", row):  # a move would have no effect, or silently lose its tags
            raise StoreDamagedError(f"where session {session_id} stands is damaged; set its tags anew, then it can be moved")
    change(db, session_id, folder_id=folder_id, place=None)


def pin(db: sqlite_utils.Database, session_id: int, pinned: bool) -> None:  # a state, not an option
    """Pins or unpins a session; drops its manual order, which belongs to its former group."""
    sessions.change(db, session_id, pinned=int(pinned))
    if scalar(db, "SELECT place IS NOT NULL FROM places WHERE id = ?", [session_id]):
        change(db, session_id, place=None)


def change(db: sqlite_utils.Database, session_id: int, **changes: Any) -> None:
    """Sets columns of a session's place.

    The wrong column of a damaged row is unknown: the row counts as missing, and is reported until the tags are set again, which
    repairs it.
    """
    require(db, "sessions", session_id)
    rows = _place(db, session_id)
    if not rows or ("tags" in changes and not checksums.intact("places", rows[0])):
        checksums.put(db, "places", {"id": session_id, **_NOWHERE, **changes})
    else:
        checksums.update(db, "places", rows[0], changes)


def _place(db: sqlite_utils.Database, session_id: int) -> list[dict[str, Any]]:
    return fetch(db, "SELECT * FROM places WHERE id = ?", [session_id])


def _named(name: str) -> str:
    name = " ".join(clean(name).split())
    if not 0 < len(name) <= LONGEST_NAME:
        raise InvalidRowError(f"a name of {len(name)} characters; a folder's or tag's has 1 to {LONGEST_NAME}")
    return name


def _tags(words: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for tag in (_named(word.lstrip("#")) for word in words):
        found.setdefault(tag.casefold(), tag)
    if len(found) > MOST_TAGS:
        raise InvalidRowError(f"{len(found)} tags; a session has at most {MOST_TAGS}")
    return list(found.values())
