"""The settings window: each row says when it holds, and is stored when it is changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox

from tests.ui.conftest import Scene, until
from tests.ui.fakes import FakeWorkbench
from ui import DARK, LIGHT, MainWindow, Scheme, apply_theme
from ui.settings import SettingsWindow
from ui.theme import current_theme
from ui.transcript import Measure

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton


async def opened(window: MainWindow) -> SettingsWindow:
    QTest.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    await until(lambda: window.settings.isVisible() and window.settings.folder.text() != "")
    return window.settings


def choose(combo: QComboBox, steps: int) -> None:
    combo.setFocus()
    for _ in range(abs(steps)):
        QTest.keyClick(combo, Qt.Key.Key_Down if steps > 0 else Qt.Key.Key_Up)


def test_it_is_non_modal_and_each_row_says_when_it_holds(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        assert not settings.isModal()
        said = {name: when.text() for rows in (settings.models, settings.memory, settings.generation, settings.appearance)
                for name, when in rows.when.items()}  # fmt: skip
        later = {
            "backend",
            "device",
            "dtype",
            "context_length",
            "threads",
            "draft_model",
            "disk_bytes",
            "chat_format",
            "offload",
        }
        assert {name for name, when in said.items() if when == "after reload"} == later
        assert {name for name, when in said.items() if when == "now"} == {
            "kv_cache_bytes", "preset", "scheme", "text_percent", "colours",
        }  # fmt: skip
        # the window behind it goes on, and Escape closes it
        QTest.keyClicks(window.parts.composer.field, "still here")
        assert window.parts.composer.draft == "still here"
        QTest.keyClick(settings, Qt.Key.Key_Escape)
        assert not settings.isVisible()

    in_window(scene)


def test_what_holds_after_a_reload_offers_one(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        assert settings.reload.words == ""
        choose(settings.models.combos["device"], +1)
        await until(lambda: bench.asked("change_setting") == [("device", "cpu")])
        field = settings.models.numbers["context_length"]
        assert field.text() == "the model's own"
        field.setFocus()
        field.selectAll()
        QTest.keyClicks(field, "4096")
        assert len(bench.asked("change_setting")) == 1  # not with every key
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("change_setting")[-1] == ("context_length", 4096))
        await until(lambda: "other settings" in settings.reload.words)
        settings.reload.acted.emit()
        await until(lambda: bench.asked("reload_model") == [()])
        await until(lambda: settings.reload.words == "")

    in_window(scene)


def test_memory_is_in_megabytes_and_refusals_are_inline(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[1], LEFT)
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


def test_appearance_holds_at_once(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[3], LEFT)
        try:
            choose(settings.appearance.combos["scheme"], +2)
            await until(lambda: current_theme().palette is DARK)
            choose(settings.appearance.combos["scheme"], -1)
            await until(lambda: current_theme().palette is LIGHT)
        finally:
            application = QApplication.instance()
            assert isinstance(application, QApplication)
            apply_theme(application, Scheme.LIGHT)
        field, before = settings.appearance.numbers["text_percent"], window.parts.transcript.tokens.page.faces.scale
        field.setFocus()
        for _ in range(5):
            QTest.keyClick(field, Qt.Key.Key_Up)
        await until(lambda: window.parts.transcript.tokens.page.faces.scale == 1.5 * before)
        choose(settings.appearance.combos["colours"], +1)
        assert window.parts.transcript.measure is not Measure.SURPRISAL

    in_window(scene)


def test_data_is_named_and_verified(in_window: Play, bench: FakeWorkbench) -> None:
    bench.damage = ("session 3, turn 2: its tokens fail their checksum",)

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        QTest.mouseClick(settings.tabs[4], LEFT)
        assert settings.folder.text() == "/data/elsewise"
        assert "sessions.2026-11-21.db" in settings.backups.text()
        QTest.mouseClick(settings.verify_button, LEFT)
        await until(lambda: settings.verified.text() == "session 3, turn 2: its tokens fail their checksum")
        bench.damage = ()
        QTest.mouseClick(settings.verify_button, LEFT)
        await until(lambda: settings.verified.text() == "every row is as it was written")

    in_window(scene)


def test_what_could_not_be_taken_is_said(in_window: Play, bench: FakeWorkbench) -> None:
    bench.held = replace(bench.held, notes=("the text size lies within 100 and 200 %, not 7; the default holds",))

    async def scene(window: MainWindow) -> None:
        settings = await opened(window)
        await until(lambda: "not 7" in settings.notice.words)

    in_window(scene)
