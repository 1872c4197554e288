"""Colours by another measure: the steps are those of the legend, and nothing is laid out again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pytestqt.qtbot import QtBot

from runtime import Origin, TokenRun
from tests.ui.transcript.conftest import Show
from tests.ui.transcript.samples import drawing as drawn
from tests.ui.transcript.samples import run_of, session, turn, written
from ui.transcript.measure import Measure, steps
from ui.transcript.tokens import STEP, Tokens


def run_with(**columns: Any) -> TokenRun:
    run = run_of([f"w{i}" for i in range(7)], [1.0] * 7, Origin.SAMPLED)
    arrays: dict[str, Any] = {name: np.asarray(values, getattr(run, name).dtype) for name, values in columns.items()}
    return replace(run, **arrays)


def test_every_step_begins_at_its_border() -> None:
    log2 = np.log(2)
    bits = [0.0, 0.49, 0.51, 1.6, 3.1, 5.1, 9.0]
    assert steps(run_with(logprob=np.array(bits) * -log2), Measure.SURPRISAL).tolist() == [0, 0, 1, 2, 3, 4, 5]
    shares = [1.0, 0.91, 0.89, 0.4, 0.19, 0.04, 0.001]
    assert steps(run_with(logprob=np.log(shares)), Measure.PROBABILITY).tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert steps(run_with(rank=[1, 1, 2, 3, 6, 11, 101]), Measure.RANK).tolist() == [0, 0, 1, 2, 3, 4, 5]
    entropy = [0.0, 0.4, 0.6, 1.6, 2.6, 4.1, 6.1]
    assert steps(run_with(entropy=np.array(entropy) * log2), Measure.ENTROPY).tolist() == [0, 0, 1, 2, 3, 4, 5]
    ahead = np.array([9.0, 4.1, 3.9, 1.9, 0.9, 0.4, 0.1]) * log2
    top = np.stack([np.full(7, -0.1), -0.1 - ahead], axis=1)
    run = replace(run_with(), top_ids=np.tile(np.arange(2, dtype=np.int32), (7, 1)), top_logprobs=top.astype(np.float32))
    assert steps(run, Measure.MARGIN).tolist() == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("measure", Measure)
def test_tokens_without_numbers_have_no_colour(measure: Measure) -> None:
    unscored = TokenRun.unscored([1, 2], [b"a", b"b"], ["a", "b"], Origin.TYPED)
    assert steps(unscored, measure).tolist() == [0, 0]
    assert steps(unscored[:0], measure).tolist() == []


@pytest.mark.parametrize("measure", [Measure.SURPRISAL, Measure.PROBABILITY, Measure.ENTROPY, Measure.MARGIN])
def test_a_token_without_a_rank_keeps_its_colour_in_the_other_measures(measure: Measure) -> None:
    known = run_with(logprob=[-0.1, -1, -2, -3, -4, -5, -9])
    unranked = replace(known, rank=np.zeros_like(known.rank))  # as for tokens beyond the list of a server
    assert steps(unranked, measure).tolist() == steps(known, measure).tolist()
    assert steps(unranked, Measure.RANK).tolist() == [0] * 7
    assert [mark & STEP for mark in Tokens(unranked, measure).marks] == steps(known, measure).tolist()


@pytest.mark.parametrize("measure", Measure)
def test_streamed_tokens_have_the_same_colours_as_loaded_ones(measure: Measure) -> None:
    run = written("Because| the=b| city=a| is| built=c|\n\n| for| slow=d| mornings=b|.| Be| cause=e")
    whole = Tokens(run, measure)
    streamed = Tokens(run[:0], measure)
    for i in range(len(run)):
        streamed.append(run[i : i + 1])
    recoloured = Tokens(run)
    recoloured.colour_by(measure)
    assert streamed.marks == whole.marks == recoloured.marks
    assert [mark & STEP for mark in whole.marks] == steps(run, measure).tolist()


def test_a_token_beyond_the_tenth_rank_is_underlined(qtbot: QtBot, show: Show) -> None:
    # given the same word in an answer at rank 10, and at rank 11, without colours
    columns = []
    for rank in (10, 11):
        run = replace(run_of([" moon"], [0.0], Origin.SAMPLED), rank=np.array([rank], np.int32))
        transcript = show(session(turn(1, "assistant", run)))
        box = transcript.tokens.token_box(1, 0)
        assert box is not None
        picture = transcript.tokens.viewport().grab(box).toImage()
        columns.append([picture.pixelColor(box.width() // 2, y).lightness() for y in range(box.height())])
    # then only the second has a soft line under its letters
    plain, lined = columns
    (line,) = [y for y, (one, other) in enumerate(zip(plain, lined, strict=True)) if one != other]
    assert line > len(plain) // 2
    assert plain[line] * 0.4 < lined[line] < plain[line] * 0.8


def test_another_measure_is_shown_at_once_and_moves_nothing(qtbot: QtBot, show: Show) -> None:
    # given a conversation in one measure
    transcript = show(drawn())
    before = transcript.tokens.viewport().grab().toImage()
    places = [transcript.tokens.token_box(2, i) for i in range(5)]
    # when another is chosen, and then the first again
    transcript.colours.colour_by(Measure.ENTROPY)
    between = transcript.tokens.viewport().grab().toImage()
    transcript.colours.colour_by(Measure.SURPRISAL)
    # then only the colours differed
    assert between != before
    assert transcript.tokens.viewport().grab().toImage() == before
    assert [transcript.tokens.token_box(2, i) for i in range(5)] == places


def test_turns_added_later_have_the_measure_of_the_view(show: Show) -> None:
    transcript = show(drawn())
    transcript.colours.colour_by(Measure.RANK)
    run = run_with(rank=[1, 2, 3, 6, 11, 101, 1])
    transcript.set_session(session(*drawn().turns, turn(99, "assistant", run)))
    box = transcript.tokens.page.boxes[-1]
    assert [mark & STEP for mark in box.turn.tokens.marks] == [0, 1, 2, 3, 4, 5, 0]
