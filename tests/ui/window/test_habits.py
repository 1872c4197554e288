"""What people expect of an app on their desktop: menus for editing and viewing, menus of the right button, all shortcuts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QMenu, QWidget

from tests.ui.comparison.similar_window import press
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.transcript.conftest import centre
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, StatusChanged, StatusView
from ui.transcript import Mode
from ui.transcript.pane.meta import Action
from ui.widgets.labels import plain_tooltip

Play = Callable[[Scene], None]
Key = Qt.Key
CONTROL = Qt.KeyboardModifier.ControlModifier
BOAT, LISBON = 4, 3


def entry(widget: QWidget, at: QPoint, words: str, reason: QContextMenuEvent.Reason = QContextMenuEvent.Reason.Mouse) -> None:
    """Opens the menu at a point of a widget, and clicks an entry of it."""
    QApplication.sendEvent(widget, QContextMenuEvent(reason, at, widget.mapToGlobal(at)))
    menu = QApplication.activePopupWidget()
    assert isinstance(menu, QMenu)
    action = next(each for each in menu.actions() if each.text() == words)
    QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(action).center())


async def laid_out(window: MainWindow) -> None:
    window.activateWindow()
    boxes = window.parts.transcript.tokens.page.boxes
    await until(lambda: window.isActiveWindow() and bool(boxes) and all(box.body.done for box in boxes))


@pytest.mark.slow
def test_a_token_and_its_turn_have_a_menu(in_window: Play, bench: FakeWorkbench) -> None:
    question, visit = (turn.node_id for turn in bench.views[TRIP].turns[:2])
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        view, parts = window.parts.transcript, window.parts
        port = view.tokens.viewport()
        # by the right button, on a token that was not pinned before
        entry(port, centre(view, visit, LISBON), "Alternatives…")
        assert view.pinned == (visit, LISBON)
        assert parts.pinned.isVisible()
        entry(port, centre(view, visit, LISBON), "Copy Token")
        assert QApplication.clipboard().text() == " Lisbon"
        entry(port, centre(view, visit, LISBON), "4 Continuations from Here")
        await until(lambda: bench.asked("continue_many") == [(TRIP, visit, LISBON, 4)])
        await until(lambda: len(parts.columns.cards) == 4 and not window.controller.running)
        QTest.keyClick(parts.columns.cards[0].keep, Key.Key_Escape)
        # by the Menu key, on the token that is pinned
        window.presenter.pin(visit, LISBON)
        await laid_out(window)
        parts.show_inspector(False)
        view.tokens.setFocus()
        entry(view.tokens, QPoint(1, 1), "Why This One", QContextMenuEvent.Reason.Keyboard)
        assert parts.inspector.why.isVisible()
        # the turn's own entries, also beside its text, at the rail
        box = view.tokens.page.boxes[0]
        entry(port, QPoint(6, box.top - view.tokens.verticalScrollBar().value() + 8), "Edit")
        assert parts.composer.replaces == question
        # the selection, in Read too
        window.presenter.set_mode(Mode.READ)
        await until(lambda: all(each.body.done for each in view.read.page.boxes))
        view.read.setFocus()
        QTest.keyClick(view.read, Key.Key_A, CONTROL)
        entry(view.read, QPoint(1, 1), "Copy", QContextMenuEvent.Reason.Keyboard)
        assert "Where should we go in April?" in QApplication.clipboard().text()

    in_window(scene)


def test_entries_that_the_model_does_not_support_are_disabled_with_the_reason(in_window: Play, bench: FakeWorkbench) -> None:
    visit, name = bench.views[TRIP].turns[1].node_id, "<big> at host"
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        acts, view, port = window.acts, window.parts.transcript, window.parts.transcript.tokens.viewport()
        lacks = frozenset({"token_ids", "banned_tokens", "beam_generate", "embed", "scores", "kv"})
        bench.status = StatusView(EngineState.READY, model=name, lacks=lacks)
        bench.emit(StatusChanged(bench.status))
        await until(lambda: not acts.similar.isEnabled())
        # in the menus
        no_vectors, no_ids = f"{name} makes no embeddings, which are needed to compare turns.", f"{name} returns no token ids"
        for act, reason in (
            (acts.similar, no_vectors),
            (acts.beams, "no beam search"),
            (acts.score, "does not score texts"),
            (acts.clear_cache, "is on its server"),
        ):
            assert not act.isEnabled()
            assert reason in act.statusTip()
            assert act.toolTip() == plain_tooltip(act.statusTip())
        assert acts.four_ways.isEnabled()
        assert all(menu.toolTipsVisible() for menu in acts.menus())
        # in the menu of a token and its turn
        at = centre(view, visit, LISBON)
        QApplication.sendEvent(port, QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, port.mapToGlobal(at)))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        disabled = {act.text(): act.statusTip() for act in menu.actions() if not act.isEnabled()}
        assert list(disabled) == [*(f"{count} Continuations from Here" for count in (2, 4, 8)), "Similar"]
        assert disabled.pop("Similar") == no_vectors
        assert all(reason.startswith(no_ids) for reason in disabled.values())
        assert menu.toolTipsVisible()
        menu.close()
        # in the line under a turn
        press(window, 1, Action.SIMILAR)
        assert port.toolTip() == plain_tooltip(no_vectors)
        assert port.cursor().shape() is not Qt.CursorShape.PointingHandCursor
        press(window, 1, Action.COPY)
        assert port.toolTip() == ""
        assert bench.asked("similar_turns") == []
        # on the card of a token
        window.presenter.pin(visit, LISBON)
        card = window.parts.pinned
        card.open()
        for button, reason in ((card.branch, no_ids), (card.ban, f"{name} cannot ban tokens.")):
            assert not button.isEnabled()
            assert button.statusTip().startswith(reason)
        # and then in the menus: continuations from the pinned token
        for act in (acts.two_ways, acts.four_ways, acts.eight_ways):
            assert not act.isEnabled()
            assert act.statusTip().startswith(no_ids)
        bench.emit(StatusChanged(StatusView(EngineState.READY)))
        await until(card.ban.isEnabled)
        assert acts.similar.isEnabled()
        assert (acts.similar.statusTip(), card.ban.toolTip()) == ("", plain_tooltip("Ban the marked token in this session"))

    in_window(scene)


def test_the_menu_key_opens_the_menu_at_the_focused_row(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        outline, tree = window.parts.sidebar.tree, window.parts.tree.view
        await until(lambda: outline.rows.rowCount() == 6)
        for view in (outline, tree):
            if view is tree:
                window.acts.tree.trigger()
            await until(view.isVisible)
            view.setFocus()
            index = view.rows.index(5)
            view.setCurrentIndex(index)
            other_row = view.visualRect(view.rows.index(0)).center()
            asked = QContextMenuEvent(QContextMenuEvent.Reason.Keyboard, other_row, view.mapToGlobal(other_row))
            QApplication.sendEvent(view, asked)
            menu = QApplication.activePopupWidget()
            assert isinstance(menu, QMenu)
            assert view.visualRect(index).contains(view.viewport().mapFromGlobal(menu.pos()))
            shown = list[object]()
            (tree.opened if view is tree else outline.selected).connect(shown.append)
            QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(menu.actions()[0]).center())
            assert shown == [tree.row if view is tree else outline.rows.rows[5].node_id]

    in_window(scene)


@pytest.mark.slow
def test_the_menu_key_in_the_session_list_applies_to_the_focused_session(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: window.controller.sessions.rows)
        panel.view.setFocus()
        panel.view.setCurrentIndex(panel.rows.index_of(BOAT))
        entry(panel.view, panel.view.rect().center(), "Move to Trash", QContextMenuEvent.Reason.Keyboard)
        await until(lambda: BOAT in bench.trash)
        # the trash can be opened
        sidebar = window.parts.sidebar
        await until(lambda: panel.undo_bar.isVisible())
        assert sidebar.trash.isVisible()
        QTest.mouseClick(sidebar.trash, Qt.MouseButton.LeftButton)
        await until(lambda: "Names for a small boat" in [panel.rows.index(i).data() for i in range(panel.rows.rowCount())])
        assert sidebar.trash.text() == "‹ All sessions"
        QTest.mouseClick(sidebar.trash, Qt.MouseButton.LeftButton)
        await until(lambda: sidebar.trash.text() == "Trash")

    in_window(scene)


@pytest.mark.slow
def test_text_is_cut_and_pasted_by_the_menu_also_from_the_conversation(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        field = window.parts.composer.field
        field.setFocus()
        QTest.keyClicks(field, "a word of mine")
        window.acts.select_all.trigger()
        window.acts.cut.trigger()
        assert (field.toPlainText(), QApplication.clipboard().text()) == ("", "a word of mine")
        # text pasted while the conversation has the focus goes into the message
        tokens = window.parts.transcript.tokens
        tokens.setFocus()
        QTest.keyClick(tokens, Key.Key_V, CONTROL)
        assert field.toPlainText() == "a word of mine"
        assert field.hasFocus()

    in_window(scene)


def test_each_press_for_larger_text_counts(in_window: Play, bench: FakeWorkbench) -> None:
    read = bench.settings.view

    async def slower() -> object:
        held = await read()
        await asyncio.sleep(0)  # the next press arrives before the size has changed
        return held

    bench.settings.view = slower  # type: ignore[method-assign, assignment]

    async def scene(window: MainWindow) -> None:
        for _ in range(3):
            window.acts.larger.trigger()
        await until(lambda: not len(window.controller.tasks))
        assert bench.asked("change_setting") == [("text_percent", percent) for percent in (110, 120, 130)]

    in_window(scene)


@pytest.mark.slow
def test_larger_text_and_a_full_screen(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        title = window.parts.top.title
        before = title.font().pixelSize(), title.font().pointSizeF()
        QTest.keyClick(window, Key.Key_Equal, CONTROL)  # Shift is not needed
        await until(lambda: bench.asked("change_setting") == [("text_percent", 110)])
        await until(lambda: (title.font().pixelSize(), title.font().pointSizeF()) > before)
        QTest.keyClick(window, Key.Key_Minus, CONTROL)
        await until(lambda: bench.asked("change_setting")[-1] == ("text_percent", 100))
        QTest.keyClick(window, Key.Key_Minus, CONTROL)
        await until(lambda: bench.asked("change_setting")[-1] == ("text_percent", 90))
        QTest.keyClick(window, Key.Key_0, CONTROL)
        await until(lambda: bench.asked("change_setting")[-1] == ("text_percent", 100))
        window.showMaximized()
        window.acts.full_screen.trigger()
        assert window.isFullScreen()
        window.acts.full_screen.trigger()
        assert (window.isFullScreen(), window.isMaximized()) == (False, True)
        # also when the window manager ended it, or the last window was closed in full screen
        window.acts.full_screen.trigger()
        other = MainWindow(bench, state=window.state())
        assert other.acts.full_screen.isChecked()
        other.acts.full_screen.trigger()
        assert not other.isFullScreen()
        other.deleteLater()
        window.showNormal()
        assert not window.acts.full_screen.isChecked()

    in_window(scene)


def test_all_shortcuts_on_one_page_and_in_tooltips(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await laid_out(window)
        QTest.keyClick(window, Key.Key_Slash, CONTROL)
        box = next(each for each in window.findChildren(QDialog) if each.isVisible())
        words = [label.text() for label in box.findChildren(QLabel)]
        keyed = [act for menu in window.acts.menus() for act in menu.actions() if not act.shortcut().isEmpty()]
        assert len(keyed) > 30
        for act in keyed:
            assert act.text().removesuffix("…") in words
            assert act.shortcut().toString() in words
        assert {"Preview an alternative", "1 – 9", "Esc", "Search in the tree"} <= set(words)
        QTest.keyClick(box, Key.Key_Escape)
        assert not box.isVisible()
        assert "Ctrl+Alt+S" in window.parts.top.sidebar_button.toolTip()
        assert "Ctrl+2" in window.parts.top.modes.buttons[Mode.TOKENS].toolTip()
        parts = window.parts
        for part, keys in (
            (parts.top.branch.back, "Ctrl+["),
            (parts.top.branch.forth, "Ctrl+]"),
            (parts.finder.previous, "Ctrl+Shift+G"),
            (parts.tree.finder.next, "Ctrl+G"),
            (parts.sidebar.sessions.search, "Ctrl+Shift+F"),
            (parts.composer.send_button, "Stop the answer (Ctrl+.)"),
        ):
            assert keys in part.toolTip()
        parts.composer.set_running(False)
        assert "Send the message (Return)" in parts.composer.send_button.toolTip()

    in_window(scene)
