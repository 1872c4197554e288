"""The inspector's display of tokens, paths and the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from runtime import Finish, Origin, Stage, TokenRun
from tests.ui.fakes import FakeWorkbench
from tests.ui.spoken import Vocabulary, ended, run_of
from tests.ui.transcript.conftest import PATIENCE_MS
from ui import EngineState, Made, ResolvedOption, SessionView, StatusView, Tier
from ui.core.shown import Shown, Spot
from ui.inspector import Inspector, words
from ui.inspector.cache import CacheTab
from ui.inspector.path import numbers_of
from ui.inspector.token import alternatives_of
from ui.theme import current_theme


def spot_of(run: TokenRun, index: int = 0) -> Spot:
    view = SessionView(1, "", (FakeWorkbench().turn("assistant", ["x"]),), ())
    shown = Shown(view)
    shown.append(view.turns[0].node_id, run)
    spot = shown.spot(view.turns[0].node_id, index + 1)
    assert spot is not None
    return spot


def test_a_token_and_its_numbers(inspector: Inspector, vocabulary: Vocabulary) -> None:
    run = run_of(vocabulary, [" Lisbon"], [math.log2(1 / 0.098)])
    inspector.show_spot(spot_of(run), vocabulary.bytes_of, can_choose=True)
    tab = inspector.token
    assert tab.large.text() == "␣Lisbon"
    assert tab.facts.texts == {
        "probability": ".098",
        "rank": "3",
        "logprob": "−2.323 nats",
        "surprise": "3.35 bits",
        "entropy": "2.99 bits",
        "top-10 mass": "94.2 %",
        "id": "1002",
        "bytes": "20 4c 69 73 …",
    }
    assert tab.why.texts == {"raw": ".098", "came from": "sampled by the model", "drawn": "u = .783"}
    assert inspector.why.why.texts == tab.why.texts
    said = [button.accessibleName() for button in tab.alternatives.buttons]
    assert said[0] == "␣Paris, probability .412, rank 1"
    assert said[2] == "␣Lisbon, probability .098, rank 3, chosen"


def test_pressing_an_alternative_emits_turn_place_and_token(inspector: Inspector, vocabulary: Vocabulary, qtbot: QtBot) -> None:
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    buttons = inspector.token.alternatives.buttons
    with qtbot.waitSignal(inspector.token.alternative_chosen) as asked:
        QTest.mouseClick(buttons[0], Qt.MouseButton.LeftButton)
    assert asked.args == [spot.node_id, spot.index, vocabulary.id_of(" Paris")]
    # the token itself is no alternative
    with qtbot.assertNotEmitted(inspector.token.alternative_chosen):
        QTest.mouseClick(buttons[2], Qt.MouseButton.LeftButton)
    # and without a possible branch a press emits nothing
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=False)
    with qtbot.assertNotEmitted(inspector.token.alternative_chosen):
        QTest.mouseClick(buttons[0], Qt.MouseButton.LeftButton)
        inspector.token.alternatives.press(1)


def test_actions_that_the_model_does_not_support_are_named_in_the_token_tab(
    inspector: Inspector, vocabulary: Vocabulary
) -> None:
    token, ready = inspector.token, StatusView(EngineState.READY, model="big at host")
    spot = spot_of(run_of(vocabulary, [" Lisbon"], [3.0]))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True, can_continue=True)
    inspector.show_status(ready)
    assert (token.beam_rows.isEnabled(), token.lacking.isHidden()) == (True, True)
    inspector.show_status(replace_struct(ready, lacks=frozenset({"beam_generate"})))
    assert (token.beam_rows.isEnabled(), token.draws.isEnabled()) == (False, True)
    assert (token.lacking.text(), token.lacking.isHidden()) == (
        "big at host has no beam search.",
        False,
    )
    inspector.show_status(replace_struct(ready, lacks=frozenset({"beam_generate", "token_ids"})))
    assert token.lacking.text() == "big at host returns no token ids, so a branch cannot start at a token."
    inspector.show_spot(None, vocabulary.bytes_of, can_choose=False)
    assert token.lacking.isHidden()


def test_a_token_outside_the_top_is_listed_last(vocabulary: Vocabulary) -> None:
    record = run_of(vocabulary, [" Reykjavik"], [12.0]).record(0)
    made = alternatives_of(record, vocabulary.bytes_of)
    assert len(made) == 11
    assert (made[-1].data, made[-1].place, made[-1].chosen) == (b" Reykjavik", 13, True)
    assert [m.chosen for m in made[:-1]] == [False] * 10
    assert made[0].share == 1.0


def test_alternatives_forbidden_by_a_grammar_or_a_ban_are_grey_with_the_reason(
    inspector: Inspector, vocabulary: Vocabulary
) -> None:
    run = run_of(vocabulary, [" Lisbon"], [math.log2(1 / 0.098)])
    spot = spot_of(run)
    ids = spot.record.top_ids[:4]
    raw = (0.4, 0.2, 0.1, 0.06)
    stages = (
        Stage("raw", 100, 1.0, None, ids, raw, raw, raw),
        Stage("grammar", 50, 1.0, None, ids, raw, (0.0, 0.5, 0.2, 0.1), raw),
        Stage("bias", 49, 1.0, None, ids, raw, (0.0, 0.0, 0.4, 0.2), raw),
        Stage("top_k", 1, 1.0, None, ids, raw, (0.0, 0.0, 1.0, 0.0), raw),  # a cut that forbids no token
    )
    spot = replace_struct(spot, record=replace(spot.record, stages=stages))
    inspector.show_spot(spot, vocabulary.bytes_of, can_choose=True)
    buttons = inspector.token.alternatives.buttons
    assert [button.alternative.forbidden for button in buttons[:4] if button.alternative is not None] == [
        "not allowed by the format", "banned", "", "",
    ]  # fmt: skip
    assert buttons[0].accessibleName() == "␣Paris, probability .412, rank 1, not allowed by the format"
    assert "banned" in buttons[1].toolTip()
    # and drawn: its bar does not have the colour of a possible token
    colours = {QColor(image.pixel(x, y)).name() for image in [buttons[0].grab().toImage()]
               for x in range(image.width()) for y in range(image.height())}  # fmt: skip
    assert current_theme().palette.bar_rest not in colours
    free = buttons[3].grab().toImage()
    assert current_theme().palette.bar_rest in {
        QColor(free.pixel(x, y)).name() for x in range(free.width()) for y in range(free.height())
    }


def test_without_a_vocabulary_ids_are_shown_for_words(vocabulary: Vocabulary) -> None:
    record = run_of(vocabulary, [" Lisbon"], [3.0]).record(0)

    def unknown(_ids: Sequence[int]) -> list[bytes]:
        return []

    made = alternatives_of(record, unknown)
    assert (made[0].data, made[2].data) == (b"#1000", b" Lisbon")


def test_an_unscored_token_is_marked_as_such_and_shows_no_numbers(inspector: Inspector, vocabulary: Vocabulary) -> None:
    run = TokenRun.unscored([7], [b"<|im_start|>"], ["<|im_start|>"], Origin.TEMPLATE)
    inspector.show_spot(spot_of(run), vocabulary.bytes_of, can_choose=True)
    tab = inspector.token
    assert tab.facts.texts == {"id": "7", "bytes": "3c 7c 69 6d …"}
    assert tab.unscored.isVisible()
    assert tab.why.texts == {"came from": "the chat template"}
    assert [b for b in tab.alternatives.buttons if b.isVisible()] == []


def test_without_a_token_the_tab_shows_its_empty_state(inspector: Inspector, vocabulary: Vocabulary) -> None:
    inspector.show_spot(spot_of(run_of(vocabulary, ["a"])), vocabulary.bytes_of, can_choose=True)
    inspector.show_spot(None, vocabulary.bytes_of, can_choose=False)
    assert inspector.token.empty.isVisible()
    assert not inspector.token.large.isVisible()
    assert not inspector.token.alternatives.isVisible()


def test_the_reason_why_an_answer_ended_is_shown(inspector: Inspector, vocabulary: Vocabulary) -> None:
    run = ended(run_of(vocabulary, ["a"], origin=Origin.PICKED), Finish.ENGINE_DIED)
    inspector.show_spot(spot_of(run), vocabulary.bytes_of, can_choose=True)
    texts = inspector.why.why.texts
    assert texts == {"raw": ".812", "came from": "picked by you", "ended the answer": "engine died"}


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b" Paris", "␣Paris"),
        (b"   ", "␣␣␣"),
        (b"\n\n", "↵↵"),
        (b"\xe2\x82", "e2 82"),
        ("漢".encode(), "漢"),
        (b"\x1b[31m", "ESC[31m"),
        ("\u202eabc".encode(), "RLOabc"),
        (b"x" * 1_000_000, "x" * 40 + "…"),
    ],
)
def test_invisible_characters_of_tokens_are_shown(data: bytes, shown: str) -> None:
    assert words.token(data) == shown


MADE = Made(
    {"model": "SmolLM2", "seed": "5 (drawn)", "generated": "12 tokens", "ended by": "length"},
    (ResolvedOption("temperature", "0.8", "preset"), ResolvedOption("grammar", "none", "default")),
)


def test_the_path_tab_shows_the_provenance_of_the_last_answer(inspector: Inspector) -> None:
    bench, asked = FakeWorkbench(), []
    turns = (bench.turn("user", ["Why", "?"]), bench.turn("assistant", ["So"]), bench.turn("user", ["And", "?"]))

    def how_made(node_id: int) -> Made | None:
        asked.append(node_id)
        return MADE

    # nothing is requested while the tab is hidden
    inspector.show_path(turns, how_made)
    assert asked == []
    inspector.tabs[1].click()
    provenance = inspector.path.provenance
    assert asked == [turns[1].node_id]
    assert provenance.facts.texts == dict(MADE.facts)
    # the options are shown on request, by the keyboard too
    assert not provenance.settings.isVisible()
    provenance.more.setFocus()
    QTest.keyClick(provenance.more, Qt.Key.Key_Space)
    assert provenance.settings.isVisible()
    assert provenance.settings.texts == {"temperature": "0.8 · preset", "grammar": "none · default"}
    assert provenance.more.text() == "Hide options"
    # an answer without stored provenance shows none
    inspector.show_path(turns, lambda _node: None)
    assert not provenance.isVisible()


def test_path_sums_include_only_tokens_of_the_model() -> None:
    bench = FakeWorkbench()
    turns = (bench.turn("user", ["a", "b"], [1, 1]), bench.turn("assistant", ["c", "d"], [2, 4]))
    numbers = numbers_of(turns)
    assert (numbers.tokens, numbers.scored, numbers.answered) == (4, 4, 2)
    assert numbers.logprob == pytest.approx(-6 * math.log(2))
    assert numbers.perplexity == pytest.approx(2**3)
    assert numbers.places == tuple((turn.node_id, i) for turn in turns for i in (0, 1))
    assert np.array_equal(numbers.entropies, np.concatenate([turn.run.entropy for turn in turns]))


def test_tokens_without_a_rank_are_counted_as_scored(inspector: Inspector) -> None:
    turn = FakeWorkbench().turn("assistant", ["c", "d"], [2, 4])
    unranked = replace_struct(turn, run=replace(turn.run, rank=np.zeros_like(turn.run.rank)))
    assert numbers_of((unranked,)).logprob == numbers_of((turn,)).logprob == pytest.approx(-6 * math.log(2))
    assert numbers_of((unranked,)).scored == 2
    inspector.show_path((unranked,))
    assert inspector.token.empty.button.text() == "Show an uncertain token"


def test_the_path_tab_shows_sums_and_a_click_on_its_timeline_chooses_a_token(inspector: Inspector, qtbot: QtBot) -> None:
    bench = FakeWorkbench()
    turns = (bench.turn("user", ["a", "b"], [1, 1]), bench.turn("assistant", ["c", "d"], [2, 4]))
    inspector.show_path(turns)
    QTest.mouseClick(inspector.tabs[1], Qt.MouseButton.LeftButton)
    path = inspector.path
    assert path.facts.texts["joint log-probability"] == "−4.2 nats"
    assert path.facts.texts["perplexity"] == "8.00"
    assert path.facts.texts["mean surprise"] == "3.00 bits"
    qtbot.waitUntil(lambda: path.timeline.width() > 200, timeout=PATIENCE_MS)
    with qtbot.waitSignal(inspector.path.token_chosen) as asked:
        QTest.mouseClick(path.timeline, Qt.MouseButton.LeftButton, pos=QPoint(path.timeline.width() - 1, 20))
    assert asked.args == [turns[1].node_id, 1]
    inspector.show_path(())
    assert path.empty.isVisible()


def test_no_timeline_is_shown_without_entropies(inspector: Inspector) -> None:
    bench = FakeWorkbench()
    turn = bench.turn("assistant", ["a", "b", "c"], [1, 2, 4])
    nothing = np.full(3, np.nan, np.float32)
    for entropies, shown in ((nothing, False), (np.array([0.5, np.nan, 1.5], np.float32), True), (nothing, False)):
        inspector.show_path((replace_struct(turn, run=replace(turn.run, entropy=entropies)),))  # a server returns none
        inspector.tabs[1].click()
        assert inspector.path.timeline.isVisible() is shown
        assert ("mean entropy" in inspector.path.facts.texts) is shown
        assert not inspector.path.grab().isNull()
        assert "perplexity" in inspector.path.facts.texts


def test_a_timeline_of_many_tokens_is_drawn_by_its_peaks(inspector: Inspector) -> None:
    inspector.tabs[1].click()
    values = np.zeros(100_000, np.float32)
    values[70_000] = 5.0
    inspector.path.timeline.show_values(values)
    inspector.path.timeline.show()
    assert not inspector.path.timeline.grab().isNull()


def test_the_cache_tab_shows_the_numbers_of_the_status(inspector: Inspector) -> None:
    cache = inspector.page(CacheTab)
    inspector.show_status(StatusView(EngineState.NONE))
    assert not cache.empty.isHidden()
    inspector.show_status(StatusView(EngineState.READY, "", 41.0, 0.2, 312, 1, 14_000_000, 2_000_000_000, {Tier.WARM: 3}))
    assert cache.empty.isHidden()
    assert cache.memory.texts == {"KV held": "14 MB", "budget": "2 GB", "used": "0.7 %"}
    assert cache.last.texts == {"prompt tokens": "313", "reused": "312", "computed": "1"}
    assert cache.turns.texts == {"warm, in memory": "3"}
