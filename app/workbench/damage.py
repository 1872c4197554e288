"""Damaged rows in words."""

from __future__ import annotations

from storage import DamageRow


def told(row: DamageRow) -> str:
    """What is damaged, and which session and turn it belongs to."""
    place = [repr(row.title)] if row.title else []
    if row.turn is not None:
        place.append(f"turn {row.turn}")
    return ": ".join([", ".join(place), row.detail] if place else [row.detail])
