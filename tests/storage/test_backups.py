"""A verified backup per day, seven of them kept; and one before a migration."""

from __future__ import annotations

import asyncio
import datetime
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage import SessionStore, StoreDamagedError, StoreFullError
from storage.repair.backup import KEPT, SPARE, back_up_daily, daily_backups
from tests.storage.helpers import chat, sql, with_store


class Calendar:
    """The current day."""

    def __init__(self) -> None:
        self.day = datetime.date(2031, 5, 1)

    def today(self) -> str:
        return self.day.isoformat()

    def pass_days(self, days: int) -> None:
        self.day += datetime.timedelta(days=days)


@pytest.fixture
def calendar(monkeypatch: pytest.MonkeyPatch) -> Calendar:
    made = Calendar()
    monkeypatch.setattr("storage.repair.backup.today", made.today)
    return made


def test_one_backup_a_day_is_made_and_the_last_seven_are_kept(path: Path, calendar: Calendar) -> None:
    async def live(store: SessionStore) -> None:
        for day in range(KEPT + 3):
            await chat(store, f"day {day}")
            made = await store.back_up_daily()
            assert made is not None
            assert stat.S_IMODE(made.stat().st_mode) == 0o600
            assert await store.back_up_daily() is None
            calendar.pass_days(1)

    with_store(path, live)
    kept = daily_backups(path)
    assert [p.name for p in kept] == [f"sessions.daily-{n:06}.2031-05-{n:02}.sqlite3" for n in range(4, 11)]
    oldest = with_store(kept[0], lambda store: store.sessions(), read_only=True)
    assert [row.title for row in oldest] == ["day 3", "day 2", "day 1", "day 0"]
    assert with_store(kept[-1], lambda store: store.verify(), read_only=True) == []


def test_a_clock_set_back_deletes_no_newer_backup(path: Path, calendar: Calendar) -> None:
    async def live(store: SessionStore) -> None:
        for days in (0, 1, -400, 1):
            calendar.pass_days(days)
            await chat(store)
            assert await store.back_up_daily() is not None

    with_store(path, live)
    days = [p.stem.rpartition(".")[2] for p in daily_backups(path)]
    assert days == ["2031-05-01", "2031-05-02", "2030-03-28", "2030-03-29"]


def test_a_damaged_store_makes_no_backup_and_keeps_the_older_ones(path: Path, calendar: Calendar) -> None:
    with_store(path, chat)
    with_store(path, lambda store: store.back_up_daily())
    sql(path, "UPDATE nodes SET text = 'flipped' WHERE id = 1")
    for _ in range(KEPT + 1):
        calendar.pass_days(1)
        with pytest.raises(StoreDamagedError, match="rows of nodes are damaged"):
            with_store(path, lambda store: store.back_up_daily())
    assert len(daily_backups(path)) == 1
    assert len(list((path.parent / "backups").iterdir())) == 1  # no draft is left either


def test_a_cancelled_backup_leaves_no_file(path: Path) -> None:
    with_store(path, chat)
    stop = threading.Event()
    stop.set()
    assert back_up_daily(path, stop) is None
    assert list((path.parent / "backups").iterdir()) == []


@pytest.mark.parametrize("spare", [-1, 0])
def test_a_backup_is_made_only_with_enough_disk_space_to_spare(path: Path, monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    with_store(path, chat)
    free = path.stat().st_size + SPARE + spare
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    if spare < 0:
        for back_up in (SessionStore.back_up_daily, SessionStore.back_up_now):
            with pytest.raises(StoreFullError, match="no backup was made"):
                with_store(path, back_up, read_only=True)
        assert not (path.parent / "backups").exists()
    else:
        assert with_store(path, SessionStore.back_up_daily, read_only=True) is not None


def test_the_store_can_be_written_during_a_backup(path: Path) -> None:
    async def live(store: SessionStore) -> None:
        await chat(store, "before")
        made, _ = await asyncio.gather(store.back_up_daily(), chat(store, "meanwhile"))
        assert made is not None
        assert {row.title for row in await store.sessions()} == {"before", "meanwhile"}

    with_store(path, live)
    assert with_store(path, lambda store: store.verify()) == []
