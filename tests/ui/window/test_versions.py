"""Drafts of another version of a turn, and a session that is moved to the trash while its answer streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from runtime import Finish, Origin, TokenRun
from tests.ui.conftest import Scene, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import MainWindow
from ui.core.shown import typed_text

OTHER = 4  # a session without a running answer
Play = Callable[[Scene], None]


@pytest.mark.slow
def test_a_new_version_of_a_turn_is_counted_at_the_place_of_that_turn(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        assert window.controller.shown is not None
        question = window.controller.shown.view.turns[0]
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "And")
        # when a turn is edited, then the draft is counted beside it
        composer.edit(question.node_id, "Where should we go?", "Where")
        await until(lambda: bench.asked("compose")[-1:] == [(TRIP, "Where", question.node_id)])
        # when the edit is cancelled, then it is counted at the end of the path again
        composer.version.dismissed.emit()
        await until(lambda: bench.asked("compose")[-1:] == [(TRIP, "And")])

    in_window(scene)


def test_a_new_version_of_an_answer_is_sent_like_one_of_a_question(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        assert window.controller.shown is not None
        answer = window.controller.shown.view.turns[1]
        composer = window.parts.composer
        window.parts.transcript.edit_requested.emit(answer.node_id)
        assert composer.draft == typed_text(answer.run)
        composer.field.setPlainText("no: to Lisbon")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "no: to Lisbon", answer.node_id)])

    in_window(scene)


def test_the_end_token_of_an_answer_is_not_part_of_its_typed_text() -> None:
    run = TokenRun.unscored([1], [b"well"], ["well"], Origin.SAMPLED)
    ended = TokenRun.unscored([2], [b"<end>"], ["<end>"], Origin.SAMPLED)
    ended = replace(ended, finish=np.array([int(Finish.EOS)], np.uint8))
    assert typed_text(TokenRun.concat([run, ended])) == "well"


@pytest.mark.slow
@pytest.mark.parametrize("answering", [True, False])
def test_moving_a_session_to_the_trash_reports_a_stopped_answer(in_window: Play, bench: FakeWorkbench, answering: bool) -> None:
    async def scene(window: MainWindow) -> None:
        window.controller.open(OTHER)
        await until(lambda: window.controller.is_shown(OTHER))
        panel = window.parts.sidebar.sessions
        if answering:
            bench.gate = asyncio.Semaphore(1)
            QTest.keyClicks(window.parts.composer.field, "Go")
            QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
            await until(lambda: window.controller.running)
        window.acts.trash.trigger()
        await until(lambda: panel.undo_bar.words)
        assert panel.undo_bar.words.startswith(f"“{bench.summaries[OTHER].title}” is in the trash")
        assert ("its answer was stopped" in panel.undo_bar.words) is answering
        for _ in range(100 if bench.gate is not None else 0):
            bench.gate.release()  # type: ignore[union-attr]  # there is one in this case

    in_window(scene)
