"""Comparing with a second model: chosen, computed, inspected, closed; by mouse and keys."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct
from PySide6.QtCore import QEvent, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.comparison.comparison_window import Play, choose, compared, marks, menu
from tests.ui.conftest import until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import MainWindow
from ui.comparison.model_facts import difference_steps, summary
from ui.transcript import Measure, Mode
from ui.transcript.tokens import RARE, STEP


@pytest.mark.slow
def test_a_path_is_compared_with_a_model_of_the_shelf(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        # given the numbers of the model in use, in Read mode
        before = marks(window)
        window.presenter.set_mode(Mode.READ)
        bench.gate = asyncio.Semaphore(0)
        # when another one is chosen
        QTest.keyClick(window, Qt.Key.Key_D, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        popup = await menu()
        entries = [action for action in popup.actions() if not action.isSeparator()]
        assert [action.text().split("\t")[0] for action in entries[1:]] == [each.label for each in bench.comparison_choices]
        assert [action.isEnabled() for action in entries] == [False, False, True, True]
        assert "mlx is not here" in entries[1].text()
        choose(popup, entries[-1])
        # then its progress is shown
        bar = window.parts.comparison
        await until(lambda: bar.isVisible() and bar.more.text() == "loading Qwen3…")
        bench.gate.release()
        await until(lambda: bar.more.text() == "comparing 33 %")
        assert marks(window) == before
        bench.gate.release()
        bench.gate.release()
        # and then the difference colours the tokens, in Tokens mode
        await until(lambda: window.parts.transcript.colours.shows_difference)
        assert window.presenter.mode is Mode.TOKENS
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
        left = window.parts.transcript.tokens.column()[0]  # its words are aligned with the text
        assert bar.words.mapTo(window, bar.words.rect().topLeft()).x() == bar.mapTo(window, bar.rect().topLeft()).x() + left
        assert bar.more.text() == "the likeliest token differs at 15 of 44 places"
        # and the session is unchanged
        assert bench.views[TRIP].turns is turns

    in_window(scene)


@pytest.mark.slow
def test_closing_a_comparison_restores_the_colours_and_the_legend(in_window: Play) -> None:
    async def scene(window: MainWindow) -> None:
        window.presenter.colour_by(Measure.ENTROPY)
        before = marks(window)
        for close in ("x", "escape"):
            await compared(window)
            assert marks(window) != before
            assert window.acts.disagreement.isEnabled()
            if close == "x":
                QTest.mouseClick(window.parts.comparison.close_button, Qt.MouseButton.LeftButton)
            else:
                QTest.keyClick(window.parts.comparison.next_button, Qt.Key.Key_Escape)
            assert marks(window) == before
            assert window.parts.comparison.isHidden()
            assert window.parts.inspector.token.compared.isHidden()
            assert window.parts.status.legend.measure is Measure.ENTROPY
            assert "entropy" in window.parts.status.legend.accessibleName()
            assert not window.acts.disagreement.isEnabled()

    in_window(scene)


@pytest.mark.slow
def test_the_inspector_and_the_card_show_the_numbers_of_both_models(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        turn = bench.views[TRIP].turns[1]
        window.presenter.pin(turn.node_id, 3)
        rows = window.parts.inspector.token.compared
        assert rows.isHidden()
        await compared(window)
        # then the token pinned before has the numbers at once
        found = bench.comparison.made(TRIP)
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


def test_the_kl_of_all_tokens_can_be_requested_when_only_that_of_the_last_is_known(
    in_window: Play, bench: FakeWorkbench
) -> None:
    bench.kl_from = 15

    async def scene(window: MainWindow) -> None:
        bar, rows = window.parts.comparison, window.parts.inspector.token.compared
        await compared(window)
        said = bar.more.text()
        assert re.search(r"; KL for the last \d+ tokens$", said)
        window.presenter.pin(bench.views[TRIP].turns[1].node_id, 3)  # the path's token 10
        assert rows.facts.texts["KL"] == "–"
        assert rows.note.text().endswith(
            f"KL is known for the {said[said.index('last') :]}; “KL of all tokens” computes the others."
        )
        wide = bench.comparison.made(TRIP)
        wide = replace_struct(wide, found=replace(wide.found, kl=None))
        assert summary(wide)[1].endswith("; the vocabulary sizes differ: no KL")
        # when
        QTest.mouseClick(bar.all_button, Qt.MouseButton.LeftButton)
        await until(lambda: "KL" not in bar.more.text() and not bar.all_button.isVisible() and bar.next_button.isVisible())
        # then
        assert bench.wanted_all == [False, True]
        assert "KL is known" not in rows.note.text()

    in_window(scene)


@pytest.mark.slow
def test_next_disagreement_wraps_round(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await compared(window)
        first, second, *_ = bench.views[TRIP].turns
        pins = []
        QTest.mouseClick(window.parts.comparison.next_button, Qt.MouseButton.LeftButton)
        pins.append(window.parts.transcript.pinned)
        for _ in range(3):
            QTest.keyClick(window, Qt.Key.Key_J, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
            pins.append(window.parts.transcript.pinned)
        assert pins == [(first.node_id, 0), (first.node_id, 3), (first.node_id, 6), (second.node_id, 2)]
        assert window.parts.inspector.token.spot is not None
        assert window.parts.inspector.token.compared.note.text() == "The two models would have continued differently here."
        for _ in range(11 + 1):
            window.acts.disagreement.trigger()
        assert window.parts.transcript.pinned == (first.node_id, 0)

    in_window(scene)


@pytest.mark.slow
def test_tokens_aligned_by_bytes_share_the_numbers_of_their_span(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.by_bytes = True
        await compared(window)
        assert window.parts.comparison.more.text().endswith("the tokenizers differ: aligned by bytes, without KL")
        turn = bench.views[TRIP].turns[0]
        shown = marks(window)[0]
        assert [mark & STEP for mark in shown[0::2]][:3] == [mark & STEP for mark in shown[1::2]]
        assert not any(mark & RARE for mark in shown[1::2])  # only at the beginning of a span
        window.presenter.pin(turn.node_id, 1)
        rows = window.parts.inspector.token.compared
        assert [cell.text() for cell in rows.cells["tokens"]] == ["2", "2"]
        assert [cell.text() for cell in rows.cells["rank"]] == ["–", "–"]
        assert rows.facts.texts["KL"] == "–"
        assert "Where should" in rows.note.text()

    in_window(scene)
