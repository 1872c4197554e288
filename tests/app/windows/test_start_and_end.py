"""Windows that are closed, ended and reopened: no message and no draft is lost. Real mouse and keys."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import pytest
from PySide6.QtCore import QRect, Qt
from PySide6.QtTest import QTest

from app.windows import AppWindows, KeptWindows
from app.workbench import AppWorkbench
from storage import SessionStore
from tests.app.windows.conftest import Play
from tests.app.windows.desktop import (
    CTRL,
    WORDS,
    Desktop,
    answered,
    choose,
    made,
    press,
    say,
    session_of,
)
from tests.app.workbench.scene import rows, until
from ui import WindowState


@pytest.mark.slow
def test_the_answer_of_a_window_closed_in_mid_stream_continues_to_its_end(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        d.engine.gate = asyncio.Semaphore(0)
        say(d.first, "one")
        say(second, "two")
        await until(lambda: d.first.controller.running and second.controller.running)
        two = session_of(second)
        # when it is closed by its key
        await press(second, Qt.Key.Key_W, CTRL)
        await until(lambda: d.all == [d.first])
        # then the app keeps running, and both answers continue to their ends
        assert not d.windows.ended.is_set()
        for _ in range(2 * WORDS):
            d.engine.gate.release()
        await until(lambda: not d.first.controller.running)
        assert made(d.first) == WORDS
        await until(lambda: rows(d.path, "SELECT count(*) FROM nodes WHERE finish_reason = 'length'") == [(2,)])
        # and the closed window's session can be opened, with its whole answer
        await until(lambda: two in d.first.controller.sessions.rows)
        choose(d.first, two)
        await until(lambda: session_of(d.first) == two)
        assert made(d.first) == WORDS

    play(scene)


@pytest.mark.slow
def test_closing_the_last_window_ends_the_answer_of_a_closed_one(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        d.engine.gate = asyncio.Semaphore(0)
        say(second, "two")
        await until(lambda: second.controller.running)
        d.engine.gate.release()
        await until(lambda: made(second) == 1)
        await press(second, Qt.Key.Key_W, CTRL)
        await until(lambda: d.all == [d.first])
        await press(d.first, Qt.Key.Key_W, CTRL)
        await until(d.windows.ended.is_set)
        assert d.kept() == ["two"]
        assert rows(d.path, "SELECT finish_reason FROM nodes WHERE role = 'assistant'") == [("cancelled",)]

    play(scene)


@pytest.mark.slow
def test_the_draft_of_a_closed_window_is_shown_where_its_session_is_opened(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        two = await answered(second, "two")
        QTest.keyClicks(second.parts.composer.field, "half a thought")
        third = await d.another()
        QTest.keyClicks(third.parts.composer.field, "new here")
        for window in (second, third):
            await press(window, Qt.Key.Key_W, CTRL)
        await until(lambda: d.all == [d.first])
        assert d.first.parts.composer.draft == ""
        await until(lambda: two in d.first.controller.sessions.rows)
        choose(d.first, two)
        await until(lambda: session_of(d.first) == two)
        assert d.first.parts.composer.draft == "half a thought"
        # and the draft without a session is kept for the next new one
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != two)
        assert d.first.parts.composer.draft == "new here"

    play(scene)


@pytest.mark.slow
def test_two_drafts_without_a_session_are_both_kept(play: Play) -> None:
    async def first(d: Desktop) -> None:
        second, told = await d.another(), list[dict[str, Any]]()
        d.windows.remember = told.append
        QTest.keyClicks(d.first.parts.composer.field, "one")
        QTest.keyClicks(second.parts.composer.field, "two")
        await until(lambda: bool(told))  # while the windows are open: they may be killed
        assert set(told[-1]["drafts"][0][1].split()) == {"one", "two"}
        await press(second, Qt.Key.Key_Q, CTRL)
        await until(d.windows.ended.is_set)

    async def again(d: Desktop) -> None:
        assert set(d.first.parts.composer.draft.split()) == {"one", "two"}

    play(again, play(first))


def test_the_files_of_drafts_are_written_once(tmp_path: Path) -> None:
    written: list[str] = []

    async def scene() -> None:
        store = SessionStore.open(tmp_path / "sessions.db")
        write = store.set_setting

        async def set_setting(key: str, value: Any) -> None:
            written.append(json.dumps(value))
            await write(key, value)

        store.set_setting = set_setting  # type: ignore[method-assign]  # unchanged, but records the writes
        big = "a long file " * 1000
        kept, rows = KeptWindows(), [(1, "one"), (2, "w", "notes.md", big)]
        assert await kept.read(store) is None
        for text in ("w", "wo", "words"):  # at each pause of typing
            rows[1] = (2, text, "notes.md", big)
            await kept.write(store, {"mode": "read", "drafts": tuple(rows)})
        assert [len(each) > len(big) for each in written] == [True, False, False, False]
        # the next start has all of it, and does not write it again
        again = KeptWindows()
        assert await again.read(store) == {"mode": "read", "drafts": [[1, "one"], [2, "words", "notes.md", big]]}
        await again.write(store, {"mode": "read", "drafts": tuple(rows)})
        assert len(written) == 5
        # likewise for the file of an earlier version
        await write("window", {"drafts": [[3, "x", "a.txt", "old"]]})
        assert await KeptWindows().read(store) == {"drafts": [[3, "x", "a.txt", "old"]]}
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "files", [7, [[]], [None], ["ab"], [[2, 3]], [{"2": "a"}], [["2", "a.txt", "text"]], [[2, "b.txt", 5]]]
)
def test_a_window_opens_without_the_damaged_parts_of_its_saved_state(tmp_path: Path, files: object) -> None:
    async def scene() -> None:
        store = SessionStore.open(tmp_path / "sessions.db")
        good: list[list[Any]] = [[2, "a.txt", "text"]]
        drafts = [[2, "words"], [], [3], None, ["4", "x"], [5, None]]
        await store.set_setting("window", {"mode": "read", "geometry": 3, "unwritten": [[1]], "another": 1, "drafts": drafts})
        for held, beside in ((files, []), ([*files, *good] if isinstance(files, list) else good, good[0][1:])):
            await store.set_setting("draft files", held)
            first = AppWindows(create_autospec(AppWorkbench), await KeptWindows().read(store)).first
            assert first == WindowState(mode="read", drafts=[[2, "words", *beside]])
        await store.close()

    asyncio.run(scene())


@pytest.mark.parametrize("key", ["window", "draft files"])
def test_a_window_opens_if_its_saved_state_fails_the_checksum(tmp_path: Path, key: str) -> None:
    async def scene() -> None:
        store = SessionStore.open(tmp_path / "sessions.db")
        await KeptWindows().write(store, {"mode": "read", "drafts": [[2, "words", "a.txt", "text"]]})
        with closing(sqlite3.connect(tmp_path / "sessions.db")) as db, db:
            db.execute("UPDATE settings SET value = '[]' WHERE key = ?", (key,))
        found = await KeptWindows().read(store)
        assert found == (None if key == "window" else {"mode": "read", "drafts": [[2, "words"]]})
        await store.close()

    asyncio.run(scene())


@pytest.mark.slow
def test_windows_open_at_the_end_are_restored_at_their_places(play: Play) -> None:
    sessions: list[int] = []
    places: list[QRect] = []

    async def first(d: Desktop) -> None:
        second = await d.another()
        d.first.resize(740, 600)  # Qt restores a window only if the screen (800 x 800 here) has room for it
        second.resize(620, 500)
        sessions.extend([await answered(d.first, "one"), await answered(second, "two")])
        places.extend(window.geometry() for window in d.all)
        await press(second, Qt.Key.Key_Q, CTRL)
        await until(d.windows.ended.is_set)

    async def again(d: Desktop) -> None:
        await until(lambda: len(d.all) == 2 and d.all[1].controller.shown is not None)
        assert [session_of(window) for window in d.all] == sessions
        assert [window.size() for window in d.all] == [place.size() for place in places]
        # closed one by one, only the last is restored
        await press(d.first, Qt.Key.Key_W, CTRL)
        await until(lambda: d.first not in d.all)
        (rest,) = (window for window in d.all if window is not d.first)
        await press(rest, Qt.Key.Key_W, CTRL)
        await until(d.windows.ended.is_set)

    async def third(d: Desktop) -> None:
        assert len(d.all) == 1
        assert d.first.size() == places[1].size()

    play(third, play(again, play(first)))


@pytest.mark.slow
def test_the_last_shown_session_is_opened_rather_than_a_pinned_one(play: Play) -> None:
    sessions: list[int] = []

    async def first(d: Desktop) -> None:
        sessions.append(await answered(d.first, "one"))
        d.first.controller.sessions.pin(sessions[0], True)
        d.first.controller.new_session()
        await until(lambda: session_of(d.first) != sessions[0])
        sessions.append(await answered(d.first, "two"))

    async def again(d: Desktop) -> None:
        assert session_of(d.first) == sessions[1]

    play(again, play(first))


@pytest.mark.slow
def test_a_session_without_a_message_is_reopened_with_its_draft(play: Play) -> None:
    async def first(d: Desktop) -> None:
        one = await answered(d.first, "one")
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        QTest.keyClicks(d.first.parts.composer.field, "half a thought")

    async def again(d: Desktop) -> None:
        assert d.first.controller.shown is not None
        assert d.first.controller.shown.view.turns == ()
        assert d.first.parts.composer.draft == "half a thought"

    play(again, play(first))


@pytest.mark.slow
def test_settings_of_another_version_open_one_window(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        assert len(d.all) == 1

    play(scene, {"hologram": True, "others": [{"session": "x", "depth": 3}, 7]})
    play(scene, ["a list"])


@pytest.mark.slow
def test_the_shown_session_is_saved_before_the_windows_are_closed(play: Play) -> None:
    states: list[dict[str, Any]] = []

    async def scene(d: Desktop) -> None:
        d.windows.remember = states.append
        before = await answered(d.first, "zero")
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != before)
        d.engine.gate = asyncio.Semaphore(0)
        say(d.first, "one")
        await until(lambda: d.first.controller.running)
        one = session_of(d.first)
        # in the middle of an answer, as when the process is killed now
        assert states[-1]["session"] == one

    play(scene)
