"""Finding words in the conversation: across tokens, in both modes, in long sessions and while they stream."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pytestqt.qtbot import QtBot

from runtime import Origin
from tests.ui.transcript.conftest import Show, lay_out_slowly, settle
from tests.ui.transcript.samples import run_of, session, turn
from tests.ui.transcript.test_view import long_session
from ui.transcript import Mode
from ui.transcript.pane.find import matches
from ui.transcript.pane.selection import Selection, TextPosition
from ui.transcript.path import TranscriptTurn
from ui.transcript.text.compose import TurnPlace


def said(node_id: int, *pieces: str, role: str = "assistant") -> TranscriptTurn:
    return TranscriptTurn(turn(node_id, role, run_of(list(pieces), [1.0] * len(pieces), Origin.SAMPLED)))


def squeezed(text: str) -> str:
    return re.sub(" +", " ", text)


def test_a_match_begins_and_ends_inside_tokens_and_never_spans_turns() -> None:
    turns = [said(1, "The", " rai", "ny day"), said(2, "Rain", " y")]
    found = matches(turns, "RAINY", template=False)
    assert [(one.turn, one.first, one.last, one.words) for one in found] == [(0, TurnPlace(1, 1), TurnPlace(2, 2), "rainy")]
    assert [one.turn for one in matches(turns, "rain", template=False)] == [0, 1]
    assert matches(turns, "dayRain", template=False) == []
    assert matches(turns, "", template=False) == []
    assert matches(turns, "(", template=False) == []


@given(pieces=st.lists(st.text("ab c", max_size=4), min_size=1, max_size=12), words=st.text("ab c", min_size=1, max_size=5))
def test_what_is_selected_is_what_was_looked_for(pieces: list[str], words: str) -> None:
    one = said(1, *pieces)
    found = matches([one], words, template=False)
    assert len(found) == squeezed("".join(pieces)).count(squeezed(words))
    for match in found:
        chosen = Selection(TextPosition(0, match.first), TextPosition(0, match.last))
        assert chosen.text([one], template=False) == match.words
        assert squeezed(match.words) == squeezed(words)


def test_from_place_to_place_and_round(qtbot: QtBot, show: Show) -> None:
    # given a long session seen from its end
    transcript = show(long_session())
    told: list[tuple[int | None, int]] = []
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))
    # when words of its beginning are looked for
    transcript.look_for("word7 ")
    # then there is one in each turn, and the first after what is in sight is shown
    assert told[-1][1] == 20
    assert transcript.tokens.selected_text == "word7 "
    # when going on past the last
    transcript.find_next(+1)
    first = told[-1]
    for _ in range(20):
        transcript.find_next(+1)
    assert told[-1] == first
    transcript.find_next(-1)
    assert told[-1][0] == ((first[0] or 0) - 1) % 20
    # when nothing is looked for any more
    transcript.look_for("")
    assert told[-1] == (None, 0)
    assert transcript.tokens.selected_text == ""


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_what_was_found_is_in_sight(qtbot: QtBot, show: Show, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    # given a machine that lays out next to nothing at a time
    lay_out_slowly(monkeypatch)
    transcript = show(long_session())
    transcript.set_mode(mode)
    settle(qtbot, transcript)
    transcript.set_text_scale(1.2)
    places: list[int | None] = []
    transcript.found_changed.connect(lambda place, _total: places.append(place))
    # when words far away are looked for before anything is laid out
    transcript.look_for("word149")
    transcript.find_next(+1)
    settle(qtbot, transcript)
    # then they are in sight at the end of it, and selected
    pane = transcript.tokens if mode is Mode.TOKENS else transcript.read
    place = places[-1]
    assert place is not None
    box = pane.page.boxes[place]
    top = box.top + box.body.top_of(149) - pane.verticalScrollBar().value()
    assert 0 <= top < pane.viewport().height()
    assert pane.selected_text == "word149"


def test_markdown_is_found_as_it_is_typeset(qtbot: QtBot, show: Show) -> None:
    words = ["Here", " is", " **bold", "** and so\non, cafe\u0301", "\n\n", "```\ncode here\n```"]
    transcript = show(session(turn(1, "assistant", run_of(words, [1.0] * len(words), Origin.SAMPLED))))
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    transcript.look_for("bold")
    assert transcript.read.selected_text == "bold"
    for parted in ("is bold and", "SO on", "caf\xe9"):  # by marks, by a line break; another form of the accent
        transcript.look_for(parted)
        assert unicodedata.normalize("NFC", transcript.read.selected_text).lower() == parted.lower()
    transcript.look_for("code here")
    assert transcript.read.selected_text == "code here"
    transcript.look_for("**bold")  # written so, typeset otherwise: shown, not marked
    assert transcript.read.selected_text == ""


def test_read_finds_what_it_shows_also_across_marks(qtbot: QtBot, show: Show) -> None:
    told: list[tuple[int | None, int]] = []
    texts = [
        "he",
        "**ll**",
        "o and see ",
        "[the",
        " trams](https://example.org/hello)",
        " at 5\\",
        "* or `x`y, ~~ab~~, snake_case",
    ]
    transcript = show(session(turn(1, "assistant", run_of(texts, [1.0] * len(texts), Origin.SAMPLED))))
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))

    def last() -> tuple[int | None, int]:
        return told[-1]

    transcript.look_for("hello")
    assert last() == (0, 1)  # in the address, as Tokens shows it
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    assert last()[1] == 2
    for words in ("hello and", "see the trams at", "5* or xy", "ab,", "snake_case", "ELLO AND"):
        transcript.look_for(words)
        assert (last(), transcript.read.selected_text.lower()) == ((0, 1), words.lower())
    transcript.look_for("snakecase")
    assert last() == (None, 0)
    transcript.look_for("hello and")
    transcript.set_mode(Mode.TOKENS)
    assert last() == (None, 0)


@pytest.mark.parametrize("text", ["in `a*b` and", "five a\\*b more", "so:\n\n```c\nint a*b;\n```\n", "~~~\n`a*b`"])
def test_what_is_no_mark_parts_words_in_read(qtbot: QtBot, show: Show, text: str) -> None:
    pieces = ["an a[b](https://example.org)\n\n", *text]
    transcript = show(session(turn(1, "assistant", run_of(pieces, [1.0] * len(pieces), Origin.SAMPLED))))
    told: list[tuple[int | None, int]] = []
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))
    for words in ("a*b", "ab"):
        transcript.look_for(words)
        assert (told[-1], transcript.read.selected_text) == ((0, 1), words)


@pytest.mark.parametrize(
    "text", ["Press ` now.\n\nThen **type the** word, and ` again.", "```c\nx\n     ```\n**type the** word"]
)
def test_code_ends_where_read_ends_it(qtbot: QtBot, show: Show, text: str) -> None:
    transcript = show(session(turn(1, "assistant", run_of([*text], [1.0] * len(text), Origin.SAMPLED))))
    told: list[tuple[int | None, int]] = []
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))
    transcript.look_for("type the word")
    assert (told[-1], transcript.read.selected_text) == ((0, 1), "type the word")


@pytest.mark.parametrize(("role", "total"), [("system", 0), ("tool", 0), ("user", 1), ("assistant", 1)])
def test_turns_before_those_shown_are_searched_as_they_will_be_shown(show: Show, role: str, total: int) -> None:
    view = replace(session(turn(2, "user", run_of(["Hi"], [1.0], Origin.TYPED))), earlier=1)
    transcript = show(view)
    told: list[int] = []
    transcript.set_mode(Mode.READ)
    transcript.found_changed.connect(lambda _place, total: told.append(total))
    transcript.look_for("brief always")
    transcript.take_earlier_texts([(1, role, "You are **brief** always.")])
    assert told[-1] == total


def test_what_is_no_markdown_has_no_marks_in_read(qtbot: QtBot, show: Show) -> None:
    transcript = show(session(turn(1, "tool", run_of(["a*b"], [1.0], Origin.TYPED))))
    told: list[tuple[int | None, int]] = []
    transcript.set_mode(Mode.READ)
    settle(qtbot, transcript)
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))
    for words, total in (("a*b", 1), ("ab", 0)):
        transcript.look_for(words)
        assert told[-1][1] == total


def test_what_streams_in_is_found_by_the_next_step(show: Show) -> None:
    transcript = show(session(turn(1, "assistant", run_of(["one", " needle"], [1.0] * 2, Origin.SAMPLED))))
    told: list[tuple[int | None, int]] = []
    transcript.found_changed.connect(lambda place, total: told.append((place, total)))
    transcript.look_for("needle")
    transcript.append_tokens(1, run_of([" needle"], [1.0], Origin.SAMPLED))
    transcript.find_next(+1)
    assert told == [(0, 1), (1, 2)]
