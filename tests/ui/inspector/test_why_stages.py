"""The stages of a draw in the Why tab: each can be chosen and shows its effect; each dial draws the same as a replay."""

from __future__ import annotations

from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from runtime import SamplingOptions, Stage, TokenRun, replay_draw
from tests.ui.inspector.draws import drawing_of, drawn_run
from tests.ui.inspector.test_inspector import spot_of
from tests.ui.inspector.test_why import FIRST, ROW, SHARES, move
from tests.ui.pseudo import clipped
from tests.ui.spoken import Vocabulary
from ui.inspector import Inspector
from ui.inspector.stage_rows import StageRow, cut_words
from ui.inspector.why import WhyTab
from ui.theme.text_size import resize_text
from ui.widgets.dials import DIALS
from ui.widgets.numbers import probability

ALL = SamplingOptions(
    logit_bias={FIRST + 1: 0.5}, banned_tokens=(FIRST + 8,), repetition_penalty=1.2, presence_penalty=0.1,
    frequency_penalty=0.1, dry_multiplier=0.4, dry_breakers=(), temperature=0.8, top_k=40, top_p=0.9, min_p=0.01,
    typical_p=0.97, xtc_probability=0.9, xtc_threshold=0.1,
)  # fmt: skip
SAID = (FIRST, FIRST + 2, FIRST + 3, FIRST, FIRST + 2)  # the history: it repeats tokens, for the penalties


@pytest.fixture
def inspector(inspector: Inspector) -> Inspector:
    """Its Why tab, with room for all of it."""
    inspector.resize(332, 1200)
    QTest.mouseClick(inspector.tabs[3], Qt.MouseButton.LeftButton)
    return inspector


@pytest.mark.parametrize("scale", [1.0, 1.5, 2.0])
def test_the_numbers_of_a_stage_are_never_cut_off(app: QApplication, qtbot: QtBot, scale: float) -> None:
    row = StageRow("raw")
    qtbot.addWidget(row)
    row.show()
    resize_text(app, scale)
    for kept, share in ((262_144, 0.9999), (151_936, 0.0001)):  # Gemma's vocabulary, and Qwen's
        row.show_result(kept, share)
        assert list(clipped(row)) == []
    resize_text(app, 1.0)


def show(inspector: Inspector, vocabulary: Vocabulary, sampling: SamplingOptions, **more: Any) -> tuple[WhyTab, TokenRun]:
    run = drawn_run(vocabulary, ROW, sampling, history=SAID, **more)
    spot = spot_of(run)
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    inspector.why.show_drawing(spot.node_id, spot.index, drawing_of(sampling, history=SAID))
    return inspector.why, run


def row_of_stage(tab: WhyTab, name: str) -> StageRow:
    return next(row for row in tab.dials.findChildren(StageRow) if row.stage == name and not row.isHidden())


def stages_of(run: TokenRun) -> dict[str, Stage]:
    return {stage.name: stage for stage in run.record(0).stages or ()}


NAMES = ("raw", "bias", "penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typical", "xtc", "draw")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", NAMES)
def test_each_stage_shows_its_effect_on_the_likeliest_tokens(inspector: Inspector, vocabulary: Vocabulary, name: str) -> None:
    tab, run = show(inspector, vocabulary, ALL)
    assert tuple(stages_of(run)) == NAMES
    # when its row is pressed
    QTest.mouseClick(row_of_stage(tab, name).name, Qt.MouseButton.LeftButton)
    # then the table has its own probabilities before and after, and the mass so far, as the runtime reports them
    stage = stages_of(run)[name]
    reported = {t: (b, a, c) for t, b, a, c in zip(stage.ids, stage.before, stage.after, stage.cumulative, strict=True)}
    shown = [line.candidate for line in tab.table.lines]
    assert tab.table.stage == name
    assert {one.token: (one.before, one.after, one.cumulative) for one in shown}.items() <= reported.items()
    # the likeliest tokens before it are among them, and the chosen token
    alive = [token for token, before in zip(stage.ids, stage.before, strict=True) if before > 0]
    assert [one.token for one in shown][:5] == alive[:5]
    assert run.record(0).token_id in {one.token for one in shown}
    # tokens that it cut name it, tokens that an earlier stage cut name that one
    for one in shown:
        if one.token in stage.cut:
            assert one.cut_by == name
        assert bool(one.cut_by) == (one.after == 0.0)
    first = shown[0]
    assert f"before {cut_words(name)} {probability(first.before)}, " in tab.table.accessibleDescription()
    assert f" mass so far {probability(first.cumulative)}, " in tab.table.accessibleDescription()
    assert tab.did.isVisible()
    # when it is pressed again, all stages are shown together
    QTest.mouseClick(row_of_stage(tab, name).name, Qt.MouseButton.LeftButton)
    assert tab.table.stage == ""
    assert not tab.did.isVisible()


def test_a_cut_shows_how_many_tokens_are_left_and_their_mass(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, run = show(inspector, vocabulary, SamplingOptions(top_p=0.69))
    QTest.mouseClick(row_of_stage(tab, "top_p").name, Qt.MouseButton.LeftButton)
    assert stages_of(run)["top_p"].kept == 4
    assert tab.did.text() == f"4 of 3,000 tokens are left, which had {probability(sum(SHARES[:4]))} of the mass."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("acts", "threshold", "said"),
    [
        (True, 0.1, "is below its chance of .500: of the tokens that reach .100, only the least likely one is kept."),
        (True, 0.25, "is below its chance of .500, but no two tokens reach .250: nothing was cut."),
        (False, 0.1, "is not below its chance of .500: it did nothing."),
    ],
)
def test_the_random_number_of_xtc_is_shown(
    inspector: Inspector, vocabulary: Vocabulary, acts: bool, threshold: float, said: str
) -> None:
    sampling = SamplingOptions(xtc_probability=0.5, xtc_threshold=threshold)
    numbers = {}
    for candidate in range(40):
        run = drawn_run(vocabulary, ROW, sampling, history=SAID, seed=candidate)
        numbers[candidate] = stages_of(run)["xtc"].u or 0.0
    wanted = next(s for s, u in numbers.items() if (u < 0.5) == acts)
    tab, run = show(inspector, vocabulary, sampling, seed=wanted)
    QTest.mouseClick(row_of_stage(tab, "xtc").name, Qt.MouseButton.LeftButton)
    number = f"{numbers[wanted]:.3f}".removeprefix("0")
    assert f"u\u00a0=\u00a0{number} {said}" in tab.did.text()


def test_a_stage_is_chosen_with_the_keyboard_and_stays_chosen_for_the_next_token(
    inspector: Inspector, vocabulary: Vocabulary
) -> None:
    tab, _ = show(inspector, vocabulary, SamplingOptions(temperature=0.8, top_p=0.9))
    row = row_of_stage(tab, "top_p")
    row.name.setFocus()
    QTest.keyClick(row.name, Qt.Key.Key_Space)
    assert tab.table.stage == "top_p"
    # when another token is shown that it also cut
    show(inspector, vocabulary, SamplingOptions(temperature=0.8, top_p=0.5))
    assert tab.table.stage == "top_p"
    # when a token drawn without it is shown, then all stages are shown together; its row cannot be pressed
    show(inspector, vocabulary, SamplingOptions(temperature=0.8))
    assert tab.table.stage == ""
    assert not row.name.isEnabled()
    assert not row.name.isChecked()
    # and when its slider switches it on, it is shown again
    move(tab.dials.rows["top_p"], 500)
    assert tab.table.stage == "top_p"
    assert row.name.isChecked()


def test_the_rows_are_in_the_order_in_which_the_stages_were_applied(inspector: Inspector, vocabulary: Vocabulary) -> None:
    tab, _ = show(inspector, vocabulary, SamplingOptions(temperature=0.8, top_p=0.9, order=("min_p", "top_p", "temperature")))
    inspector.grab()  # lays it out
    rows = sorted((row.y(), row.stage) for row in tab.dials.findChildren(StageRow) if not row.isHidden())
    assert [stage for _, stage in rows] == ["raw", "min_p", "top_p", "temperature", "draw"]
    show(inspector, vocabulary, SamplingOptions(temperature=0.8, top_p=0.9))
    inspector.grab()
    rows = sorted((row.y(), row.stage) for row in tab.dials.findChildren(StageRow) if not row.isHidden())
    assert [stage for _, stage in rows][-4:] == ["top_p", "min_p", "typical", "draw"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("setting", [dial.setting for dial in DIALS])
def test_dragging_a_dial_gives_the_same_draw_as_a_replay(inspector: Inspector, vocabulary: Vocabulary, setting: str) -> None:
    tab, run = show(inspector, vocabulary, ALL)
    before = tab.dials.rows[setting].slider.setting
    drawn = set()
    for place in (0, 120, 500, 830, 1000):
        # when the handle is dragged there
        move(tab.dials.rows[setting], place)
        settings = tab.dials.sampling
        # then the shown draw is that of the runtime with these settings and the stored numbers
        expected = replay_draw(run.record(0), settings, position=len(SAID), history=SAID)
        if getattr(settings, setting) != before:
            assert (tab.outcome.token, tab.outcome.stages) == (expected.token, expected.stages)
        drawn.add((tab.outcome.token, tuple(stage.kept for stage in tab.outcome.stages)))
        words = "drew" if tab.outcome.as_drawn else "draw" if tab.outcome.token is not None else "beyond"
        assert words in tab.verdict.text()
    # and the draws differ
    assert len(drawn) > 1 or setting in ("presence_penalty", "frequency_penalty", "dry_multiplier", "repetition_penalty")
    # and a penalty changes the shares of tokens of the history
    if setting.endswith("penalty"):
        said = next(line.candidate for line in tab.table.lines if line.candidate.token == FIRST)
        move(tab.dials.rows[setting], 0)
        assert next(line.candidate for line in tab.table.lines if line.candidate.token == FIRST).after != said.after
