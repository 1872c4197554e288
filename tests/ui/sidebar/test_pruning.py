"""Pruning in the outline, by mouse, keys and the menu; undone like any change of the tree."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import LIGHT, MainWindow

Play = Callable[[Scene], None]


def test_prune_by_menu_undo_and_the_faint_rows(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() == 6)
        index = tree.rows.index(5)
        at = tree.visualRect(index).center()
        # when the row's menu is opened and pruning chosen
        asked = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, tree.viewport().mapToGlobal(at))
        QApplication.sendEvent(tree.viewport(), asked)
        menu = next(child for child in tree.findChildren(QMenu) if child.isVisible())
        assert [act.text() for act in menu.actions()] == ["Show", "Compare with the Shown Branch", "Rename…", "Prune Branch"]
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(menu.actions()[-1]).center())
        await until(lambda: bench.asked("prune") == [(TRIP, 43, 0, True)])
        # then the row is out of sight, and the head of the outline says so
        await until(lambda: tree.rows.rowCount() == 5)
        assert window.parts.sidebar.caption.text() == "Branches · 1 pruned"
        # it can be looked at, and is faint
        window.acts.pruned.trigger()
        assert tree.rows.rowCount() == 6
        assert "pruned" in str(tree.rows.data(tree.rows.index(5), int(Qt.ItemDataRole.AccessibleTextRole)))
        window.acts.pruned.trigger()
        # undo brings it back
        assert window.controller.undo_stack.label == "Prune Branch"
        window.acts.undo.trigger()
        await until(lambda: bench.asked("prune")[-1] == (TRIP, 43, 0, False))
        await until(lambda: tree.rows.rowCount() == 6)
        assert window.parts.sidebar.caption.text() == "Branches"

    in_window(scene)


def test_prune_the_row_that_has_the_keyboard(in_window: Play, bench: FakeWorkbench) -> None:
    turns = bench.views[TRIP].turns
    bench.add(bench.summaries[TRIP], turns[:3], branches=bench.views[TRIP].branches)

    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() == 6)
        await frames()
        tree.setFocus()
        tree.setCurrentIndex(tree.rows.index(1))
        QTest.keyClick(tree, Qt.Key.Key_P, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier)
        await until(lambda: bench.asked("prune") == [(TRIP, 41, 0, True)])
        await until(lambda: tree.rows.rowCount() == 5)
        assert tree.currentIndex().row() == 1  # what stands in its place
        # elsewhere it is the branch that is shown; a refusal is said in its place
        window.parts.transcript.tokens.setFocus()
        bench.refusal = "this is the only branch"
        QTest.keyClick(
            window.parts.transcript.tokens, Qt.Key.Key_P, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        )
        await until(lambda: window.parts.composer.notice.words == "this is the only branch")
        assert window.controller.undo_stack.label == "Prune Branch"  # of the first: what was refused is nothing to take back

    in_window(scene)


def test_a_rows_bar_is_as_wide_as_it_is_likely(in_window: Play, bench: FakeWorkbench) -> None:
    view = bench.views[TRIP]
    likely = (None, 0.9, 0.3, 0.0, None, None)
    rows = [replace(row, likely=p) for row, p in zip(view.branches, likely, strict=True)]
    bench.add(bench.summaries[TRIP], view.turns, branches=tuple(rows))

    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        await until(lambda: tree.rows.rowCount() == 6)
        await frames()
        image, ratio = tree.viewport().grab().toImage(), tree.devicePixelRatio()
        widths = []
        for place in range(4):
            rect = tree.visualRect(tree.rows.index(place))
            y = round((rect.bottom() - 2) * ratio)
            colours = [image.pixelColor(x, y).name() for x in range(image.width())]
            widths.append(colours.count(LIGHT.bar_rest))
        assert widths[0] == 0
        assert widths[1] > widths[2] > widths[3] > 0

    in_window(scene)
