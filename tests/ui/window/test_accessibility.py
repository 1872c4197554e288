"""Every control can be reached by keyboard and has a name for screen readers, in every window and panel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from PySide6.QtCore import QObject, Qt
from PySide6.QtGui import QAccessible, QAccessibleInterface
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractItemView,
    QAbstractSlider,
    QAbstractSpinBox,
    QApplication,
    QComboBox,
    QLineEdit,
    QPlainTextEdit,
    QScrollBar,
    QTextEdit,
    QWidget,
)

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.visits import prepare, visit
from tests.ui.window.test_conversation import finish
from ui import EngineState, MainWindow, OwnColours, StatusChanged, StatusView
from ui.theme.scheme import current_theme
from ui.transcript import Mode

Play = Callable[[Scene], None]
INTERACTIVE = (
    QAbstractButton, QAbstractItemView, QAbstractSlider, QAbstractSpinBox, QComboBox, QLineEdit, QPlainTextEdit, QTextEdit,
)  # fmt: skip
NO_ROLE = (QAccessible.Role.NoRole, QAccessible.Role.Client)


def is_part(widget: QWidget) -> bool:
    """Whether the widget is part of another control: a scroll bar of a view, the line edit of a spin box or combo box."""
    parent = widget.parentWidget()
    while parent is not None:
        if isinstance(parent, QComboBox | QAbstractSpinBox | QLineEdit):
            return True
        parent = parent.parentWidget()
    return isinstance(widget, QScrollBar) or widget.objectName() == "qt_toolbar_ext_button"


def controls(top: QWidget) -> Iterator[QWidget]:
    """The visible controls that can be used."""
    for widget in top.findChildren(QWidget):
        usable = isinstance(widget, INTERACTIVE) or widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        if usable and widget.isVisible() and not is_part(widget) and widget.window() is top.window():
            yield widget


def stop(widget: QWidget) -> QObject:
    """The Tab stop of a control: the control itself, or its exclusive group, in which the arrow keys move."""
    group = widget.group() if isinstance(widget, QAbstractButton) else None
    return group if group is not None and group.exclusive() else widget


def named(widgets: Iterable[QWidget]) -> list[tuple[str, str]]:
    """Type and name of each widget, for a readable failure message."""
    return [(type(w).__name__, w.accessibleName() or str(getattr(w, "text", str)())) for w in widgets]


def assert_named(top: QWidget) -> None:
    """Asserts that each control has a name, a role and a state for screen readers."""
    nameless, without_role, other_state = [], [], []
    for widget in controls(top):
        said = QAccessible.queryAccessibleInterface(widget)
        if not said.text(QAccessible.Text.Name).strip() and not widget.accessibleName().strip():
            nameless.append(widget)
        if said.role() in NO_ROLE:
            without_role.append(widget)
        if not says_its_state(widget, said):
            other_state.append(widget)
    assert named(nameless) == []
    assert named(without_role) == []
    assert named(other_state) == []


def says_its_state(widget: QWidget, said: QAccessibleInterface) -> bool:
    """Whether enabled, focused and checked are reported; for a list also the selected row, and the rows as text."""
    state = said.state()
    pairs = [(state.disabled, not widget.isEnabled()), (state.focused, widget.hasFocus())]
    if isinstance(widget, QAbstractButton):
        pairs += [(state.checkable, widget.isCheckable()), (state.checked, widget.isChecked())]
    if isinstance(widget, QAbstractItemView) and widget.model().rowCount():
        row = widget.currentIndex().row()
        chosen = [at for at in range(widget.model().rowCount()) if said.child(at).state().selected]
        pairs.append(
            (chosen == ([row] if row >= 0 and widget.selectionModel().isSelected(widget.currentIndex()) else []), True)
        )
        pairs += [(bool(said.child(at).text(QAccessible.Text.Name).strip()), True) for at in range(widget.model().rowCount())]
    return all(bool(told) == holds for told, holds in pairs)


def assert_reached(top: QWidget) -> list[QWidget]:
    """Asserts that Tab reaches each enabled control and then the first again; returns the reached widgets in order."""
    top.activateWindow()
    wanted = {stop(w): w for w in controls(top) if w.isEnabled()}
    seen: list[QWidget] = []
    for _ in range(3 * len(wanted) + 20):
        focused = QApplication.focusWidget()
        if focused is not None:
            QTest.keyClick(focused, Qt.Key.Key_Tab)
        focused = QApplication.focusWidget()
        if focused is not None and focused not in seen:
            seen.append(focused)
        if wanted.keys() <= {stop(w) for w in seen}:
            break
    reached = {stop(w) for w in seen}
    assert named(widget for where, widget in wanted.items() if where not in reached) == []
    return seen


async def ready(window: MainWindow, width: int = 1360) -> None:
    window.resize(width, 860)
    window.activateWindow()
    await until(window.isActiveWindow)
    await frames()
    window.parts.composer.setFocus()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("panel", range(5))
def test_the_window_and_each_tab_of_the_inspector(in_window: Play, bench: FakeWorkbench, mode: Mode, panel: int) -> None:
    prepare(bench)

    async def scene(window: MainWindow) -> None:
        current_theme().show(OwnColours.HALF, developer=True)
        window.presenter.set_mode(mode)
        node = window.controller.shown.view.turns[-1].node_id if window.controller.shown is not None else 0
        window.presenter.pin(node, 2)
        tab = window.parts.inspector.tabs[panel]
        tab.click()
        window.parts.composer.field.setPlainText("A draft")
        await ready(window)
        assert (tab.isVisible(), len(window.parts.inspector.tabs)) == (True, 5)
        assert_named(window)
        order = assert_reached(window)
        # and in reading order: columns from left to right, each from top to bottom
        parts = [window.parts.sidebar, window.parts.first.offers, window.parts.composer, window.parts.inspector]
        token = window.parts.inspector.token
        parts += [token.alternatives, token.draws] if token.isVisible() else []
        places = [min((order.index(w) for w in order if part.isAncestorOf(w)), default=-1) for part in parts]
        first = places.index(min(places))
        assert [*places[first:], *places[:first]] == sorted(places)

    in_window(scene)


@pytest.mark.slow
def test_every_part_that_can_be_opened_has_names_for_screen_readers(in_window: Play, bench: FakeWorkbench) -> None:
    prepare(bench)

    async def look(part: QWidget, name: str) -> None:
        try:
            assert_named(part)
        except AssertionError as wrong:
            wrong.add_note(name)
            raise

    in_window(lambda window: visit(window, bench, look))


@pytest.mark.slow
@pytest.mark.parametrize("page", range(7))
def test_each_page_of_the_settings(in_window: Play, page: int) -> None:
    async def scene(window: MainWindow) -> None:
        await ready(window)
        window.acts.settings.trigger()
        await until(window.settings.isVisible)
        await until(window.settings.isActiveWindow)
        window.settings.show_page(page)
        await frames()
        assert len(window.settings.tabs) == 7
        assert_named(window.settings)
        window.settings.tabs[page].setFocus()
        assert_reached(window.settings)

    in_window(scene)


@pytest.mark.slow
def test_finding_comparing_columns_and_a_narrow_window(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await ready(window)
        window.acts.find.trigger()
        assert_named(window)
        window.parts.finder.dismiss()
        window.acts.two_ways.trigger()
        await until(lambda: len(window.parts.columns.cards) == 2)
        await until(lambda: not window.controller.running)
        assert_named(window)
        window.parts.composer.setFocus()
        assert_reached(window)
        window.controller.draws.close_columns()
        await ready(window, 900)
        assert_named(window)
        assert_reached(window)

    in_window(scene)


@pytest.mark.slow
def test_the_card_the_starters_the_tree_and_a_load(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await ready(window)
        window.presenter.pin(bench.views[TRIP].turns[1].node_id, 3)
        window.parts.transcript.tokens.card_wanted.emit()
        await until(window.parts.pinned.isVisible)
        assert_named(window)
        window.parts.pinned.close_again()
        bench.emit(StatusChanged(StatusView(EngineState.STARTING, "loading smollm2", load_share=0.5)))
        await until(window.parts.status.loading.isVisible)
        assert_named(window)
        bench.emit(StatusChanged(bench.status))
        window.acts.tree.trigger()
        tree = window.parts.tree.view
        await until(tree.isVisible)
        assert_named(window)
        tree.setCurrentIndex(tree.rows.index(0))
        for key, words in ((Qt.Key.Key_Left, "collapsed"), (Qt.Key.Key_Right, "expanded")):
            QTest.keyClick(tree, key)
            assert words in str(tree.rows.index(0).data(Qt.ItemDataRole.AccessibleTextRole))
        assert_reached(window)
        window.acts.new_session.trigger()
        await until(window.starters.card.isVisible)
        assert_named(window)
        assert_reached(window)

    in_window(scene)


@pytest.mark.slow
def test_a_whole_journey_by_keys_alone(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await ready(window)
        control, shift = Qt.KeyboardModifier.ControlModifier, Qt.KeyboardModifier.ShiftModifier

        def press(key: Qt.Key, modifiers: Qt.KeyboardModifier = Qt.KeyboardModifier.NoModifier) -> None:
            focused = QApplication.focusWidget()
            assert focused is not None, "the keyboard is nowhere"
            QTest.keyClick(focused, key, modifiers)

        def write(text: str) -> None:
            focused = QApplication.focusWidget()
            assert focused is not None, "the keyboard is nowhere"
            QTest.keyClicks(focused, text)

        # to an uncertain token, and an alternative in its place
        press(Qt.Key.Key_J, control)
        await until(window.parts.transcript.tokens.hasFocus)
        press(Qt.Key.Key_Return)
        await until(window.parts.pinned.isVisible)
        press(Qt.Key.Key_2)
        await until(lambda: len(bench.asked("branch")) == 1 and not window.controller.running)
        # back to the previous answer, and the tree with both
        press(Qt.Key.Key_BracketLeft, control)
        await until(lambda: bool(bench.asked("select")))
        press(Qt.Key.Key_T, control)
        await until(window.parts.tree.view.hasFocus)
        press(Qt.Key.Key_Up)
        press(Qt.Key.Key_Return)
        await until(window.parts.tree.isHidden)
        # search in it, and close the search
        press(Qt.Key.Key_F, control)
        await until(window.parts.finder.isVisible)
        write("sky")
        press(Qt.Key.Key_Return)
        press(Qt.Key.Key_Escape)
        await until(window.parts.finder.isHidden)
        # the settings of the session
        press(Qt.Key.Key_P, control | shift)
        await until(window.popover.isVisible)
        press(Qt.Key.Key_Escape)
        await until(window.popover.isHidden)
        # plain text, and colours again
        press(Qt.Key.Key_1, control)
        await until(lambda: window.parts.transcript.mode is Mode.READ)
        press(Qt.Key.Key_2, control)
        await until(lambda: window.parts.transcript.mode is Mode.TOKENS)
        # and a new session: a message, its answer, and the search of all sessions
        press(Qt.Key.Key_N, control)
        await until(window.starters.card.isVisible)
        await until(window.parts.composer.field.hasFocus)
        write("Why is the sky blue?")
        await until(window.parts.composer.send_button.isEnabled)
        press(Qt.Key.Key_Return)
        await until(lambda: bool(bench.asked("send")) and not window.controller.running)
        press(Qt.Key.Key_F, control | shift)
        await until(window.parts.sidebar.sessions.search.hasFocus)

    in_window(scene)


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_screen_readers_get_the_text_of_the_conversation(in_window: Play, bench: FakeWorkbench, mode: Mode) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(mode)
        pane = window.parts.transcript.tokens if mode is Mode.TOKENS else window.parts.transcript.read
        said = QAccessible.queryAccessibleInterface(pane)
        assert said.role() == QAccessible.Role.Document
        text = said.text(QAccessible.Text.Value)
        assert text.startswith("you: Where should we go in April?\nmodel: You could visit Lisbon")
        # and new text is available to the next query
        window.parts.composer.field.setPlainText("And in autumn?")
        window.parts.composer.send_button.click()
        await until(lambda: not window.controller.running and "autumn" in said.text(QAccessible.Text.Value))
        assert said.text(QAccessible.Text.Value).endswith("model: " + "".join(bench.answer))

    in_window(scene)


@pytest.mark.slow
def test_segments_are_chosen_with_the_arrow_keys(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        await ready(window)
        tabs = [tab for tab in window.parts.inspector.tabs if tab.isVisible()]
        tabs[0].setFocus()
        for tab in tabs[1:]:
            focused = QApplication.focusWidget()
            assert focused is not None
            QTest.keyClick(focused, Qt.Key.Key_Right)
            assert (QApplication.focusWidget(), tab.isChecked()) == (tab, True)

    in_window(scene)
