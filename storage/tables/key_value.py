"""Rows that are found by a key: byte vocabularies, models, settings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlite_utils

from storage.database import fetch, require
from storage.errors import StoreDamagedError
from storage.tables import checksums
from storage.tables.text import clean, to_json

_vocabulary = msgspec.msgpack.Decoder(list[bytes])


def vocabulary_digest(tokens: Sequence[bytes]) -> str:
    """The key of a vocabulary: SHA-256 over the lengths of its tokens, in decimal with commas, and their bytes."""
    lengths = ",".join(str(len(token)) for token in tokens)
    return hashlib.sha256(lengths.encode() + b"".join(tokens)).hexdigest()


def save_vocabulary(db: sqlite_utils.Database, digest: str, tokens: Sequence[bytes]) -> None:
    """Saves the bytes of all tokens of a tokenizer by their `vocabulary_digest`."""
    checksums.put(db, "vocabularies", {"digest": clean(digest), "tokens": msgspec.msgpack.encode(list(tokens))})


def vocabulary(db: sqlite_utils.Database, digest: str) -> list[bytes] | None:
    """The bytes of all tokens; None if that tokenizer was never saved."""
    row = _require_intact(db, "vocabularies", digest)
    return None if row is None else _vocabulary.decode(row["tokens"])


def save_model(db: sqlite_utils.Database, kv_fingerprint: str, info: Mapping[str, Any]) -> None:
    """Saves the model of a fingerprint: name, vocabulary digest, any JSON values."""
    checksums.put(db, "models", {"kv_fingerprint": clean(kv_fingerprint), "info": to_json(dict(info))})


def model(db: sqlite_utils.Database, kv_fingerprint: str) -> dict[str, Any] | None:
    """The model of a fingerprint; None if it was never saved."""
    row = _require_intact(db, "models", kv_fingerprint)
    return None if row is None else msgspec.json.decode(row["info"])


def set_setting(db: sqlite_utils.Database, key: str, value: Any) -> None:
    """Saves a setting."""
    checksums.put(db, "settings", {"key": clean(key), "value": to_json(value)})


def setting(db: sqlite_utils.Database, key: str) -> Any:
    """The value of a setting; None if it was never set."""
    row = _require_intact(db, "settings", key)
    return None if row is None else msgspec.json.decode(row["value"])


def set_session_setup(db: sqlite_utils.Database, session_id: int, value: Any) -> None:
    """Saves the setup of a session."""
    require(db, "sessions", session_id)
    set_setting(db, session_key(session_id), value)


def session_key(session_id: int | str) -> str:
    """The key of a session's setup. The setting is deleted with the session."""
    return f"session/{session_id}"


def ends_key(session_id: int) -> str:
    """The key of the setting of `set_saved_ends`, which is deleted with the session."""
    return f"ends/{session_id}"


def set_saved_ends(db: sqlite_utils.Database, session_id: int, ends: Mapping[int, int]) -> None:
    """Saves the lengths of paths with saved KV: tokens by last node."""
    require(db, "sessions", session_id)
    set_setting(db, ends_key(session_id), [[node, tokens] for node, tokens in ends.items()])


def saved_ends(db: sqlite_utils.Database, session_id: int) -> dict[int, int]:
    """The lengths saved by `set_saved_ends`; invalid entries are left out."""
    held = setting(db, ends_key(session_id))
    pairs = held if isinstance(held, list) else []
    return {pair[0]: pair[1] for pair in pairs if isinstance(pair, list) and [type(each) for each in pair] == [int, int]}


def _require_intact(db: sqlite_utils.Database, table: str, key: str) -> dict[str, Any] | None:
    column = checksums.COVERED[table][0]
    rows = fetch(db, f"SELECT * FROM {table} WHERE {column} = ?", [clean(key)])  # noqa: S608  # our own names
    if rows and not checksums.intact(table, rows[0]):
        raise StoreDamagedError(f"{table}: the row {key!r} fails its checksum; saving it anew repairs it")
    return rows[0] if rows else None
