"""Portable files from elsewhere: nothing in them is trusted, and they are never changed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from storage import InvalidFileError, PortableFile, SessionStore, StoreNewerError, export_portable
from storage.tables.checksums import digest_of
from storage.transfer import portable
from tests.storage.helpers import with_store
from tests.storage.transfer.trees import DIGEST, as_portable, branching, leftovers, taken, unheard

Change = Callable[[sqlite3.Connection], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A portable file, exported once."""
    folder = tmp_path_factory.mktemp("made")
    source = folder / "source" / "sessions.sqlite3"
    as_portable(source, with_store(source, branching), folder / "trip.elsewise")
    return (folder / "trip.elsewise").read_bytes()


@pytest.fixture
def file(tmp_path: Path, made: bytes) -> Path:
    file = tmp_path / "trip.elsewise"
    file.write_bytes(made)
    return file


def change(file: Path, *statements: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        for statement in statements:
            conn.execute(statement)


def reseal(conn: sqlite3.Connection, table: str) -> None:
    """Recomputes the checksums of changed rows, as an attacker can."""
    listed = portable.names(table)
    for row in conn.execute(f"SELECT rowid, {', '.join(listed)} FROM {table}").fetchall():  # our own names
        conn.execute(f"UPDATE {table} SET sha256 = ? WHERE rowid = ?", [digest_of(row[1:]), row[0]])  # likewise


def refused(path: Path, file: Path) -> str:
    """Imports the file, which must be refused without a change of the store or the file; returns the message."""
    SessionStore.open(path).close_sync()
    before, held = leftovers(path), hashlib.sha256(file.read_bytes()).digest()
    with pytest.raises((InvalidFileError, StoreNewerError)) as caught:
        taken(path, file)
    assert leftovers(path) == before
    assert hashlib.sha256(file.read_bytes()).digest() == held
    assert not list(file.parent.glob(f"{file.name}-*")), "nothing is made beside it"
    return str(caught.value)


def test_an_import_does_not_change_the_file(path: Path, file: Path) -> None:
    held, stat = file.read_bytes(), file.stat()
    file.chmod(0o400)
    taken(path, file)
    assert file.read_bytes() == held
    assert file.stat().st_mtime_ns == stat.st_mtime_ns


def test_a_file_of_a_newer_version_is_refused_and_unchanged(path: Path, file: Path) -> None:
    change(file, "PRAGMA user_version = 2")
    assert "newer version" in refused(path, file)


def test_a_changed_row_of_every_table_fails_its_checksum(path: Path, file: Path) -> None:
    whole = file.read_bytes()
    for table, column in zip(portable.TABLES, ("value", "text", "columns", "info", "tokens"), strict=True):
        file.write_bytes(whole)
        last = f"(SELECT max(rowid) FROM {table})"
        change(file, f"UPDATE {table} SET {column} = {column} || 'x' WHERE rowid = {last}")
        assert f"of {table} fails its checksum" in refused(path, file)


HOSTILE: list[tuple[list[str], str]] = [
    (["PRAGMA application_id = 7"], "no portable session file"),
    (["DROP TABLE tokens"], "'tokens' is missing or not defined"),
    (["DROP TABLE nodes", "CREATE VIEW nodes AS SELECT * FROM tokens"], "'nodes' is missing or not defined"),
    (["ALTER TABLE nodes ADD COLUMN evil TEXT GENERATED ALWAYS AS (hex(text)) VIRTUAL"], "'nodes'"),
    (["DROP TABLE models", "CREATE TABLE models (kv_fingerprint TEXT, info TEXT DEFAULT (load_extension('x')))"], "'models'"),
    (["DROP TABLE about", "CREATE VIRTUAL TABLE about USING fts5 (name, value, sha256)"], "'about'"),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "words"), HOSTILE, ids=[words for _, words in HOSTILE])
def test_a_file_with_a_different_schema_is_refused(path: Path, file: Path, statements: list[str], words: str) -> None:
    change(file, *statements)
    assert words in refused(path, file)


def test_additional_triggers_views_and_indexes_of_a_file_are_never_used(path: Path, file: Path) -> None:
    change(
        file,
        "CREATE TRIGGER evil AFTER INSERT ON nodes BEGIN DELETE FROM nodes; END",
        "CREATE VIEW sessions AS WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT * FROM n",
        "CREATE INDEX slow ON nodes (length(text))",
    )
    held = file.read_bytes()
    assert len(taken(path, file).sessions) == 1
    assert file.read_bytes() == held
    with closing(sqlite3.connect(path)) as conn:
        names = {row[0] for row in conn.execute("SELECT name FROM sqlite_schema")}
    assert not names & {"evil", "slow"}
    assert with_store(path, lambda store: store.verify()) == []


ROWS: list[tuple[str, str, str]] = [
    ("UPDATE nodes SET parent = 4 WHERE id = 3", "nodes", "its parent 4 is not among the nodes before it"),
    ("UPDATE nodes SET parent = 3 WHERE id = 3", "nodes", "its parent 3 is not among"),
    ("UPDATE nodes SET parent = 'x' WHERE id = 3", "nodes", "parent should be a whole number"),
    ("UPDATE nodes SET text = x'00ff' WHERE id = 3", "nodes", "text should be a text, not bytes"),
    ("UPDATE nodes SET turn_start = 2 WHERE id = 3", "nodes", "turn_start should be true or false"),
    ("UPDATE nodes SET stats = '{\"a\": NaN}' WHERE id = 3", "nodes", "NaN is no JSON number"),
    ("UPDATE nodes SET stats = '[' WHERE id = 3", "nodes", "node 3: this is no JSON"),
    ("UPDATE nodes SET stats = 5 WHERE id = 3", "nodes", "node 3"),
    ("UPDATE nodes SET token_count = 1 << 50 WHERE id = 3", "nodes", "token_count should lie within"),
    ("UPDATE nodes SET created = 9e999 WHERE id = 3", "nodes", "created is too large"),
    ("UPDATE nodes SET role = zeroblob(1000) WHERE id = 3", "nodes", "role should be a text, not bytes"),
    ("UPDATE tokens SET node = 77 WHERE id = 1", "tokens", "node 77 is not among"),
    ("UPDATE tokens SET count = 1000000 WHERE id = 1", "tokens", "tokens 1"),
    ("UPDATE tokens SET columns = 'text' WHERE id = 1", "tokens", "its columns cannot be read"),
    ("UPDATE tokens SET columns = x'80' WHERE id = 1", "tokens", "the column 'ids' is missing"),
    ("UPDATE tokens SET columns = zeroblob(20000000) WHERE id = 1", "tokens", "its columns cannot be read"),
    ("UPDATE tokens SET columns = zeroblob(70000000) WHERE id = 1", "tokens", "cannot be read"),
    ("UPDATE about SET value = '[]' WHERE name = 'session'", "about", "the session: it should be an object"),
    ("DELETE FROM about", "about", "the session: it should be an object, not null"),
    ("UPDATE vocabularies SET tokens = x'c1'", "vocabularies", "a vocabulary cannot be read"),
    ('UPDATE models SET info = \'{"a": 1, "a": 2}\'', "models", "'a' stands there twice"),
    ("DELETE FROM tokens WHERE id = 2", "tokens", "are missing"),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("statement", "table", "words"), ROWS, ids=[words for _, _, words in ROWS])
def test_rows_with_wrong_values_are_refused_by_name(path: Path, file: Path, statement: str, table: str, words: str) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        conn.execute(statement)
        reseal(conn, table)
    assert words in refused(path, file)


@pytest.mark.slow
def test_a_damaged_file_is_refused_and_leaves_nothing_or_is_imported_intact(path: Path, file: Path) -> None:
    whole = bytearray(file.read_bytes())
    for length in (20, 100, 4096, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(path, file)
    for place in range(100, len(whole), len(whole) // 24):
        bent = bytearray(whole)
        bent[place] ^= 0xFF
        file.write_bytes(bent)
        SessionStore.open(path).close_sync()
        before = leftovers(path)
        try:
            taken(path, file)  # a byte without content
        except (InvalidFileError, StoreNewerError):
            assert leftovers(path) == before
        else:
            assert with_store(path, lambda store: store.verify()) == []


def test_a_table_with_a_loop_in_its_pages_is_refused(path: Path, file: Path) -> None:
    """The tree of a table with a page that refers to itself: SQLite reports it as damaged."""
    with closing(sqlite3.connect(file)) as conn:
        [(root,)] = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'tokens'").fetchall()
        page = int(conn.execute("PRAGMA page_size").fetchone()[0])
    raw = bytearray(file.read_bytes())
    start = (root - 1) * page
    raw[start : start + 12] = bytes([5, 0, 0, 0, 0, 0, 0, 0]) + int(root).to_bytes(4, "big")  # an inner page: its right child
    file.write_bytes(raw)
    refused(path, file)


def endless(file: Path, statement: str, cell: bytes | None = None) -> None:
    """Gives a table of few rows ten levels of inner pages, each of which refers to the next one 500 times.

    Args:
        file: The file to change.
        statement: A query for the first page of the table.
        cell: The first bytes of the only row below these pages; None: all rows of the table.
    """
    with closing(sqlite3.connect(file)) as conn:
        root, size = conn.execute(statement).fetchone()[0], conn.execute("PRAGMA page_size").fetchone()[0]
    raw = bytearray(file.read_bytes())
    start, head = (root - 1) * size, 100 if root == 1 else 0  # page 1 begins with the file's own header
    leaf = bytearray(raw[start : start + size])
    kind, _, count, content = struct.unpack_from(">BHHH", leaf, head)
    assert kind == 13, "a leaf: there are few rows in it"
    places = struct.unpack_from(f">{count}H", leaf, head + 8)
    leaf[: 8 + 2 * count] = leaf[head : head + 8 + 2 * count]
    first = leaf
    if cell is not None:
        one = next(place for place in places if cell in leaf[place : place + 48])
        leaf = leaf.copy()
        struct.pack_into(">BHHHBH", leaf, 0, kind, 0, 1, content, 0, one)
    pages = len(raw) // size
    raw += first + leaf
    for child in range(pages + 2, pages + 12):
        raw += inner(size, 0, [child] * 500)
    raw[start + head : start + size] = inner(size, head, [pages + 1, pages + 12])
    struct.pack_into(">I", raw, 28, len(raw) // size)
    file.write_bytes(raw)


def inner(size: int, head: int, children: list[int]) -> bytes:
    """An inner page without the `head` bytes before it."""
    page, content = bytearray(size), size - 5 * (len(children) - 1)
    struct.pack_into(">BHHHBI", page, head, 5, 0, len(children) - 1, content, 0, children[-1])
    for number, child in enumerate(children[:-1]):
        struct.pack_into(">H", page, head + 12 + 2 * number, content + 5 * number)
        struct.pack_into(">IB", page, content + 5 * number, child, number % 100)
    return bytes(page[head:])


@pytest.mark.parametrize("table", list(portable.TABLES))
def test_a_table_made_endless_by_repeated_pages_is_refused(path: Path, file: Path, table: str) -> None:
    change(file, f"DELETE FROM {table} WHERE rowid > 1", "VACUUM")  # our own names
    endless(file, f"SELECT rootpage FROM sqlite_schema WHERE name = '{table}'")
    assert "out of order" in refused(path, file)


def test_a_schema_made_endless_by_repeated_pages_is_refused(path: Path, file: Path) -> None:
    endless(file, "SELECT 1", b"indexsqlite_autoindex_about_1")
    assert "cannot be read" in refused(path, file)


def test_a_vocabulary_that_does_not_match_its_digest_is_left_out(path: Path, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        conn.execute("UPDATE vocabularies SET tokens = ?", [msgspec.msgpack.encode([b"b", b"\xff\x00"])])
        reseal(conn, "vocabularies")
    imported = taken(path, file)
    assert [note for note in imported.notes if "not what its name says" in note]
    assert with_store(path, lambda store: store.vocabulary(DIGEST)) is None
    assert len(imported.sessions) == 1


def test_the_setup_of_a_session_is_exported_and_imported_without_adapter_folders(path: Path, tmp_path: Path) -> None:
    setup = {"options": {"temperature": 0.3}, "preset": "", "format": ["regex", "a+"], "guess": "off"}

    async def fill(store: SessionStore) -> int:
        session = await branching(store)
        await store.set_session_setup(session, {**setup, "adapters": [["/adapters/mine", "a", 1.0, True]]})
        return session

    as_portable(path, with_store(path, fill), tmp_path / "a.elsewise")
    assert b"/adapters/mine" not in (tmp_path / "a.elsewise").read_bytes()
    other = tmp_path / "other" / "sessions.sqlite3"
    with closing(sqlite3.connect(tmp_path / "a.elsewise", isolation_level=None)) as conn:  # foreign ones are ignored too
        [[held]] = conn.execute("SELECT value FROM about WHERE name = 'setup'")
        planted = json.dumps({**json.loads(held), "adapters": [["//elsewhere/x", "x", 1.0, True]]})
        conn.execute("UPDATE about SET value = ? WHERE name = 'setup'", [planted])
        reseal(conn, "about")
    [copy] = taken(other, tmp_path / "a.elsewise").sessions
    assert with_store(other, lambda store: store.session_setup(copy)) == setup
    assert with_store(other, lambda store: store.verify()) == []


def test_an_invalid_setup_is_not_imported(path: Path, file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        conn.execute("INSERT INTO about VALUES ('setup', '[1, 2]', x'00')")
        reseal(conn, "about")
    [copy] = taken(path, file).sessions
    assert with_store(path, lambda store: store.session_setup(copy)) is None


def test_the_snapshot_is_exported_with_the_session(path: Path, tmp_path: Path) -> None:
    session = with_store(path, branching)
    snapshot = {"version": 1, "ids": [1, 2], "deep": {"grammar": "a+"}}
    export_portable(path, session, tmp_path / "a.elsewise", unheard, snapshot)
    found = PortableFile(tmp_path / "a.elsewise")
    try:
        assert found.snapshot() == snapshot
    finally:
        found.close()


def test_the_tables_are_as_documented(file: Path) -> None:
    with closing(sqlite3.connect(file)) as conn:
        [text] = [row[0] for row in conn.execute("SELECT value FROM about WHERE name = 'session'")]
        assert json.loads(text)["title"].startswith("Ünïcode")
        [[raw]] = conn.execute("SELECT columns FROM tokens WHERE node = 2 LIMIT 1")
        assert msgspec.msgpack.decode(raw)["ids"][:2] == ["<i4", [4]]
        assert conn.execute("PRAGMA user_version").fetchone() == (1,)
        assert conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_a_failed_export_keeps_the_existing_file(path: Path, tmp_path: Path) -> None:
    session = with_store(path, branching)
    (tmp_path / "a.elsewise").write_bytes(b"mine")

    def stop(done: int, _total: int) -> None:
        if done == 3:
            raise KeyError("enough")

    with pytest.raises(KeyError):
        export_portable(path, session, tmp_path / "a.elsewise", stop)
    assert (tmp_path / "a.elsewise").read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.elsewise", "data"]
