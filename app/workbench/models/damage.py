"""Damaged rows in words, and the backups that outlive them."""

from __future__ import annotations

import logging

from storage import DamageRow, SessionStore, StoreDamagedError, StoreError

log = logging.getLogger(__name__)


def told(row: DamageRow) -> str:
    """What is damaged, and which session and turn it belongs to."""
    place = [repr(row.title)] if row.title else []
    if row.turn is not None:
        place.append(f"turn {row.turn}")
    return ": ".join([", ".join(place), row.detail] if place else [row.detail])


async def back_up(store: SessionStore) -> None:
    """Makes today's backup where there is none, of whoever writes; damaged rows are set aside before. A failure is logged."""
    try:
        try:
            await store.back_up_daily()
        except StoreDamagedError as fault:
            log.warning("damaged rows are set aside: %s", fault)
            await store.set_aside_damage()
            await store.back_up_daily()
    except StoreError as fault:  # the next time tries again
        log.warning("the sessions were not backed up: %s", fault)
