"""A tool call while the model writes it: Read shows an unfinished card, not the source of the call."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QLabel

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.spoken import run_of
from tests.ui.window.test_conversation import finish
from ui import MainWindow, SessionChanged, TokensArrived, ToolCard, TurnChanged, TurnStatus, TurnView
from ui.transcript import Mode
from ui.transcript.read_mode.markup import called_name, open_call

Play = Callable[[Scene], None]
PIECES = [
    "Let me",
    " look.\n\n",
    "<tool",
    "_call>\n{",
    '"name": "clo',
    'ck",\n "arguments": {"city": "<b>Oslo"',
    "}}",
    "</tool_call>",
]


def begin(bench: FakeWorkbench, *, tools: bool = True) -> TurnView:
    """Starts an answer, by default in a session that offers tools."""
    view = bench.views[TRIP]
    turn = TurnView(bench.new_id(), "assistant", run_of(bench.vocabulary, []), TurnStatus.STREAMING, (1,), may_call=tools)
    turn = replace(turn, variants=(turn.node_id,))
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], turn))
    bench.emit(SessionChanged(bench.views[TRIP]))
    return turn


def read(window: MainWindow) -> str:
    window.parts.transcript.read.select_all()
    return window.parts.transcript.read.selected_text


@pytest.mark.slow
def test_read_shows_an_unfinished_card_while_a_call_streams(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        turn, cards = begin(bench), window.parts.cards
        said = []
        # when the answer arrives piece by piece
        for piece in PIECES:
            bench.emit(TokensArrived(TRIP, turn.node_id, run_of(bench.vocabulary, [piece])))
            await frames(1)
            said.append("" if cards.streaming is None else cards.streaming.name.text())
        # then a card is shown from the opening tag on, with the name as soon as that is complete
        assert said == ["", "", *["is writing a call…"] * 3, *["is writing a call of clock…"] * 3]
        card = cards.streaming
        assert card is not None
        assert card.isVisible()
        assert card.parent() is window.parts.transcript.read.viewport()
        assert "<b>Oslo" in card.source.text()  # plain text, as it was written
        assert all(label.textFormat().name == "PlainText" for label in card.findChildren(QLabel))
        # and Read shows nothing of its source
        await until(lambda: "Let me look." in read(window))
        assert "tool" not in read(window)
        assert "clock" not in read(window)
        # and when it has ended it is replaced by the card of the call
        text = "".join(PIECES)
        call = ToolCard("clock", '{"city": "Oslo"}', span=(text.index("<tool"), len(text)))
        done = replace(turn, run=run_of(bench.vocabulary, PIECES), status=TurnStatus.COMPLETE, calls=(call,), may_call=False)
        bench.views[TRIP] = replace(bench.views[TRIP], turns=(*bench.views[TRIP].turns[:-1], done))
        bench.emit(TurnChanged(TRIP, done))
        await until(lambda: cards.streaming is None and turn.node_id in cards.turns)
        assert cards.turns[turn.node_id].isVisible()
        assert "tool" not in read(window)

    in_window(scene)


@pytest.mark.slow
def test_an_answer_stopped_inside_a_call_shows_the_source_of_the_call(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        turn = begin(bench)
        bench.emit(TokensArrived(TRIP, turn.node_id, run_of(bench.vocabulary, PIECES[:5])))
        await until(lambda: window.parts.cards.streaming is not None)
        half = replace(
            turn, run=run_of(bench.vocabulary, PIECES[:5]), status=TurnStatus.PARTIAL, note="stopped", may_call=False
        )
        bench.views[TRIP] = replace(bench.views[TRIP], turns=(*bench.views[TRIP].turns[:-1], half))
        bench.emit(TurnChanged(TRIP, half))
        await until(lambda: window.parts.cards.streaming is None)
        await until(lambda: '"name": "clo' in read(window))

    in_window(scene)


@pytest.mark.slow
def test_without_offered_tools_a_call_is_shown_as_text(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        window.presenter.set_mode(Mode.READ)
        turn = begin(bench, tools=False)
        bench.emit(TokensArrived(TRIP, turn.node_id, run_of(bench.vocabulary, PIECES)))
        await until(lambda: "tool_call" in read(window))
        assert window.parts.cards.streaming is None

    in_window(scene)


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("", None),
        ("plain words", None),
        ("a < b", None),
        ("so <tool_call>x", 3),
        ("so <too", 3),
        ("so [TOOL_CALLS][{", 3),
        ('  {"name"', 2),
        ("x = {1}", None),
        ("<|python_tag|>a <tool_call>", 0),
    ],
)
def test_the_start_of_a_call_is_found(text: str, start: int | None) -> None:
    assert open_call(text) == start


def test_the_name_is_that_of_the_last_unfinished_call() -> None:
    assert called_name('{"name": "a", "arguments": {}} {"name" : "b') == "a"
    assert called_name('{"name": "a"} {"name":"b"') == "b"
    assert called_name("nothing") == ""
