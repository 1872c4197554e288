"""New sessions, empty ones, pinned ones, and the trash."""

from __future__ import annotations

import asyncio
import time

import pytest

from app.workbench import workbench
from tests.app.workbench.conftest import Play
from tests.app.workbench.scene import Scene, rows, until
from ui import SessionsChanged


def test_new_session_reuses_an_empty_session(play: Play) -> None:
    async def scene(s: Scene) -> None:
        first = (await s.workbench.sessions.new()).session_id
        assert (await s.workbench.sessions.new()).session_id == first
        # also if another one was shown meanwhile
        other = await s.asked()
        await s.view(other)
        assert (await s.workbench.sessions.new()).session_id == first
        # after a message there, the next one is another session
        await s.workbench.answers.send(first, "hello")
        assert (await s.workbench.sessions.new()).session_id not in (first, other)

    play(scene)


def test_an_empty_session_in_the_trash_is_not_reused(play: Play) -> None:
    async def scene(s: Scene) -> None:
        first = (await s.workbench.sessions.new()).session_id
        await s.workbench.sessions.trash(first)
        second = (await s.workbench.sessions.new()).session_id
        assert second != first
        await s.workbench.sessions.restore(first)
        assert (await s.workbench.sessions.new()).session_id == first

    play(scene)


def test_empty_sessions_are_deleted_when_the_app_closes(play: Play) -> None:
    async def first(s: Scene) -> None:
        await s.workbench.sessions.new()
        await s.asked("hello")
        named = await s.new()
        await s.workbench.sessions.rename(named, "for later")
        await s.new()
        assert rows(s.path, "SELECT count(*) FROM sessions") == [(4,)]

    async def second(s: Scene) -> None:
        assert rows(s.path, "SELECT title FROM sessions ORDER BY id") == [("hello",), ("for later",)]
        assert {row.title for row in await s.workbench.sessions.list()} == {"hello", "for later"}

    play(first)
    play(second)


def test_empty_and_old_trashed_sessions_are_deleted_soon_after_the_start(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "TIDY_SECONDS", 0.0)

    async def scene(s: Scene) -> None:
        # given: empty sessions, one of them open, and one that has been in the trash for a month
        old = await s.asked("old")
        await s.workbench.sessions.trash(old)
        now = time.time()
        await s.store.create_session("New session")
        shown = (await s.workbench.sessions.new()).session_id
        monkeypatch.setattr("time.time", lambda: now + 31 * 86_400)
        # when
        s.workbench.services.tidy_up()
        await until(lambda: rows(s.path, "SELECT count(*) FROM sessions") == [(1,)])
        # then the shown one still exists
        await s.workbench.answers.send(shown, "hello")
        assert rows(s.path, "SELECT id, title FROM sessions") == [(shown, "hello")]

    play(scene)


@pytest.mark.slow
def test_a_session_that_is_just_being_created_is_not_deleted(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workbench, "TIDY_SECONDS", 0.0)

    async def scene(s: Scene) -> None:
        for _ in range(20):
            s.workbench.services.tidy_up()
            made, _ = await asyncio.gather(s.workbench.sessions.new(), asyncio.sleep(0))
            await s.workbench.answers.send(made.session_id, "hello")
            assert (await s.view(made.session_id)).title == "hello"

    play(scene)


def test_pinned_sessions_are_listed_first_also_after_a_restart(play: Play) -> None:
    async def first(s: Scene) -> None:
        one, two = await s.asked("one"), await s.asked("two")
        assert [row.session_id for row in await s.workbench.sessions.list()] == [two, one]
        s.events.clear()
        await s.workbench.sessions.pin(one, True)
        assert s.events == [SessionsChanged()]
        assert [(row.session_id, row.pinned) for row in await s.workbench.sessions.list()] == [(one, True), (two, False)]

    async def second(s: Scene) -> None:
        assert [row.title for row in await s.workbench.sessions.list()] == ["one", "two"]
        await s.workbench.sessions.pin((await s.workbench.sessions.list())[0].session_id, False)
        assert [row.title for row in await s.workbench.sessions.list()] == ["two", "one"]

    play(first)
    play(second)
