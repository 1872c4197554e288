"""The window as a whole: opening, folding, closing, and what must never happen."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import Qt as RichText
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QMenu, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import DARK, LIGHT, MainWindow, Scheme, SessionChanged, SessionSummary, StatusChanged, WindowState, apply_theme
from ui.port import BackendChoice, EngineState, StatusView
from ui.transcript import Mode

Play = Callable[[Scene], None]
Arun = Callable[[Coroutine[object, object, object]], object]

HOSTILE = "<img src='/etc/passwd'><b>bold</b> & \x1b[31m"


async def closed(window: MainWindow, bench: FakeWorkbench) -> None:
    window.close()
    await until(lambda: bench.closed and not window.isVisible())


def test_it_opens_the_first_session_and_names_model_and_status(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        assert window.parts.top.title.text() == "A spring trip"
        assert window.windowTitle() == "A spring trip – Elsewise"
        await until(lambda: window.parts.top.model.text() == "SmolLM2 135M Instruct")
        shown = [window.parts.status.engine.text(), *(label.text() for label in window.parts.status.facts)]
        kv = "KV 14 MB of 2 GB"
        assert shown == ["ready", "41 tok/s", "first token 0.18 s", "reused 312 of 313", kv, "warm 3 · disk 1 · cold 1"]
        assert bench.asked("open_session") == [(TRIP,)]

    in_window(scene)


def test_with_an_empty_store_it_opens_a_new_session(arun: Arun) -> None:
    bench = FakeWorkbench()

    async def play() -> None:
        window = MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: window.desk.shown is not None)
        assert window.parts.top.title.text() == "New session"
        assert not window.parts.sidebar.tree.isVisible()
        await closed(window, bench)

    arun(play())


def test_panels_fold_from_the_right_and_come_back(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts

        def shown() -> tuple[bool, bool]:
            return parts.sidebar.isVisible(), parts.inspector.isVisible()

        window.resize(1360, 860)
        await until(lambda: shown() == (True, True))
        window.resize(900, 700)
        await until(lambda: shown() == (True, False))
        await until(lambda: parts.transcript.width() == 900 - 248)
        window.resize(640, 600)
        await until(lambda: shown() == (False, False))
        # one that is asked for comes although it is narrow
        QTest.mouseClick(parts.top.inspector_button, Qt.MouseButton.LeftButton)
        assert shown() == (False, True)
        window.resize(1360, 860)
        await until(lambda: shown() == (True, True))
        # and one that was put away stays away
        window.acts.sidebar.trigger()
        window.resize(900, 700)
        window.resize(1360, 860)
        await frames()
        assert shown() == (False, True)

    in_window(scene)


def test_the_composer_stands_under_the_text_in_both_modes(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        parts = window.parts

        def aligned() -> bool:
            return (parts.composer.x(), parts.composer.width()) == (104, parts.transcript.width() - 104 - 44)

        # taking a picture measures hidden parts too
        assert not window.grab().isNull()
        bench.emit(SessionChanged(bench.views[TRIP]))
        await frames()
        assert not window.grab().isNull()
        await frames()
        assert aligned()
        for size in ((1360, 860), (1000, 700)):
            window.resize(*size)
            await until(aligned)
            window.acts.read.trigger()
            await until(aligned)
            # tokens that arrive, and another session, change nothing
            bench.emit(SessionChanged(bench.views[TRIP]))
            await frames()
            assert aligned()
            window.acts.tokens.trigger()
            window.desk.open(3)
            await until(lambda: window.parts.top.title.text() == "Why proofs by contradiction")
            window.desk.open(TRIP)
            await frames()
            assert aligned()

    in_window(scene)


def test_read_and_tokens_by_mouse_and_key(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        modes = window.parts.top.modes
        QTest.mouseClick(modes.buttons[Mode.READ], Qt.MouseButton.LeftButton)
        assert window.parts.transcript.mode.value == "read"
        assert window.acts.read.isChecked()
        window.activateWindow()
        await until(window.isActiveWindow)
        QTest.keyClick(window, Qt.Key.Key_T, Qt.KeyboardModifier.ControlModifier)
        assert window.parts.transcript.mode.value == "tokens"
        assert modes.buttons[Mode.TOKENS].isChecked()

    in_window(scene)


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
        # then every engine is named, the one in use is checked, one that cannot run says why and cannot be chosen
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
        assert [entry.text().split("\t")[0] for entry in entries] == ["SmolLM2 135M Instruct", "Qwen3 0.6B"]
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(entries[1]).center())
        await until(lambda: window.parts.top.model.text() == "Qwen3 0.6B")
        assert bench.asked("choose_model") == [("qwen3",)]

    in_window(scene)


def test_every_action_has_a_place_and_no_two_share_a_shortcut(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        listed = {action for menu in window.acts.menus() for action in menu.actions() if not action.isSeparator()}
        made = {value for value in vars(window.acts).values() if type(value).__name__ == "QAction"}
        assert made == listed
        keys = [action.shortcut().toString() for action in made if not action.shortcut().isEmpty()]
        assert len(keys) == len(set(keys))
        assert {"Ctrl+N", "Ctrl+.", "Ctrl+R", "Ctrl+[", "Ctrl+]", "Ctrl+Z", "Ctrl+T"} <= set(keys)
        await frames(1)

    in_window(scene)


def test_copy_by_key_and_by_menu_takes_from_what_has_the_keyboard(in_window: Play) -> None:
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


def test_no_label_interprets_markup(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        # given hostile words in every place they can reach
        view = bench.views[TRIP]
        rows = tuple(replace(row, before=HOSTILE, name=HOSTILE) for row in view.branches)
        bench.emit(SessionChanged(replace(view, title=HOSTILE, branch_name=HOSTILE, branches=rows)))
        bench.emit(StatusChanged(StatusView(EngineState.DIED, HOSTILE)))
        window.desk.refused.emit(HOSTILE)
        window.parts.sidebar.sessions.offer_undo(HOSTILE)
        window.parts.sidebar.sessions.show_sessions([SessionSummary(9, HOSTILE, time.time(), 1, pinned=False, is_sample=False)])
        await until(lambda: "<b>" in window.parts.status.engine.text())
        window.resize(700, 500)  # so that words are cut and tooltips explain
        await frames()
        window.acts.about.trigger()
        # then every label is plain and no tooltip would be taken for markup
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


def test_everything_that_takes_the_keyboard_has_a_name(in_window: Play) -> None:
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


def test_the_scheme_changes_while_the_window_is_open(in_window: Play, app: QApplication) -> None:
    async def scene(window: MainWindow) -> None:
        def ground() -> str:
            return window.grab().toImage().pixelColor(window.width() // 2, window.height() // 2).name()

        assert ground() == LIGHT.window
        apply_theme(app, Scheme.DARK)
        await frames(1)
        assert ground() == DARK.window
        apply_theme(app, Scheme.LIGHT)

    in_window(scene)


def test_closing_in_the_middle_of_a_stream_asks_once_and_says_closed(arun: Arun, bench: FakeWorkbench) -> None:
    async def play() -> None:
        kept: list[WindowState] = []
        window = MainWindow(bench, keep_state=kept.append)
        window.resize(740, 600)  # Qt puts a window back only where the screen (800 x 800 here) has room for it
        window.show()
        window.start(TRIP)
        await until(lambda: window.desk.shown is not None)
        ends: list[bool] = []
        window.closed.connect(lambda: ends.append(bench.closed))
        bench.gate = asyncio.Semaphore(1)
        window.desk.regenerate(1)
        sending = window.desk.tasks.run(bench.send(TRIP, "Go"))
        await until(lambda: len(window.desk.tasks) > 0)
        # when it is closed twice
        window.close()
        window.close()
        assert window.isVisible()  # until everything is saved
        await until(lambda: ends)
        # then it was saved first, once, and nothing goes on
        assert ends == [True]
        assert bench.asked("close") == [()]
        assert sending.done()
        assert not window.isVisible()
        assert len(window.desk.tasks) == 0
        assert [(state.sidebar, state.inspector, state.mode) for state in kept] == [(True, True, "tokens")]
        # and late news changes nothing
        bench.emit(SessionChanged(bench.views[TRIP]))
        assert window.desk.events.idle
        # and the next window stands where this one stood
        again = MainWindow(FakeWorkbench(), state=kept[0])
        assert again.size() == window.size()
        again.deleteLater()

    arun(play())


def test_a_window_closes_even_if_saving_fails(arun: Arun, bench: FakeWorkbench, caplog: pytest.LogCaptureFixture) -> None:
    async def broken() -> None:
        bench.closed = True
        raise OSError("disk full")

    async def play() -> None:
        window = MainWindow(bench)
        window.show()
        window.start()
        await until(lambda: window.desk.shown is not None)
        bench.close = broken  # type: ignore[method-assign]  # the fault this test is about
        await closed(window, bench)

    with caplog.at_level(logging.CRITICAL, "ui.window"):
        arun(play())


def test_a_bug_in_a_command_is_logged_and_said(in_window: Play, bench: FakeWorkbench, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(window: MainWindow) -> None:
        def broken(_session: int, _node: int) -> Coroutine[object, object, None]:
            async def fail() -> None:
                raise KeyError("a bug")

            return fail()

        bench.regenerate = broken  # type: ignore[method-assign,assignment]  # the fault this test is about
        window.desk.regenerate(1)
        await until(lambda: "written to the log" in window.parts.composer.notice.words)
        assert any("a command of the window failed" in record.message for record in caplog.records)
        caplog.clear()

    in_window(scene)
