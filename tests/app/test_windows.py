"""Several windows of one app: each with its session, one store and one engine behind them. Real mouse and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import qasync
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu
from pytestqt.qtbot import QtBot

from app.supervisor import Supervisor
from app.windows import STEP, AppWindows
from app.workbench import AppWorkbench
from runtime import GenerationOptions, SamplingOptions
from storage import SessionStore
from tests.app.workbench.scene import Engine, rows, until
from tests.ui.test_menus import entries
from ui import MainWindow, Scheme, TurnView, apply_theme

CTRL, SHIFT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier
WORDS = 12  # tokens of each answer
OPTIONS = GenerationOptions(max_tokens=WORDS, ignore_eos=True, sampling=SamplingOptions(temperature=0.8), seed=5)


@dataclass
class Desktop:
    """What a test has in its hands."""

    path: Path
    engine: Engine
    windows: AppWindows
    first: MainWindow

    @property
    def all(self) -> list[MainWindow]:
        """Those on the screen, in the order in which they were opened."""
        tops = [w for w in QApplication.topLevelWidgets() if isinstance(w, MainWindow) and w.isVisible()]
        return sorted(tops, key=lambda window: window is not self.first)

    async def another(self, window: MainWindow | None = None) -> MainWindow:
        """Opens one more from a window, by its key."""
        known = self.all
        await press(window or self.first, Qt.Key.Key_N, CTRL | SHIFT)
        await until(lambda: len(self.all) == len(known) + 1)
        made = next(each for each in self.all if each not in known)
        await until(lambda: made.desk.shown is not None)
        return made

    def kept(self) -> list[str]:
        """The texts of all turns in the file, seen by somebody else."""
        return [str(text) for (text,) in rows(self.path, "SELECT text FROM nodes WHERE role = 'user' ORDER BY id")]


Scene = Callable[[Desktop], Awaitable[None]]
Play = Callable[..., object]


@pytest.fixture
def play(qapp: QApplication, qtbot: QtBot, tmp_path: Path) -> Play:
    """Plays a scene in the windows of a fresh start over the same file, closes them all; gives what they leave."""
    del qtbot  # asked for so that exceptions inside Qt's callbacks fail the test
    qapp.setQuitOnLastWindowClosed(False)
    apply_theme(qapp, Scheme.LIGHT)
    path = tmp_path / "data" / "sessions.db"

    async def whole(scene: Scene, kept: object) -> object:
        asyncio.get_running_loop().set_default_executor(
            ThreadPoolExecutor(2)
        )  # else qasync's, whose threads Python lists for ever
        engine = Engine()
        workbench = AppWorkbench(SessionStore.open(path), Supervisor("x", start=engine), OPTIONS)
        windows = AppWindows(workbench, kept)
        first = windows.open_first()
        first.show()
        listed = [row.session_id for row in await workbench.sessions()]
        first.start(windows.session(listed))
        windows.open_others(listed)
        await until(lambda: first.desk.shown is not None)
        try:
            await scene(Desktop(path, engine, windows, first))
        finally:
            if engine.gate is not None:
                engine.gate.release()
            windows.close()
            await until(windows.ended.is_set)
        await asyncio.sleep(0)
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left, f"tasks left behind: {left}"
        return windows.left()

    def run(scene: Scene, kept: object = None) -> object:
        with asyncio.Runner(loop_factory=lambda: qasync.QEventLoop(qapp)) as runner:
            return runner.run(whole(scene, kept))

    return run


async def press(window: MainWindow, key: Qt.Key, modifiers: Qt.KeyboardModifier) -> None:
    """A shortcut, in a window that has the keyboard."""
    window.activateWindow()
    await until(window.isActiveWindow)
    QTest.keyClick(window, key, modifiers)


def say(window: MainWindow, text: str) -> None:
    QTest.keyClicks(window.parts.composer.field, text)
    QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)


def session_of(window: MainWindow) -> int:
    assert window.desk.shown is not None
    return window.desk.shown.session_id


def last(window: MainWindow) -> TurnView | None:
    assert window.desk.shown is not None
    turns = window.desk.shown.view.turns
    return turns[-1] if turns and turns[-1].role == "assistant" else None


def made(window: MainWindow) -> int:
    """Tokens of the answer at the end, as the window has them."""
    answer = last(window)
    return 0 if answer is None else sum(origin == 2 for origin in answer.run.origin.tolist())


def choose(window: MainWindow, session_id: int) -> None:
    """Clicks a session in the list."""
    view = window.parts.sidebar.sessions.view
    index = window.parts.sidebar.sessions.rows.index_of(session_id)
    view.scrollTo(index)
    QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.visualRect(index).center())


async def next_token(gate: asyncio.Semaphore, *windows: MainWindow) -> None:
    """One more, in whichever window."""
    before = sum(made(window) for window in windows)
    gate.release()
    await until(lambda: sum(made(window) for window in windows) > before)


async def answered(window: MainWindow, text: str) -> int:
    """A message and its whole answer; its session."""
    say(window, text)
    await until(lambda: made(window) == WORDS and not window.desk.running)
    return session_of(window)


def test_a_second_window_has_a_session_of_its_own(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        # given an empty session in the first window: the second does not take that one
        second = await d.another()
        assert session_of(second) != session_of(d.first)
        # and stands a step beside the first, as large as it
        assert second.size() == d.first.size()
        assert second.pos() - d.first.pos() == QPoint(STEP, STEP)
        # and what is said in one is not seen in the other, but stands in its list
        one = await answered(d.first, "to the first")
        two = await answered(second, "to the second")
        assert (d.first.parts.top.title.text(), second.parts.top.title.text()) == ("to the first", "to the second")
        await until(lambda: {one, two} <= set(d.first.stage.sessions) and {one, two} <= set(second.stage.sessions))
        # and a new session in one of them is neither's
        await press(second, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(second) not in (one, two))
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) not in (one, two))
        assert session_of(d.first) != session_of(second)

    play(scene)


def test_answers_stream_into_both_windows_and_stop_in_one(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        d.engine.gate = asyncio.Semaphore(0)
        say(d.first, "one")
        say(second, "two")
        while not made(d.first) or not made(second):
            await next_token(d.engine.gate, d.first, second)
        # when one is stopped by its key
        await press(second, Qt.Key.Key_Period, CTRL)
        await until(lambda: not second.desk.running)
        # then the other goes on to its end
        assert d.first.desk.running
        for _ in range(2 * WORDS):
            d.engine.gate.release()
        await until(lambda: not d.first.desk.running)
        assert made(d.first) == WORDS
        assert made(second) < WORDS
        reasons = rows(d.path, "SELECT finish_reason FROM nodes WHERE role = 'assistant' ORDER BY finish_reason")
        assert reasons == [("cancelled",), ("length",)]

    play(scene)


def test_a_session_that_another_window_shows_comes_forward_there(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        second = await d.another()
        two = await answered(second, "two")
        await until(lambda: one in second.stage.sessions)
        second.activateWindow()
        await until(second.isActiveWindow)
        # when the first window's session is clicked in the second
        choose(second, one)
        # then that window has the keyboard, and nothing else has changed
        await until(d.first.isActiveWindow)
        assert (session_of(d.first), session_of(second)) == (one, two)
        assert second.parts.composer.notice.words == ""
        # and once the first shows another one, it is opened here
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        choose(second, one)
        await until(lambda: session_of(second) == one)

    play(scene)


@pytest.mark.slow
def test_two_windows_that_want_one_session_at_once_do_not_both_get_it(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        second = await d.another()
        d.first.desk.open(one)
        second.desk.open(one)
        await until(lambda: len(d.first.desk.tasks) + len(second.desk.tasks) == 0)
        assert (session_of(d.first) == one) + (session_of(second) == one) == 1

    play(scene)


def test_a_window_closed_in_mid_stream_leaves_its_answer_to_end(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        d.engine.gate = asyncio.Semaphore(0)
        say(d.first, "one")
        say(second, "two")
        await until(lambda: d.first.desk.running and second.desk.running)
        two = session_of(second)
        # when it is closed by its key
        await press(second, Qt.Key.Key_W, CTRL)
        await until(lambda: d.all == [d.first])
        # then the app stands, and both answers come to their ends
        assert not d.windows.ended.is_set()
        for _ in range(2 * WORDS):
            d.engine.gate.release()
        await until(lambda: not d.first.desk.running)
        assert made(d.first) == WORDS
        await until(lambda: rows(d.path, "SELECT count(*) FROM nodes WHERE finish_reason = 'length'") == [(2,)])
        # and the closed window's session can be opened, whole
        await until(lambda: two in d.first.stage.sessions)
        choose(d.first, two)
        await until(lambda: session_of(d.first) == two)
        assert made(d.first) == WORDS

    play(scene)


@pytest.mark.slow
def test_the_last_window_ends_what_a_closed_one_left(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        d.engine.gate = asyncio.Semaphore(0)
        say(second, "two")
        await until(lambda: second.desk.running)
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
def test_what_was_written_in_a_closed_window_is_there_where_its_session_is_opened(play: Play) -> None:
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
        await until(lambda: two in d.first.stage.sessions)
        choose(d.first, two)
        await until(lambda: session_of(d.first) == two)
        assert d.first.parts.composer.draft == "half a thought"
        # and what had no session yet waits for the next new one
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != two)
        assert d.first.parts.composer.draft == "new here"

    play(scene)


@pytest.mark.slow
def test_two_drafts_without_a_session_are_both_kept(play: Play) -> None:
    async def first(d: Desktop) -> None:
        second = await d.another()
        QTest.keyClicks(d.first.parts.composer.field, "one")
        QTest.keyClicks(second.parts.composer.field, "two")
        await press(second, Qt.Key.Key_Q, CTRL)
        await until(d.windows.ended.is_set)

    async def again(d: Desktop) -> None:
        assert set(d.first.parts.composer.draft.split()) == {"one", "two"}

    play(again, play(first))


@pytest.mark.slow
def test_a_session_thrown_away_in_one_window_leaves_the_other(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        second = await d.another()
        two = await answered(second, "two")
        await until(lambda: one in second.stage.sessions)
        second.parts.sidebar.sessions.trashed.emit(one)
        # then the first shows another, and not the one that the second has
        await until(lambda: session_of(d.first) not in (one, two))
        assert session_of(second) == two
        # and it comes back where it was thrown away from
        await press(second, Qt.Key.Key_Z, CTRL)
        await until(lambda: session_of(second) == one)

    play(scene)


@pytest.mark.slow
def test_a_row_of_the_list_opens_in_a_window_of_its_own(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        panel = d.first.parts.sidebar.sessions

        def ask(session_id: int) -> QMenu:
            at = panel.view.visualRect(panel.rows.index_of(session_id)).center()
            panel.view.customContextMenuRequested.emit(at)
            menu = QApplication.activePopupWidget()
            assert isinstance(menu, QMenu)
            return menu

        menu = ask(one)
        action = next(entry for entry in entries(menu) if entry.text() == "Open in New Window")
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())
        await until(lambda: len(d.all) == 2)
        second = d.all[1]
        await until(lambda: second.desk.shown is not None)
        assert session_of(second) == one
        # asked for again from the first, that window comes forward, and no third one
        d.first.activateWindow()
        await until(d.first.isActiveWindow)
        menu = ask(one)
        action = next(entry for entry in entries(menu) if entry.text() == "Open in New Window")
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())
        await until(second.isActiveWindow)
        assert len(d.all) == 2

    play(scene)


@pytest.mark.slow
def test_windows_that_were_open_at_the_end_come_back_where_they_stood(play: Play) -> None:
    sessions: list[int] = []
    places: list[QRect] = []

    async def first(d: Desktop) -> None:
        second = await d.another()
        d.first.resize(740, 600)  # Qt puts a window back only where the screen (800 x 800 here) has room for it
        second.resize(620, 500)
        sessions.extend([await answered(d.first, "one"), await answered(second, "two")])
        places.extend(window.geometry() for window in d.all)
        await press(second, Qt.Key.Key_Q, CTRL)
        await until(d.windows.ended.is_set)

    async def again(d: Desktop) -> None:
        await until(lambda: len(d.all) == 2 and d.all[1].desk.shown is not None)
        assert [session_of(window) for window in d.all] == sessions
        assert [window.size() for window in d.all] == [place.size() for place in places]
        # closed one by one, only the last comes back
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
def test_the_bar_speaks_of_the_session_of_its_window(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        await answered(d.first, "one")
        second = await d.another()
        await until(lambda: d.first.parts.status.engine.text() == second.parts.status.engine.text() == "ready")

        def facts(window: MainWindow) -> str:
            return " ".join(label.text() for label in window.parts.status.facts if not label.isHidden())

        assert "reused" in facts(d.first)
        assert "reused" not in facts(second)

    play(scene)


@pytest.mark.slow
def test_settings_of_another_version_open_one_window(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        assert len(d.all) == 1

    play(scene, {"hologram": True, "others": [{"session": "x", "depth": 3}, 7]})
    play(scene, ["a list"])


def test_the_window_menu_lists_the_windows_and_brings_one_to_the_front(play: Play) -> None:
    async def scene(desktop: Desktop) -> None:
        first = desktop.first
        say(first, "first & foremost")
        await until(lambda: made(first) == WORDS)
        second = await desktop.another()
        say(second, "second")
        await until(lambda: made(second) == WORDS)
        # when the menu opens in either of them
        for window in (first, second):
            menu = window.acts.windows
            menu.aboutToShow.emit()
            menu.aboutToShow.emit()  # once more: what was listed goes
            listed = [action for action in menu.actions() if action.isCheckable()]
            # then both are named, and its own is marked
            assert [action.text() for action in listed] == ["first && foremost – Elsewise", "second – Elsewise"]
            assert [action.isChecked() for action in listed] == [window is first, window is second]
            fixed = [action.text() for action in menu.actions() if not action.isCheckable() and not action.isSeparator()]
            assert fixed == ["Minimise", "Zoom", "Bring All to Front"]
        # and one that was minimised comes back with the keyboard
        await press(first, Qt.Key.Key_M, CTRL)
        await until(first.isMinimized)
        listed[0].trigger()
        await until(lambda: first.isActiveWindow() and not first.isMinimized())
        # and zoom fills the screen, and gives it back
        first.acts.zoom.trigger()
        await until(first.isMaximized)
        first.acts.zoom.trigger()
        await until(lambda: not first.isMaximized())
        first.acts.all_to_front.trigger()
        assert len(desktop.all) == 2

    play(scene)
