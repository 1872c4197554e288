"""The end of a comparison with a second model: stopped, replaced, failed; its legend and colours."""

from __future__ import annotations

import asyncio
from itertools import combinations

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from runtime import Finish
from tests.ui.comparison.comparison_window import Play, choose, compare, compared, marks, menu
from tests.ui.conftest import frames, until
from tests.ui.fake_state import QWEN
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import DARK, LIGHT, MainWindow, Palette, TokensArrived
from ui.comparison.model_facts import difference_ranges, difference_steps
from ui.controller.setup import MODEL


@pytest.mark.slow
def test_a_running_comparison_can_be_stopped(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        before = marks(window)
        bench.gate = asyncio.Semaphore(1)
        await compare(window)
        await until(lambda: "33 %" in window.parts.comparison.more.text())
        assert window.parts.comparison.close_button.accessibleName() == "Stop comparing"
        QTest.mouseClick(window.parts.comparison.close_button, Qt.MouseButton.LeftButton)
        await until(lambda: len(window.controller.tasks) == 0)
        bench.gate = None
        await frames()
        assert window.parts.comparison.isHidden()
        assert marks(window) == before

    in_window(scene)


def test_a_new_comparison_replaces_the_previous_one(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        bench.gate = asyncio.Semaphore(0)
        await compare(window)
        assert not window.parts.transcript.colours.shows_difference
        bench.gate = None
        await compared(window)
        assert len(bench.asked("compare_with")) == 3

    in_window(scene)


def test_a_failed_comparison_shows_the_reason_in_its_line(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bar = window.parts.comparison
        bench.refusal = ""
        QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        popup = await menu()
        bench.refusal = "Qwen3 could not be loaded: its file is <i>damaged</i>"
        choose(popup, popup.actions()[-1])
        await until(lambda: bar.words.text() == "Qwen3 could not be loaded: its file is <i>damaged</i>")
        assert not window.parts.composer.notice.words
        assert bar.again_button.text() == "Try again"
        QTest.mouseClick(bar.again_button, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.transcript.colours.shows_difference)
        assert bar.again_button.isHidden()

    in_window(scene)


@pytest.mark.slow
def test_a_comparison_can_be_forced_when_memory_is_short(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.short_of_room = True
        await compare(window)
        bar = window.parts.comparison
        await until(lambda: "4.2 GB" in bar.words.text())
        assert bar.again_button.text() == "Compare anyway"
        QTest.mouseClick(bar.again_button, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.transcript.colours.shows_difference)
        assert bench.asked("compare_with") == [(TRIP, "qwen3", False), (TRIP, "qwen3", True)]

    in_window(scene)


@pytest.mark.slow
def test_opening_another_session_ends_the_comparison(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3))
        assert window.parts.comparison.isHidden()
        assert not window.parts.transcript.colours.shows_difference
        window.controller.open(TRIP)
        await until(lambda: window.controller.is_shown(TRIP))
        bench.gate = asyncio.Semaphore(0)
        await compare(window)
        await until(lambda: "loading" in window.parts.comparison.more.text())
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3) and len(window.controller.tasks) == 0)
        assert window.parts.comparison.isHidden()

    in_window(scene)


def test_tokens_that_arrive_after_the_comparison_have_no_colour(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        last = bench.views[TRIP].turns[-1]
        before = marks(window)
        more = last.run[:3]
        bench.emit(TokensArrived(TRIP, last.node_id, more))
        await until(lambda: len(marks(window)[-1]) == len(before[-1]) + 3)
        assert marks(window)[:-1] == before[:-1]
        assert marks(window)[-1] == before[-1] + bytes(3)
        window.presenter.pin(last.node_id, len(before[-1]))
        assert window.parts.inspector.token.compared.isHidden()
        QTest.mouseClick(window.parts.comparison.close_button, Qt.MouseButton.LeftButton)
        assert any(marks(window)[-1][-3:])

    in_window(scene)


def test_the_legend_has_the_difference_while_a_comparison_is_open(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        legend, plain = window.parts.status.legend, marks(window)
        await compared(window)
        shown = marks(window)
        assert "difference" in legend.accessibleName()
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        popup = await menu()
        entries = {action.text().split("\t")[0]: action for action in popup.actions()}
        assert [name for name, action in entries.items() if action.isChecked()] == ["difference"]
        assert set(difference_ranges()) < set(entries)
        choose(popup, entries["surprise"])
        assert marks(window) == plain
        assert not window.acts.disagreement.isEnabled()
        assert window.parts.comparison.isVisible()  # the numbers are still there
        await until(lambda: QApplication.activePopupWidget() is None)
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        popup = await menu()
        choose(popup, popup.actions()[0])
        assert marks(window) == shown
        await until(lambda: QApplication.activePopupWidget() is None)
        QTest.mouseClick(window.parts.comparison.close_button, Qt.MouseButton.LeftButton)
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        popup = await menu()
        assert "difference" not in [action.text().split("\t")[0] for action in popup.actions()]
        popup.close()

    in_window(scene)


def test_the_second_model_is_kept_on_request(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        keep = window.parts.comparison.keep
        assert not keep.isChecked()
        QTest.keyClick(keep, Qt.Key.Key_Space)
        await until(lambda: bench.asked("keep_model") == [(True,)])
        await compared(window)
        assert keep.isChecked()

    in_window(scene)


@pytest.mark.slow
def test_the_popover_of_the_model_offers_the_comparison_too(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.popover.open(MODEL)
        QTest.mouseClick(window.popover.model.compare_button, Qt.MouseButton.LeftButton)
        popup = await menu()
        assert popup.accessibleName() == "Compare with"
        assert not window.popover.isVisible()
        bench.comparison_choices = [QWEN]
        popup.close()

    in_window(scene)


def test_the_end_token_stays_hidden(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        turn = bench.views[TRIP].turns[1]
        turn.run.finish[-1] = int(Finish.EOS)
        await compared(window)
        held = window.parts.transcript.turns[1].tokens.marks[-1]  # the painted marks
        assert held & 0b1000_0000

    in_window(scene)


def rgb(colour: str) -> list[float]:
    return [QColor(colour).redF(), QColor(colour).greenF(), QColor(colour).blueF()]


def luminance(colour: str) -> float:
    parts = rgb(colour)
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# the colours as seen without red cones, and without green ones (Machado, Oliveira & Fernandes 2009, severity 1)
BLIND = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("kind", BLIND)
def test_the_colours_are_distinguishable_and_text_on_them_has_enough_contrast(palette: Palette, kind: str) -> None:
    seen = [np.array(BLIND[kind]) @ rgb(c or palette.window) for c in palette.difference]
    for (i, one), (k, other) in combinations(enumerate(seen), 2):
        assert np.abs(one - other).max() > 0.04, (i, k)
    for less in (1, 2, 3):
        assert seen[less][0] > seen[less][2] + 0.03, "warm"
        assert seen[less + 3][2] > seen[less + 3][0] + 0.03, "cool"
    assert all(contrast(palette.text, colour or palette.window) > 4.5 for colour in palette.difference)
    for step in (1, 4):  # the stronger, the farther from the background
        grounds = [contrast(palette.window, palette.difference[i] or "") for i in range(step, step + 3)]
        assert grounds == sorted(grounds)


def test_a_difference_has_the_steps_of_the_legend() -> None:
    bits = np.array([np.nan, 0.0, 0.49, -0.49, 0.51, -0.51, 1.51, -1.51, 4.01, -4.01, np.inf, -np.inf])
    assert difference_steps(bits * np.log(2)).tolist() == [0, 0, 0, 0, 4, 1, 5, 2, 6, 3, 6, 3]
