"""The settings window: each row shows when it takes effect, and is saved when it is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QFileDialog, QMenu, QScrollArea, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from ui import DARK, HIGH_LIGHT, LIGHT, AppSettings, Contrast, MainWindow, Motion, Scheme, SettingsView, apply_theme
from ui.controller.setup import SAMPLING
from ui.settings import APPEARANCE, DATA, MEMORY, SERVER, SettingsWindow
from ui.theme import current_theme
from ui.theme.text_size import resize_text
from ui.transcript import Measure, Mode
from ui.widgets.controls import Combo, Page
from ui.widgets.labels import Label

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


async def opened(window: MainWindow) -> SettingsWindow:
    QTest.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: window.settings.isVisible() and window.settings.data.folder.text() != "")
    return window.settings


def choose(combo: QComboBox, steps: int) -> None:
    combo.setFocus()
    for _ in range(abs(steps)):
        QTest.keyClick(combo, Qt.Key.Key_Down if steps > 0 else Qt.Key.Key_Up)


@pytest.mark.slow
def test_quantised_weights_have_their_own_row(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        combo = settings.engine.combos["weights"]
        assert [combo.itemText(i) for i in range(combo.count())] == ["automatic", "float16", "bfloat16", "int8", "int4"]
        choose(combo, 3)
        await until(lambda: settings.reload.isVisible())
        assert bench.asked("change_setting")[-1] == ("weights", "int8")

    in_window(scene)


@pytest.mark.slow
def test_the_settings_are_non_modal_and_each_row_shows_when_it_takes_effect(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        assert not settings.isModal()
        said = {name: when.text() for rows in (settings.engine, settings.memory, settings.generation, settings.appearance)
                for name, when in rows.when.items()}  # fmt: skip
        later = {
            "backend",
            "device",
            "dtype",
            "weights",
            "context_length",
            "threads",
            "draft_model",
            "disk_bytes",
            "chat_format",
            "offload",
        }
        assert {name for name, when in said.items() if when == "after reload"} == later
        assert {name for name, when in said.items() if when == "now"} == {
            "kv_cache_bytes", "preset", "scheme", "contrast", "motion", "text_percent", "colours",
            "own_colours", "developer", "titles",
        }  # fmt: skip
        # the window behind stays usable, and Escape closes the settings
        QTest.keyClicks(window.parts.composer.field, "still here")
        assert window.parts.composer.draft == "still here"
        QTest.keyClick(settings, Qt.Key.Key_Escape)
        assert not settings.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_settings_that_take_effect_after_a_reload_offer_one(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        assert settings.reload.words == ""
        choose(settings.engine.combos["device"], +1)
        await until(lambda: bench.asked("change_setting") == [("device", "cpu")])
        field = settings.engine.numbers["context_length"]
        assert field.text() == "the model's own"
        field.setFocus()
        field.selectAll()
        QTest.keyClicks(field, "4096")
        assert len(bench.asked("change_setting")) == 1  # not on every key
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("change_setting")[-1] == ("context_length", 4096))
        await until(lambda: "other settings" in settings.reload.words)
        settings.reload.acted.emit()
        await until(lambda: bench.asked("reload_model") == [()])
        await until(lambda: settings.reload.words == "")

    in_window(scene)


@pytest.mark.slow
def test_a_page_that_fits_has_no_scroll_bar_and_one_that_does_not_can_be_scrolled(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        for head in settings.tabs[1:]:  # the page of models grows with their number
            QTest.mouseClick(head, LEFT)
            await frames(2)
            area = next(a for a in settings.findChildren(QScrollArea) if a.isVisible() and isinstance(a.widget(), Page))
            assert area.verticalScrollBar().maximum() == 0, head.text()
        QTest.mouseClick(settings.tabs[1], LEFT)
        settings.resize(440, 320)
        area = next(a for a in settings.findChildren(QScrollArea) if a.isVisible() and isinstance(a.widget(), Page))
        await until(lambda: area.verticalScrollBar().maximum() > 200)

    in_window(scene)


@pytest.mark.slow
def test_a_page_fills_the_window_down_to_the_notice_if_there_is_one(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        areas = settings.findChildren(QScrollArea)
        page = next(area for area in areas if area.isVisible())

        def end() -> int:
            return page.mapTo(settings, page.rect().bottomLeft()).y()

        assert end() == settings.rect().bottom()
        settings.notice.say("no backup was made: the disk is full")
        await until(lambda: end() < settings.notice.y())
        ground = settings.grab().toImage()
        middle, inset = settings.notice.geometry().center().y(), 12
        seen = [ground.pixelColor(x, middle) == ground.pixelColor(1, middle) for x in (inset - 1, inset + 1)]
        assert seen == [True, False]  # and it has a margin

    in_window(scene)


@pytest.mark.slow
def test_memory_is_in_megabytes_and_refusals_are_inline(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[MEMORY], LEFT)
        field = settings.memory.numbers["kv_cache_bytes"]
        field.setFocus()
        QTest.keyClick(field, Qt.Key.Key_Up)
        await until(lambda: bench.asked("change_setting") == [("kv_cache_bytes", 256_000_000)])
        bench.refusal = "running requests hold 300 MB, more than that"
        QTest.keyClick(field, Qt.Key.Key_Down)
        await until(lambda: settings.notice.words.startswith("running requests hold"))
        await until(lambda: field.value() == 256)
        assert window.parts.composer.notice.words == ""

    in_window(scene)


@pytest.mark.slow
def test_appearance_takes_effect_at_once(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[APPEARANCE], LEFT)
        try:
            choose(settings.appearance.combos["scheme"], +2)
            await until(lambda: current_theme().palette is DARK)
            choose(settings.appearance.combos["scheme"], -1)
            await until(lambda: current_theme().palette is LIGHT)
            choose(settings.appearance.combos["contrast"], +2)
            await until(lambda: current_theme().palette is HIGH_LIGHT)
            choose(settings.appearance.combos["motion"], +1)
            await until(lambda: current_theme().fade_ms == 0)
            assert bench.asked("change_setting")[-2:] == [("contrast", "high"), ("motion", "reduced")]
        finally:
            application = QApplication.instance()
            assert isinstance(application, QApplication)
            apply_theme(application, Scheme.LIGHT, Contrast.SYSTEM, Motion.SYSTEM)
        field, before = settings.appearance.numbers["text_percent"], window.parts.transcript.tokens.page.faces.scale
        settings.resize(1400, 700)
        settings.show_page(APPEARANCE)
        await frames()
        assert field.width() < 200  # for "100 %", however wide the window is
        field.setFocus()
        for _ in range(5):
            QTest.keyClick(field, Qt.Key.Key_Up)
        await until(lambda: window.parts.transcript.tokens.page.faces.scale == 1.5 * before)
        for _ in range(12):
            QTest.keyClick(field, Qt.Key.Key_Down)
        await until(lambda: window.parts.transcript.tokens.page.faces.scale == 0.8 * before)  # the minimum
        choose(settings.appearance.combos["colours"], +1)
        assert window.parts.transcript.measure is not Measure.SURPRISAL

    in_window(scene)


def test_the_current_colours_are_shown_however_the_settings_are_opened(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        QTest.mouseClick(window.parts.top.model, LEFT)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        more = next(action for action in menu.actions() if action.text().startswith("More models"))
        QTest.mouseClick(menu, LEFT, pos=menu.actionGeometry(more).center())
        await until(window.settings.isVisible)
        QTest.mouseClick(window.settings.tabs[APPEARANCE], LEFT)
        colours = window.settings.appearance.combos["colours"]
        assert colours.currentText() == "surprise"
        window.acts.colours[Measure.RANK].trigger()
        assert colours.currentText() == "rank"

    in_window(scene)


@pytest.mark.slow
def test_the_data_page_shows_the_folder_and_verifies_the_store(in_window: Play, bench: FakeWorkbench) -> None:
    bench.damage = ("session 3, turn 2: its tokens fail their checksum",)

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[DATA], LEFT)
        assert settings.data.folder.text() == "/data/elsewise"
        assert "sessions.2026-11-21.db" in settings.data.backups.text()
        QTest.mouseClick(settings.data.verify_button, LEFT)
        await until(lambda: settings.data.verified.text() == "session 3, turn 2: its tokens fail their checksum")
        bench.damage = ()
        QTest.mouseClick(settings.data.verify_button, LEFT)
        await until(lambda: settings.data.verified.text() == "no damage was found")

    in_window(scene)


@pytest.mark.slow
def test_a_backup_is_made_at_once_and_its_path_is_shown(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = (await opened(window)).data
        QTest.mouseClick(window.settings.tabs[DATA], LEFT)
        assert not page.backed_up.isVisible()
        bench.slow_backup = asyncio.Event()
        QTest.mouseClick(page.back_up_button, LEFT)
        await until(lambda: "copying and verifying" in page.backed_up.text())
        assert not page.back_up_button.isEnabled()
        bench.slow_backup.set()
        await until(lambda: page.backed_up.text().endswith("sessions.by-hand.2026-11-22.db, 12 MB; "
                                                            "the copy was verified"))  # fmt: skip
        assert page.back_up_button.isEnabled()
        # a failed backup shows the reason, and not the result of the last one
        bench.refusal = "no backup was made, rows of nodes are damaged"
        QTest.mouseClick(page.back_up_button, LEFT)
        await until(lambda: window.settings.notice.words.startswith("no backup was made"))
        assert not page.backed_up.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_template_of_the_user_can_be_chosen_as_chat_format(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    own = tmp_path / "mine.jinja"
    own.write_text("{{ messages }}")

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        combo = settings.engine.combos["chat_format"]
        assert combo.itemText(combo.count() - 1) == "a template of your own…"
        combo.setFocus()
        QTest.keyClick(combo, Qt.Key.Key_End)
        dialog = next(d for d in settings.findChildren(QFileDialog) if d.isVisible())
        await until(lambda: combo.currentData() == "auto")  # until a file is chosen, the current format is shown
        dialog.fileSelected.emit(str(own))
        dialog.close()
        await until(lambda: bench.held.values.chat_template_file == str(own))
        await until(lambda: combo.currentText() == "your template: mine.jinja")
        # another format is one step away, and is saved as a format
        combo.setCurrentIndex(combo.findData("chatml"))
        combo.activated.emit(combo.currentIndex())
        await until(lambda: bench.asked("change_setting")[-1] == ("chat_format", "chatml"))

    in_window(scene)


@pytest.mark.slow
def test_all_text_of_the_window_has_the_chosen_size(in_window: Play, bench: FakeWorkbench) -> None:
    """Labels, fields, lists, painted parts and fixed heights alike; also widgets made later, and back again."""

    async def scene(window: MainWindow) -> None:
        parts = window.parts
        view, button = parts.sidebar.sessions.view, parts.top.modes.buttons[Mode.READ]
        await until(lambda: parts.sidebar.sessions.rows.rowCount() > 0)

        def measures() -> list[float]:
            return [
                parts.composer.field.font().pointSizeF(),
                parts.top.title.font().pointSizeF(),
                button.font().pointSizeF(),
                parts.status.engine.font().pointSizeF(),
                parts.inspector.token.large.font().pointSizeF(),
                parts.top.model.font().pointSizeF(),  # inherited, as the hint in the empty field
                parts.composer.field.viewport().font().pointSizeF(),
                parts.transcript.tokens.page.faces.text.pointSizeF(),
                QApplication.font().pointSizeF(),
            ]

        def heights() -> list[int]:
            row = view.visualRect(parts.sidebar.sessions.rows.index(1)).height()
            return [parts.top.height(), parts.status.height(), row, parts.composer.field.height()]

        before, low = measures(), heights()
        for percent in (200, 80, 150):
            window.apply(AppSettings(scheme="light", text_percent=percent))
            await frames()
            assert measures() == pytest.approx([size * percent / 100 for size in before])
            assert heights()[:3] == pytest.approx([h * percent / 100 for h in low[:3]], abs=1)
        assert heights()[3] > low[3]
        assert Label("later").font().pointSizeF() == pytest.approx(Label().font().pointSizeF())
        assert Label("later").font().pointSizeF() == pytest.approx(before[1] * 1.5)
        window.apply(AppSettings(scheme="light"))
        await frames()
        assert measures() == pytest.approx(before)
        assert heights() == low

    in_window(scene)


def test_a_combo_is_as_low_as_before_when_the_text_is_small_again(app: QApplication, qtbot: QtBot) -> None:
    # given a combo that is first shown while all text is large
    resize_text(app, 2.0)
    page, combo = QWidget(), Combo("Colours")
    combo.addItems(["light", "dark"])
    column = QVBoxLayout(page)
    column.addWidget(combo)
    column.addStretch(1)
    qtbot.addWidget(page)
    page.show()
    large = combo.height()
    # when the text is small again
    resize_text(app, 1.0)
    # then the combo is low again
    qtbot.waitUntil(lambda: combo.height() < large)
    assert combo.height() == combo.sizeHint().height()


def test_the_list_of_a_combo_has_one_frame(app: QApplication, qtbot: QtBot) -> None:
    choice = Combo("choice")
    qtbot.addWidget(choice)
    choice.addItems(["one", "two"])
    choice.show()
    choice.showPopup()
    picture = choice.view().window().grab().toImage()
    beside_items = [picture.pixelColor(3, y).name() for y in range(picture.height())]
    choice.hidePopup()
    assert len([*groupby(beside_items)]) == 3  # its upper edge, its background, its lower edge


@pytest.mark.slow
def test_the_clicked_tab_has_the_focus_if_the_focus_was_in_the_tabs(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        settings.activateWindow()
        await until(lambda: settings.tabs[0].hasFocus())
        QTest.mouseClick(settings.tabs[MEMORY], LEFT)
        assert settings.tabs[MEMORY].hasFocus()
        settings.close()
        window.activateWindow()
        await until(window.isActiveWindow)
        # the same for the tabs of popover and inspector; focus elsewhere is not moved
        for tabs in (window.popover.tabs, window.parts.inspector.tabs):
            if tabs is window.popover.tabs:
                window.popover.open(SAMPLING)
            tabs[1].setFocus()
            QTest.mouseClick(tabs[3], LEFT)
            assert tabs[3].hasFocus()
        window.popover.hide()
        window.parts.composer.field.setFocus()
        QTest.mouseClick(window.parts.inspector.tabs[0], LEFT)
        assert window.parts.composer.field.hasFocus()

    in_window(scene)


@pytest.mark.slow
def test_settings_that_could_not_be_read_are_reported(in_window: Play, bench: FakeWorkbench) -> None:
    bench.held = replace(bench.held, notes=("the text size must be between 100 and 200 %, not 7; the default is used",))

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        await until(lambda: "not 7" in settings.notice.words)

    in_window(scene)


@pytest.mark.slow
def test_the_server_is_started_and_stopped_and_its_address_shown(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[SERVER], LEFT)
        page = settings.server
        assert not page.copy_button.isVisible()
        page.port.setValue(8081)
        QTest.mouseClick(page.switch, LEFT)
        await until(lambda: "port 8081 cannot be used" in settings.notice.words)
        page.port.setValue(8123)
        QTest.mouseClick(page.switch, LEFT)
        await until(lambda: page.switch.text() == "Stop server")
        # the window shows a mark while it is on, which leads back here
        mark = window.parts.status.server
        await until(mark.isVisible)
        assert "http://127.0.0.1:8123/v1" in mark.toolTip()
        settings.close()
        QTest.mouseClick(mark, LEFT)
        await until(page.isVisible)
        assert page.address.text() == "Address: http://127.0.0.1:8123/v1"
        assert page.address.width() > page.copy_button.width()  # wide enough to be read
        assert not page.port.isEnabled()
        QTest.mouseClick(page.copy_button, LEFT)
        assert QApplication.clipboard().text() == "http://127.0.0.1:8123/v1"
        QTest.mouseClick(page.switch, LEFT)
        await until(lambda: page.switch.text() == "Start server")
        assert not page.address.isVisible()
        await until(lambda: not mark.isVisible())
        assert (bench.asked("start_server"), bench.asked("stop_server")) == ([(8081,), (8123,)], [()])

    in_window(scene)


def test_the_server_page_follows_another_window_and_its_button_acts_as_labelled(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[SERVER], LEFT)
        page = settings.server
        assert page.switch.text() == "Start server"
        # another window starts it: a press before the page is updated does not stop it
        bench.server.address = "http://127.0.0.1:8123/v1"
        QTest.mouseClick(page.switch, LEFT)
        await until(lambda: page.switch.text() == "Stop server" and page.switch.isEnabled())
        assert bench.asked("stop_server") == []
        await bench.server.stop()
        await until(lambda: page.switch.text() == "Start server")

    in_window(scene)


def test_changes_of_another_window_are_shown_when_the_settings_are_activated_again(
    in_window: Play, bench: FakeWorkbench
) -> None:
    asked, goes, view = asyncio.Event(), asyncio.Event(), bench.settings.view

    async def slow() -> SettingsView:
        asked.set()
        await goes.wait()
        return await view()

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        settings.show_page(APPEARANCE)
        field = settings.appearance.numbers["text_percent"]
        field.setFocus()
        await until(settings.isActiveWindow)
        window.activateWindow()
        await until(window.isActiveWindow)
        await until(lambda: not len(window.controller.tasks))
        await bench.settings.change("titles", "model")
        await bench.settings.change("text_percent", 150)
        bench.settings.view = slow  # type: ignore[method-assign]
        settings.activateWindow()
        await until(asked.is_set)
        field.selectAll()
        QTest.keyClicks(field, "12")
        goes.set()
        await until(lambda: settings.generation.combos["titles"].currentData() == "model")
        assert field.text() == "12 %"  # unfinished text stays

    in_window(scene)
