"""The full-window tree by mouse and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby, product

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QRect, Qt
from PySide6.QtGui import QAccessible, QColor, QImage, QPainter
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QStyleOptionViewItem

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import Contrast, MainWindow, RowText, Scheme, TreeRow, apply_theme
from ui.sidebar.branch_tree import NameBox
from ui.transcript import Measure
from ui.tree.painting import RowDelegate
from ui.tree.rows import TreeRows, words_of
from ui.tree.view import TreeView

Play = Callable[[Scene], None]
Key = Qt.Key
CONTROL, ALT = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.AltModifier


async def opened(window: MainWindow) -> TreeView:
    """Opens the tree by its shortcut."""
    QTest.keyClick(window, Key.Key_T, CONTROL)
    view = window.parts.tree.view
    await until(view.isVisible)
    await until(view.hasFocus)
    return view


def names(view: TreeView) -> list[str]:
    return [view.rows.all[place].name for place in view.rows.visible_places]


def row(view: TreeView) -> TreeRow:
    assert view.row is not None
    return view.row


def press(view: TreeView, key: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
    QTest.keyClick(view, key, modifiers)


def test_the_tree_replaces_the_conversation_until_it_is_closed(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        parts, field = window.parts, window.parts.composer.field
        await until(lambda: field.hasFocus())
        assert parts.inspector.isVisible()
        view = await opened(window)
        assert not parts.transcript.isVisible()
        assert not parts.inspector.isVisible()
        assert not parts.sidebar.tree.isVisible()
        assert parts.sidebar.sessions.isVisible()
        # every branch is listed, and the shown one is the current row
        assert names(view) == [each.name for each in bench.views[TRIP].branches]
        assert row(view).name == "Lisbon when it rains"
        assert "4 branches" in parts.tree.facts.text()
        # Escape: the keyboard focus is where it was, and nothing was requested of the session
        press(view, Key.Key_Escape)
        await until(field.hasFocus)
        assert parts.transcript.isVisible()
        assert parts.inspector.isVisible()
        assert parts.sidebar.tree.isVisible()
        assert not parts.tree.isVisible()
        assert not [call for call in bench.calls if call[0] in ("select", "show_turn")]
        # its key closes it as well, and so does its button, and the choice of a mode
        await opened(window)
        QTest.keyClick(window, Key.Key_T, CONTROL)
        assert not parts.tree.isVisible()
        await opened(window)
        QTest.mouseClick(parts.tree.back, Qt.MouseButton.LeftButton)
        assert not parts.tree.isVisible()
        await opened(window)
        QTest.keyClick(window, Key.Key_1, CONTROL)
        assert window.acts.read.isChecked()
        assert not parts.tree.isVisible()
        QTest.keyClick(window, Key.Key_2, CONTROL)
        assert window.acts.tokens.isChecked()

    in_window(scene)


def test_arrow_keys_unfold_fold_and_move_between_rows(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        whole = names(view)
        assert whole[2] == "Lisbon when it rains"
        press(view, Key.Key_Left)
        assert names(view) == [*whole[:3], whole[5]]  # its children are folded
        assert row(view).name == whole[2]
        press(view, Key.Key_Right)
        assert names(view) == whole
        press(view, Key.Key_Right)
        assert row(view).name == whole[3]  # to its first child
        press(view, Key.Key_Right)
        assert row(view).name == whole[3]  # it has no children
        press(view, Key.Key_Left)
        assert row(view).name == whole[2]
        press(view, Key.Key_Up)
        assert row(view).name == whole[1]
        press(view, Key.Key_Left)
        assert row(view).name == whole[0]
        press(view, Key.Key_Left)
        assert names(view) == whole[:1]
        press(view, Key.Key_Left)
        assert names(view) == whole[:1]
        press(view, Key.Key_Right)
        press(view, Key.Key_End)
        assert row(view).name == whole[-1]
        # by mouse: the sign folds, the row itself becomes current
        index = view.rows.index(2)
        sign: QRect = view.painter_of_rows.fold_place(view.rows.all[2], view.visualRect(index))
        QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=sign.center())
        assert names(view) == [*whole[:3], whole[5]]
        QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=view.visualRect(view.rows.index(1)).center())
        assert row(view).name == whole[1]
        await frames(1)

    in_window(scene)


def test_return_opens_the_branch_and_closes_the_tree(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        press(view, Key.Key_Up)
        assert row(view).node_id == 41
        press(view, Key.Key_Return)
        assert not window.parts.tree.isVisible()
        await until(lambda: ("show_turn", TRIP, 41) in bench.calls)
        await until(lambda: window.controller.shown is not None and window.controller.shown.view.turns[-1].node_id == 41)
        await until(window.parts.composer.field.hasFocus)
        assert window.acts.undo.text() == "Undo Branch Selection"
        # a turn of the shown path needs no other path
        bench.calls.clear()
        view = await opened(window)
        press(view, Key.Key_Home)
        middle = view.visualRect(view.currentIndex()).center()
        QTest.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=middle)
        QTest.mouseDClick(view.viewport(), Qt.MouseButton.LeftButton, pos=middle)
        assert not window.parts.tree.isVisible()
        await frames()
        assert not [call for call in bench.calls if call[0] in ("select", "show_turn")]

    in_window(scene)


@pytest.mark.slow
def test_typed_letters_search_and_keys_step_through_the_matches(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        finder = window.parts.tree.finder
        press(view, Key.Key_Home)
        press(view, Key.Key_Left)  # everything is folded
        assert len(names(view)) == 1
        press(view, Key.Key_W)
        await until(finder.field.hasFocus)
        QTest.keyClicks(finder.field, "hy")
        assert finder.field.text() == "why"
        await until(lambda: finder.count.text() == "1 of 2")
        assert row(view).name == "Why? → The light there"  # and its parent was unfolded
        QTest.keyClick(finder.field, Key.Key_Return)
        assert (finder.count.text(), row(view).node_id) == ("2 of 2", 52)
        QTest.keyClick(finder.field, Key.Key_Down)
        assert (finder.count.text(), row(view).node_id) == ("1 of 2", 51)
        QTest.keyClick(window, Key.Key_G, CONTROL | Qt.KeyboardModifier.ShiftModifier)
        assert (finder.count.text(), row(view).node_id) == ("2 of 2", 52)
        # Escape closes the search and focuses the row; a second Escape closes the tree
        QTest.keyClick(finder.field, Key.Key_Escape)
        assert not finder.isVisible()
        await until(view.hasFocus)
        assert row(view).node_id == 52
        QTest.keyClick(window, Key.Key_F, CONTROL)
        await until(finder.field.hasFocus)
        assert not window.parts.finder.isVisible()
        QTest.keyClicks(finder.field, "nothing like it")
        await until(lambda: finder.count.text() == "not found")
        QTest.keyClick(finder.field, Key.Key_Escape)
        press(view, Key.Key_Escape)
        await until(window.parts.transcript.isVisible)

    in_window(scene)


@pytest.mark.slow
def test_a_closed_search_does_not_move_the_current_row_any_more(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, find = asyncio.Event(), bench.branches.find_rows

    async def find_later(session_id: int, words: str) -> Sequence[tuple[int, int]]:
        found = await find(session_id, words)
        await may.wait()
        return found

    monkeypatch.setattr(bench.branches, "find_rows", find_later)

    async def scene(window: MainWindow) -> None:
        view, finder = await opened(window), window.parts.tree.finder
        press(view, Key.Key_Home)
        before = row(view).node_id
        press(view, Key.Key_W)
        QTest.keyClicks(finder.field, "hy")
        await until(lambda: bench.asked("find_rows")[-1:] == [(TRIP, "why")])
        QTest.keyClick(finder.field, Key.Key_Escape)
        may.set()
        await frames()
        assert row(view).node_id == before

    in_window(scene)


@pytest.mark.slow
def test_the_tree_follows_changes_and_another_session_closes_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        press(view, Key.Key_Down)
        window.controller.tree.rename(43, 0, "", "the short one")
        await until(lambda: any(each.given for each in view.rows.all))
        assert row(view).node_id == 51
        # pruned rows are hidden, and shown faintly on request
        window.controller.tree.prune(43, 0, True)
        await until(lambda: len(view.rows.visible_places) == 5)
        assert "1 pruned" in window.parts.tree.facts.text()
        window.acts.pruned.trigger()
        assert len(view.rows.visible_places) == 6
        # a refusal is shown over the tree
        bench.refusal = "an answer is being written"
        window.controller.tree.prune(41, 0, True)
        await until(lambda: window.parts.toast.words == "an answer is being written")
        assert window.parts.toast.isVisible()
        window.controller.open(4)
        await until(lambda: not window.parts.tree.isVisible())
        assert window.parts.transcript.isVisible()
        # an empty session has no tree
        assert not window.acts.tree.isEnabled()

    in_window(scene)


def test_a_screen_reader_gets_role_level_state_and_numbers_of_a_row(in_window: Play, bench: FakeWorkbench) -> None:
    rows = bench.views[TRIP].branches
    bench.views[TRIP] = replace(bench.views[TRIP], branches=(*rows[:5], replace(rows[5], given="the short one")))

    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        spoken = QAccessible.queryAccessibleInterface(view)
        assert spoken.text(QAccessible.Text.Name) == "Tree of the session"
        assert spoken.role() == QAccessible.Role.List
        lines = [spoken.child(i).text(QAccessible.Text.Name) for i in range(spoken.childCount())]
        assert {spoken.child(i).role() for i in range(spoken.childCount())} == {QAccessible.Role.ListItem}
        assert lines[0].startswith("you, Where should we go in April?, level 1, expanded, 3 ways")
        assert "level 2, expanded, 2 ways, −23.9 nats, shown" in lines[2]
        assert lines[5].startswith("model, the short one … visit Rome, level 2, −20.7 nats")
        press(view, Key.Key_Left)
        assert "collapsed" in str(view.rows.index(2).data(Qt.ItemDataRole.AccessibleTextRole))
        await frames(1)

    in_window(scene)


def test_the_words_of_a_row_are_coloured_as_in_the_conversation(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        picture = view.viewport().grab().toImage()
        line = view.visualRect(view.rows.index(2))
        colours = {picture.pixelColor(QPoint(x, line.center().y())).name() for x in range(line.left(), line.right())}
        assert {"#f8dcb4", "#f2b981"} <= colours  # colours of the ramp
        window.presenter.colour_by(Measure.RANK)
        await until(lambda: view.rows.measure is Measure.RANK)
        run = bench.views[TRIP].turns[1].run
        await until(lambda: view.rows.words(view.rows.all[2]) == words_of(run, Measure.RANK))

    in_window(scene)


def test_words_that_were_found_look_alike_on_every_colour(qapp: QApplication, bench: FakeWorkbench) -> None:
    texts = ["a", " cat", " cat", " cat", " cat", " cat", " catnip"]
    run = bench.turn("assistant", texts, [0.1, 0.1, 1, 2, 4, 6, 9]).run
    tree = TreeRow(1, 0, 1, -1, 0, 0, "assistant")
    rows = TreeRows(qapp)
    rows.take([tree], {tree.key: RowText(run, None)}, afresh=True)
    rows.mark("cat")
    for scheme, contrast in product((Scheme.LIGHT, Scheme.DARK), (Contrast.NORMAL, Contrast.HIGH)):
        palette = apply_theme(qapp, scheme, contrast).palette
        picture, option = QImage(420, 32, QImage.Format.Format_RGB32), QStyleOptionViewItem()
        picture.fill(QColor(palette.window))
        option.rect = picture.rect()
        with QPainter(picture) as painter:
            RowDelegate(rows, rows).paint(painter, option, rows.index(0))
        middle = [picture.pixelColor(x, 7).name() for x in range(picture.width())]  # above the letters
        assert [colour for colour, _ in groupby(middle)].count(palette.bar_rest) == 6
        assert palette.surprise[-1] in middle  # the rest of the word keeps its own
    apply_theme(qapp, Scheme.LIGHT, Contrast.NORMAL)


def test_white_space_is_shown_as_one_space_without_colour(bench: FakeWorkbench) -> None:
    run = bench.turn("assistant", ["Now", ",\n\n", "  let", " it", " rain", " 🐈‍⬛", "你好"], [0.1, 0.1, 6, 6, 0.1, 9, 2]).run
    words = words_of(run, Measure.SURPRISAL)
    assert words.text == "Now, let it rain 🐈‍⬛你好"
    shown = words.text.encode("utf-16-le")
    spans = [(shown[2 * each.first : 2 * each.last].decode("utf-16-le"), each.step) for each in words.heat]
    assert spans == [("let it", 4), ("🐈‍⬛", 5), ("你好", 2)]


def test_a_row_can_be_shown_alone_with_its_descendants_and_back(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        view, panel = await opened(window), window.parts.tree
        whole = names(view)
        assert not panel.whole.isVisible()
        press(view, Key.Key_Right, ALT)
        assert names(view) == whole[2:5]
        assert row(view).name == whole[2]
        assert panel.whole.isVisible()
        assert "Lisbon" in panel.hoisted.text()
        press(view, Key.Key_Left)  # folds, and moves no further up than the row shown alone
        press(view, Key.Key_Left)
        assert names(view) == whole[2:3]
        press(view, Key.Key_Right)
        # only shown rows are searched
        QTest.keyClick(window, Key.Key_F, CONTROL)
        QTest.keyClicks(panel.finder.field, "i")
        await until(lambda: panel.finder.count.text().endswith("of 2"))  # Lisbon, The light; not Paris
        QTest.keyClick(panel.finder.field, Key.Key_Escape)
        press(view, Key.Key_Left, ALT)
        assert names(view) == whole
        # by its buttons
        QTest.mouseClick(panel.hoist_button, Qt.MouseButton.LeftButton)
        assert len(names(view)) < len(whole)
        QTest.mouseClick(panel.whole, Qt.MouseButton.LeftButton)
        assert names(view) == whole
        await frames(1)

    in_window(scene)


def test_bookmarks_are_set_listed_stepped_through_and_undone(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view, panel = await opened(window), window.parts.tree
        assert not panel.bookmarks.isVisible()
        for _ in range(2):  # the second comes before the first is shown: it is no separate change
            press(view, Key.Key_B, CONTROL)
        await until(lambda: row(view).bookmarked)
        assert bench.asked("bookmark") == [(TRIP, row(view).node_id, 0, True)]
        assert "bookmarked" in str(view.currentIndex().data(Qt.ItemDataRole.AccessibleTextRole))
        press(view, Key.Key_End)
        QTest.mouseClick(panel.bookmark_button, Qt.MouseButton.LeftButton)
        await until(lambda: row(view).bookmarked)
        assert panel.bookmarks.text() == "★ 2 bookmarks"
        # from one to the next, wrapping round
        press(view, Key.Key_Down, CONTROL)
        assert row(view).name == "Lisbon when it rains"
        press(view, Key.Key_Down, CONTROL)
        assert row(view).name == "… visit Rome"
        press(view, Key.Key_Up, CONTROL)
        assert row(view).name == "Lisbon when it rains"
        # the list also leads to folded rows, and to rows outside the one shown alone
        press(view, Key.Key_Right, ALT)
        press(view, Key.Key_B, CONTROL | Qt.KeyboardModifier.ShiftModifier)
        menu = next(each for each in panel.findChildren(QMenu) if each.isVisible())
        assert [act.text().split()[0] for act in menu.actions()] == ["…", "…"]
        menu.actions()[1].trigger()
        menu.close()
        assert row(view).name == "… visit Rome"
        assert view.rows.base is None
        # each can be undone under the name of its step
        assert window.acts.undo.text() == "Undo Bookmark"
        QTest.keyClick(window, Key.Key_Z, CONTROL)
        await until(lambda: panel.bookmarks.text() == "★ 1 bookmark")
        assert window.parts.toast.isVisible()
        assert [each.name for each in view.rows.all if each.bookmarked] == ["Lisbon when it rains"]

    in_window(scene)


def test_prune_in_the_tree_and_undo(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        press(view, Key.Key_End)
        assert row(view).node_id == 43
        press(view, Key.Key_Right, ALT)
        assert len(view.rows.visible_places) == 1
        press(view, Key.Key_Delete)
        await until(lambda: len(view.rows.visible_places) == 5)  # the rest of the tree, when the row shown alone is pruned
        assert not window.parts.tree.whole.isVisible()
        assert ("prune", TRIP, 43, 0, True) in bench.calls
        assert row(view).node_id == 52  # its neighbour is the current row
        assert window.acts.undo.text() == "Undo Prune Branch"
        QTest.keyClick(window, Key.Key_Z, CONTROL)
        await until(lambda: len(view.rows.visible_places) == 6)
        # by the menu too, and it is restored from the faint rows
        window.acts.pruned.trigger()
        press(view, Key.Key_End)
        window.intents.prune()
        await until(lambda: row(view).pruned)
        press(view, Key.Key_Backspace)
        await until(lambda: not row(view).pruned)
        # when the current row is hidden or removed, its neighbour is the current row
        press(view, Key.Key_Delete)
        await until(lambda: row(view).pruned)
        window.acts.pruned.trigger()
        assert row(view).node_id == 52
        window.parts.tree.show_rows(view.rows.all[:4], {}, afresh=False)
        assert row(view).node_id == 51

    in_window(scene)


def test_two_rows_are_compared_and_escape_returns_to_the_tree(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        parts, view = window.parts, await opened(window)
        press(view, Key.Key_Up)
        assert row(view).node_id == 41
        press(view, Key.Key_Space)
        press(view, Key.Key_End)
        press(view, Key.Key_Space)
        QTest.keyClick(window, Key.Key_D, CONTROL)
        await until(parts.compare.isVisible)
        assert ("compare", TRIP, 41, 43) in bench.calls
        assert not parts.tree.isVisible()
        # Escape goes back step by step, to the same current row
        QTest.keyClick(parts.compare.text, Key.Key_Escape)
        await until(parts.tree.isVisible)
        await until(view.hasFocus)
        assert row(view).node_id == 43
        # two rows of the shown branch have the same text
        press(view, Key.Key_Home)
        QTest.keyClick(window, Key.Key_D, CONTROL)
        assert "Both are on one branch" in parts.toast.words
        assert parts.tree.isVisible()
        press(view, Key.Key_End)
        # without marks: this row and the shown branch
        QTest.mouseClick(parts.tree.compare_button, Qt.MouseButton.LeftButton)
        await until(parts.compare.isVisible)
        assert [call for call in bench.calls if call[0] == "compare"][-1][3] == 43
        QTest.keyClick(parts.compare.text, Key.Key_Escape)
        await until(view.hasFocus)
        press(view, Key.Key_Escape)
        await until(parts.composer.field.hasFocus)
        # in the conversation the shortcut compares as before
        QTest.keyClick(window, Key.Key_D, CONTROL)
        await until(parts.compare.isVisible)
        QTest.keyClick(parts.compare.text, Key.Key_Escape)
        await until(parts.transcript.isVisible)
        assert not parts.tree.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_branch_is_named_in_the_tree(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        press(view, Key.Key_F2)
        box = next(each for each in window.findChildren(NameBox) if each.isVisible())
        box.field.setText("the wet one")
        box.accept()
        await until(lambda: row(view).given == "the wet one")
        assert view.rows.line(row(view)).startswith("the wet one … visit You could")
        # the menu of a row has its actions
        menu = QMenu(view)
        view.fill_menu(menu, row(view))
        words = [act.text() for act in menu.actions() if act.text()]
        assert words == [
            "Show", "Fold", "Show Only What Follows", "Bookmark", "Mark for Comparing", "Rename Branch…",
            "Prune Branch",
        ]  # fmt: skip
        menu.deleteLater()
        assert ("rename_branch", TRIP, row(view).node_id, 0, "the wet one") in bench.calls

    in_window(scene)


@pytest.mark.slow
def test_a_row_without_text_is_painted(in_window: Play, bench: FakeWorkbench) -> None:
    rows = bench.views[TRIP].branches
    bench.views[TRIP] = replace(bench.views[TRIP], branches=(*rows[:5], replace(rows[5], name="", before="")))

    async def scene(window: MainWindow) -> None:
        view = await opened(window)
        view.viewport().grab()
        press(view, Key.Key_End)
        assert view.rows.line(row(view)) == ""
        await frames(1)

    in_window(scene)
