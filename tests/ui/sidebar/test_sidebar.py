"""Sessions and branches at the left."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QContextMenuEvent, QImage, QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QPushButton

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import SAMPLE, TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import AppSettings, BranchRow, MainWindow, SessionsChanged, SessionSummary, WindowState
from ui.sidebar.branch_tree import BranchTree, NameBox
from ui.sidebar.session_rows import SUMMARY
from ui.sidebar.sessions import SessionPanel

Play = Callable[[Scene], None]
BOAT = 4


def make_sample(bench: FakeWorkbench) -> None:
    """Given: the sample is the first session of the list."""
    trip = bench.views[TRIP]
    later = bench.summaries[TRIP].updated + 1
    bench.add(SessionSummary(SAMPLE, "A recording", later, 3, pinned=True, is_sample=True), trip.turns)


def rows(panel: SessionPanel) -> list[str]:
    return [str(panel.rows.index(i).data()) for i in range(panel.rows.rowCount())]


def click_session(panel: SessionPanel, session_id: int) -> None:
    at = panel.view.visualRect(panel.rows.index_of(session_id)).center()
    QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=at)


def test_sessions_are_grouped_under_pinned_today_this_week_earlier(app: QApplication) -> None:
    now = datetime.datetime(2026, 3, 18, 12, 0).astimezone().timestamp()
    day = 86400

    def session(session_id: int, age_days: float, *, pinned: bool = False) -> SessionSummary:
        return SessionSummary(session_id, f"s{session_id}", now - age_days * day, 1, pinned=pinned, is_sample=False)

    panel = SessionPanel()
    panel.show_sessions([session(1, 30, pinned=True), session(2, 0.1), session(3, 1), session(4, 6), session(5, 8)], now)
    assert rows(panel) == ["Pinned", "s1", "Today", "s2", "This week", "s3", "s4", "Earlier", "s5"]
    # a clock that was set back does not add a group
    panel.show_sessions([session(6, -3)], now)
    assert rows(panel) == ["Today", "s6"]


def test_a_click_opens_a_session_and_group_headers_do_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        click_session(panel, 3)
        await until(lambda: window.parts.top.title.text() == "Why proofs by contradiction")
        asked = len(bench.asked("open_session"))
        QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(20, 10))
        await frames()
        assert len(bench.asked("open_session")) == asked

    in_window(scene)


def test_a_search_sends_one_request_and_filters_the_list(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        QTest.keyClicks(panel.search, "boat")
        await until(lambda: rows(panel) == ["Today", "Names for a small boat"])
        assert [query for (query,) in bench.asked("sessions")] == [
            "",
            "",
            "boat",
        ]  # "": all sessions, for actions on hidden ones

    in_window(scene)


def test_rename_in_place(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        window.controller.refused.emit("a title needs at least one character")
        window.acts.rename.trigger()
        field = panel.view.findChild(QLineEdit)
        assert isinstance(field, QLineEdit)
        field.selectAll()
        QTest.keyClicks(field, "Lis")
        # while another session's answer ends, which moves that session before this one
        bench.summaries[BOAT] = replace(bench.summaries[BOAT], pinned=True, answering=True)
        bench.emit(SessionsChanged())
        await until(lambda: rows(panel)[0] == "Pinned")
        panel.rows.mark_open(TRIP)
        QTest.keyClicks(field, "bon")
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("rename_session") == [(TRIP, "Lisbon")])
        assert window.parts.composer.notice.words == ""  # no notice about the previous name
        assert panel.view.currentIndex() == panel.rows.index_of(TRIP)  # the current row, too
        await until(lambda: window.parts.top.title.text() == "Lisbon")
        # an empty name is ignored
        window.acts.rename.trigger()
        field = panel.view.findChild(QLineEdit)
        assert isinstance(field, QLineEdit)
        field.clear()
        QTest.keyClick(field, Qt.Key.Key_Return)
        await frames()
        assert len(bench.asked("rename_session")) == 1

    in_window(scene)


def test_a_title_generated_by_the_model_can_be_undone(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await until(lambda: window.parts.sidebar.sessions.rows.rowCount() == 8 and window.acts.title.isEnabled())
        before = window.parts.top.title.text()
        window.acts.title.trigger()
        await until(lambda: window.parts.top.title.text() == "A boat in Lisbon")
        assert bench.asked("suggest_title") == [(TRIP,)]
        await until(window.acts.undo.isEnabled)
        window.acts.undo.trigger()
        await until(lambda: window.parts.top.title.text() == before)

    in_window(scene)


@pytest.mark.parametrize("by", ["model", "words", "hand", "left"])
def test_a_new_session_gets_its_title_from_the_model_if_the_settings_say_so(
    in_window: Play, bench: FakeWorkbench, by: str
) -> None:
    async def scene(window: MainWindow) -> None:
        if by != "words":
            bench.held = replace(bench.held, values=AppSettings(titles="model"))  # set in any window
        window.acts.new_session.trigger()
        await until(lambda: not window.controller.is_shown(TRIP))
        assert window.controller.shown is not None
        new = window.controller.shown.session_id
        bench.summaries[new] = replace(bench.summaries[TRIP], session_id=new, title="A boat", is_sample=False)
        suggest = bench.answers.suggest_title

        async def meanwhile(session_id: int) -> str:
            window.controller.sessions.rename(session_id, "By hand")
            return await suggest(session_id)

        if by == "hand":
            bench.answers.suggest_title = meanwhile  # type: ignore[method-assign]  # the user is faster
        bench.gate = asyncio.Semaphore(0) if by == "left" else None
        QTest.keyClicks(window.parts.composer.field, "A boat")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: bool(bench.asked("send")))
        if bench.gate is not None:  # another session is shown before the answer has ended
            window.controller.open(TRIP)
            await until(lambda: window.controller.is_shown(TRIP))
            for _ in bench.answer:
                bench.gate.release()
            await until(lambda: bench.asked("rename_session"))
            window.controller.open(new)
            bench.gate = None
            await until(lambda: window.controller.is_shown(new))
        await until(lambda: not window.controller.running)
        await until(lambda: not len(window.controller.tasks))
        wanted = {"words": [], "hand": [(new, "By hand")]}.get(by, [(new, "A boat in Lisbon")])
        assert bench.asked("rename_session") == wanted
        assert bench.asked("suggest_title") == ([] if by == "words" else [(new,)])
        # the next answer requests no title
        QTest.keyClicks(window.parts.composer.field, "And then?")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: len(bench.asked("send")) == 2 and not window.controller.running)
        await until(lambda: not len(window.controller.tasks))
        assert len(bench.asked("suggest_title")) == (by != "words")

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("key", [Qt.Key.Key_Delete, Qt.Key.Key_Backspace])
def test_no_key_without_a_modifier_moves_a_session_to_the_trash(in_window: Play, bench: FakeWorkbench, key: Qt.Key) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        panel.view.setCurrentIndex(panel.rows.index_of(3))
        for widget in (panel.view, window.parts.sidebar.tree, window.parts.transcript, window):
            QTest.keyClick(widget, key)
        await frames()
        assert bench.asked("trash_session") == []

    in_window(scene)


def test_trash_opens_the_next_session_and_undo_restores_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        window.acts.trash.trigger()
        await until(lambda: panel.undo_bar.words.startswith("“A spring trip” is in the trash"))
        await until(lambda: window.parts.top.title.text() == "Why proofs by contradiction")
        assert "A spring trip" not in rows(panel)
        undo = next(b for b in panel.undo_bar.findChildren(type(window.parts.composer.send_button)) if b.text() == "Undo")
        QTest.mouseClick(undo, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.top.title.text() == "A spring trip")
        assert bench.asked("restore_session") == [(TRIP,)]
        assert "A spring trip" in rows(panel)

    in_window(scene)


def press_undo(panel: SessionPanel) -> None:
    undo = next(button for button in panel.undo_bar.findChildren(QPushButton) if button.text() == "Undo")
    QTest.mouseClick(undo, Qt.MouseButton.LeftButton)


@pytest.mark.slow
def test_an_undo_by_key_removes_the_trash_notice(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        window.acts.trash.trigger()
        await until(lambda: panel.undo_bar.words != "" and window.acts.undo.isEnabled())
        window.acts.undo.trigger()
        await until(lambda: window.parts.top.title.text() == "A spring trip")
        assert panel.undo_bar.words == ""
        assert not window.acts.undo.isEnabled()

    in_window(scene)


def test_a_session_that_is_answered_in_the_background_is_marked_until_it_is_shown(
    in_window: Play, bench: FakeWorkbench
) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        spoken = int(Qt.ItemDataRole.AccessibleTextRole)
        await until(lambda: panel.rows.rowCount() == 8)

        def words() -> str:
            return str(panel.rows.index_of(TRIP).data(spoken))

        def marks() -> QImage:
            rect = panel.view.visualRect(panel.rows.index_of(TRIP))
            return panel.view.viewport().grab(rect.adjusted(rect.width() - 20, 0, 0, 0)).toImage()

        # an answer starts, and another session is shown
        bench.summaries[TRIP] = replace(bench.summaries[TRIP], answering=True)
        bench.emit(SessionsChanged())
        await until(lambda: words().endswith(", answering"))
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3))
        during = marks()
        # when it has ended, its mark changes
        bench.summaries[TRIP] = replace(bench.summaries[TRIP], answering=False)
        bench.emit(SessionsChanged())
        await until(lambda: words().endswith(", answered, not seen yet"))
        ended = marks()
        assert ended != during
        # until it is shown
        window.controller.open(TRIP)
        await until(lambda: window.controller.is_shown(TRIP) and "answered" not in words())
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3))
        assert marks() not in (during, ended)

    in_window(scene)


def test_the_button_of_the_trash_notice_undoes_only_that_step(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        # given another session in the trash, and after that a step of another kind
        panel.trashed.emit(5)
        await until(lambda: panel.undo_bar.words == "“Recipe without an oven” is in the trash")
        window.controller.tree.step_variant(+1)
        await until(lambda: window.acts.undo.text() == "Undo Branch Selection")
        # when the button of the notice is pressed
        press_undo(panel)
        # then that session is restored, and the other step can still be undone
        await until(lambda: bench.asked("restore_session") == [(5,)])
        await until(lambda: window.parts.top.title.text() == "Recipe without an oven")
        assert len(bench.asked("select")) == 1
        window.controller.open(TRIP)
        await until(lambda: window.acts.undo.text() == "Undo Branch Selection")
        assert panel.undo_bar.words == ""

    in_window(scene)


@pytest.mark.slow
def test_down_moves_from_the_search_to_its_first_match(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        QTest.keyClick(window, Qt.Key.Key_F, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        QTest.keyClicks(panel.search, "boat")
        await until(lambda: rows(panel) == ["Today", "Names for a small boat"])
        QTest.keyClick(panel.search, Qt.Key.Key_Down)
        assert panel.view.hasFocus()
        found = panel.view.currentIndex().data(SUMMARY)
        assert isinstance(found, SessionSummary)
        QTest.keyClick(panel.view, Qt.Key.Key_Return)
        await until(lambda: window.controller.is_shown(found.session_id))

    in_window(scene)


@pytest.mark.slow
def test_down_in_the_search_waits_for_its_results(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        panel.search.setFocus()
        QTest.keyClicks(panel.search, "boat")
        QTest.keyClick(panel.search, Qt.Key.Key_Down)
        assert panel.search.hasFocus()
        await until(panel.view.hasFocus)
        assert rows(panel) == ["Today", "Names for a small boat"]
        assert panel.view.currentIndex().data(SUMMARY).title == "Names for a small boat"

    in_window(scene)


def test_a_search_without_matches_reports_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        assert not panel.nothing.isVisible()
        QTest.keyClicks(panel.search, "zzz")
        await until(panel.nothing.isVisible)
        assert panel.nothing.text() == "nothing found"
        # with one action
        QTest.mouseClick(panel.clear_button, Qt.MouseButton.LeftButton)
        await until(lambda: panel.rows.rowCount() == 8)
        assert panel.search.text() == ""
        assert not panel.nothing.isVisible()
        assert not panel.clear_button.isVisible()

    in_window(scene)


def test_titles_make_invisible_characters_visible(in_window: Play, bench: FakeWorkbench) -> None:
    title = "bell\x07 lone\ud800 over\u202etaking"
    bench.summaries[TRIP] = replace(bench.summaries[TRIP], title=title)
    bench.views[TRIP] = replace(bench.views[TRIP], title=title)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        shown = "bellBEL loneU+D800 overRLOtaking"
        assert rows(panel)[1] == shown
        assert window.parts.top.title.text() == shown
        assert window.windowTitle() == f"{shown} – Elsewise"
        # the edited text is the title itself
        assert str(panel.rows.index(1).data(Qt.ItemDataRole.EditRole)).startswith("bell\x07 lone")

    in_window(scene)


@pytest.mark.slow
def test_pin_and_unpin_by_menu_and_by_action(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)

        async def choose(session_id: int, words: str) -> None:
            panel.view.customContextMenuRequested.emit(panel.view.visualRect(panel.rows.index_of(session_id)).center())
            [menu] = [menu for menu in panel.findChildren(QMenu) if menu.isVisible()]
            next(action for action in menu.actions() if action.text() == words).trigger()
            menu.close()
            await frames(1)

        await choose(5, "Pin")
        await until(lambda: rows(panel)[:3] == ["Pinned", "A spring trip", "Recipe without an oven"])
        await choose(5, "Unpin")
        await until(lambda: rows(panel)[:3] == ["Pinned", "A spring trip", "Today"])
        # the shown session, by the menu bar
        assert window.acts.pin.text() == "Unpin Session"
        window.acts.pin.trigger()
        await until(lambda: window.acts.pin.text() == "Pin Session")
        assert bench.asked("pin_session") == [(5, True), (5, False), (TRIP, False)]

    in_window(scene)


def test_the_sample_is_not_renamed_but_can_be_trashed(in_window: Play, bench: FakeWorkbench) -> None:
    make_sample(bench)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 9)
        assert not panel.rows.flags(panel.rows.index_of(SAMPLE)) & Qt.ItemFlag.ItemIsEditable
        assert not window.acts.rename.isEnabled()
        # when it is moved to the trash by the menu of its row
        panel.view.setFocus()
        panel.view.setCurrentIndex(panel.rows.index_of(SAMPLE))
        at = panel.view.rect().center()
        QApplication.sendEvent(panel.view, QContextMenuEvent(QContextMenuEvent.Reason.Keyboard, at, panel.view.mapToGlobal(at)))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        entry = next(action for action in menu.actions() if action.text() == "Move to Trash")
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(entry).center())
        # then it can be restored
        await until(lambda: SAMPLE in bench.trash and panel.undo_bar.isVisible())

    in_window(scene)


def test_a_branch_is_selected_by_click(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() == 6)
        QTest.mouseClick(tree.viewport(), Qt.MouseButton.LeftButton, pos=tree.visualRect(tree.rows.index(1)).center())
        await until(lambda: bench.asked("select") == [(TRIP, 41)])
        await until(lambda: tree.rows.rows[1].current)
        # the current row stays when another row is inserted before it
        here = tree.rows.rows[1]
        tree.show_branches([replace(here, node_id=999, current=False), *tree.rows.rows])
        assert tree.rows.rows[tree.currentIndex().row()] == here

    in_window(scene)


def test_rows_have_texts_for_screen_readers(app: QApplication) -> None:
    tree = BranchTree()
    tree.show_branches([BranchRow(1, 1, "… visit", "Lisbon\nwhen", -23.94, on_path=True, current=True)])
    assert tree.rows.index(0).data(Qt.ItemDataRole.AccessibleTextRole) == "… visit Lisbon when, level 2, −23.9 nats, shown"


def test_ten_thousand_sessions_are_one_list(app: QApplication) -> None:
    panel = SessionPanel()
    now = time.time()
    many = [SessionSummary(i, f"s{i}", now, i % 5, pinned=False, is_sample=False) for i in range(10_000)]
    panel.show_sessions(many, now)
    panel.resize(248, 600)
    panel.show()
    panel.view.scrollToBottom()
    assert not panel.grab().isNull()
    assert panel.rows.index_of(9_999).isValid()
    renamed = [replace(many[0], title="other"), *many[1:]]
    panel.show_sessions(renamed, now)
    assert rows(panel)[1] == "other"
    panel.close()


@pytest.mark.slow
def test_the_width_of_the_sidebar_is_changed_by_dragging_and_by_keys(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.resize(1360, 860)
        sidebar, grip = window.parts.sidebar, window.parts.sidebar.grip
        await until(lambda: grip.isVisible() and grip.x() + grip.width() == sidebar.width())
        title = window.parts.top.title.x()
        at = grip.rect().center()
        QTest.mousePress(grip, Qt.MouseButton.LeftButton, pos=at)
        move = QMouseEvent(
            QEvent.Type.MouseMove,
            QPointF(at + QPoint(100, 0)),
            QPointF(grip.mapToGlobal(at + QPoint(100, 0))),
            Qt.MouseButton.NoButton,
            Qt.MouseButton.LeftButton,
            Qt.KeyboardModifier.NoModifier,
        )
        QApplication.sendEvent(grip, move)
        QTest.mouseRelease(grip, Qt.MouseButton.LeftButton)
        assert 340 <= sidebar.width() <= 348
        await until(lambda: window.parts.top.title.x() >= title + 90)  # it is still over the conversation
        # by keys, within bounds, and back to the default
        grip.setFocus()
        before = sidebar.width()
        QTest.keyClick(grip, Qt.Key.Key_Left)
        assert sidebar.width() == before - 16
        for _ in range(40):
            QTest.keyClick(grip, Qt.Key.Key_Right)
        assert sidebar.width() == 520
        assert window.state().sidebar_width == 520
        QTest.mouseDClick(grip, Qt.MouseButton.LeftButton)
        assert sidebar.width() == 248
        other = MainWindow(bench, state=WindowState(sidebar_width=400))
        assert other.parts.sidebar.width() == 400
        other.deleteLater()

    in_window(scene)


def test_the_tooltip_of_a_branch_has_its_full_text(app: QApplication) -> None:
    tree = BranchTree()
    row = BranchRow(
        1, 1, "… visit", "Lisbon when", -23.9, on_path=True, current=True, text="Lisbon when it rains: <b>all</b> day"
    )
    tree.show_branches([row])
    said = tree.rows.index(0).data(Qt.ItemDataRole.ToolTipRole)
    assert "it rains" in said
    assert "<b>" not in said  # it is not markup


@pytest.mark.slow
def test_a_branch_gets_a_name_and_loses_it_by_undo(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() == 6)
        row = tree.rows.rows[1]
        tree.setFocus()
        tree.setCurrentIndex(tree.rows.index(1))
        QTest.keyClick(tree, Qt.Key.Key_F2)
        await until(lambda: tree.findChild(NameBox) is not None)
        box = tree.findChild(NameBox)
        assert isinstance(box, NameBox)
        field = box.field
        QTest.keyClicks(field, "the quiet one")
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("rename_branch") == [(TRIP, row.node_id, row.start, "the quiet one")])
        await until(lambda: tree.rows.rows[1].given == "the quiet one")
        assert str(tree.rows.index(1).data()).startswith("the quiet one … visit")
        await until(lambda: window.controller.undo_stack.label == "Rename Branch")
        window.activateWindow()
        await until(window.isActiveWindow)
        window.parts.transcript.setFocus()
        QTest.keyClick(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: tree.rows.rows[1].given == "")

    in_window(scene)
