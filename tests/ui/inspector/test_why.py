"""The Why tab: a draw as it was, and the draws of other settings with the same random number."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QStyle, QStyleOptionSlider

from runtime import SamplingOptions, TokenRun, make_sampler, replay_draw
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.inspector.draws import MODEL, drawing_of, drawn_run, row_of
from tests.ui.inspector.test_inspector import spot_of
from tests.ui.spoken import Vocabulary
from tests.ui.transcript.conftest import centre
from ui import EngineState, MainWindow, SessionView, StatusChanged, StatusView, TurnStatus
from ui.inspector import Inspector
from ui.inspector.replay import candidates, replayed
from ui.inspector.stage_rows import DialRow
from ui.inspector.why import WhyTab

Play = Callable[[Scene], None]
SHARES = (0.3, 0.2, 0.12, 0.08, 0.06, 0.05, 0.04, 0.03, 0.02, 0.01)
IN_FORCE = SamplingOptions(temperature=0.8, top_p=0.95, min_p=0.05)
FIRST = 1000  # the fake vocabulary's first id
ROW = row_of(SHARES, 3000, FIRST)


@pytest.fixture
def inspector(inspector: Inspector) -> Inspector:
    """Its Why tab, with room for all of it."""
    inspector.resize(332, 900)
    QTest.mouseClick(inspector.tabs[3], Qt.MouseButton.LeftButton)
    return inspector


def show(
    inspector: Inspector, vocabulary: Vocabulary, sampling: SamplingOptions | None = IN_FORCE, **more: Any
) -> tuple[WhyTab, TokenRun]:
    run = drawn_run(vocabulary, ROW, sampling or IN_FORCE)
    spot = spot_of(run)
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    inspector.why.show_drawing(spot.node_id, spot.index, drawing_of(sampling, **more))
    return inspector.why, run


def move(row: DialRow, place: int) -> None:
    """Drags the handle with the mouse."""
    slider = row.slider
    option = QStyleOptionSlider()
    slider.initStyleOption(option)
    handle = slider.style().subControlRect(QStyle.ComplexControl.CC_Slider, option, QStyle.SubControl.SC_SliderHandle, slider)
    start = handle.center()
    span = slider.width() - handle.width()
    beyond = {0: -20, 1000: 20}.get(place, 0)  # pixels past the end, as in a hasty drag
    end = QPoint(round(span * place / 1000 + handle.width() / 2) + beyond, start.y())
    QTest.mousePress(slider, Qt.MouseButton.LeftButton, pos=start)
    QTest.mouseMove(slider, end)
    QTest.mouseRelease(slider, Qt.MouseButton.LeftButton, pos=end)


def test_the_stored_stages_are_shown_until_a_slider_moves(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, run = show(inspector, vocabulary)
    record = run.record(0)
    assert record.stages is not None
    # then the sliders have the settings in force
    assert {name: row.slider.setting for name, row in tab.dials.rows.items() if not row.isHidden()} == {
        "repetition_penalty": 1.0, "temperature": 0.8, "top_k": 0.0, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0,
    }  # fmt: skip
    # and each active stage shows how many tokens it kept, and the probability of the token after it
    kept = {stage.name: stage.kept for stage in record.stages}
    rows = tab.dials.rows
    assert tab.dials.raw.kept.text() == f"{kept['raw']:,}"
    assert rows["temperature"].kept.text() == f"{kept['temperature']:,}"
    assert rows["top_p"].kept.text() == f"{kept['top_p']:,}"
    assert (rows["top_k"].kept.text(), rows["top_k"].share.text()) == ("", "")
    assert tab.outcome.token == record.token_id == record.redrawn
    assert tab.outcome.as_drawn
    assert tab.outcome.u == record.stages[-1].u
    assert "drew" in tab.verdict.text()
    assert tab.reset.isHidden()
    assert tab.note.isHidden()
    assert tab.source.text() == f"numbers of {MODEL} · seed 7, position 3"


def test_a_slider_draws_again_with_the_same_random_number(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, run = show(inspector, vocabulary)
    # when top-p is dragged to its lower end
    move(tab.dials.rows["top_p"], 0)
    # then only the likeliest token is left, and it is drawn
    assert tab.dials.sampling.top_p == pytest.approx(0.01, abs=0.02)
    assert tab.dials.rows["top_p"].kept.text() == "1"
    assert tab.outcome.token == FIRST
    assert tab.outcome.u == run.record(0).stages[-1].u  # type: ignore[index]  # the record has stages
    assert run.ids[0] != FIRST
    assert "would draw ␣Paris instead" in tab.verdict.text()
    # and the stage that cut the others is named
    cut = {line.candidate.token: line.candidate.cut_by for line in tab.table.lines}
    assert cut[FIRST] == ""
    assert set(cut.values()) == {"", "top_p"}
    assert "␣Rome: raw .200, after the sampler cut by top-p" in tab.table.accessibleDescription()
    # when it is reset
    assert tab.reset.isVisible()
    QTest.mouseClick(tab.reset, Qt.MouseButton.LeftButton)
    assert tab.dials.sampling == IN_FORCE
    assert tab.outcome.as_drawn
    assert tab.reset.isHidden()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"])
@pytest.mark.parametrize("keys", [Qt.Key.Key_PageDown, Qt.Key.Key_PageUp])
def test_every_slider_moves_by_keys_and_gives_the_same_draw_as_the_runtime(
    inspector: Inspector, vocabulary: Vocabulary, name: str, keys: Qt.Key
) -> None:
    tab, run = show(inspector, vocabulary)
    row = tab.dials.rows[name]
    before = row.slider.setting
    row.slider.setFocus()
    for _ in range(3):
        QTest.keyClick(row.slider, keys)
    at_an_end = (row.slider.setting, keys) if row.slider.setting == before else None
    # then the shown draw is the replay of the runtime, with the same history
    if at_an_end is None:
        expected = replay_draw(run.record(0), tab.dials.sampling, position=3, history=[1, 2, 3])
        assert tab.outcome.token == expected.token
        assert tab.outcome.stages == expected.stages
    else:  # it was at that end already: nothing moved or changed
        assert tab.dials.sampling == IN_FORCE
        assert tab.outcome.as_drawn


def test_a_draw_beyond_the_stored_top_tokens_is_not_guessed(inspector: Inspector, vocabulary: Vocabulary) -> None:
    # given a random number close to 1, so that without cuts a rare token is drawn
    seed = next(s for s in range(200) if make_sampler(SamplingOptions(), s).draw(ROW, 3)[1] > 0.97)
    run = drawn_run(vocabulary, ROW, IN_FORCE, seed=seed)
    spot = spot_of(run)
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    tab = inspector.why
    tab.show_drawing(spot.node_id, spot.index, drawing_of(IN_FORCE, seed=seed, can_ask=True))
    # when every cut is switched off
    move(tab.dials.rows["top_p"], 1000)
    move(tab.dials.rows["min_p"], 0)
    move(tab.dials.rows["temperature"], 1000)
    assert tab.outcome.token is None
    assert tab.verdict.text() == "Draws a token that is not among the 64 stored."
    assert "based on the 64 likeliest tokens" in tab.note.text()
    # when the whole row is requested from the model
    asked: list[tuple[int, int]] = []
    tab.row_wanted.connect(lambda node, index: asked.append((node, index)))
    QTest.mouseClick(tab.ask, Qt.MouseButton.LeftButton)
    assert asked == [(spot.node_id, spot.index)]
    tab.show_row(spot.node_id, spot.index, ROW)
    # then the token is shown that the sampler itself draws with this seed
    settings = tab.dials.sampling
    assert tab.outcome.token == make_sampler(settings, seed).draw(ROW, 3)[0]
    assert tab.outcome.whole
    assert tab.note.isHidden()
    assert tab.ask.isHidden()


def test_a_greedy_draw_shows_the_likeliest_and_no_cuts(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, _ = show(inspector, vocabulary)
    move(tab.dials.rows["temperature"], 0)
    assert tab.dials.sampling.temperature == 0.0
    assert tab.outcome.token == FIRST
    assert "The likeliest: " in tab.verdict.text()
    assert tab.dials.rows["top_p"].kept.text() == ""


def test_a_token_of_a_beam_search_shows_that_nothing_was_drawn(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, _ = show(inspector, vocabulary, beams=4, sampling=None, seed=None)
    assert tab.source.text() == f"numbers of {MODEL} · found by a beam search of 4 beams"
    assert "what sampling would have done" in tab.note.text()


def test_numbers_of_another_model_are_marked_as_outdated_and_no_row_is_offered(
    inspector: Inspector, vocabulary: Vocabulary
) -> None:
    tab, _ = show(inspector, vocabulary, stale="Qwen3 0.6B")
    assert tab.stale.words == "outdated: Qwen3 0.6B is in use now and may differ"
    assert tab.ask.isHidden()
    assert tab.dials.isVisible()  # the stored draw can be replayed all the same


def test_a_token_without_stages_shows_the_reason_and_can_be_recomputed(inspector: Inspector, vocabulary: Vocabulary) -> None:
    run = drawn_run(vocabulary, ROW, IN_FORCE)
    bare = TokenRun.from_columns({k: v for k, v in run.to_columns().items() if not k.startswith("stage_")})
    spot = spot_of(bare)
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    tab = inspector.why
    tab.show_drawing(spot.node_id, spot.index, drawing_of(IN_FORCE, can_ask=True))
    assert tab.missing.text() == "No sampler stages are stored with this token. A model on a server draws its tokens there."
    assert not tab.dials.isVisible()
    # but a running model can compute the row, and then the stored seed draws the same token again
    assert tab.ask.isVisible()
    tab.show_row(spot.node_id, spot.index, ROW)
    assert tab.dials.isVisible()
    assert tab.outcome.token == run.ids[0]
    assert "draws" in tab.verdict.text()


def test_settings_that_were_not_stored_are_not_guessed(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, run = show(inspector, vocabulary, None)
    assert tab.outcome.as_drawn
    assert tab.outcome.token == run.ids[0]
    assert "were not stored" in tab.note.text()


def test_the_same_token_again_keeps_the_sliders(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, run = show(inspector, vocabulary)
    move(tab.dials.rows["temperature"], 900)
    moved = tab.dials.sampling
    inspector.show_spot(spot_of(run), vocabulary.bytes_of, can_choose=True)  # another node id each time
    assert tab.dials.sampling == moved  # until its drawing arrives
    spot = inspector.token.spot
    assert spot is not None
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    assert tab.dials.sampling == moved


def test_a_row_of_a_large_vocabulary_is_quick_enough_for_a_slider(vocabulary: Vocabulary) -> None:
    """Counts the calls of the sampler, not their time: the benchmarks measure seconds."""
    rng = np.random.default_rng(0)
    row = rng.normal(0, 3, 50_000)
    row = (row - np.log(np.exp(row).sum())).astype(np.float32)
    spot, drawing = spot_of(drawn_run(vocabulary, row, IN_FORCE)), drawing_of(IN_FORCE)
    outcome = replayed(spot, drawing, SamplingOptions(temperature=1.3, top_p=0.9, typical_p=0.9), row)
    assert outcome.whole
    began = time.thread_time()
    shown = candidates(outcome, 12, spot.record.token_id)
    assert time.thread_time() - began < 5  # seconds: a loop over the vocabulary would take longer
    assert len(shown) == 12


def test_emoji_chinese_and_right_to_left_tokens_are_shown_in_the_bars(inspector: Inspector) -> None:
    strange = Vocabulary(())
    for word in ("说", " 🎨", " שלום", " مرحبا", "\u202e", "\x1b[31m", " Rome", "a" * 400):
        strange.id_of(word)
    run = drawn_run(strange, ROW, IN_FORCE)
    spot = spot_of(run)
    inspector.show_spot(spot, strange.bytes_of, can_choose=True)
    inspector.why.show_drawing(spot.node_id, spot.index, drawing_of(IN_FORCE))
    spoken = inspector.why.table.accessibleDescription()
    assert "␣🎨: raw .200" in spoken
    assert "RLO" in spoken
    assert "ESC[31m" in spoken
    assert not inspector.grab().isNull()


@pytest.mark.slow
def test_a_draw_is_requested_only_while_its_tab_is_visible(in_window: Play, bench: FakeWorkbench) -> None:
    run = drawn_run(bench.vocabulary, ROW, IN_FORCE)
    answer = bench.turn("assistant", [], run=run)
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    bench.drawn = drawing_of(IN_FORCE)

    async def scene(window: MainWindow) -> None:
        why = window.parts.inspector.why
        QTest.mouseClick(
            window.parts.transcript.tokens.viewport(),
            Qt.MouseButton.LeftButton,
            pos=centre(window.parts.transcript, answer.node_id, 0),
        )
        await until(lambda: window.parts.inspector.token.spot is not None)
        assert bench.asked("drawing") == []
        # when the tab is opened
        QTest.mouseClick(window.parts.inspector.tabs[3], Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("drawing") == [(TRIP, answer.node_id, 0)])
        await until(lambda: why.dials.isVisible())
        # when another model is chosen
        bench.drawn = drawing_of(IN_FORCE, stale="Qwen3 0.6B")
        bench.emit(StatusChanged(StatusView(EngineState.STARTING)))
        await until(lambda: "outdated" in why.stale.words)
        # without a model the sliders still move
        bench.emit(StatusChanged(StatusView(EngineState.NONE)))
        await until(lambda: len(bench.asked("drawing")) == 3)
        move(why.dials.rows["temperature"], 800)
        assert why.outcome.stages
        assert not why.outcome.as_drawn
        # the reason of a refused row is shown in its place
        bench.refusal = "no model runs"
        why.row_wanted.emit(answer.node_id, 0)
        await until(lambda: why.note.text() == "no model runs")
        # the Token tab requests it too for numbers of a model on a server, and names the model and the server
        token, far = window.parts.inspector.token, StatusView(EngineState.READY, model="<big> at host", lacks=frozenset({"kv"}))
        bench.drawn = replace(bench.drawn, model="<big> at host")
        QTest.mouseClick(window.parts.inspector.tabs[0], Qt.MouseButton.LeftButton)
        assert token.source.isHidden()
        bench.emit(StatusChanged(far))
        await until(lambda: token.source.isVisible() and token.source.text() == "numbers of <big> at host")
        bench.emit(StatusChanged(replace(far, model="small", lacks=frozenset())))
        await until(token.source.isHidden)

    in_window(scene)


def test_the_token_drawn_with_other_settings_can_be_branched_to_with_one_press(in_window: Play, bench: FakeWorkbench) -> None:
    run = drawn_run(bench.vocabulary, ROW, IN_FORCE)
    answer = bench.turn("assistant", [], run=run)
    bench.views[TRIP] = SessionView(TRIP, "A spring trip", (bench.turn("user", ["Where", "?"]), answer), ())
    bench.drawn = drawing_of(IN_FORCE)

    async def scene(window: MainWindow) -> None:
        transcript, why = window.parts.transcript, window.parts.inspector.why
        QTest.mouseClick(window.parts.inspector.tabs[3], Qt.MouseButton.LeftButton)
        at = centre(transcript, answer.node_id, 0)
        QTest.mouseClick(transcript.tokens.viewport(), Qt.MouseButton.LeftButton, pos=at)
        await until(lambda: why.dials.isVisible())
        assert not why.branch.isVisible(), "nothing else was drawn"
        # given settings under which another token is drawn
        move(why.dials.rows["top_p"], 0)
        assert why.branch.text() == "Branch to ␣Paris"
        # when it is pressed
        QTest.mouseClick(why.branch, Qt.MouseButton.LeftButton)
        await until(lambda: bench.asked("branch") == [(TRIP, answer.node_id, 0, FIRST)])
        # then the model continues from there, and the inspector shows the same place in the branch
        await until(lambda: bench.views[TRIP].turns[-1].status is TurnStatus.COMPLETE)
        branch = bench.views[TRIP].turns[-1].node_id
        await until(lambda: transcript.pinned == (branch, 0) and not window.controller.running)
        spot = window.parts.inspector.token.spot
        assert spot is not None
        assert (spot.node_id, spot.record.token_id) == (branch, FIRST)

    in_window(scene)
