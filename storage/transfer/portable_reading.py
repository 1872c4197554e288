"""A portable session file that somebody else may have made: nothing of it is trusted but rows whose checksum holds.

It is opened read-only and as if it never changed, its functions are distrusted, its length of values limited. Only tables
that are defined exactly as ours are read, column by column; views, triggers and whatever else it defines are never used.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from storage import columns
from storage.errors import InvalidFileError, StoreDamagedError, StoreNewerError
from storage.keep import vocabulary_digest
from storage.records import MAX_TOKENS
from storage.text import clean
from storage.text import to_json as text_of_json
from storage.transfer.fields import Fields
from storage.transfer.folders import travelling
from storage.transfer.growing import GrowingTree
from storage.transfer.nodes import node_part, session_part
from storage.transfer.parts import ModelPart, Part, SetupPart, TokensPart, VocabularyPart
from storage.transfer.portable import APPLICATION_ID, PORTABLE_VERSION, TABLES, definition, names, seal
from storage.transfer.scanner import LIMIT, strict

MAGIC: Final = b"SQLite format 3\0"
_vocabulary = msgspec.msgpack.Decoder(list[bytes])


class PortableFile:
    """A file that is read once, part by part; used by one thread.

    Args:
        path: Where it is; not changed.

    Raises:
        InvalidFileError: It is no portable session file, or damaged.
        StoreNewerError: A newer version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self.notes: tuple[str, ...] = ()  # what could not be taken, in plain words
        self.done = 0  # rows
        try:
            self._conn = open_foreign(path)
        except sqlite3.Error as fault:
            raise self._fault(f"it cannot be opened ({fault})") from fault
        try:
            self.total: int = self._typed(self._survey)  # rows
        except BaseException:
            self._conn.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._conn.close()

    def snapshot(self) -> dict[str, Any] | None:
        """What the engine said of the session (`Snapshot.from_mapping` reads it); None where nothing."""
        found: dict[str, Any] | None = self._typed(lambda: self._about().get("snapshot"))
        return found if isinstance(found, dict) else None

    def parts(self) -> Iterator[Part]:
        """Everything in it, in the order in which it is to be written.

        Raises:
            InvalidFileError: A row is damaged, or not what it should be; the table and the row are named.
        """
        try:
            yield from self._parts()
        except (sqlite3.Error, UnicodeDecodeError) as fault:  # SQLite quotes a damaged schema in its message
            raise self._fault(f"it cannot be read ({fault}): it is damaged or was not made by Elsewise") from fault

    def _parts(self) -> Iterator[Part]:
        about = self._about()
        fields = Fields(about.get("session"), self._name, None, "the session")
        tree, current = GrowingTree(), fields.maybe_whole("current")
        yield session_part(fields)
        if setup := travelling(about.get("setup")):  # whoever uses it takes what makes sense, piece by piece
            yield SetupPart(text_of_json(setup))
        for row in self._rows("models"):
            info = self._json(row["info"], f"the model {row['kv_fingerprint']!r:.40}")
            if isinstance(info, dict) and isinstance(row["kv_fingerprint"], str):
                yield ModelPart(clean(row["kv_fingerprint"]), text_of_json(info))
        for row in self._rows("vocabularies"):
            yield from self._vocabulary(row)
        for row in self._rows("nodes"):
            place = f"node {row['id']!r:.20}"
            plain = {**row, "stats": self._json(row["stats"], place), "more": self._json(row["more"], place)}
            plain["turn_start"] = {0: False, 1: True}.get(row["turn_start"], row["turn_start"])
            node = Fields(plain, self._name, None, place)
            part = node_part(node, tree)
            tree.add(node.whole("id"), part, node.fault)
            yield part
        for row in self._rows("tokens"):
            yield self._tokens(Fields(row, self._name, None, f"tokens {row['id']!r:.20}"), row, tree)
        yield tree.end(current, fields.fault)

    def _tokens(self, fields: Fields, row: dict[str, Any], tree: GrowingTree) -> TokensPart:
        node = tree.place(fields.whole("node"), fields.fault, "node")
        assert node is not None  # it is a number
        try:
            found = columns.decode(row["columns"])
        except (StoreDamagedError, TypeError, ValueError) as wrong:
            raise fields.fault(f"its columns cannot be read: {wrong}") from wrong
        first, count = fields.whole("first", 0, MAX_TOKENS), fields.whole("count", 1, MAX_TOKENS)
        return tree.tokens(node, clean(fields.text("kv_fingerprint")), first, count, found, fields.fault)

    def _vocabulary(self, row: dict[str, Any]) -> Iterator[VocabularyPart]:
        """A vocabulary that is what its name says: one planted under another's would be believed from then on."""
        try:
            tokens = _vocabulary.decode(row["tokens"])
        except (msgspec.DecodeError, TypeError) as wrong:
            raise self._fault(f"a vocabulary cannot be read: {wrong}") from wrong
        if row["digest"] == vocabulary_digest(tokens):
            yield VocabularyPart(row["digest"], msgspec.msgpack.encode(tokens))
        else:
            self.notes += (f"the vocabulary {row['digest']!r:.20} is not what its name says; it was left out",)

    # ---- rows ---------------------------------------------------------------------------------------------------------

    def _survey(self) -> int:
        """How many rows there are; refuses what is not ours, before any of them is read."""
        [(application,)], [(version,)] = (self._ask(f"PRAGMA {name}") for name in ("application_id", "user_version"))
        if application != APPLICATION_ID:
            raise self._fault("it is a database, but no portable session file of Elsewise")
        if version > PORTABLE_VERSION:
            raise StoreNewerError(
                f"{self._name} was written by a newer version of Elsewise (format {version}, this one reads up to "
                f"{PORTABLE_VERSION}); it was not touched, update the app"
            )
        for table in TABLES:
            found = self._ask("SELECT type, sql FROM sqlite_schema WHERE name = ?", table)
            if found != [("table", definition(table))]:
                raise self._fault(f"its table {table!r} is missing or not defined as it should be")
        return sum(int(self._ask(f"SELECT count(*) FROM {table}")[0][0]) for table in TABLES)  # noqa: S608  # our own names

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        listed = names(table)
        sql = f"SELECT {', '.join(listed)}, sha256 FROM {table} ORDER BY 1"  # noqa: S608  # our own names
        for *values, sha in self._conn.execute(sql):
            try:
                sound = sha == seal(values)
            except (TypeError, OverflowError, UnicodeEncodeError):
                sound = False
            if not sound:
                raise self._fault(f"row {values[0]!r:.40} of {table} fails its checksum: it is damaged")
            self.done += 1
            yield dict(zip(listed, values, strict=True))

    def _about(self) -> dict[str, Any]:
        return {row["name"]: self._json(row["value"], f"{row['name']!r:.40}") for row in self._rows("about")}

    def _json(self, text: Any, place: str) -> Any:
        try:
            if not isinstance(text, str) or len(text) > LIMIT:
                raise ValueError("it is no text, or too long")
            return strict(text.encode())
        except ValueError as fault:
            raise InvalidFileError(self._name, str(fault), place=place) from fault

    def _ask(self, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, parameters).fetchall()

    def _typed(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (sqlite3.Error, UnicodeDecodeError) as fault:  # SQLite quotes a damaged schema in its message
            raise self._fault(f"it cannot be read ({fault}): it is damaged or was not made by Elsewise") from fault

    def _fault(self, what: str) -> InvalidFileError:
        return InvalidFileError(self._name, what)


def open_foreign(path: Path) -> sqlite3.Connection:
    """A connection to a SQLite file that is not trusted: read-only, nothing beside it is read or made."""
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None)
    try:
        conn.text_factory = lambda raw: raw.decode("utf-8", "replace")  # damaged text must reach the checksum
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4 * LIMIT)  # bytes of one value
        conn.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
            conn.execute(f"PRAGMA {pragma}")
    except BaseException:
        conn.close()
        raise
    return conn
