"""Sending, streaming, stopping, branching: with mouse and keys on the real window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from ui import BUSY, EngineState, MainWindow, SessionView, StatusChanged, TokensArrived, TurnChanged, TurnStatus
from ui.transcript import Mode

Play = Callable[[Scene], None]


def finish(bench: FakeWorkbench) -> None:
    """Given: the trip's last answer is complete, so that something can be sent."""
    view = bench.views[TRIP]
    done = replace(view.turns[-1], status=TurnStatus.COMPLETE)
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], done))


def turns(window: MainWindow) -> list[tuple[str, str]]:
    assert window.controller.shown is not None
    return [(turn.role, turn.run.text) for turn in window.controller.shown.view.turns]


def test_typing_and_enter_sends_and_streams(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        field = window.parts.composer.field
        # when a message is typed and Enter is pressed
        QTest.keyClicks(field, "And in autumn?")
        QTest.keyClick(field, Qt.Key.Key_Return)
        # then it is sent once, the field is empty, and the answer streams to its end
        await until(lambda: turns(window)[-1] == ("assistant", "".join(bench.answer)))
        assert bench.asked("send") == [(TRIP, "And in autumn?")]
        await until(lambda: not window.controller.running)
        assert window.parts.composer.draft == ""
        assert window.parts.composer.send_button.text() == "Send"

    in_window(scene)


def test_shift_enter_breaks_the_line_and_is_sent_as_a_newline(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        field = window.parts.composer.field
        height = field.height()
        QTest.keyClicks(field, "one")
        QTest.keyClick(field, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
        QTest.keyClicks(field, "two")
        assert field.height() > height
        QTest.keyClick(field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "one\ntwo")])
        await until(lambda: not window.controller.running)

    in_window(scene)


def test_blank_messages_are_not_sent(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        QTest.keyClicks(window.parts.composer.field, "  ")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await frames()
        assert bench.asked("send") == []
        assert not window.parts.composer.send_button.isEnabled()

    in_window(scene)


def test_a_refusal_is_shown_inline_and_keeps_the_draft(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        await until(lambda: bench.asked("compose"))
        bench.refusal = "9,012 tokens do not fit into the context of 8,192; shorten the text"
        QTest.keyClicks(composer.field, "too long")
        QTest.mouseClick(composer.send_button, Qt.MouseButton.LeftButton)
        await until(lambda: composer.notice.words.startswith("9,012 tokens"))
        assert composer.draft == "too long"
        assert composer.send_button.text() == "Send"
        # and the next try clears the message
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: composer.draft == "" and not window.controller.running)
        assert composer.notice.words == ""

    in_window(scene)


def test_a_refusal_disappears_when_its_reason_no_longer_holds(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        bench.gate = asyncio.Semaphore(2)
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1][1] == "Because of")
        # a refusal that holds only while an answer streams
        bench.refusal = BUSY
        window.controller.answers.regenerate()
        await until(lambda: composer.notice.words == BUSY)
        for _ in bench.answer:
            bench.gate.release()
        await until(lambda: not window.controller.running)
        assert composer.notice.words == ""
        # a refusal of one session is not shown in another
        bench.gate, bench.refusal = None, "9,012 tokens do not fit"
        window.controller.answers.regenerate()
        await until(lambda: composer.notice.words == "9,012 tokens do not fit")
        window.controller.open(3)
        await until(lambda: window.controller.is_shown(3))
        assert composer.notice.words == ""

    in_window(scene)


def test_send_turns_into_stop_which_stops(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        bench.gate = asyncio.Semaphore(2)
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1][1] == "Because of")
        assert composer.send_button.text() == "Stop"
        # Enter does not send a second message meanwhile
        QTest.keyClicks(composer.field, "and")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        QTest.mouseClick(composer.send_button, Qt.MouseButton.LeftButton)
        bench.gate.release()
        await until(lambda: not window.controller.running)
        assert bench.asked("send") == [(TRIP, "Go")]
        assert bench.asked("stop") == [(TRIP,)]
        assert window.controller.shown is not None
        last = window.controller.shown.view.turns[-1]
        assert (last.status, last.note, last.run.text) == (TurnStatus.PARTIAL, "stopped", "Because of")
        assert composer.draft == "and"
        assert window.acts.continue_answer.isEnabled()

    in_window(scene)


def test_stop_while_the_message_is_being_saved_ends_its_answer(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(bench)
    bench.gate, may, send = asyncio.Semaphore(0), asyncio.Event(), bench.answers.send

    async def send_later(session_id: int, text: str, replaces: int | None = None) -> None:
        await may.wait()
        await send(session_id, text, replaces)

    monkeypatch.setattr(bench.answers, "send", send_later)

    async def scene(window: MainWindow) -> None:
        QTest.keyClicks(window.parts.composer.field, "And in autumn?")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        # when it is stopped before there is an answer
        window.acts.stop.trigger()
        assert bench.asked("stop") == [(TRIP,)]
        may.set()
        # then that is stopped as soon as there is one
        await until(lambda: bench.asked("stop") == [(TRIP,)] * 2)
        assert bench.gate is not None
        bench.gate.release()
        await until(lambda: not window.controller.running)
        assert turns(window)[-2:] == [("user", "And in autumn?"), ("assistant", "")]
        assert bench.views[TRIP].turns[-1].note == "stopped"

    in_window(scene)


def test_switching_sessions_and_back_during_a_stream_duplicates_no_tokens(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        bench.gate = asyncio.Semaphore(2)
        QTest.keyClicks(window.parts.composer.field, "Go")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1][1] == "Because of")
        window.controller.open(3)
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id == 3)
        assert window.parts.composer.send_button.text() == "Send"
        # events still queued when the session is opened again are part of the loaded view
        read = bench.sessions.open

        async def read_and_tell(session_id: int) -> SessionView:
            view = await read(session_id)
            bench.emit(TokensArrived(session_id, view.turns[-1].node_id, view.turns[-1].run[-1:]))
            return view

        bench.sessions.open = read_and_tell  # type: ignore[method-assign]  # the order of events that is tested
        window.controller.open(TRIP)
        await until(lambda: turns(window))
        await frames()
        assert turns(window)[-1][1] == "Because of"
        for _ in range(3):
            bench.gate.release()
        await until(lambda: not window.controller.running)
        assert turns(window)[-1][1] == "".join(bench.answer)
        assert window.parts.transcript.tokens.page.boxes[-1].turn.text == "".join(bench.answer)

    in_window(scene)


def test_the_stop_shortcut_stops(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        window.activateWindow()
        await until(window.isActiveWindow)
        QTest.keyClick(window, Qt.Key.Key_Period, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: bench.asked("stop") == [(TRIP,)])

    in_window(scene)


def test_text_is_kept_when_the_engine_dies_and_the_status_reports_it(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        bench.dies_after = 2
        QTest.keyClicks(window.parts.composer.field, "Go")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: "engine stopped" in window.parts.status.engine.text())
        await until(lambda: not window.controller.running)
        assert turns(window)[-1][1] == "Because of"
        # and the next message works
        bench.dies_after = None
        QTest.keyClicks(window.parts.composer.field, "Again")
        QTest.keyClick(window.parts.composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1][1] == "".join(bench.answer) and not window.controller.running)

    in_window(scene)


@pytest.mark.slow
def test_the_draft_is_counted_a_moment_after_typing(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        QTest.keyClicks(window.parts.composer.field, "three short words")
        await until(lambda: window.parts.composer.meter.cost.text() == "3 tokens")
        assert window.parts.composer.meter.context.text() == "context 47 of 8,192"
        asked = [text for _session, text in bench.asked("compose")]
        assert asked.count("three short words") == 1
        assert "three" not in asked  # not one count per key

    in_window(scene)


@pytest.mark.slow
def test_the_context_is_counted_again_when_the_engine_starts(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        await until(lambda: len(bench.asked("compose")) >= 1)
        before = len(bench.asked("compose"))
        bench.status = replace(bench.status, engine=EngineState.STARTING)
        bench.emit(StatusChanged(bench.status))
        await until(lambda: len(bench.asked("compose")) == before + 1)
        bench.emit(StatusChanged(bench.status))  # nothing new
        await frames()
        assert len(bench.asked("compose")) == before + 1

    in_window(scene)


def test_an_answer_is_regenerated_exactly_by_key_and_menu(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    view = bench.views[TRIP]
    answer = replace(view.turns[-1], can_repeat=True)
    bench.views[TRIP] = replace(view, turns=(*view.turns[:-1], answer))

    async def scene(window: MainWindow) -> None:
        assert window.acts.regenerate_exactly.isEnabled()
        QTest.keyClick(window, Qt.Key.Key_R, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        await until(lambda: bench.asked("regenerate_exactly") == [(TRIP, answer.node_id)])
        # a refusal is shown beside the composer
        bench.refusal = "this answer was made by another model"
        window.acts.regenerate_exactly.trigger()
        await until(lambda: "another model" in window.parts.composer.notice.accessibleName())
        # and it is not offered for an answer without stored provenance
        bench.emit(TurnChanged(TRIP, replace(answer, can_repeat=False)))
        await until(lambda: not window.acts.regenerate_exactly.isEnabled())

    in_window(scene)


def test_an_answer_that_failed_to_begin_offers_a_retry(in_window: Play, bench: FakeWorkbench) -> None:
    words = "no model 'smollm2' here; fetch it with: `elsewise models get smollm2`"
    failed = bench.turn("assistant", [], status=TurnStatus.PARTIAL, note=words)
    bench.views[TRIP] = replace(bench.views[TRIP], turns=(*bench.views[TRIP].turns[:1], failed))

    async def scene(window: MainWindow) -> None:
        await until(lambda: all(box.body.done for box in window.parts.transcript.tokens.page.boxes))
        for pane in (window.parts.transcript.tokens, window.parts.transcript.read):
            window.presenter.set_mode(Mode.READ if pane is window.parts.transcript.read else Mode.TOKENS)
            await frames()
            box = pane.page.boxes[-1]
            parts = {part.text: part for part in box.meta.parts(hovered=True)}
            assert "continue" not in parts
            assert "copy" not in parts
            assert " ".join(part.text for part in box.meta.parts(hovered=False)).endswith(words)
            retry = parts["retry"].box.center()
            top = box.top + box.body.height - pane.verticalScrollBar().value()
            at = QPoint(pane.column()[0] + round(retry.x()), top + round(retry.y()))
            over = QMouseEvent(
                QEvent.Type.MouseMove, at, pane.viewport().mapToGlobal(at), Qt.MouseButton.NoButton, Qt.MouseButton.NoButton,
                Qt.KeyboardModifier.NoModifier,
            )  # fmt: skip
            QApplication.sendEvent(pane.viewport(), over)
            QTest.mouseClick(pane.viewport(), Qt.MouseButton.LeftButton, pos=at)
        await until(lambda: bench.asked("regenerate") == [(TRIP, failed.node_id)] * 2)
        assert not window.acts.continue_answer.isEnabled()

    in_window(scene)
