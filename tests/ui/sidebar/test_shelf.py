"""Folders, tags, manual order and the trash, by mouse and keys in the session list."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QMimeData, QModelIndex, QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu, QPushButton

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import FolderView, MainWindow, SessionSummary
from ui.sidebar.session_rows import MIME, SessionRows
from ui.sidebar.sessions import SessionPanel

Play = Callable[[Scene], None]
PROOFS, BOAT, RECIPE = 3, 4, 5


def rows(panel: SessionPanel) -> list[str]:
    return [str(panel.rows.index(i).data()) for i in range(panel.rows.rowCount())]


async def choose(panel: SessionPanel, index: QModelIndex, *names: str) -> None:
    """Opens the menu of a row by the right mouse button and chooses an entry of it (of a menu in it)."""
    at = panel.view.visualRect(index).center() if index.isValid() else panel.view.viewport().rect().bottomLeft() - QPoint(0, 1)
    panel.view.customContextMenuRequested.emit(at)
    menu = [each for each in panel.findChildren(QMenu) if each.parent() is panel][-1]
    for name in names[:-1]:
        action = next(each for each in menu.actions() if each.text() == name)
        inner = action.menu()
        assert isinstance(inner, QMenu)
        menu = inner
    chosen = next(each for each in menu.actions() if each.text() == names[-1])
    for each in panel.findChildren(QMenu):  # a menu is closed by the time that its action is carried out
        each.hide()
    chosen.trigger()
    for each in panel.findChildren(QMenu):
        each.close()


def typed(panel: SessionPanel, text: str) -> None:
    """Types into the row that is being edited."""
    field = panel.view.findChild(QLineEdit)
    assert field is not None
    field.selectAll()
    field.insert(text)  # as an input method does: keyClicks supports only ASCII
    QTest.keyClick(field, Qt.Key.Key_Return)


def drag(panel: SessionPanel, session_id: int, onto: QModelIndex | int) -> None:
    """Drops a row as Qt does: onto a row, or into the gap above row number `onto`."""
    index = panel.rows.index_of(session_id)
    carried = panel.rows.mimeData([index])
    gap, parent = (onto, QModelIndex()) if isinstance(onto, int) else (-1, onto)
    panel.rows.dropMimeData(carried, Qt.DropAction.MoveAction, gap, 0, parent)


def test_a_new_folder_contains_the_session_and_is_named_at_once(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        await choose(panel, panel.rows.index_of(BOAT), "Move to Folder", "New Folder")
        await until(lambda: panel.view.findChild(QLineEdit) is not None)
        typed(panel, "Boats & ships")
        await until(lambda: bench.asked("rename_folder") != [])
        await until(lambda: "Boats & ships" in rows(panel))
        assert rows(panel)[:4] == ["Pinned", "A spring trip", "Boats & ships", "Names for a small boat"]

    in_window(scene)


def test_a_folder_is_closed_opened_and_removed_without_its_sessions(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        folder = await bench.sessions.create_folder("Boats")
        await bench.sessions.move(BOAT, folder)
        window.controller.sessions.search("")
        await until(lambda: "Boats" in rows(panel))
        head = panel.rows.index_of_folder(folder)
        QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=panel.view.visualRect(head).center())
        await frames()
        assert "Names for a small boat" not in rows(panel)
        assert "1 sessions, closed" in str(head.data(Qt.ItemDataRole.AccessibleTextRole))
        QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=panel.view.visualRect(head).center())
        await frames()
        assert "Names for a small boat" in rows(panel)
        await choose(panel, panel.rows.index_of_folder(folder), "Remove Folder, Keep Its Sessions")
        await until(lambda: bench.asked("remove_folder") == [(folder,)])
        await until(lambda: "Boats" not in rows(panel))

    in_window(scene)


def test_closing_a_folder_on_the_day_of_a_clock_change_leaves_the_groups_as_they_are(
    app: QApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        now = datetime.datetime(2026, 10, 25, 0, 30).astimezone()
        listed = SessionRows(app)
        boat = SessionSummary(BOAT, "Boat", now.timestamp() - 1200, 1, pinned=False, is_sample=False)
        listed.take([boat], now, [FolderView(70, "Food")])
        names = [str(listed.index(row).data()) for row in range(listed.rowCount())]
        assert names == ["Food", "Today", "Boat"]
        listed.toggle(70)
        assert [str(listed.index(row).data()) for row in range(listed.rowCount())] == names
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_session_is_dropped_into_a_folder_and_taken_out_by_menu(in_window: Play, bench: FakeWorkbench) -> None:
    bench.folder_views[70] = FolderView(70, "Food")

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 9)
        drag(panel, RECIPE, panel.rows.index_of_folder(70))
        await until(lambda: bench.asked("move_session") == [(RECIPE, 70)])
        await until(lambda: rows(panel)[2:4] == ["Food", "Recipe without an oven"])
        await choose(panel, panel.rows.index_of(RECIPE), "Move to Folder", "None")
        await until(lambda: bench.asked("move_session")[1:] == [(RECIPE, None)])

    in_window(scene)


def test_pinned_sessions_are_dragged_into_an_order(app: QApplication) -> None:
    panel, told = SessionPanel(), list[list[int]]()
    panel.rows.arranged.connect(told.append)
    now = time.time()
    listed = [SessionSummary(n, f"s{n}", now, 1, pinned=n < 4, is_sample=False) for n in range(1, 6)]
    panel.show_sessions(listed, now)
    assert rows(panel) == ["Pinned", "s1", "s2", "s3", "Today", "s4", "s5"]
    drag(panel, 3, 1)  # into the gap above s1
    drag(panel, 1, 4)  # below s3, the last of its group
    drag(panel, 2, panel.rows.index_of(1))  # onto a row
    assert told == [[3, 1, 2], [2, 3, 1], [2, 1, 3]]
    told.clear()
    drag(panel, 1, 6)  # groups by date cannot be reordered
    drag(panel, 4, 5)
    drag(panel, 4, panel.rows.index(0))
    stranger = QMimeData()
    stranger.setData(MIME, b"../1")
    panel.rows.dropMimeData(stranger, Qt.DropAction.MoveAction, 1, 0, QModelIndex())
    assert told == []


def test_alt_and_an_arrow_move_a_session_within_its_group(app: QApplication) -> None:
    panel, told = SessionPanel(), list[list[int]]()
    panel.rows.arranged.connect(told.append)
    now = time.time()
    inside = [SessionSummary(n, f"s{n}", now, 1, pinned=False, is_sample=False, folder_id=7) for n in (1, 2, 3)]
    panel.show_sessions(inside, now, [FolderView(7, "f")])
    for session, key in ((2, Qt.Key.Key_Up), (2, Qt.Key.Key_Down), (1, Qt.Key.Key_Up)):
        panel.view.setCurrentIndex(panel.rows.index_of(session))
        QTest.keyClick(panel.view, key, Qt.KeyboardModifier.AltModifier)
    assert told == [[2, 1, 3], [1, 3, 2]]  # the first row cannot move up
    QTest.keyClick(panel.view, Qt.Key.Key_Down)
    assert panel.view.currentIndex() == panel.rows.index_of(2)  # without Alt the arrows only change the current row


def test_tags_are_typed_in_the_row(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        await choose(panel, panel.rows.index_of(PROOFS), "Tags…")
        typed(panel, "#maths,  logic # 日本,")
        await until(lambda: bench.asked("tag_session") == [(PROOFS, "maths", "logic", "日本")])
        await until(lambda: bool(panel.rows.index_of(PROOFS).data(Qt.ItemDataRole.UserRole).tags))
        assert "tagged maths, logic" in str(panel.rows.index_of(PROOFS).data(Qt.ItemDataRole.AccessibleTextRole))
        await choose(panel, panel.rows.index_of(PROOFS), "Tags…")
        typed(panel, "#maths,")
        await until(lambda: bench.asked("tag_session")[-1] == (PROOFS, "maths"))
        await until(lambda: str(panel.rows.index_of(PROOFS).data(Qt.ItemDataRole.AccessibleTextRole)).endswith("tagged maths"))
        await choose(panel, panel.rows.index_of(PROOFS), "Tags…")
        assert panel.rows.index_of(PROOFS).data(Qt.ItemDataRole.EditRole) == "#maths"  # no comma after a single tag
        typed(panel, "#logic")
        await until(lambda: bench.asked("tag_session")[-1] == (PROOFS, "logic"))
        await until(lambda: str(panel.rows.index_of(PROOFS).data(Qt.ItemDataRole.AccessibleTextRole)).endswith("tagged logic"))
        panel.rename(PROOFS)  # the title is edited again, not the tags
        typed(panel, "Proofs")
        await until(lambda: bench.asked("rename_session") == [(PROOFS, "Proofs")])

    in_window(scene)


def test_the_trash_is_shown_and_sessions_are_restored_from_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        await choose(panel, panel.rows.index_of(BOAT), "Move to Trash")
        await until(lambda: bench.asked("trash_session") == [(BOAT,)])
        await choose(panel, panel.rows.index_of(TRIP), "Show Trash")
        await until(lambda: rows(panel) == ["‹ All sessions", "Trash", "Names for a small boat"])
        assert "30 days" in str(panel.rows.index_of(BOAT).data(Qt.ItemDataRole.AccessibleTextRole))
        await choose(panel, panel.rows.index_of(BOAT), "Put Back")
        await until(lambda: bench.asked("restore_session") == [(BOAT,)])
        back = panel.view.visualRect(panel.rows.index(0)).center()
        QTest.mouseClick(panel.view.viewport(), Qt.MouseButton.LeftButton, pos=back)
        await until(lambda: "Names for a small boat" in rows(panel) and rows(panel)[0] == "Pinned")

    in_window(scene)


def test_emptying_the_trash_asks_inline(in_window: Play, bench: FakeWorkbench) -> None:
    bench.trash |= {BOAT, RECIPE}

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        window.controller.sessions.show_trash(True)
        await until(lambda: rows(panel)[:2] == ["‹ All sessions", "Trash"])
        await choose(panel, panel.rows.index_of(BOAT), "Empty Trash…")
        assert "Delete 2 sessions permanently?" in panel.question.words
        assert bench.asked("empty_trash") == []
        panel.question.dismiss()
        await frames()
        assert bench.asked("empty_trash") == []
        await choose(panel, panel.rows.index_of(BOAT), "Delete Permanently…")
        assert "this session permanently" in panel.question.words
        panel.question.findChildren(QPushButton)[0].click()
        await until(lambda: bench.asked("empty_trash") == [(BOAT,)])
        await until(lambda: rows(panel) == ["‹ All sessions", "Trash", "Recipe without an oven"])
        assert panel.question.words == ""

    in_window(scene)


def test_a_refusal_is_shown_and_the_list_stays(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.rowCount() == 8)
        bench.refusal = "the disk is full"
        await choose(panel, panel.rows.index_of(PROOFS), "Tags…")
        typed(panel, "x")
        await until(lambda: "the disk is full" in window.parts.composer.notice.words)
        assert panel.rows.rowCount() == 8

    in_window(scene)


@pytest.mark.parametrize("hidden", ["closed folder", "search", "trash"])
def test_rename_session_reveals_the_shown_session_in_the_list(in_window: Play, bench: FakeWorkbench, hidden: str) -> None:
    bench.folder_views[70] = FolderView(70, "Food")
    bench.summaries[TRIP] = replace(bench.summaries[TRIP], pinned=False, folder_id=70)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: panel.rows.index_of(TRIP).isValid())
        if hidden == "closed folder":
            panel.rows.toggle(70)
        elif hidden == "search":
            QTest.keyClicks(panel.search, "boat")
        else:
            window.parts.sidebar.trash.click()
        await until(lambda: not panel.rows.index_of(TRIP).isValid())
        window.acts.rename.trigger()
        await until(lambda: panel.view.findChild(QLineEdit) is not None)
        assert panel.search.text() == ""
        typed(panel, "Lisbon")
        await until(lambda: bench.asked("rename_session") == [(TRIP, "Lisbon")])
        await until(lambda: "Lisbon" in rows(panel))

    in_window(scene)
