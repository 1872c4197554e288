"""Before a model is loaded: its memory, the settings of this model; its quantisation; the token of the hub."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLineEdit, QMenu

from tests.ui.conftest import Scene, until
from tests.ui.fake_state import FIT
from tests.ui.fakes import FakeWorkbench
from tests.ui.models.test_models_page import BIG, LEFT, QWEN, SMOL, opened, pick
from ui import DownloadState, LoadChoice, LoadPlan, MainWindow, TokenView
from ui.models.load_card import LoadCard
from ui.widgets.controls import Combo

Play = Callable[[Scene], None]


def choose(combo: Combo, value: object) -> None:
    combo.setCurrentIndex(combo.findData(value))
    combo.activated.emit(combo.currentIndex())


async def card_of(window: MainWindow, name: str) -> LoadCard:
    row = (await opened(window)).models[name]
    QTest.mouseClick(row.open_button, LEFT)
    await until(row.card.isVisible)
    return row.card


@pytest.mark.slow
def test_a_model_is_opened_after_its_memory_bar_was_shown(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        assert card.bar.accessibleName() == "About 2.2 GB of 8 GB of memory"
        assert card.fit_words.text().startswith("fits with 8,192 tokens")
        assert bench.asked("open_model") == []
        assert card.open_button.hasFocus()
        QTest.keyClick(card.open_button, Qt.Key.Key_Space)
        await until(lambda: bench.asked("open_model") == [(QWEN, LoadChoice())])
        assert not card.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_opened_only_after_confirmation(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit = replace(FIT, weights=32_000_000_000, longest=0)

    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        assert card.fit_words.text().startswith("does not fit with 8,192 tokens: about 33 GB of this machine's 8 GB")
        assert (card.leave_button.hasFocus(), card.open_button.text()) == (True, "Open anyway")
        QTest.keyClick(card.leave_button, Qt.Key.Key_Escape)
        row = window.settings.models.models[QWEN]
        assert (card.isVisible(), row.open_button.hasFocus()) == (False, True)
        assert bench.asked("open_model") == []
        QTest.keyClick(row.open_button, Qt.Key.Key_Space)
        await until(card.isVisible)
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(QWEN, LoadChoice())])

    in_window(scene)


@pytest.mark.slow
def test_a_model_from_the_menu_that_does_not_fit_shows_its_memory_bar_first(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit = replace(FIT, weights=32_000_000_000, longest=0)

    async def scene(window: MainWindow) -> None:
        QTest.mouseClick(window.parts.top.model, LEFT)
        await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
        menu = QApplication.activePopupWidget()
        assert isinstance(menu, QMenu)
        entry = next(action for action in menu.actions() if action.text().startswith("SmolLM2"))
        QTest.mouseClick(menu, LEFT, pos=menu.actionGeometry(entry).center())
        await until(lambda: SMOL in window.settings.models.models and window.settings.models.models[SMOL].card.isVisible())
        card = window.settings.models.models[SMOL].card
        assert card.fit_words.text().startswith("does not fit with 8,192 tokens")
        assert bench.asked("choose_model") == bench.asked("open_model") == []
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(SMOL, LoadChoice())])

    in_window(scene)


@pytest.mark.slow
def test_a_downloaded_model_that_does_not_fit_shows_its_memory_bar_first(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit = replace(FIT, weights=32_000_000_000, longest=0)

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        bench.show_download(replace(BIG, state=DownloadState.DONE, name=QWEN, done=BIG.total))
        await until(lambda: "org/big" in page.downloads)
        QTest.mouseClick(page.downloads["org/big"].open_button, LEFT)
        await until(page.models[QWEN].card.isVisible)
        assert bench.asked("choose_model") == bench.asked("open_model") == []

    in_window(scene)


@pytest.mark.slow
def test_a_context_and_weights_are_chosen_for_one_model_and_remembered(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        card = await card_of(window, SMOL)
        assert card.context.itemText(0) == "default: 8,192 tokens"
        assert [card.weights.itemText(i) for i in range(card.weights.count())] == [
            "default: float32", "float32", "float16", "int8",
        ]  # fmt: skip
        assert card.cost.text().startswith("Lower precision is faster")
        choose(card.weights, "int8")
        await until(lambda: card.cost.text() == "Perplexity of a test text: 27.93, float32 27.66 (+1.0 %)")
        choose(card.weights, "float16")
        await until(lambda: card.cost.text().startswith("Differs slightly from float32; loading measures by how much"))
        choose(card.context, 2048)
        await until(lambda: card.fit_words.text().startswith("fits with 2,048 tokens"))
        assert card.weights.currentData() == "float16"
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(SMOL, LoadChoice(2048, "float16"))])
        # it is saved: the card starts with it
        row = window.settings.models.models[SMOL]
        QTest.mouseClick(row.open_button, LEFT)
        await until(card.isVisible)
        assert (card.context.currentData(), card.weights.currentData()) == (2048, "float16")

    in_window(scene)


@pytest.mark.slow
def test_no_choice_of_weights_is_shown_when_there_is_only_one(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit = replace(FIT, engine="mlx")

    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        assert not card.weights.isVisible()
        assert not card.cost.isVisible()
        assert card.context.isVisible()
        bench.shelf_fit = None
        choose(card.context, 1024)
        await until(lambda: not card.bar.isVisible())
        assert card.fit_words.text().startswith("The memory it needs is unknown")
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(QWEN, LoadChoice(1024))])

    in_window(scene)


@pytest.mark.slow
def test_weights_set_for_all_models_that_have_no_effect_are_named(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit, bench.set_weights = replace(FIT, engine="mlx"), "int8"

    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        assert not card.weights.isVisible()
        assert (
            card.cost.text()
            == "int8 weights are set for all models but have no effect on mlx: the model keeps its own precision"
        )
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(QWEN, LoadChoice())])

    in_window(scene)


@pytest.mark.slow
def test_weights_chosen_for_a_model_can_be_reset(in_window: Play, bench: FakeWorkbench) -> None:
    bench.shelf_fit, bench.own[QWEN] = replace(FIT, engine="mlx"), LoadChoice(2048, "int8")

    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        assert (card.weights.isVisible(), card.weights.currentData()) == (True, "int8")
        assert card.cost.text().startswith("int8 weights are chosen for this model but not available on mlx")
        choose(card.weights, "auto")
        await until(lambda: not card.weights.isVisible())
        QTest.mouseClick(card.open_button, LEFT)
        await until(lambda: bench.asked("open_model") == [(QWEN, LoadChoice(2048))])

    in_window(scene)


@pytest.mark.slow
def test_a_model_is_quantised_in_its_row(in_window: Play, bench: FakeWorkbench) -> None:
    bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        page = await opened(window)
        row = page.models[SMOL]
        assert not page.models[QWEN].quantise_action.isVisible()  # this model is quantised already
        pick(row, row.quantise_action)
        QTest.keyClick(row.quantise.do_button, Qt.Key.Key_Escape)
        assert (row.quantise.isVisible(), row.more_button.hasFocus()) == (False, True)
        pick(row, row.quantise_action)
        QTest.mouseClick(row.quantise.choice.buttons[1], LEFT)
        QTest.mouseClick(row.quantise.do_button, LEFT)
        bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: row.state.text() == "quantising… 25 %")
        assert (row.bar.accessibleDescription(), row.verify_action.isEnabled()) == ("25 %", False)
        # the quantisation is stopped
        QTest.mouseClick(row.stop_button, LEFT)
        await until(lambda: row.state.text() == "stopped; no model was created")
        assert row.quantise_action.isEnabled()
        # and completes
        pick(row, row.quantise_action)
        QTest.mouseClick(row.quantise.do_button, LEFT)
        for _ in range(2):
            bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: row.state.text() == "smollm2-8bit is installed")
        bench.problem = "the disk is full"
        pick(row, row.quantise_action)
        QTest.mouseClick(row.quantise.do_button, LEFT)
        for _ in range(2):
            bench.gate.release()  # type: ignore[union-attr]  # set above
        await until(lambda: row.state.text() == "the disk is full")
        assert not row.bar.isVisible()
        assert [bits for _, bits in bench.asked("quantise_model")] == [8, 8, 8]

    in_window(scene)


@pytest.mark.slow
def test_a_token_is_saved_in_the_keychain_and_never_shown(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        part = (await opened(window)).get.token
        assert not part.field.isVisible()
        QTest.mouseClick(part.open_button, LEFT)
        await until(lambda: part.state.text().startswith("A read token for https://huggingface.co."))
        assert part.field.hasFocus()
        assert part.field.echoMode() is QLineEdit.EchoMode.Password
        assert not part.forget_button.isVisible()
        QTest.keyClicks(part.field, "hf_secret")
        QTest.keyClick(part.field, Qt.Key.Key_Return)
        await until(lambda: bench.kept_token == "hf_secret")
        await until(part.forget_button.isVisible)
        assert part.field.text() == ""
        assert "hf_secret" not in part.state.text()
        assert part.keep_button.text() == "Replace"
        QTest.mouseClick(part.forget_button, LEFT)
        await until(lambda: bench.kept_token == "" and not part.forget_button.isVisible())
        # a refusal of the keychain is shown, and the field is cleared
        bench.problem = "this machine has no system keychain"
        QTest.keyClicks(part.field, "hf_other")
        QTest.mouseClick(part.keep_button, LEFT)
        await until(lambda: part.state.text() == "this machine has no system keychain")
        assert (part.field.text(), part.keep_button.isEnabled()) == ("", True)
        # and closing the row clears the field
        QTest.keyClicks(part.field, "hf_typed")
        QTest.mouseClick(part.open_button, LEFT)
        QTest.mouseClick(part.open_button, LEFT)
        assert part.field.text() == ""

    in_window(scene)


def test_a_token_typed_before_the_keychain_answers_stays_in_the_field(in_window: Play, bench: FakeWorkbench) -> None:
    answers, ask = asyncio.Event(), bench.shelf.hub_token

    async def slow() -> TokenView:
        await answers.wait()
        return await ask()

    bench.shelf.hub_token = slow  # type: ignore[method-assign]

    async def scene(window: MainWindow) -> None:
        part = (await opened(window)).get.token
        QTest.mouseClick(part.open_button, LEFT)
        assert part.state.text() == "asking the keychain…"
        QTest.keyClicks(part.field, "hf_secret")
        answers.set()
        await until(lambda: part.state.text().startswith("A read token for"))
        assert part.field.text() == "hf_secret"

    in_window(scene)


def test_a_closed_card_is_not_reopened_by_a_late_answer(in_window: Play, bench: FakeWorkbench) -> None:
    goes, plan = asyncio.Event(), bench.models.load_plan

    async def slow(name: str, choice: LoadChoice | None = None) -> LoadPlan:
        if choice is not None:
            await goes.wait()
        return await plan(name, choice)

    bench.models.load_plan = slow  # type: ignore[method-assign]

    async def scene(window: MainWindow) -> None:
        card = await card_of(window, QWEN)
        choose(card.context, 1024)
        QTest.mouseClick(card.leave_button, LEFT)
        assert not card.isVisible()
        goes.set()
        await until(lambda: ("load_plan", QWEN, LoadChoice(1024)) in bench.calls and not len(window.controller.tasks))
        assert not card.isVisible()

    in_window(scene)
