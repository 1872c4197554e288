"""Migrations of the sessions file, each a named function in a file of its own and one transaction, never edited once released.

Importing this package registers them, in the order of their numbers.
"""

from __future__ import annotations

from storage.migrations.m001_sessions import m001_sessions
from storage.migrations.m002_places import m002_places
from storage.migrations.m003_quarantine import m003_quarantine
from storage.migrations.registry import APPLICATION_ID, migrations

__all__ = ["APPLICATION_ID", "m001_sessions", "m002_places", "m003_quarantine", "migrations"]
