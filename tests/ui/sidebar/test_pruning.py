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


def test_pruning_by_menu_hides_the_row_shows_it_faintly_on_request_and_can_be_undone(
    in_window: Play, bench: FakeWorkbench
) -> None:
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
        # then the row is hidden, and the header of the outline counts it
        await until(lambda: tree.rows.rowCount() == 5)
        assert window.parts.sidebar.caption.text() == "Branches · 1 pruned"
        # it can be shown, faintly
        window.acts.pruned.trigger()
        assert tree.rows.rowCount() == 6
        assert "pruned" in str(tree.rows.data(tree.rows.index(5), int(Qt.ItemDataRole.AccessibleTextRole)))
        window.acts.pruned.trigger()
        # undo restores it
        assert window.controller.undo_stack.label == "Prune Branch"
        window.acts.undo.trigger()
        await until(lambda: bench.asked("prune")[-1] == (TRIP, 43, 0, False))
        await until(lambda: tree.rows.rowCount() == 6)
        assert window.parts.sidebar.caption.text() == "Branches"

    in_window(scene)


def test_the_shortcut_prunes_the_focused_row_or_the_shown_branch(in_window: Play, bench: FakeWorkbench) -> None:
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
        assert tree.currentIndex().row() == 1  # the row at its place
        # with the focus elsewhere it prunes the shown branch; a refusal is shown in the notice
        window.parts.transcript.tokens.setFocus()
        bench.refusal = "this is the only branch"
        QTest.keyClick(
            window.parts.transcript.tokens, Qt.Key.Key_P, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        )
        await until(lambda: window.parts.composer.notice.words == "this is the only branch")
        assert window.controller.undo_stack.label == "Prune Branch"  # of the first prune: a refused one adds no undo step

    in_window(scene)


def test_the_bar_of_a_row_is_as_wide_as_its_probability(in_window: Play, bench: FakeWorkbench) -> None:
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
