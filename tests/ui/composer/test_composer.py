"""The message field while an answer streams, and a new version of an earlier message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish, turns
from ui import MainWindow, TurnStatus
from ui.composer.composer import COMPOSE_DELAY_MS, Composer

Play = Callable[[Scene], None]


def says(composer: Composer, words: str) -> bool:
    return composer.meter.context.text() == words


@pytest.mark.slow
def test_return_while_an_answer_streams_shows_a_hint_and_sends_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        bench.gate = asyncio.Semaphore(1)
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1][1] == "Because" and composer.draft == "")
        QTest.keyClicks(composer.field, "and")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert composer.meter.busy.isVisible()
        assert composer.meter.busy.text().startswith("an answer is being written: stop it first (")
        assert not composer.meter.context.isVisible()
        # the hint disappears with the next key, and with the end of the answer
        QTest.keyClicks(composer.field, " ")
        assert not composer.meter.busy.isVisible()
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        assert composer.meter.busy.isVisible()
        for _ in bench.answer:
            bench.gate.release()
        await until(lambda: not window.controller.running)
        assert not composer.meter.busy.isVisible()
        assert composer.meter.context.isVisible()
        assert (bench.asked("send"), composer.draft) == ([(TRIP, "Go")], "and ")

    in_window(scene)


@pytest.mark.slow
def test_the_context_count_grows_during_a_stream_without_requests(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        bench.gate = asyncio.Semaphore(0)
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1] == ("assistant", ""))
        await until(lambda: composer.meter.context.text() == "context 45 of 8,192" and composer.draft == "")
        asked = -1
        while asked != len(bench.asked("compose")):  # the request for the emptied field has been made
            asked = len(bench.asked("compose"))
            await asyncio.sleep(2 * COMPOSE_DELAY_MS / 1000)
        for words in ("context 46 of 8,192", "context 47 of 8,192", "context 48 of 8,192"):
            bench.gate.release()
            await until(partial(says, composer, words))
        assert len(bench.asked("compose")) == asked
        for _ in bench.answer:
            bench.gate.release()
        await until(lambda: not window.controller.running)
        await until(lambda: composer.meter.context.text() == "context 50 of 8,192")

    in_window(scene)


@pytest.mark.slow
def test_edit_starts_a_new_version_with_the_whole_text(in_window: Play, bench: FakeWorkbench) -> None:
    # given: a message that failed, so that there is no answer to it
    view = bench.views[TRIP]
    failed = replace(view.turns[-1], run=view.turns[-1].run[:0], status=TurnStatus.PARTIAL, note="9,012 tokens are too many")
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], failed))
    question = view.turns[2]

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "kept")
        window.parts.transcript.edit_requested.emit(question.node_id)
        assert composer.draft == "Why there?"
        assert composer.version.words == "Another version of “Why there?”"
        assert composer.field.textCursor().position() == len("Why there?")
        assert bench.asked("send") == []
        composer.field.setPlainText("Why?")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "Why?", question.node_id)])
        await until(lambda: turns(window)[-1] == ("assistant", "".join(bench.answer)) and not window.controller.running)
        assert (composer.draft, composer.version.words) == ("kept", "")

    in_window(scene)
