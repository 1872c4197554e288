"""Merging and delivery of port events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer

from tests.ui.conftest import until
from tests.ui.fakes import FakeWorkbench
from tests.ui.spoken import Vocabulary, run_of
from ui import (
    DownloadsChanged,
    DownloadView,
    EngineState,
    Event,
    SessionChanged,
    SessionsChanged,
    SessionSummary,
    StatusChanged,
    StatusView,
    TokensArrived,
    TurnChanged,
)
from ui.core.events import EventQueue, merged

Arun = Callable[[Coroutine[object, object, object]], object]


def tokens(vocabulary: Vocabulary, node: int, word: str) -> TokensArrived:
    return TokensArrived(1, node, run_of(vocabulary, [word]))


def test_tokens_of_a_turn_are_joined_and_order_is_kept_around_other_events() -> None:
    vocabulary = Vocabulary()
    turn = FakeWorkbench().turn("assistant", ["x"])
    events: list[Event] = [
        tokens(vocabulary, 7, "a"),
        tokens(vocabulary, 8, "A"),
        tokens(vocabulary, 7, "b"),
        TurnChanged(1, turn),
        tokens(vocabulary, 7, "c"),
    ]
    left = list(merged(events))
    said = [(e.node_id, e.run.text) if isinstance(e, TokensArrived) else "turn" for e in left]
    assert said == [(7, "ab"), (8, "A"), "turn", (7, "c")]


def test_only_the_last_of_several_statuses_is_delivered() -> None:
    first, last = StatusChanged(StatusView(EngineState.STARTING)), StatusChanged(StatusView(EngineState.READY))
    assert list(merged([first, SessionsChanged(), last])) == [SessionsChanged(), last]


def test_only_the_last_download_event_is_delivered_and_tokens_around_it_are_joined() -> None:
    vocabulary = Vocabulary()
    first, last = (DownloadsChanged((DownloadView("org/tiny", done=done),)) for done in (1, 2))
    left = list(merged([tokens(vocabulary, 7, "a"), first, tokens(vocabulary, 7, "b"), last]))
    assert [event.run.text if isinstance(event, TokensArrived) else event for event in left] == [last, "ab"]


def test_queued_events_are_delivered_together_and_a_closed_queue_delivers_none(arun: Arun) -> None:
    async def play() -> None:
        vocabulary, got, owner = Vocabulary(), list[Event](), QObject()
        queue = EventQueue(got.append, owner)
        assert queue.idle
        for word in "abcdefgh":
            queue.push(tokens(vocabulary, 7, word))
        assert not queue.idle
        await until(lambda: got)
        assert [e.run.text for e in got if isinstance(e, TokensArrived)] == ["abcdefgh"]
        await until(lambda: queue.idle)
        # an event that is pushed after a delivery comes with the next frame
        queue.push(SessionsChanged())
        await until(lambda: len(got) == 2)
        # a closed queue accepts no events and holds none
        queue.push(SessionsChanged())
        queue.close()
        queue.push(SessionsChanged())
        await asyncio.sleep(0.05)
        assert len(got) == 2
        assert queue.idle
        owner.deleteLater()

    arun(play())


def test_a_bug_in_one_event_does_not_swallow_the_rest(arun: Arun, caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        got, owner = list[Event](), QObject()

        def deliver(event: Event) -> None:
            got.append(event)
            if len(got) == 1:
                raise KeyError("a bug")

        queue = EventQueue(deliver, owner)
        queue.push(TurnChanged(1, FakeWorkbench().turn("user", ["x"])))
        queue.push(SessionsChanged())
        await until(lambda: len(got) == 2)
        assert [record.getMessage() for record in caplog.records] == ["showing TurnChanged failed"]
        caplog.clear()
        await until(lambda: queue.idle)
        owner.deleteLater()

    arun(play())


def test_only_the_last_view_of_a_session_is_delivered() -> None:
    bench = FakeWorkbench()
    bench.add(SessionSummary(1, "one", 0.0, 1, pinned=False, is_sample=False))
    bench.add(SessionSummary(2, "two", 0.0, 1, pinned=False, is_sample=False))
    one, again, two = (SessionChanged(view) for view in (bench.views[1], replace(bench.views[1], title="1"), bench.views[2]))
    said = tokens(Vocabulary(), 7, "a")
    left = list(merged([one, two, said, again]))
    assert [event.view.title if isinstance(event, SessionChanged) else "said" for event in left] == ["two", "said", "1"]


def test_events_that_are_slow_to_show_are_spread_over_several_turns_of_the_loop(
    arun: Arun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given frames that end after each event
    monkeypatch.setattr("ui.core.events.SLICE_SECONDS", 0.0)
    bench = FakeWorkbench()
    turns = [bench.turn("user", [word]) for word in "abcd"]

    async def play() -> None:
        told, owner = list[str](), QObject()
        beside = QTimer(owner)
        beside.timeout.connect(lambda: told.append("|"))

        def deliver(event: Event) -> None:
            assert isinstance(event, TurnChanged)
            word = event.turn.run.text
            told.append(word)
            if word == "a":
                queue.push(TurnChanged(1, turns[3]))
            if word == "c":
                queue.flush()

        queue = EventQueue(deliver, owner)
        for turn in turns[:3]:
            queue.push(TurnChanged(1, turn))
        beside.start(0)
        await until(lambda: "d" in told)
        beside.stop()
        # then a timer runs between the events, and their order is kept, also across a flush in the middle
        said = "".join(told).strip("|")
        assert "a|" in said
        assert "b|" in said
        assert said.replace("|", "") == "abcd"
        assert said.endswith("cd")
        await until(lambda: queue.idle)
        owner.deleteLater()

    arun(play())
