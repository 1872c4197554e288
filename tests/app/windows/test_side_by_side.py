"""Several windows at once: each has a session of its own, and changes in one show in the others. Real mouse and keys."""

from __future__ import annotations

import asyncio

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from app.windows import STEP
from tests.app.windows.conftest import Play
from tests.app.windows.desktop import (
    CTRL,
    WORDS,
    Desktop,
    answered,
    choose,
    last,
    made,
    next_token,
    press,
    say,
    session_of,
)
from tests.app.workbench.scene import rows, until
from tests.ui.window.test_menus import entries
from ui import MainWindow


@pytest.mark.slow
def test_a_second_window_has_a_session_of_its_own(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        # given an empty session in the first window: the second does not show that one
        second = await d.another()
        assert session_of(second) != session_of(d.first)
        # and is offset from the first, with the same size
        assert second.size() == d.first.size()
        assert second.pos() - d.first.pos() == QPoint(STEP, STEP)
        # and a message in one is not shown in the other, but is in its list
        one = await answered(d.first, "to the first")
        two = await answered(second, "to the second")
        assert (d.first.parts.top.title.text(), second.parts.top.title.text()) == ("to the first", "to the second")
        await until(
            lambda: {one, two} <= set(d.first.controller.sessions.rows) and {one, two} <= set(second.controller.sessions.rows)
        )
        # and a new session in one of them is another one than both
        await press(second, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(second) not in (one, two))
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) not in (one, two))
        assert session_of(d.first) != session_of(second)

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize("maximised", [False, True])
def test_a_second_window_is_within_the_screen(play: Play, maximised: bool) -> None:
    async def scene(d: Desktop) -> None:
        screen = d.first.screen().availableGeometry()
        d.first.resize(560, 560)
        d.first.move(screen.right() - 570, screen.bottom() - 570)
        if maximised:
            d.first.showMaximized()
        second = await d.another()
        assert second.pos() != d.first.pos()
        assert screen.contains(second.frameGeometry())

    play(scene)


@pytest.mark.slow
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
        await until(lambda: not second.controller.running)
        # then the other continues to its end
        assert d.first.controller.running
        for _ in range(2 * WORDS):
            d.engine.gate.release()
        await until(lambda: not d.first.controller.running)
        assert made(d.first) == WORDS
        assert made(second) < WORDS
        reasons = rows(d.path, "SELECT finish_reason FROM nodes WHERE role = 'assistant' ORDER BY finish_reason")
        assert reasons == [("cancelled",), ("length",)]

    play(scene)


@pytest.mark.slow
def test_opening_a_session_that_another_window_shows_raises_that_window(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        second = await d.another()
        two = await answered(second, "two")
        await until(lambda: one in second.controller.sessions.rows)
        second.activateWindow()
        await until(second.isActiveWindow)
        # when the first window's session is clicked in the second
        choose(second, one)
        # then that window has the focus, and nothing else has changed
        await until(d.first.isActiveWindow)
        assert (session_of(d.first), session_of(second)) == (one, two)
        assert second.parts.composer.notice.words == ""
        # and when the first shows another one, it is opened here
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        choose(second, one)
        await until(lambda: session_of(second) == one)

    play(scene)


@pytest.mark.slow
def test_two_windows_opening_one_session_concurrently_do_not_both_show_it(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        await press(d.first, Qt.Key.Key_N, CTRL)
        await until(lambda: session_of(d.first) != one)
        second = await d.another()
        d.first.controller.open(one)
        second.controller.open(one)
        await until(lambda: len(d.first.controller.tasks) + len(second.controller.tasks) == 0)
        assert (session_of(d.first) == one) + (session_of(second) == one) == 1

    play(scene)


@pytest.mark.slow
def test_trashing_a_session_in_one_window_does_not_affect_the_other(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        second = await d.another()
        two = await answered(second, "two")
        await until(lambda: one in second.controller.sessions.rows)
        second.parts.sidebar.sessions.trashed.emit(one)
        # then the first shows another one, but not that of the second
        await until(lambda: session_of(d.first) not in (one, two))
        assert session_of(second) == two
        assert d.first.parts.toast.words == "Moved to the trash in another window: one"
        # and it is restored in the window that trashed it
        await press(second, Qt.Key.Key_Z, CTRL)
        await until(lambda: session_of(second) == one)

    play(scene)


@pytest.mark.slow
@pytest.mark.parametrize("deleted", [False, True])
def test_a_session_restored_by_another_window_is_no_longer_offered(play: Play, deleted: bool) -> None:
    async def scene(d: Desktop) -> None:
        one = await answered(d.first, "one")
        second = await d.another()
        await until(lambda: one in second.controller.sessions.rows)
        panel, undo = second.parts.sidebar.sessions, second.acts.undo
        panel.rows.renamed.emit(one, "renamed")
        await until(lambda: undo.text() == "Undo Rename")
        panel.trashed.emit(one)
        await until(lambda: undo.text() == "Undo Move to Trash")
        assert panel.undo_bar.isVisible()
        if deleted:
            d.first.controller.sessions.empty([one])
            await until(lambda: not undo.isEnabled())
        else:
            d.first.controller.sessions.restore(one)
            await until(lambda: undo.text() == "Undo Rename")
        assert not panel.undo_bar.isVisible()

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
        await until(lambda: second.controller.shown is not None)
        assert session_of(second) == one
        # requested again from the first, that window is raised, and no third one opened
        d.first.activateWindow()
        await until(d.first.isActiveWindow)
        menu = ask(one)
        action = next(entry for entry in entries(menu) if entry.text() == "Open in New Window")
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())
        await until(second.isActiveWindow)
        assert len(d.all) == 2

    play(scene)


@pytest.mark.slow
def test_the_draft_of_a_closed_window_is_in_the_other(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        second = await d.another()
        for window, words in ((d.first, "Oslo"), (second, "Porto")):
            await answered(window, f"to {words}")
            window.presenter.pin(answer_of(window), 3)
            window.parts.pinned.open()
            QTest.keyClicks(window.parts.pinned.field, words)
        d.first.parts.cards.remember([(answer_of(d.first), ["rain"])])
        second.parts.cards.remember([(answer_of(d.first), ["snow"]), (answer_of(second), ["sunny"])])
        typed = (answer_of(d.first), 3, "Oslo"), (answer_of(second), 3, "Porto")
        results = ((answer_of(d.first), ["rain"]), (answer_of(second), ["sunny"]))  # the draft of the remaining window is newer
        # when
        second.close()
        await until(lambda: second not in d.all)
        # then
        assert d.first.state().unwritten == typed
        assert d.first.state().results == results
        # and the last window saves both for the next start
        d.windows.close()
        await d.windows.ended.wait()
        left = d.windows.left()
        assert left is not None
        assert (left["unwritten"], left["results"]) == (typed, results)

    play(scene)


def answer_of(window: MainWindow) -> int:
    answer = last(window)
    assert answer is not None
    return answer.node_id


@pytest.mark.slow
def test_the_status_bar_shows_the_session_of_its_window(play: Play) -> None:
    async def scene(d: Desktop) -> None:
        await answered(d.first, "one")
        second = await d.another()
        await until(lambda: d.first.parts.status.engine.text() == second.parts.status.engine.text() == "ready")

        def facts(window: MainWindow) -> str:
            return " ".join(window.parts.status.figures.answer.texts)

        assert "reused" in facts(d.first)
        assert "reused" not in facts(second)

    play(scene)


@pytest.mark.slow
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
            menu.aboutToShow.emit()  # once more: the old entries are replaced
            listed = [action for action in menu.actions() if action.isCheckable()]
            # then both are listed, and its own is marked
            assert [action.text() for action in listed] == ["first && foremost – Elsewise", "second – Elsewise"]
            assert [action.isChecked() for action in listed] == [window is first, window is second]
            fixed = [action.text() for action in menu.actions() if not action.isCheckable() and not action.isSeparator()]
            assert fixed == ["Minimise", "Zoom", "Bring All to Front"]
        # and a minimised one is restored with the focus
        await press(first, Qt.Key.Key_M, CTRL)
        await until(first.isMinimized)
        listed[0].trigger()
        await until(lambda: first.isActiveWindow() and not first.isMinimized())
        # and zoom fills the screen, and restores the size
        first.acts.zoom.trigger()
        await until(first.isMaximized)
        first.acts.zoom.trigger()
        await until(lambda: not first.isMaximized())
        first.acts.all_to_front.trigger()
        assert len(desktop.all) == 2

    play(scene)
