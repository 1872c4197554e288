"""The page of models: the shelf, imports, removal, and the keyboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt, QUrl
from PySide6.QtGui import QAction, QDesktopServices
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QWidget

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import FakeWorkbench
from ui import DownloadState, DownloadView, MainWindow, ShelfModel
from ui.models.page import ModelsPage
from ui.models.shelf_row import ShelfRow
from ui.settings import MODELS

Play = Callable[[Scene], None]
LEFT = Qt.MouseButton.LeftButton
QWEN, SMOL = "org/qwen@abc", "smollm2"
BIG = DownloadView(
    "org/big", DownloadState.RUNNING, "model.safetensors", 120_000_000, 4_000_000_000, 1_200_000_000, 8_000_000_000,
    rate=31e6, eta=220.0, step="fetch",
)  # fmt: skip
IN_USE = "org/qwen is loaded (here or in another process); unload it before removing it"


async def opened(window: MainWindow) -> ModelsPage:
    QTest.keyClick(window, Qt.Key.Key_Comma, Qt.KeyboardModifier.ControlModifier)
    page = window.settings.models
    await until(lambda: window.settings.isVisible() and page.models and page.get.offers.rows)
    return page


def pick(row: ShelfRow, action: QAction) -> None:
    """Chooses the action in the menu of the row, with the mouse."""
    QTest.mouseClick(row.more_button, LEFT)
    QTest.mouseClick(row.menu, LEFT, pos=row.menu.actionGeometry(action).center())


@pytest.mark.slow
def test_the_shelf_shows_the_facts_and_problems_of_each_model(in_window: Play, bench: FakeWorkbench) -> None:
    bench.on_shelf[1] = replace(bench.on_shelf[1], title="<b>qwen</b>\n\x1b[31m", problem="model.safetensors is missing")
    bench.on_shelf.append(ShelfModel("me/pirate@1", "me/pirate", "/p", 3_000_000, "adapter, for org/base", kind="adapter"))

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        row = page.models[SMOL]
        assert row.facts.text() == "smollm2 · float32, from GGUF · 8,192 tokens · runs on hf, mlx · f2f9db9051cd"
        assert (row.size_label.text(), row.in_use.isVisible(), row.open_button.isEnabled()) == ("638 MB", True, True)
        broken = page.models[QWEN]
        assert broken.problem.text() == "model.safetensors is missing"
        assert not broken.open_button.isEnabled()
        assert "\n" not in broken.title.text()
        assert broken.more_button.accessibleName().startswith("More for <b>qwen</b>")
        assert not page.models["me/pirate@1"].open_button.isVisible()
        assert not page.empty.isVisible()
        assert bench.asked("plan_model") == []

    in_window(scene)


@pytest.mark.slow
def test_a_model_is_verified_in_its_row(in_window: Play, bench: FakeWorkbench) -> None:
    bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        row = page.models[SMOL]
        pick(row, row.verify_action)
        assert not row.remove_action.isEnabled()
        bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: row.state.text() == "reading 100 MB of 638 MB…")
        assert row.bar.accessibleDescription() == "16 %"
        # the verification is stopped
        QTest.keyClick(row.stop_button, Qt.Key.Key_Space)
        await until(lambda: row.state.text() == "stopped before every file was checked")
        # and completes
        bench.gate = None
        pick(row, row.verify_action)
        await until(lambda: row.state.text().startswith("every file is intact"))
        bench.problem = "model.safetensors is another file"
        pick(row, row.verify_action)
        await until(lambda: row.state.text() == "model.safetensors is another file")
        assert row.remove_action.isEnabled()
        assert not row.bar.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_model_is_removed_after_a_question_in_its_row(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        row = page.models[QWEN]
        pick(row, row.remove_action)
        assert row.ask.words == "delete it permanently? This frees 335 MB."
        assert row.ask.keep_button.hasFocus()
        QTest.keyClick(row.ask.keep_button, Qt.Key.Key_Escape)  # the window stays open
        assert (row.ask.words, row.more_button.hasFocus(), window.settings.isVisible()) == ("", True, True)
        assert bench.asked("remove_model") == []
        # a loaded model is not removed, with the reason
        bench.refusal = IN_USE
        QTest.keyClick(row.more_button, Qt.Key.Key_Space)
        QTest.mouseClick(row.menu, LEFT, pos=row.menu.actionGeometry(row.remove_action).center())
        QTest.mouseClick(row.ask.do_button, LEFT)
        await until(lambda: page.notice.words == IN_USE)
        assert QWEN in page.models
        pick(row, row.remove_action)
        QTest.mouseClick(row.ask.do_button, LEFT)
        await until(lambda: QWEN not in page.models)
        await until(lambda: page.notice.words == "removed; 335 MB freed")

    in_window(scene)


def test_the_end_of_a_removal_moves_the_keyboard_focus_only_if_it_was_in_the_row(in_window: Play, bench: FakeWorkbench) -> None:
    goes, remove = asyncio.Event(), bench.shelf.remove

    async def slow(name: str) -> int:
        await goes.wait()
        return await remove(name)

    bench.shelf.remove = slow  # type: ignore[method-assign]

    async def scene(window: MainWindow) -> None:
        page, settings = await opened(window), window.settings
        pick(page.models[QWEN], page.models[QWEN].remove_action)
        QTest.mouseClick(page.models[QWEN].ask.do_button, LEFT)
        page.get.field.setFocus()
        goes.set()
        await until(lambda: page.notice.words == "removed; 335 MB freed" and QWEN not in page.models)
        assert settings.focusWidget() is page.get.field
        # focus in the removed row moves to the button that adds models
        pick(page.models[SMOL], page.models[SMOL].remove_action)
        QTest.mouseClick(page.models[SMOL].ask.do_button, LEFT)
        await until(lambda: SMOL not in page.models)
        assert settings.focusWidget() is page.add_button

    in_window(scene)


@pytest.mark.slow
def test_a_folder_is_added_and_a_gguf_imported(in_window: Play, bench: FakeWorkbench, tmp_path: Path) -> None:
    bench.on_shelf = []

    async def scene(window: MainWindow) -> None:
        window.settings.open_models()
        page = window.settings.models
        await until(lambda: page.empty.isVisible())
        choose(page, page.add_button, str(tmp_path))
        await until(lambda: tmp_path.name in page.models)
        assert not page.empty.isVisible()
        row = page.models[tmp_path.name]
        pick(row, row.remove_action)
        assert "Its folder is not deleted" in row.ask.words
        bench.gate = asyncio.Semaphore(2)
        choose(page, page.import_button, "/files/some.gguf")
        await until(lambda: page.import_words.text() == "converting… 33 %")
        assert not page.import_button.isEnabled()
        await frames()
        stop = page.stop_import_button
        assert (stop.isVisible(), stop.width()) == (True, stop.sizeHint().width())  # the text takes the remaining width
        bench.gate.release()
        await until(lambda: page.notice.words == "some is installed")
        assert page.import_button.isEnabled()

    in_window(scene)


def test_adding_a_folder_keeps_the_progress_of_a_running_import_visible(
    in_window: Play, bench: FakeWorkbench, tmp_path: Path
) -> None:
    bench.gate = asyncio.Semaphore(2)

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        choose(page, page.import_button, "/files/some.gguf")
        await until(lambda: page.import_words.text() == "converting… 33 %")
        choose(page, page.add_button, str(tmp_path))
        await until(lambda: page.notice.words == f"{tmp_path.name} is installed")
        assert page.stop_import_button.isVisible()
        assert not page.import_button.isEnabled()
        bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: page.notice.words == "some is installed")
        assert not page.stop_import_button.isVisible()

    in_window(scene)


def test_work_that_ends_after_the_settings_were_closed_is_reported_in_the_window(in_window: Play, bench: FakeWorkbench) -> None:
    gate = bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        page, parts = await opened(window), window.parts
        choose(page, page.import_button, "/files/some.gguf")
        await until(lambda: bench.asked("import_gguf"))
        window.settings.close()
        bench.gate = None
        for _ in range(3):
            gate.release()
        await until(lambda: parts.toast.words == "some is installed")
        window.controller.shelf.quantise(SMOL, 8)
        await until(lambda: parts.toast.words == "smollm2-8bit is installed")
        bench.problem = "the disk is full"
        window.controller.shelf.quantise(SMOL, 4)
        await until(lambda: parts.composer.notice.words == "smollm2 was not quantised: the disk is full")
        # while the page is visible, it reports the end itself
        parts.composer.notice.clear()
        window.settings.open_models()
        await until(page.isVisible)
        row, asked = page.models[SMOL], len(bench.asked("quantise_model"))
        window.controller.shelf.quantise(SMOL, 4)
        await until(lambda: len(bench.asked("quantise_model")) > asked and not len(window.controller.tasks))
        assert row.state.text() == "the disk is full"
        assert parts.composer.notice.words == ""

    in_window(scene)


@pytest.mark.slow
def test_an_import_of_a_gguf_asks_for_the_form_of_its_weights_if_there_is_a_choice(
    in_window: Play, bench: FakeWorkbench
) -> None:
    bench.gguf = (
        130_000_000,
        538_000_000,
        False,
        "Q6_K (18 % of the weights) becomes float32 when mlx loads it: MLX has no form that is exactly it",
    )

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        form = page.import_form
        choose(page, page.import_button, "/files/some.gguf")
        await until(form.isVisible)
        said = form.question.text()
        assert said.startswith("some.gguf: kept quantised, the weights take 130 MB and run on mlx, and more slowly on hf")
        assert said.endswith(f"{bench.gguf[-1]}.")
        assert form.choice.place == 1  # float32, as here hf runs models
        window.settings.activateWindow()
        await until(form.do_button.hasFocus)
        assert bench.asked("import_gguf") == []
        QTest.keyClick(form.do_button, Qt.Key.Key_Escape)
        assert (form.isVisible(), page.import_button.hasFocus(), window.settings.isVisible()) == (False, True, True)
        choose(page, page.import_button, "/files/some.gguf")
        await until(form.isVisible)
        QTest.mouseClick(form.choice.buttons[0], LEFT)
        QTest.mouseClick(form.do_button, LEFT)
        await until(lambda: bench.asked("import_gguf") == [(Path("/files/some.gguf"), True)])
        await until(lambda: page.notice.words == "some is installed")
        # with mlx it is the other way round
        bench.gguf = (*bench.gguf[:2], True, "")
        choose(page, page.import_button, "/files/some.gguf")
        await until(form.isVisible)
        assert form.choice.place == 0
        # and a file that cannot be read is refused before the question
        form.leave()
        bench.refusal = "some.gguf: not a GGUF file"
        choose(page, page.import_button, "/files/some.gguf")
        await until(lambda: page.notice.words == "some.gguf: not a GGUF file")
        assert not form.isVisible()

    in_window(scene)


def choose(page: ModelsPage, button: QWidget, path: str) -> None:
    QTest.mouseClick(button, LEFT)
    dialog = next(each for each in page.window().findChildren(QFileDialog) if each.isVisible())
    assert dialog.windowModality() != Qt.WindowModality.ApplicationModal
    dialog.fileSelected.emit(path)
    dialog.close()


@pytest.mark.slow
def test_a_folder_is_revealed(in_window: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_program(url: QUrl) -> bool:
        asked.append(url.toLocalFile())
        return False

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        pick(page.models[QWEN], page.models[QWEN].reveal_action)
        assert asked == ["/models/org--qwen@abc"]
        assert page.notice.words == "no file manager was found; the folder is /models/org--qwen@abc"

    monkeypatch.setattr(QDesktopServices, "openUrl", no_program)
    in_window(scene)


@pytest.mark.slow
def test_tab_moves_through_the_page_from_top_to_bottom(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        bench.show_download(BIG)
        await until(lambda: "org/big" in page.downloads)
        await frames()
        page.downloads["org/big"].pause_button.setFocus()
        seen: list[QWidget | None] = []
        for _ in range(60):
            focused = QApplication.focusWidget()
            if focused in seen:
                break
            seen.append(focused)
            QTest.keyClick(window.settings, Qt.Key.Key_Tab)
        inside = [part for part in seen if part is not None and page.isAncestorOf(part)]
        heights = [part.mapTo(page, part.rect().center()).y() for part in inside]
        assert len(inside) == 2 + 2 + 2 + 3 + 3 + 1 + 3  # download, models, folder, import and server, field, token, proposals
        assert heights == sorted(heights)
        assert all(part.accessibleName() or getattr(part, "text", str)() for part in inside)

    in_window(scene)


@pytest.mark.slow
def test_more_models_opens_this_page(in_window: Play, bench: FakeWorkbench) -> None:
    bench.choices = []

    async def scene(window: MainWindow) -> None:
        settings = window.settings
        # from the popover
        window.popover.open()
        QTest.mouseClick(window.popover.model.more_button, LEFT)
        await until(lambda: settings.isVisible() and settings.models.get.field.hasFocus())
        settings.close()
        # and from the menu of models, when there are none
        QTest.mouseClick(window.popover.model.change_button, LEFT)
        await until(settings.isVisible)
        assert settings.tabs[MODELS].isChecked()

    in_window(scene)
