"""A second model beside the first: chosen, compared, looked at, closed; by mouse and keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QAction, QColor, QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu

from runtime import Finish
from tests.ui.conftest import Scene, frames, until
from tests.ui.fake_second import QWEN
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import DARK, LIGHT, MainWindow, Palette, TokensArrived
from ui.second.compared import difference_steps
from ui.second.words import difference_ranges
from ui.setup.pages import MODEL
from ui.transcript import Measure, Mode
from ui.transcript.tokens import RARE, STEP

Play = Callable[[Scene], None]


def marks(window: MainWindow) -> list[bytes]:
    """The colours and underlines of all turns, as they are painted."""
    turns = window.parts.transcript._path.turns
    return [bytes(mark & (STEP | RARE) for mark in turn.tokens.marks) for turn in turns]


async def menu() -> QMenu:
    await until(lambda: isinstance(QApplication.activePopupWidget(), QMenu))
    found = QApplication.activePopupWidget()
    assert isinstance(found, QMenu)
    return found


def choose(popup: QMenu, action: QAction) -> None:
    QTest.mouseClick(popup, Qt.MouseButton.LeftButton, pos=popup.actionGeometry(action).center())


async def compare(window: MainWindow) -> None:
    """Chooses the last entry by the shortcut and the mouse."""
    window.activateWindow()
    QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
    popup = await menu()
    choose(popup, popup.actions()[-1])
    await until(lambda: QApplication.activePopupWidget() is None)


async def compared(window: MainWindow) -> None:
    await compare(window)
    await until(lambda: window.parts.transcript.colours.shows_difference)


def test_a_path_is_compared_with_a_model_of_the_shelf(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        # given the numbers of the model in use, in Read mode
        before = marks(window)
        window.stage.set_mode(Mode.READ)
        bench.gate = asyncio.Semaphore(0)
        # when another one is chosen
        QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        popup = await menu()
        entries = [action for action in popup.actions() if not action.isSeparator()]
        assert [action.text().split("\t")[0] for action in entries[1:]] == [each.label for each in bench.seconds]
        assert [action.isEnabled() for action in entries] == [False, False, True, True]
        assert "mlx is not here" in entries[1].text()
        choose(popup, entries[-1])
        # then its progress is told
        bar = window.parts.second
        await until(lambda: bar.isVisible() and bar.more.text() == "loading Qwen3…")
        bench.gate.release()
        await until(lambda: bar.more.text() == "comparing 33 %")
        assert marks(window) == before
        bench.gate.release()
        bench.gate.release()
        # and then the difference colours the tokens, in Tokens mode
        await until(lambda: window.parts.transcript.colours.shows_difference)
        assert window.stage.mode is Mode.TOKENS
        assert bench.asked("compare_with") == [(TRIP, "qwen3", False)]
        turns = bench.views[TRIP].turns
        expected = difference_steps(np.resize(np.array(bench.moved), sum(len(turn.run) for turn in turns)))
        shown = b"".join(marks(window))
        assert [mark & STEP for mark in shown] == expected.tolist()
        assert [bool(mark & RARE) for mark in shown] == [i % 3 == 0 for i in range(len(shown))]
        # and the line sums it up, the names as plain text
        assert bar.words.text().startswith("A SmolLM2 135M Instruct: perplexity ")
        assert "\nB Qwen3 <b>0.6B</b>: perplexity " in bar.words.text()
        assert bar.words.textFormat() is Qt.TextFormat.PlainText
        assert bar.more.text() == "15 of 44 places disagree about the likeliest token"
        # and nothing of it went into the session
        assert bench.views[TRIP].turns is turns

    in_window(scene)


def test_closing_it_leaves_everything_as_it_was(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.stage.colour_by(Measure.ENTROPY)
        before = marks(window)
        for close in ("x", "escape"):
            await compared(window)
            assert marks(window) != before
            assert window.acts.disagreement.isEnabled()
            if close == "x":
                QTest.mouseClick(window.parts.second.close_button, Qt.MouseButton.LeftButton)
            else:
                QTest.keyClick(window.parts.second.next_button, Qt.Key.Key_Escape)
            assert marks(window) == before
            assert window.parts.second.isHidden()
            assert window.parts.inspector.token.compared.isHidden()
            assert window.parts.status.legend.measure is Measure.ENTROPY
            assert "entropy" in window.parts.status.legend.accessibleName()
            assert not window.acts.disagreement.isEnabled()

    in_window(scene)


def test_the_inspector_and_the_card_show_both(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        turn = bench.views[TRIP].turns[1]
        window.stage.pin(turn.node_id, 3)
        rows = window.parts.inspector.token.compared
        assert rows.isHidden()
        await compared(window)
        # then what was pinned before has its numbers at once
        found = bench.comparison(TRIP)
        span = 7 + 3
        assert found.found.kl is not None
        assert rows.isVisible()
        assert [label.text() for label in rows.names] == ["A SmolLM2 135M Instruct", "B Qwen3 <b>0.6B</b>"]
        one, two = (float(side.logprob[span]) for side in found.found.sides)
        shown = [cell.text() for cell in rows.cells["logprob"]]
        assert shown == [f"{one:.3f}".replace("-", "−"), f"{two:.3f}".replace("-", "−")]
        assert [cell.text() for cell in rows.cells["likeliest"]] == ["␣same", "␣same"]
        assert rows.facts.texts["KL"] == f"{found.found.kl[span]:.3f} nats"
        assert rows.facts.texts["B − A"].endswith("bits")
        # and so has the card over another token, in words too
        tokens = window.parts.transcript.tokens
        box = tokens.token_box(turn.node_id, 5)
        assert box is not None
        at = QPointF(box.center())
        move = QMouseEvent(
            QEvent.Type.MouseMove, at, QPointF(tokens.viewport().mapToGlobal(box.center())), Qt.MouseButton.NoButton,
            Qt.MouseButton.NoButton, Qt.KeyboardModifier.NoModifier,
        )  # fmt: skip
        QApplication.sendEvent(tokens.viewport(), move)
        card = window.parts.transcript.card
        await until(lambda: card.content is not None)
        assert card.content is not None
        lines = dict(card.content.lines)
        assert list(lines)[1:] == ["B − A", "KL"]
        assert lines["B − A"] == "+5.77 bits"
        assert lines["KL"] == f"{found.found.kl[12]:.3f} nats"
        assert "KL" in card.accessibleName()

    in_window(scene)


def test_next_disagreement_goes_round(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        first, second, *_ = bench.views[TRIP].turns
        pins = []
        QTest.mouseClick(window.parts.second.next_button, Qt.MouseButton.LeftButton)
        pins.append(window.parts.transcript.pinned)
        for _ in range(3):
            QTest.keyClick(window, Qt.Key.Key_J, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
            pins.append(window.parts.transcript.pinned)
        assert pins == [(first.node_id, 0), (first.node_id, 3), (first.node_id, 6), (second.node_id, 2)]
        assert window.parts.inspector.token.spot is not None
        assert window.parts.inspector.token.compared.note.text() == "They would have gone on differently here."
        for _ in range(11 + 1):
            window.acts.disagreement.trigger()
        assert window.parts.transcript.pinned == (first.node_id, 0)

    in_window(scene)


def test_two_tokens_of_one_span(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.by_bytes = True
        await compared(window)
        assert window.parts.second.more.text().endswith("the tokenizers differ, so they are aligned by bytes")
        turn = bench.views[TRIP].turns[0]
        shown = marks(window)[0]
        assert [mark & STEP for mark in shown[0::2]][:3] == [mark & STEP for mark in shown[1::2]]
        assert not any(mark & RARE for mark in shown[1::2])  # only where a span begins
        window.stage.pin(turn.node_id, 1)
        rows = window.parts.inspector.token.compared
        assert [cell.text() for cell in rows.cells["tokens"]] == ["2", "2"]
        assert [cell.text() for cell in rows.cells["rank"]] == ["–", "–"]
        assert rows.facts.texts["KL"] == "–"
        assert "Where should" in rows.note.text()

    in_window(scene)


def test_it_is_stopped_in_the_middle(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        before = marks(window)
        bench.gate = asyncio.Semaphore(1)
        await compare(window)
        await until(lambda: "33 %" in window.parts.second.more.text())
        assert window.parts.second.close_button.accessibleName() == "Stop comparing"
        QTest.mouseClick(window.parts.second.close_button, Qt.MouseButton.LeftButton)
        await until(lambda: len(window.desk.tasks) == 0)
        bench.gate = None
        await frames()
        assert window.parts.second.isHidden()
        assert marks(window) == before

    in_window(scene)


def test_another_comparison_ends_the_one_before(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        bench.gate = asyncio.Semaphore(0)
        await compare(window)
        assert not window.parts.transcript.colours.shows_difference
        bench.gate = None
        await compared(window)
        assert len(bench.asked("compare_with")) == 3

    in_window(scene)


def test_what_goes_wrong_is_said_in_the_line(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bar = window.parts.second
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


def test_where_memory_is_short_it_can_be_tried_all_the_same(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.short_of_room = True
        await compare(window)
        bar = window.parts.second
        await until(lambda: "4.2 GB" in bar.words.text())
        assert bar.again_button.text() == "Compare anyway"
        QTest.mouseClick(bar.again_button, Qt.MouseButton.LeftButton)
        await until(lambda: window.parts.transcript.colours.shows_difference)
        assert bench.asked("compare_with") == [(TRIP, "qwen3", False), (TRIP, "qwen3", True)]

    in_window(scene)


def test_another_session_ends_it(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        window.desk.open(3)
        await until(lambda: window.desk.is_shown(3))
        assert window.parts.second.isHidden()
        assert not window.parts.transcript.colours.shows_difference
        window.desk.open(TRIP)
        await until(lambda: window.desk.is_shown(TRIP))
        bench.gate = asyncio.Semaphore(0)
        await compare(window)
        await until(lambda: "loading" in window.parts.second.more.text())
        window.desk.open(3)
        await until(lambda: window.desk.is_shown(3) and len(window.desk.tasks) == 0)
        assert window.parts.second.isHidden()

    in_window(scene)


def test_what_comes_meanwhile_has_no_colour(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        last = bench.views[TRIP].turns[-1]
        before = marks(window)
        more = last.run[:3]
        bench.emit(TokensArrived(TRIP, last.node_id, more))
        await until(lambda: len(marks(window)[-1]) == len(before[-1]) + 3)
        assert marks(window)[:-1] == before[:-1]
        assert marks(window)[-1] == before[-1] + bytes(3)
        window.stage.pin(last.node_id, len(before[-1]))
        assert window.parts.inspector.token.compared.isHidden()
        QTest.mouseClick(window.parts.second.close_button, Qt.MouseButton.LeftButton)
        assert any(marks(window)[-1][-3:])

    in_window(scene)


def test_the_legend_has_the_difference_while_there_is_one(in_window: Play) -> None:
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
        assert window.parts.second.isVisible()  # the numbers are still there
        await until(lambda: QApplication.activePopupWidget() is None)
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        popup = await menu()
        choose(popup, popup.actions()[0])
        assert marks(window) == shown
        await until(lambda: QApplication.activePopupWidget() is None)
        QTest.mouseClick(window.parts.second.close_button, Qt.MouseButton.LeftButton)
        QTest.mouseClick(legend, Qt.MouseButton.LeftButton)
        popup = await menu()
        assert "difference" not in [action.text().split("\t")[0] for action in popup.actions()]
        popup.close()

    in_window(scene)


def test_the_second_model_is_kept_on_request(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        keep = window.parts.second.keep
        assert not keep.isChecked()
        QTest.keyClick(keep, Qt.Key.Key_Space)
        await until(lambda: bench.asked("keep_second") == [(True,)])
        await compared(window)
        assert keep.isChecked()

    in_window(scene)


def test_the_models_popover_has_it_too(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.popover.open(MODEL)
        QTest.mouseClick(window.popover.model.compare_button, Qt.MouseButton.LeftButton)
        popup = await menu()
        assert popup.accessibleName() == "Compare with"
        assert not window.popover.isVisible()
        bench.seconds = [QWEN]
        popup.close()

    in_window(scene)


def test_the_end_token_stays_hidden(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        turn = bench.views[TRIP].turns[1]
        turn.run.finish[-1] = int(Finish.EOS)
        await compared(window)
        held = window.parts.transcript._path.turns[1].tokens.marks[-1]  # what is painted
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


# what is seen without red cones, and without green ones (Machado, Oliveira & Fernandes 2009, severity 1)
BLIND = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("kind", BLIND)
def test_the_colours_are_told_apart_and_read_on(palette: Palette, kind: str) -> None:
    seen = [np.array(BLIND[kind]) @ rgb(c or palette.window) for c in palette.difference]
    for (i, one), (k, other) in combinations(enumerate(seen), 2):
        assert np.abs(one - other).max() > 0.04, (i, k)
    for less in (1, 2, 3):
        assert seen[less][0] > seen[less][2] + 0.03, "warm"
        assert seen[less + 3][2] > seen[less + 3][0] + 0.03, "cool"
    assert all(contrast(palette.text, colour or palette.window) > 4.5 for colour in palette.difference)
    for step in (1, 4):  # the stronger, the farther from the ground
        grounds = [contrast(palette.window, palette.difference[i] or "") for i in range(step, step + 3)]
        assert grounds == sorted(grounds)


def test_steps_of_a_difference() -> None:
    bits = np.array([np.nan, 0.0, 0.49, -0.49, 0.51, -0.51, 1.51, -1.51, 4.01, -4.01, np.inf, -np.inf])
    assert difference_steps(bits * np.log(2)).tolist() == [0, 0, 0, 0, 4, 1, 5, 2, 6, 3, 6, 3]
