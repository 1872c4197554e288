"""The window's menus, keys and words: each action has a place, each part a name, no text is markup."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QAction, QCursor, QEnterEvent
from PySide6.QtGui import Qt as RichText
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QMenu, QPlainTextEdit, QPushButton, QToolBar, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow, SessionChanged, SessionSummary, StatusChanged
from ui.controller.setup import MODEL
from ui.port import BackendChoice, EngineState, StatusView

Play = Callable[[Scene], None]
HOSTILE = "<img src='/etc/passwd'><b>bold</b> & \x1b[31m"


def entries(menu: QMenu) -> Iterator[QAction]:
    """The actions of a menu and of its submenus."""
    for action in menu.actions():
        inner = action.menu()
        if isinstance(inner, QMenu):
            yield from entries(inner)
        elif not action.isSeparator():
            yield action


def test_an_engine_is_chosen_from_the_menu(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.engines = [
            BackendChoice("hf", "", True),
            BackendChoice("third", "", False),
            BackendChoice("vllm", "not yet", False),
        ]
        QTest.mouseClick(window.parts.top.model, Qt.MouseButton.LeftButton)
        await until(lambda: QApplication.activePopupWidget() is not None)
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        # then every engine is listed, the current one is checked, and one that cannot run is disabled with the reason
        entries = {action.text().split("\t")[0]: action for action in menu.actions() if action.text().startswith("run on")}
        assert {name: (a.isChecked(), a.isEnabled()) for name, a in entries.items()} == {
            "run on hf": (True, True),
            "run on third": (False, True),
            "run on vllm": (False, False),
        }
        assert entries["run on vllm"].text().endswith("not yet")
        # when another is chosen
        entries["run on third"].trigger()
        menu.close()
        await until(lambda: bench.asked("choose_backend") == [("third",)])

    in_window(scene)


def test_a_model_is_chosen_from_the_menu(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        QTest.mouseClick(window.parts.top.model, Qt.MouseButton.LeftButton)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        entries = [action for action in menu.actions() if "run on" not in action.text() and not action.isSeparator()]
        assert [entry.text().split("\t")[0] for entry in entries] == [
            "SmolLM2 135M Instruct", "Qwen3 0.6B", "More models…", "Model and adapters…",
        ]  # fmt: skip
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(entries[1]).center())
        await until(lambda: window.parts.top.model.text() == "Qwen3 0.6B")
        assert bench.asked("choose_model") == [("qwen3",)]

    in_window(scene)


def test_the_menu_button_is_not_hovered_after_its_menu_closes_unless_the_mouse_is_on_it(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        button = window.parts.top.menu_button
        here, away = button.mapToGlobal(button.rect().center()), window.mapToGlobal(window.rect().center())
        for at in (away, here):
            # given the mouse on the button, whose open menu grabs it
            QCursor.setPos(here)
            QApplication.sendEvent(button, QEnterEvent(QPointF(), QPointF(), QPointF(here)))
            button.menu().popup(here)
            # when the menu closes, then the button is hovered only if the mouse is still on it
            QCursor.setPos(at)
            button.menu().close()
            assert button.underMouse() == (at == here)

    in_window(scene)


def test_every_action_is_in_a_menu_and_no_two_share_a_shortcut(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        listed = {action for menu in window.acts.menus() for action in entries(menu)}
        made = {value for value in vars(window.acts).values() if isinstance(value, QAction)}
        made |= {*window.acts.colours.values(), *window.acts.exports.values()}
        assert made == listed
        keys = [action.shortcut().toString() for action in made if not action.shortcut().isEmpty()]
        assert len(keys) == len(set(keys))
        assert {"Ctrl+N", "Ctrl+.", "Ctrl+R", "Ctrl+[", "Ctrl+]", "Ctrl+Z", "Ctrl+T", "Ctrl+1", "Ctrl+2"} <= set(keys)
        await frames(1)

    in_window(scene)


def test_copy_by_key_and_by_menu_copies_from_the_focused_widget(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        clipboard = QApplication.clipboard()
        window.activateWindow()
        await until(window.isActiveWindow)
        # the message field keeps its own key
        field = window.parts.composer.field
        QTest.keyClicks(field, "from the field")
        field.selectAll()
        QTest.keyClick(field, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
        assert clipboard.text() == "from the field"
        # by the menu, from the search
        search = window.parts.sidebar.sessions.search
        search.setText("from the search")
        search.setFocus()
        search.selectAll()
        window.acts.copy.trigger()
        assert clipboard.text() == "from the search"
        # by key, selected tokens of the conversation
        pane = window.parts.transcript.tokens
        pane.setFocus()
        QTest.keyClick(pane, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
        QTest.keyClick(pane, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
        assert "Where should we go in April?" in clipboard.text()

    in_window(scene)


@pytest.mark.slow
def test_no_label_interprets_markup(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        # given hostile words in every place they can reach
        view = bench.views[TRIP]
        rows = tuple(replace(row, before=HOSTILE, name=HOSTILE) for row in view.branches)
        bench.emit(SessionChanged(replace(view, title=HOSTILE, branch_name=HOSTILE, branches=rows)))
        bench.emit(StatusChanged(StatusView(EngineState.DIED, HOSTILE)))
        window.controller.refused.emit(HOSTILE)
        window.parts.sidebar.sessions.offer_undo(3, HOSTILE, stopped=False)
        window.parts.sidebar.sessions.show_sessions([SessionSummary(9, HOSTILE, time.time(), 1, pinned=False, is_sample=False)])
        await until(lambda: "<b>" in window.parts.status.engine.text())
        window.resize(700, 500)  # so that words are cut and tooltips explain
        await frames()
        window.acts.about.trigger()
        # then every label is plain text and no tooltip is detected as markup
        dialogs = [w for w in QApplication.topLevelWidgets() if isinstance(w, QDialog)]
        widgets = [w for top in (window, *dialogs) for w in (top, *top.findChildren(QWidget))]
        labels = [w for w in widgets if isinstance(w, QLabel)]
        assert len(labels) > 20
        rich = [label for label in labels if label.textFormat() is not Qt.TextFormat.PlainText and label.text()]
        assert rich == []
        assert any("<" in w.toolTip() for w in widgets)
        assert [w for w in widgets if RichText.mightBeRichText(w.toolTip())] == []
        for dialog in dialogs:
            dialog.close()

    in_window(scene)


def test_every_widget_that_takes_keyboard_focus_has_a_name(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await frames(1)
        nameless = [
            type(widget).__name__
            for widget in window.findChildren(QWidget)
            if widget.isVisible()
            and widget.focusPolicy() & Qt.FocusPolicy.TabFocus
            and not (widget.accessibleName() or getattr(widget, "text", lambda: "")() or widget.focusProxy())
        ]
        assert nameless == []

    in_window(scene)


def test_the_bar_is_the_windows_toolbar_and_cannot_be_hidden_or_moved(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        (toolbar,) = window.findChildren(QToolBar)
        assert toolbar.isAncestorOf(window.parts.top)
        assert (toolbar.isMovable(), toolbar.isFloatable()) == (False, False)
        assert window.createPopupMenu() is None or window.contextMenuPolicy() is Qt.ContextMenuPolicy.NoContextMenu
        assert window.parts.top.width() == window.width()
        # at any width, no part of it is moved into Qt's overflow menu
        for width in (1360, 560):
            window.resize(width, 640)
            await frames()
            extension = toolbar.findChild(QWidget, "qt_toolbar_ext_button")
            assert extension is None or not extension.isVisible()
            assert window.parts.top.width() == width

    in_window(scene)


def test_only_settings_quit_and_about_have_roles_for_the_macos_application_menu(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        acts, role = window.acts, QAction.MenuRole
        roles = {action: action.menuRole() for menu in acts.menus() for action in entries(menu)}
        own = {action: found for action, found in roles.items() if found is not role.NoRole}
        assert own == {acts.settings: role.PreferencesRole, acts.quit: role.QuitRole, acts.about: role.AboutRole}

    in_window(scene)


@pytest.mark.slow
def test_buttons_that_look_like_text_have_the_pointing_hand_cursor(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.acts.settings.trigger()
        window.popover.open(MODEL)
        await until(lambda: window.popover.model.name.text() != "" and bool(window.settings.models.models))
        kinds: dict[str, set[Qt.CursorShape]] = {}
        for top in (window, window.settings):
            for part in top.findChildren(QPushButton):
                kinds.setdefault(part.property("kind"), set()).add(part.cursor().shape())
        assert kinds["link"] == kinds["plain"] == {Qt.CursorShape.PointingHandCursor}
        assert kinds["quiet"] == {Qt.CursorShape.ArrowCursor}

    in_window(scene)


@pytest.mark.slow
def test_the_about_box_shows_the_licences_of_the_shipped_distributions(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.acts.about.trigger()
        box = next(each for each in window.findChildren(QDialog) if each.isVisible())
        (licences,) = [each for each in box.findChildren(QPushButton) if each.text() == "Licences…"]
        # when
        QTest.mouseClick(licences, Qt.MouseButton.LeftButton)
        # then Qt's terms, and a line for each distribution
        (shown,) = box.findChildren(QPlainTextEdit)
        assert shown.isVisible()
        assert "GNU Lesser General Public License" in shown.toPlainText()
        assert "\ntransformers 5." in shown.toPlainText()

    in_window(scene)
