"""Files in and out of the window, and two branches side by side: real menus, dialogs and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtGui import QContextMenuEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QLineEdit, QMenu, QPushButton

from app.workbench.transfer.exports import FORMATS
from runtime import Origin, TokenRun
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import MainWindow
from ui.port import BranchRow, DiffPart, DiffSide, EngineState, SessionChanged, StatusChanged, StatusView
from ui.window.transfers import file_name

Play = Callable[[Scene], None]


def dialog_of(window: MainWindow) -> QFileDialog | None:
    shown = [each for each in window.findChildren(QFileDialog) if each.isVisible()]
    return shown[0] if shown else None


def _says(window: MainWindow, words: str) -> bool:
    return words in window.parts.composer.notice.words or words in window.parts.toast.words


async def asked(window: MainWindow) -> QFileDialog:
    await until(lambda: dialog_of(window) is not None)
    dialog = dialog_of(window)
    assert dialog is not None
    return dialog


def choose(dialog: QFileDialog, path: Path) -> None:
    """Types the name: `selectFile` does not replace the text of a field that has the keyboard focus."""
    field = dialog.findChild(QLineEdit)
    assert field is not None
    field.setText(str(path))
    dialog.accept()


@pytest.mark.slow
def test_an_export_asks_for_a_file_and_reports_its_path(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        for form, action in window.acts.exports.items():
            action.trigger()
            dialog = await asked(window)
            assert dialog.acceptMode() is QFileDialog.AcceptMode.AcceptSave
            target = tmp_path / f"trip.{form.ending}"
            choose(dialog, target)
            await until(partial(bench.calls.__contains__, ("export_session", TRIP, form.name, target)))
            await until(partial(_says, window, str(target)))
            assert bool(_says(window, "it has no snapshot")) == (form.name == "portable")
            assert not window.parts.status.transfer.isVisible()
            await until(lambda: dialog_of(window) is None)

    in_window(scene)


@pytest.mark.slow
def test_an_import_is_shown_when_it_has_ended(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text("[]")

    async def scene(window: MainWindow) -> None:
        QTest.keyClick(window, Qt.Key.Key_O, Qt.KeyboardModifier.ControlModifier)
        dialog = await asked(window)
        choose(dialog, tmp_path / "in.json")
        await until(lambda: bench.asked("import_file") == [(tmp_path / "in.json",)])
        await until(lambda: window.parts.composer.notice.words == "imported in.json; 2 things were left out")
        assert window.controller.shown is not None
        assert window.controller.shown.session_id == TRIP

    in_window(scene)


def test_an_import_does_not_switch_sessions_while_a_message_is_written(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    async def scene(window: MainWindow) -> None:
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3))
        window.parts.composer.setFocus()
        QTest.keyClicks(window.parts.composer.field, "hello wor")
        window.transfers.take(tmp_path / "c.json")
        await until(lambda: _says(window, "imported c.json"))
        QTest.keyClicks(window.parts.composer.field, "ld")
        assert window.controller.is_shown(3)
        assert window.parts.composer.draft == "hello world"
        # and once nothing is being written, it is shown
        window.parts.composer.field.clear()
        window.transfers.take(tmp_path / "c.json")
        await until(lambda: window.controller.is_shown(TRIP))

    in_window(scene)


def test_kv_of_a_file_is_imported_only_after_the_user_accepts_it(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        notice, file = window.parts.composer.notice, tmp_path / "trip.kv.elsewise"
        window.transfers.take(file)
        await until(lambda: "only from people you trust" in notice.words)
        assert bench.asked("take_kv") == []
        button = next(each for each in notice.findChildren(QPushButton) if each.text() == "Accept KV")
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.toast.words == "1,234 KV blocks were imported from trip.kv.elsewise")
        assert bench.asked("take_kv") == [((TRIP,), file)]
        # the button of another notice does not accept KV
        notice.say("something else", "Undo")
        notice.acted.emit()
        assert len(bench.asked("take_kv")) == 1

    in_window(scene)


def test_several_files_are_imported_one_after_the_other(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.kv.elsewise", "b.kv.elsewise", "c.json")]

    async def scene(window: MainWindow) -> None:
        notice = window.parts.composer.notice
        for file in files:
            window.transfers.take(file)
        await until(lambda: "imported c.json" in notice.words)
        assert bench.asked("import_file") == [(file,) for file in files]
        assert [line.split(";")[0] for line in notice.words.splitlines()] == [f"imported {file.name}" for file in files]
        button = next(each for each in notice.findChildren(QPushButton) if each.text() == "Accept KV")
        QTest.mouseClick(button, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.toast.words == "2,468 KV blocks were imported from a.kv.elsewise, b.kv.elsewise")
        assert bench.asked("take_kv") == [((TRIP,), file) for file in files[:2]]

    in_window(scene)


@pytest.mark.parametrize("answer", ["Accept KV", "dismiss"])
def test_the_answer_about_one_file_during_the_next_import_applies_to_that_file(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path, answer: str
) -> None:
    files = [tmp_path / name for name in ("a.kv.elsewise", "b.kv.elsewise")]

    async def scene(window: MainWindow) -> None:
        notice = window.parts.composer.notice

        def accept() -> None:
            button = next(each for each in notice.findChildren(QPushButton) if each.text() == "Accept KV")
            QTest.mouseClick(button, Qt.MouseButton.LeftButton)

        bench.gate = asyncio.Semaphore(3)  # steps: those of the first file
        for file in files:
            window.transfers.take(file)
        await until(lambda: "a.kv.elsewise" in notice.words)
        accept() if answer == "Accept KV" else notice.dismiss()
        for _ in range(9):
            bench.gate.release()
        await until(lambda: "b.kv.elsewise" in notice.words)
        assert "a.kv.elsewise" not in notice.words
        if answer == "Accept KV":
            await until(lambda: bench.asked("take_kv") == [((TRIP,), files[0])])
            await until(lambda: not window.parts.status.transfer.isVisible())
        accept()
        await until(lambda: ((TRIP,), files[1]) in bench.asked("take_kv"))
        assert len(bench.asked("take_kv")) == (2 if answer == "Accept KV" else 1)

    in_window(scene)


def test_a_refused_import_is_reported_in_the_window(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        bench.refusal = "in.json, line 3, node 7: its parent 9 <b>is</b> not there"
        window.transfers.take(tmp_path / "in.json")
        await until(lambda: "node 7" in window.parts.composer.notice.words)
        assert "<b>" in window.parts.composer.notice.words
        assert not window.parts.status.transfer.isVisible()

    in_window(scene)


def test_progress_is_shown_and_can_be_stopped(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(2)
        bar = window.parts.status.transfer
        window.transfers.export(TRIP, FORMATS["json"].format, tmp_path / "a.json")
        await until(lambda: bar.label.text() == "exporting 66 %")
        # a second one is refused meanwhile
        window.transfers.score()
        assert "another import, export or scoring" in window.parts.composer.notice.words
        assert bench.asked("score_session") == []
        bar.stop_button.setFocus()
        QTest.keyClick(bar.stop_button, Qt.Key.Key_Space)
        await until(lambda: not bar.isVisible())
        assert window.parts.toast.words == "stopped; nothing was kept"
        # and the next one can begin
        bench.gate = None
        window.transfers.export(TRIP, FORMATS["csv"].format, tmp_path / "a.csv")
        await until(lambda: "exported to" in window.parts.toast.words)

    in_window(scene)


def test_stop_cancels_the_waiting_files_too(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.json", "b.json", "c.json")]

    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(1)
        bar = window.parts.status.transfer
        for file in files:
            window.transfers.take(file)
        await until(lambda: bool(bench.asked("import_file")))
        QTest.mouseClick(bar.stop_button, Qt.MouseButton.LeftButton)
        await until(lambda: not bar.isVisible())
        assert window.parts.toast.words == "stopped; nothing was kept, and 2 more were not begun"
        bench.gate = None
        window.transfers.take(files[2])
        await until(lambda: _says(window, "imported c.json"))
        assert bench.asked("import_file") == [(files[0],), (files[2],)]

    in_window(scene)


def test_a_window_that_closes_stops_the_transfer_first(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(1)
        window.transfers.take(tmp_path / "in.json")
        await until(lambda: bool(bench.asked("import_file")))

    in_window(scene)


def test_titles_as_names_of_files() -> None:
    assert file_name('a/b\\c:*?"<>|\n d. ') == "a b c  d"
    assert file_name("..") == ""
    assert file_name("漢字 🌧") == "漢字 🌧"
    assert len(file_name("x" * 500)) == 60


# ---- comparison ---------------------------------------------------------------------------------------------------------


def branches(window: MainWindow, bench: FakeWorkbench) -> None:
    """Three branches, the second of which is shown."""
    rows = (
        BranchRow(11, 0, "", "Where to?", -3.0, on_path=True, current=False),
        BranchRow(12, 1, "… visit", "Lisbon", -4.75, on_path=True, current=True),
        BranchRow(13, 1, "… visit", "Paris", -2.3, on_path=False, current=False),
    )
    view = bench.views[TRIP].__class__(TRIP, "Trip", bench.views[TRIP].turns, rows)
    bench.views[TRIP] = view
    bench.emit(SessionChanged(view))


def test_two_branches_are_compared_from_the_keyboard_and_closed_by_esc(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        pane, tree = window.parts.compare, window.parts.sidebar.tree
        branches(window, bench)
        await until(lambda: len(tree.rows.rows) == 3)
        await until(window.acts.compare.isEnabled)
        left = window.parts.transcript.tokens.column()[0]
        QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier)
        await until(pane.isVisible)
        tip = bench.views[TRIP].turns[-1].node_id
        assert bench.asked("compare") == [(TRIP, tip, 13)]
        assert not window.parts.transcript.isVisible()
        assert pane.heads[0].text() == "A Lisbon <b>when</b> it rains"
        assert pane.totals[1].text() == "then 10 tokens, −2.3 nats in total"
        text = pane.text.toPlainText()
        for words in ("We could visit", "A  Lisbon  −3.2", "B  Paris  −0.8", "in the rain", "上海 🌧 עברית"):
            assert words in text, text
        await until(lambda: pane.text.x() == left)  # where the conversation was
        await until(pane.text.hasFocus)
        QTest.keyClick(pane.text, Qt.Key.Key_Escape)
        await until(lambda: not pane.isVisible())
        assert window.parts.transcript.isVisible()

    in_window(scene)


def test_control_characters_are_made_visible_in_a_comparison(in_window: Play, bench: FakeWorkbench) -> None:
    hidden = DiffSide("a\x1b[31m \u202eb\u202c", 2, None)
    parts = DiffPart(True, hidden, hidden), DiffPart(False, hidden, DiffSide("", 0, None))
    bench.diff = replace(bench.diff, stem=hidden, parts=parts)

    async def scene(window: MainWindow) -> None:
        branches(window, bench)
        await until(lambda: len(window.parts.sidebar.tree.rows.rows) == 3)
        window.acts.compare.trigger()
        await until(window.parts.compare.isVisible)
        assert window.parts.compare.text.toPlainText().count("aESC[31m RLObPDF") == 3

    in_window(scene)


def test_the_outline_offers_a_comparison(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        tree = window.parts.sidebar.tree
        branches(window, bench)
        await until(lambda: len(tree.rows.rows) == 3)
        at = tree.visualRect(tree.rows.index(2)).center()
        QApplication.postEvent(
            tree.viewport(),
            QContextMenuEvent(QContextMenuEvent.Reason.Mouse, at, tree.viewport().mapToGlobal(at)),
        )
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        entry = next(action for action in menu.actions() if "Compare" in action.text())
        QTest.mouseClick(menu, Qt.MouseButton.LeftButton, pos=menu.actionGeometry(entry).center())
        await until(window.parts.compare.isVisible)
        # other changes of this path, such as a new title, keep it open
        view = replace(bench.views[TRIP], title="A trip to Lisbon")
        bench.emit(SessionChanged(view))
        await until(lambda: window.parts.top.title.text() == "A trip to Lisbon")
        assert window.parts.compare.isVisible()
        # another session, or another path, closes it
        window.controller.new_session()
        await until(lambda: not window.parts.compare.isVisible())

    in_window(scene)


def test_a_session_without_numbers_is_scored_from_the_token_and_from_the_menu(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    view, text = bench.views[TRIP], "Why is the sea salty?"
    read = replace(view.turns[0], run=TokenRun.unscored([0], [text.encode()], [text], Origin.TYPED))
    bench.views[TRIP] = replace(view, turns=(read, *view.turns[1:]))
    bench.unscored, bench.gate = 120, asyncio.Semaphore(1)

    async def scene(window: MainWindow) -> None:
        bar, token = window.parts.status.transfer, window.parts.inspector.token
        await until(window.acts.score.isEnabled)
        window.presenter.pin(bench.views[TRIP].turns[0].node_id, 0)
        await until(token.score_button.isVisible)
        # when scoring is requested where the number is missing
        QTest.mouseClick(token.score_button, Qt.MouseButton.LeftButton)
        await until(lambda: bar.label.text() == "scoring 50 %")
        # then nothing can be sent meanwhile, and Stop can be pressed
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "And now?")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert composer.draft == "And now?"
        assert "stop it first" in composer.meter.busy.text()
        window.acts.stop.trigger()
        assert bench.asked("stop") == [(TRIP,)]
        assert bench.gate is not None
        bench.gate.release()
        await until(lambda: window.parts.toast.words == "120 tokens were scored")
        assert not window.acts.stop.isEnabled()
        # then the menu has it too, and reports that nothing is left to score
        bench.unscored, bench.gate = 0, None
        window.acts.score.trigger()
        await until(lambda: window.parts.toast.words == "every token has its numbers already")
        assert bench.asked("score_session") == [(TRIP,), (TRIP,)]
        # and without a usable model it is disabled in both places
        bench.emit(StatusChanged(StatusView(EngineState.NONE, "smollm2 is not on this computer")))
        await until(lambda: not window.acts.score.isEnabled())
        assert not token.score_button.isEnabled()

    in_window(scene)
