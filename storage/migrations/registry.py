"""The set that every migration of the sessions file joins."""

from __future__ import annotations

from typing import Final

import sqlite_utils
from sqlite_utils import Migrations

APPLICATION_ID: Final = 0x454C5357  # "ELSW"

migrations = Migrations("elsewise.sessions")


def execute_all(db: sqlite_utils.Database, script: str) -> None:
    """Runs statement by statement: `executescript` would commit the migration's transaction first."""
    for statement in script.split(";\n"):
        if statement.strip():
            db.execute(statement)
