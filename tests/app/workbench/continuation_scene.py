"""Helpers for tests of several continuations: the columns, and the tokens that have arrived in them."""

from __future__ import annotations

from tests.app.workbench.scene import Scene
from ui import Columns, ColumnsChanged, ColumnTokens


def last_columns(s: Scene) -> Columns:
    view = [event.view for event in s.events if isinstance(event, ColumnsChanged)][-1]
    assert view is not None
    return view


def arrived(s: Scene) -> int:
    return sum(len(event.run) for event in s.events if isinstance(event, ColumnTokens))
