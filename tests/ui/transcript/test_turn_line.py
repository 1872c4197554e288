"""The line under a turn: versions, speed, reuse, notes, and the actions on the turn."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtTest import QTest
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import PATIENCE_MS, Show, settle
from tests.ui.transcript.samples import drawing as drawn
from tests.ui.transcript.samples import run_of, session, template, turn, written
from ui import OwnColours
from ui.port import TurnStatus, TurnView
from ui.theme.scheme import current_theme
from ui.transcript import Mode, TranscriptView
from ui.transcript.pane.meta import READING, Action, MetaLine
from ui.transcript.pane.pane import Pane
from ui.transcript.text.faces import Faces


@pytest.fixture(params=[Mode.TOKENS, Mode.READ])
def either(request: pytest.FixtureRequest, qtbot: QtBot, show: Show) -> TranscriptView:
    view = drawn()
    stopped = replace(view.turns[3], status=TurnStatus.PARTIAL, note="stopped")
    transcript = show(replace(view, turns=(*view.turns[:3], stopped)))
    transcript.set_mode(request.param)
    settle(qtbot, transcript)
    return transcript


def developer(*, on: bool) -> None:
    current_theme().show(OwnColours.HALF, developer=on)


def pane_of(transcript: TranscriptView) -> Pane:  # type: ignore[type-arg]  # of either body
    return transcript.tokens if transcript.mode is Mode.TOKENS else transcript.read


def press_action(qtbot: QtBot, transcript: TranscriptView, box: int, action: Action) -> None:
    """Moves to a turn, then clicks one of the actions that appeared."""
    pane = pane_of(transcript)
    shown = pane.page.boxes[box]
    top = shown.top - pane.verticalScrollBar().value()
    QTest.mouseMove(pane.viewport(), pos=QPoint(pane.column()[0] + 2, top + 4))
    part = next(p for p in shown.meta.parts(hovered=True) if p.action is action)
    point = part.box.center() + QPointF(pane.column()[0], top + shown.body.height)
    QTest.mouseMove(pane.viewport(), pos=point.toPoint())
    QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=point.toPoint())


def test_the_arrows_request_the_neighbouring_variants(qtbot: QtBot, either: TranscriptView) -> None:
    asked: list[int] = []
    either.variant_requested.connect(asked.append)
    press_action(qtbot, either, 1, Action.NEXT)
    press_action(qtbot, either, 1, Action.PREVIOUS)
    assert asked == [22, 20]


def test_actions_emit_their_requests_and_copy_copies_the_plain_text(qtbot: QtBot, either: TranscriptView) -> None:
    asked: list[object] = []
    either.regenerate_requested.connect(asked.append)
    either.continue_requested.connect(asked.append)
    either.copy_requested.connect(asked.append)
    press_action(qtbot, either, 1, Action.REGENERATE)
    press_action(qtbot, either, 3, Action.CONTINUE)
    press_action(qtbot, either, 3, Action.COPY)
    assert asked == [2, 4, "Because the city is built for slow mornings"]


def test_an_answer_with_known_provenance_can_be_regenerated_exactly(qtbot: QtBot, show: Show) -> None:
    asked: list[int] = []
    known = replace(drawn().turns[1], can_repeat=True)
    transcript = show(session(known))
    transcript.repeat_requested.connect(asked.append)
    parts = transcript.tokens.page.boxes[0].meta.parts(hovered=True)
    assert [part.text for part in parts][-4:] == ["copy", "regenerate", "regenerate exactly", "similar"]
    press_action(qtbot, transcript, 0, Action.REPEAT)
    assert asked == [known.node_id]


def test_actions_of_large_text_stay_on_the_rows_of_their_turn(qtbot: QtBot) -> None:
    del qtbot
    # given text at twice its size in a column that has no room for every action, and a note, which stays
    line = MetaLine(replace(drawn().turns[1], can_repeat=True, note="recorded on another computer"), Faces(2.0), 730)
    parts = line.parts(hovered=True)
    # then actions that are also in the menu are left out, and nothing is drawn over the next turn
    assert [part.text for part in parts][-3:] == ["edit", "copy", "regenerate"]
    assert max(part.box.bottom() for part in parts) <= line.reach + 1


@pytest.mark.parametrize(
    ("drafted", "accepted", "said"),
    [
        (120, 84, ["drafted 120, accepted 84 (70 %)"]),
        (1200, 0, ["drafted 1,200, accepted 0 (0 %)"]),
        (0, 0, ["drafted nothing"]),
    ],
)
def test_the_line_of_an_answer_with_speculation_shows_its_acceptance(
    show: Show, drafted: int, accepted: int, said: list[str]
) -> None:
    developer(on=True)
    answer = drawn().turns[1]
    assert answer.stats is not None
    guessed = replace(answer, stats=replace(answer.stats, drafted=drafted, accepted=accepted))
    # when it is shown beside one without speculation
    transcript = show(session(guessed, answer))
    lines = [[part.text for part in box.meta.parts(hovered=False)] for box in transcript.tokens.page.boxes]
    # then its line has the acceptance after the speed, and is otherwise the same
    assert [words for words in lines[0] if words not in lines[1]] == said
    assert lines[0][lines[0].index("41 tok/s") + 1] == said[0]
    assert [words for words in lines[0] if words not in said] == lines[1]


def test_a_turn_of_the_user_can_be_edited_and_copied(qtbot: QtBot, either: TranscriptView) -> None:
    asked: list[object] = []
    either.edit_requested.connect(asked.append)
    either.copy_requested.connect(asked.append)
    before = [box.top for box in pane_of(either).page.boxes]
    press_action(qtbot, either, 0, Action.EDIT)
    press_action(qtbot, either, 0, Action.COPY)
    assert asked == [1, "Where should we go in April?"]
    assert [box.top for box in pane_of(either).page.boxes] == before


def test_the_models_turn_can_be_edited_too(qtbot: QtBot, either: TranscriptView) -> None:
    asked: list[int] = []
    either.edit_requested.connect(asked.append)
    press_action(qtbot, either, 1, Action.EDIT)
    assert asked == [2]


def test_a_turn_that_fails_because_of_another_tokenizer_offers_two_actions(qtbot: QtBot, show: Show) -> None:
    asked: list[object] = []
    question, failed = (
        drawn().turns[0],
        turn(9, "assistant", template("<model>"), status=TurnStatus.PARTIAL, note="other tokens"),
    )
    transcript = show(session(question, replace(failed, is_foreign=True)))
    transcript.text_requested.connect(asked.append)
    transcript.model_requested.connect(lambda: asked.append("model"))
    press_action(qtbot, transcript, 1, Action.AS_TEXT)
    press_action(qtbot, transcript, 1, Action.MODEL)
    assert asked == [9, "model"]
    plain = show(session(question, failed))
    actions = {part.action for part in plain.tokens.page.boxes[1].meta.parts(hovered=True)}
    assert not actions & {Action.AS_TEXT, Action.MODEL}


def test_a_turn_with_a_model_that_cannot_be_loaded_offers_to_choose_a_model(qtbot: QtBot, show: Show) -> None:
    asked: list[str] = []
    failed = turn(9, "assistant", template("<model>"), status=TurnStatus.PARTIAL, note="not here")
    transcript = show(session(drawn().turns[0], replace(failed, needs_model=True)))
    transcript.model_requested.connect(lambda: asked.append("model"))
    parts = transcript.tokens.page.boxes[1].meta.parts(hovered=False)
    assert [part.text for part in parts if part.action is not Action.NONE] == ["choose a model"]  # the only action
    press_action(qtbot, transcript, 1, Action.MODEL)
    assert asked == ["model"]


def test_the_actions_of_a_turn_of_the_user_do_not_overlap_the_next_turn(show: Show) -> None:
    for scale in (1.0, 2.0):
        transcript = show(drawn())
        transcript.set_text_scale(scale)
        first, second = transcript.tokens.page.boxes[:2]
        assert first.top + first.body.height + first.meta.reach <= second.top + 1


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("other", [False, True], ids=["seen", "in the other mode"])
def test_a_note_that_grows_stays_in_sight_to_its_end(qtbot: QtBot, show: Show, mode: Mode, other: bool) -> None:
    # given a conversation that is scrolled to its end
    answers = [
        turn(2 * i, "assistant", run_of(["word "] * 300, [1.0] * 300, Origin.SAMPLED), note="short") for i in range(1, 4)
    ]
    transcript = show(session(*answers))
    transcript.set_mode(mode)
    settle(qtbot, transcript)
    pane = pane_of(transcript)
    pane.scroll_to_end()
    # when the note of its last turn grows
    if other:
        transcript.set_mode(Mode.READ if mode is Mode.TOKENS else Mode.TOKENS)
    transcript.set_session(session(*answers[:-1], replace(answers[-1], note="a long reason " * 60)))
    if other:
        transcript.set_mode(mode)
    settle(qtbot, transcript)
    # then the page is as high as its content, and is scrolled to the end
    last = pane.page.boxes[-1]
    assert last.meta.height > 100
    assert pane.page.height >= last.top + last.height
    assert pane.verticalScrollBar().value() + pane.viewport().height() >= last.top + last.height


def bands(pane: Pane, box: int) -> int:  # type: ignore[type-arg]  # of either body
    """The number of text lines beside the role of a turn."""
    shown, picture = pane.page.boxes[box], pane.viewport().grab().toImage()
    left, top = pane.column()[0], shown.top - pane.verticalScrollBar().value()
    ground = picture.pixel(left, top + shown.height + 4)
    rows = [
        any(picture.pixel(x, y) != ground for x in range(left, left + pane.column()[1], 2))
        for y in range(top, top + shown.height + 4)
    ]
    return sum(1 for above, row in pairwise([False, *rows]) if row and not above)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize(
    ("status", "note"),
    [
        (TurnStatus.WAITING, "starting up"),
        (TurnStatus.WAITING, ""),
        (TurnStatus.PARTIAL, "no room"),
    ],
)
def test_a_turn_without_words_shows_its_note_once_beside_its_role(
    qtbot: QtBot, show: Show, mode: Mode, status: TurnStatus, note: str
) -> None:
    for run in (written("a")[:0], template("<|im_start|>", "assistant", "\n")):
        transcript = show(session(drawn().turns[0], turn(4, "assistant", run, status=status, note=note)))
        transcript.set_mode(mode)
        settle(qtbot, transcript)
        box = pane_of(transcript).page.boxes[1]
        assert box.body.height == 0
        assert bands(pane_of(transcript), 1) == 1
        said = " ".join(part.text for part in box.meta.parts(hovered=False) if part.action is Action.NONE)
        assert said == (note or READING)


@pytest.mark.parametrize("mode", list(Mode))
def test_the_first_token_replaces_the_note_of_a_waiting_turn(qtbot: QtBot, show: Show, mode: Mode) -> None:
    waiting = turn(4, "assistant", written("a")[:0], status=TurnStatus.WAITING, note="starting up")
    transcript = show(session(drawn().turns[0], waiting))
    transcript.set_mode(mode)
    settle(qtbot, transcript)
    transcript.append_tokens(4, written("Because|=b", first_id=60))
    box = pane_of(transcript).page.boxes[1]
    qtbot.waitUntil(lambda: box.meta.parts(hovered=False) == [], timeout=PATIENCE_MS)
    assert box.body.height == pane_of(transcript).page.faces.pitch


def texts_of(transcript: TranscriptView, box: int, *, hovered: bool) -> list[str]:
    return [part.text.strip() for part in transcript.tokens.page.boxes[box].meta.parts(hovered=hovered)]


def test_the_line_shows_how_the_answer_was_generated(show: Show) -> None:
    transcript = show(drawn())
    assert texts_of(transcript, 1, hovered=False) == ["‹", "2 / 3", "›", "41 tok/s", "−23.9 nats"]
    developer(on=True)  # shows more
    assert texts_of(transcript, 1, hovered=False) == ["‹", "2 / 3", "›", "41 tok/s", "reused 312, computed 1", "−23.9 nats"]
    developer(on=False)
    assert texts_of(transcript, 1, hovered=False) == ["‹", "2 / 3", "›", "41 tok/s", "−23.9 nats"]
    assert texts_of(transcript, 0, hovered=False) == []
    assert texts_of(transcript, 3, hovered=True) == [], "nothing can be done to an answer that is still coming"


def test_the_first_variant_has_no_arrow_to_a_previous_one(show: Show) -> None:
    transcript = show(session(turn(1, "user", written("Hi"), variants=(1, 5))))
    actions = [part.action for part in transcript.tokens.page.boxes[0].meta.parts(hovered=False)]
    assert actions == [Action.NONE, Action.NONE, Action.NEXT]


def test_a_long_note_is_wrapped_inside_the_column(show: Show) -> None:
    note = "engine stopped; your text is kept. Send again to restart it. The log has the reason, if you want to know more."
    partial: TurnView = replace(drawn().turns[1], status=TurnStatus.PARTIAL, note=note)
    transcript = show(session(partial), width=420)
    box = transcript.tokens.page.boxes[0]
    for hovered in (False, True):
        parts = box.meta.parts(hovered=hovered)
        assert all(part.box.right() <= transcript.tokens.column()[1] for part in parts)
    assert " ".join(note.split()) in " ".join(texts_of(transcript, 0, hovered=False))
    assert box.meta.height > 40


def test_actions_are_added_after_the_note_which_does_not_move(show: Show) -> None:
    developer(on=True)  # the line is full
    stopped = replace(drawn().turns[1], status=TurnStatus.PARTIAL, note="stopped by you")
    meta = show(session(stopped), width=900).tokens.page.boxes[0].meta
    standing, hovered = meta.parts(hovered=False), meta.parts(hovered=True)
    assert hovered[: len(standing)] == standing
    assert [part.text for part in hovered[len(standing) :]] == ["edit", "copy", "regenerate", "continue"]


def test_with_little_room_numbers_are_left_out_before_actions(show: Show) -> None:
    transcript = show(drawn(), width=480)
    texts = texts_of(transcript, 1, hovered=True)
    assert "−23.9 nats" not in texts
    assert texts[-3:] == ["copy", "regenerate", "similar"]


def test_with_very_little_room_the_similar_action_is_only_in_the_menu(show: Show) -> None:
    assert texts_of(show(drawn(), width=480), 0, hovered=True) == ["edit", "copy", "similar"]
    assert texts_of(show(drawn(), width=200), 0, hovered=True) == ["edit", "copy"]


def test_a_click_on_the_line_without_an_action_does_nothing(qtbot: QtBot, show: Show) -> None:
    transcript = show(drawn())
    pane = transcript.tokens
    box = pane.page.boxes[1]
    with qtbot.assertNotEmitted(transcript.variant_requested), qtbot.assertNotEmitted(transcript.copy_requested):
        QTest.mouseClick(
            pane.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(pane.column()[0] + 90, box.top + box.body.height + 12)
        )
