"""The portable session file: one SQLite file with the tree, its tokens and their provenance; KV blocks on request.

The tables do not depend on the store's schema. Every row has a SHA-256 over its other columns. The engine may then copy blocks
into the file (`BlockStore.copy_to`), in the tables of a block file.

| table | row |
|---|---|
| `about` | `name`, `value`: JSON; "session" as in the JSON format, "setup" and "snapshot" where there is one |
| `nodes` | a node as in the JSON format, `stats` and `more` as JSON text |
| `tokens` | a range of a node's tokens: `columns` is msgpack of name -> (dtype, shape, little-endian bytes) |
| `models`, `vocabularies` | models by fingerprint, token bytes by tokenizer digest |

`PRAGMA user_version` is the format's version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from storage.database import open_connection
from storage.errors import InvalidFileError, StoreNewerError
from storage.files import draft_of
from storage.tables import columns
from storage.tables.checksums import digest_of
from storage.tables.key_value import vocabulary_digest
from storage.tables.text import clean, to_json
from storage.transfer.import_tree import Fields, ImportTree, node_part, session_part, tokens_part
from storage.transfer.json_format import model_record, node_record, session_record
from storage.transfer.json_scanner import LIMIT, decode_strict
from storage.transfer.parts import ImportPart, ModelPart, SetupPart, VocabularyPart, portable_setup
from storage.transfer.session_reader import OnProgress, StoredSession, stored_session

APPLICATION_ID: Final = 0x454C5350  # "ELSP"
PORTABLE_VERSION: Final = 1
TABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "about": ("name TEXT PRIMARY KEY", "value TEXT NOT NULL"),
    "nodes": ("id INTEGER PRIMARY KEY", "parent INTEGER", "at_token INTEGER", "at_byte INTEGER", "role TEXT NOT NULL",
              "turn_start INTEGER NOT NULL", "text TEXT NOT NULL", "status TEXT NOT NULL", "finish_reason TEXT",
              "token_count INTEGER NOT NULL", "kv_fingerprint TEXT", "stats TEXT NOT NULL", "created REAL NOT NULL",
              "more TEXT NOT NULL"),
    "tokens": ("id INTEGER PRIMARY KEY", "node INTEGER NOT NULL", "kv_fingerprint TEXT NOT NULL", "first INTEGER NOT NULL",
               "count INTEGER NOT NULL", "columns BLOB NOT NULL"),
    "models": ("kv_fingerprint TEXT PRIMARY KEY", "info TEXT NOT NULL"),
    "vocabularies": ("digest TEXT PRIMARY KEY", "tokens BLOB NOT NULL"),
}  # fmt: skip
_SLICE: Final = 512  # rows
_SCHEMA_STEPS: Final = 1 << 20  # most virtual machine steps of SQLite for reading a schema; ours takes some hundred
_LEAST_ROW: Final = 32  # the fewest bytes of a row: its checksum
_vocabulary = msgspec.msgpack.Decoder(list[bytes])


def definition(table: str) -> str:
    """The exact SQL of a table."""
    return f"CREATE TABLE {table} ({', '.join(TABLES[table])}, sha256 BLOB NOT NULL)"


def names(table: str) -> list[str]:
    """The columns of a table without the checksum."""
    return [column.split()[0] for column in TABLES[table]]


def export_portable(
    store: Path, session_id: int, path: Path, progress: OnProgress, snapshot: Mapping[str, Any] | None = None
) -> None:
    """Writes a portable session file, without blocks, and closes it. Blocking; callable from any thread.

    Args:
        store: The sessions file.
        session_id: The session.
        path: The target; replaced only by a complete export.
        progress: Called with nodes done and in all; each node counts twice, for itself and its tokens.
        snapshot: The engine's snapshot of the session (`Snapshot.to_mapping`).

    Raises:
        UnknownRowError: There is no such session.
        StoreDamagedError: Part of the session is damaged.
        StoreFullError, StoreReadOnlyError: `path` cannot be written.
    """
    with stored_session(store, session_id) as session:
        session.require_whole()
        with draft_of(path) as draft, closing(sqlite3.connect(draft, isolation_level=None)) as conn:
            conn.execute("PRAGMA journal_mode = OFF")  # the draft is deleted after an error
            conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            conn.execute(f"PRAGMA user_version = {PORTABLE_VERSION}")
            for table in TABLES:
                conn.execute(definition(table))
            about: dict[str, Any] = {"session": session_record(session.row)}
            if setup := portable_setup(session.setup()):
                about["setup"] = setup
            if snapshot is not None:
                about["snapshot"] = dict(snapshot)
            _write(conn, "about", ((name, to_json(value)) for name, value in about.items()))
            _write(conn, "models", ((row["kv_fingerprint"], to_json(model_record(row)["info"])) for row in session.models()))
            _write(conn, "vocabularies", ((row["digest"], row["tokens"]) for row in session.vocabularies()))
            _write(conn, "nodes", _nodes(session, progress))
            _write(conn, "tokens", _tokens(session, progress))


def _nodes(session: StoredSession, progress: OnProgress) -> Iterator[list[Any]]:
    for row in session.counted_nodes(progress):
        record = node_record(row)
        record |= {name: to_json(record[name]) for name in ("stats", "more")}
        yield [int(value) if isinstance(value := record[name], bool) else value for name in names("nodes")]


def _tokens(session: StoredSession, progress: OnProgress) -> Iterator[list[Any]]:
    number = 0
    for row in session.counted_nodes(progress, session.node_count):
        for fingerprint, first, count, found in session.ranges(row["id"]):
            number += 1
            yield [number, row["id"], fingerprint, first, count, columns.encode(found)]


def _write(conn: sqlite3.Connection, table: str, rows: Iterable[Sequence[Any]]) -> None:
    places = ", ".join("?" * (len(TABLES[table]) + 1))
    sql = f"INSERT INTO {table} VALUES ({places})"  # noqa: S608  # our own names
    waiting: list[list[Any]] = []
    for row in rows:
        waiting.append([*row, digest_of(row)])
        if len(waiting) == _SLICE:
            _commit(conn, sql, waiting)
    _commit(conn, sql, waiting)


def _commit(conn: sqlite3.Connection, sql: str, rows: list[list[Any]]) -> None:
    conn.execute("BEGIN")
    conn.executemany(sql, rows)
    conn.execute("COMMIT")
    rows.clear()


class PortableFile:
    """Reads a portable file once, part by part; used by one thread.

    The file is not trusted. It is opened read-only and immutable, without its functions and with limits on the length of
    values; only tables that are defined exactly as ours are read, and only rows whose checksum matches. A forged table may
    refer to the same page many times, which SQLite does not notice: therefore the number of rows is limited by the size of the
    file, and rows must come in order.

    Raises:
        InvalidFileError: The file is not a portable session file, or is damaged.
        StoreNewerError: The file is of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self.notes: tuple[str, ...] = ()  # notes on parts that were left out
        self.done = 0  # rows read
        try:
            self._conn = open_foreign(path)
        except sqlite3.Error as fault:
            raise self._fault(f"it cannot be opened ({fault})") from fault
        try:
            with self._typed_errors():
                self.total = self._survey(path.stat().st_size)  # rows
        except BaseException:
            self._conn.close()
            raise

    def close(self) -> None:
        self._conn.close()

    def snapshot(self) -> dict[str, Any] | None:
        """The engine's snapshot of the session, for `Snapshot.from_mapping`; None without one."""
        with self._typed_errors():
            found = self._about().get("snapshot")
        return found if isinstance(found, dict) else None

    def parts(self) -> Iterator[ImportPart]:
        """All parts, in the order in which they are to be written.

        Raises:
            InvalidFileError: A row is damaged or invalid; the message has the table and the row.
        """
        with self._typed_errors():
            yield from self._parts()

    def _parts(self) -> Iterator[ImportPart]:
        about = self._about()
        fields = Fields(about.get("session"), self._name, None, "the session")
        tree, current = ImportTree(), fields.maybe_whole("current")
        yield session_part(fields)
        if setup := portable_setup(about.get("setup")):  # validated where it is used
            yield SetupPart(to_json(setup))
        for row in self._rows("models"):
            info = self._json(row["info"], f"the model {row['kv_fingerprint']!r:.40}")
            if isinstance(info, dict) and isinstance(row["kv_fingerprint"], str):
                yield ModelPart(clean(row["kv_fingerprint"]), to_json(info))
        for row in self._rows("vocabularies"):
            yield from self._vocabulary(row)
        for row in self._rows("nodes"):
            place = f"node {row['id']!r:.20}"
            plain = {**row, "stats": self._json(row["stats"], place), "more": self._json(row["more"], place)}
            plain["turn_start"] = {0: False, 1: True}.get(row["turn_start"], row["turn_start"])
            yield node_part(Fields(plain, self._name, None, place), tree)
        for row in self._rows("tokens"):
            place = f"tokens {row['id']!r:.20}"
            yield tokens_part(Fields(row, self._name, None, place), tree, partial(columns.decode, row["columns"]))
        yield tree.end(current, fields.fault)

    def _vocabulary(self, row: dict[str, Any]) -> Iterator[VocabularyPart]:
        """A vocabulary, only if it matches its digest: a forged one would be used for all sessions from then on."""
        try:
            tokens = _vocabulary.decode(row["tokens"])
        except (msgspec.DecodeError, TypeError) as wrong:
            raise self._fault(f"a vocabulary cannot be read: {wrong}") from wrong
        if row["digest"] == vocabulary_digest(tokens):
            yield VocabularyPart(row["digest"], msgspec.msgpack.encode(tokens))
        else:
            self.notes += (f"the vocabulary {row['digest']!r:.20} is not what its name says; it was left out",)

    # ---- rows ---------------------------------------------------------------------------------------------------------

    def _survey(self, size: int) -> int:
        """Refuses files that are not ours; counts the rows, up to the number that fit into `size` bytes."""
        self._conn.set_progress_handler(lambda: 1, _SCHEMA_STEPS)  # the schema is a table too, and may be forged to have no end
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
        [(pages,)], [(page_bytes,)] = (self._ask(f"PRAGMA {name}") for name in ("page_count", "page_size"))
        if size < pages * page_bytes:  # SQLite does not notice that part of the last page is missing
            raise self._fault(f"it is cut short: {size:,} of {pages * page_bytes:,} bytes are there")
        self._conn.set_progress_handler(None, 0)
        counted = "SELECT count(*) FROM (SELECT 1 FROM {} LIMIT {})"
        return sum(int(self._ask(counted.format(table, size // _LEAST_ROW))[0][0]) for table in TABLES)

    def _rows(self, table: str) -> Iterator[dict[str, Any]]:
        listed = names(table)
        sql = f"SELECT rowid, {', '.join(listed)}, sha256 FROM {table} ORDER BY rowid"  # noqa: S608  # our own names
        before: int | None = None
        for number, *values, sha in self._conn.execute(sql):
            if before is not None and number <= before:
                raise self._fault(f"row {values[0]!r:.40} of {table} stands there again, or out of order: it is damaged")
            before = number
            try:
                sound = sha == digest_of(values)
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
            return decode_strict(text.encode())
        except ValueError as fault:
            raise InvalidFileError(self._name, str(fault), place=place) from fault

    def _ask(self, sql: str, *parameters: str) -> list[tuple[Any, ...]]:
        return self._conn.execute(sql, parameters).fetchall()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as fault:  # SQLite quotes a damaged schema in its message
            raise self._fault(f"it cannot be read ({fault}): it is damaged or was not made by Elsewise") from fault

    def _fault(self, what: str) -> InvalidFileError:
        return InvalidFileError(self._name, what)


def open_foreign(path: Path) -> sqlite3.Connection:
    """A read-only connection to a SQLite file that is not trusted; neither reads nor makes other files."""
    conn = open_connection(path, read_only=True, immutable=True, isolation_level=None)
    try:
        conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4 * LIMIT)  # bytes of one value
        conn.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "query_only = ON", "mmap_size = 0"):
            conn.execute(f"PRAGMA {pragma}")
    except BaseException:
        conn.close()
        raise
    return conn
