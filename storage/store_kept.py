"""The store's members about what is kept by a key. Part of `SessionStore`, which says what holds for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.database import Database
from storage.tables import key_value


class KeptMembers:
    """Vocabularies, models, settings, and what sessions are set to."""

    _database: Database

    async def save_vocabulary(self, digest: str, tokens: Sequence[bytes]) -> None:
        """Saves the bytes of every token of a tokenizer, so that alternatives can be shown without an engine."""
        await self._database.write(lambda db: key_value.save_vocabulary(db, digest, tokens))

    async def vocabulary(self, digest: str) -> list[bytes] | None:
        """The bytes of every token; None when that tokenizer was never saved."""
        return await self._database.read(lambda db: key_value.vocabulary(db, digest))

    async def save_model(self, kv_fingerprint: str, info: Mapping[str, Any]) -> None:
        """Saves what a fingerprint stands for: name, vocabulary digest, any JSON values."""
        await self._database.write(lambda db: key_value.save_model(db, kv_fingerprint, info))

    async def model(self, kv_fingerprint: str) -> dict[str, Any] | None:
        """What a fingerprint stands for; None when it was never saved."""
        return await self._database.read(lambda db: key_value.model(db, kv_fingerprint))

    async def set_setting(self, key: str, value: Any) -> None:
        """Saves one setting, any JSON value."""
        await self._database.write(lambda db: key_value.set_setting(db, key, value))

    async def setting(self, key: str) -> Any:
        """The value of a setting; None when it was never set."""
        return await self._database.read(lambda db: key_value.setting(db, key))

    async def set_session_setup(self, session_id: int, value: Any) -> None:
        """Saves what a session is set to, any JSON value; it goes when the session is deleted for good.

        Raises:
            UnknownRowError: There is no such session.
        """
        await self._database.write(lambda db: key_value.set_session_setup(db, session_id, value))

    async def session_setup(self, session_id: int) -> Any:
        """What a session is set to; None when nothing was ever saved for it."""
        return await self._database.read(lambda db: key_value.setting(db, key_value.session_key(session_id)))

    async def set_saved_ends(self, session_id: int, ends: Mapping[int, int]) -> None:
        """Saves where the paths of a session ended when their KV was saved: tokens by last node.

        Raises:
            UnknownRowError: There is no such session.
        """
        await self._database.write(lambda db: key_value.set_saved_ends(db, session_id, ends))

    async def saved_ends(self, session_id: int) -> dict[int, int]:
        """Where they did; empty when nothing was ever saved."""
        return await self._database.read(lambda db: key_value.saved_ends(db, session_id))
