"""Databases from elsewhere: in every way of opening them, their schema is not trusted and they are not written to."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from storage.blocks import schema
from storage.database import connect
from storage.transfer.portable import open_foreign

Open = Callable[[Path], sqlite3.Connection]
WAYS: dict[str, Open] = {
    "portable file": open_foreign,
    "blocks in a portable file": lambda path: schema.open_foreign(path, read_only=True),
    "backup": lambda path: connect(path, read_only=True, immutable=True).conn,
    "store, to look": lambda path: connect(path, read_only=True).conn,
}


@pytest.fixture
def guest(tmp_path: Path) -> Path:
    """A file with a view that calls a function with a side effect, and with tables for blocks."""
    path = tmp_path / "guest.elsewise"
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        schema.make_tables(conn)
        conn.execute("CREATE TABLE t (x)")
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("CREATE VIEW v AS SELECT touched(x) FROM t")
    return path


@pytest.mark.parametrize("way", WAYS)
def test_a_foreign_file_is_neither_trusted_nor_changed(guest: Path, way: str) -> None:
    before, beside = guest.read_bytes(), sorted(guest.parent.iterdir())
    touched: list[object] = []
    with closing(WAYS[way](guest)) as conn:
        assert conn.execute("PRAGMA trusted_schema").fetchone()[0] == 0
        conn.create_function("touched", 1, touched.append)
        # then the function in the schema is not called
        with pytest.raises(sqlite3.OperationalError, match="unsafe use of touched"):
            conn.execute("SELECT * FROM v").fetchall()
        # and every write is refused
        for statement in ("INSERT INTO t VALUES (2)", "DELETE FROM t", "DROP TABLE t", "PRAGMA user_version = 9"):
            with pytest.raises(sqlite3.OperationalError, match=r"readonly|read-only|not authorized"):
                conn.execute(statement)
        assert conn.execute("SELECT x FROM t").fetchall() == [(1,)]
    assert touched == []
    assert guest.read_bytes() == before
    assert sorted(guest.parent.iterdir()) == beside


def test_a_foreign_file_opened_for_writing_blocks_is_not_trusted_either(guest: Path) -> None:
    with closing(schema.open_foreign(guest, read_only=False)) as conn:
        assert conn.execute("PRAGMA trusted_schema").fetchone()[0] == 0
        assert conn.execute("PRAGMA cell_size_check").fetchone()[0] == 1
