"""Drafts that are not sent yet: kept with their session, never moved into another, never lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict

import pytest
from msgspec.structs import replace as replace_struct
from PySide6.QtCore import Qt
from PySide6.QtGui import QTextCursor
from PySide6.QtTest import QTest

from tests.ui.conftest import Scene, until
from tests.ui.fakes import SAMPLE, TRIP, FakeWorkbench
from tests.ui.sidebar.test_sidebar import make_sample
from tests.ui.window.test_conversation import finish, turns
from tests.ui.window.test_window import closed
from ui import MainWindow, Refusal, SessionChanged, SessionCopied, SessionView, TextFile, WindowState
from ui.composer.drafts import MOST_KEPT, NEW, MessageDraft, UnsentDrafts

Play = Callable[[Scene], None]
Arun = Callable[[Coroutine[object, object, object]], object]
OTHER = 3


async def opened(window: MainWindow, session_id: int) -> None:
    window.controller.open(session_id)
    await until(lambda: window.controller.shown is not None and window.controller.shown.session_id == session_id)


def begin(window: MainWindow, index: int) -> None:
    """Opens the card of a token of the first answer."""
    assert window.controller.shown is not None
    window.presenter.pin(window.controller.shown.view.turns[1].node_id, index)
    window.parts.pinned.open()


def test_blank_drafts_are_not_saved_and_only_the_latest_are() -> None:
    drafts = UnsentDrafts()
    drafts.put(1, MessageDraft(" \n"))
    for key in range(2, MOST_KEPT + 4):
        drafts.put(key, MessageDraft(f"text {key}"))
    drafts.put(5, MessageDraft("again", files=(TextFile("a", "one"), TextFile("a", "two"))))
    kept = drafts.kept()
    assert len(kept) == MOST_KEPT
    assert UnsentDrafts(json.loads(json.dumps(kept))).kept() == kept  # including the files
    assert kept[-1] == (5, "again", "a", "one", "a", "two")
    assert kept[0] == (4, "text 4")
    drafts.drop(5, "something else")
    assert drafts.take(5).text == "again"
    assert drafts.take(5) == MessageDraft("")


def test_a_draft_stays_with_its_session(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        question, answer = bench.views[TRIP].turns[:2]
        QTest.keyClicks(composer.field, "my own")
        window.parts.transcript.edit_requested.emit(answer.node_id)
        QTest.keyClicks(composer.field, "!")
        begun = composer.draft
        # a second version replaces the first one, which undo in the field restores
        window.parts.transcript.edit_requested.emit(question.node_id)
        composer.field.undo()
        assert composer.draft == begun
        composer.field.redo()
        composer.field.moveCursor(QTextCursor.MoveOperation.End)
        QTest.keyClicks(composer.field, " half")
        await opened(window, OTHER)
        assert (composer.draft, composer.version.words) == ("", "")
        assert [text for _, text in composer.drafts()] == [f"Where should we go in April? half\n\n{begun}\n\nmy own"]
        QTest.keyClicks(composer.field, "for the proofs")
        await opened(window, TRIP)
        assert composer.draft == "Where should we go in April? half"
        assert composer.version.words == "Another version of “Where should we go in April?”"
        # and continues with the same cursor and the same edited turn
        QTest.keyClicks(composer.field, " done")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(TRIP, "Where should we go in April? half done", question.node_id)])
        await until(lambda: not window.controller.running)
        # then the earlier drafts are restored, one after the other
        assert composer.draft == begun
        composer.version.dismiss()
        assert (composer.draft, composer.version.words) == ("my own", "")
        # and a version without changes leaves no draft
        assert window.controller.shown is not None
        for turn in window.controller.shown.view.turns[-2:]:
            window.parts.transcript.edit_requested.emit(turn.node_id)
        composer.version.dismiss()
        assert (composer.draft, composer.version.words) == ("my own", "")
        await opened(window, OTHER)
        assert composer.draft == "for the proofs"

    in_window(scene)


def test_a_sent_message_is_not_restored_as_a_draft_on_return(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer, saved, send = window.parts.composer, asyncio.Event(), bench.answers.send

        async def slow(session_id: int, text: str, replaces: int | None = None) -> None:
            await saved.wait()
            await send(session_id, text, replaces)

        bench.answers.send = slow  # type: ignore[method-assign]  # a slow store
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await opened(window, OTHER)
        saved.set()
        await until(lambda: len(bench.views[TRIP].turns) == 6 and len(window.controller.tasks) == 0)
        await opened(window, TRIP)
        assert composer.draft == ""

    in_window(scene)


def test_a_draft_typed_while_the_first_message_is_sent_belongs_to_the_new_session(
    in_window: Play, bench: FakeWorkbench
) -> None:
    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "for the trip")
        window.acts.new_session.trigger()
        await until(lambda: window.parts.top.title.text() == "New session")
        assert composer.draft == ""
        QTest.keyClicks(composer.field, "Hell")
        assert composer.drafts() == ((TRIP, "for the trip"), (NEW, "Hell"))  # and reading them changes nothing:
        QTest.keyClicks(composer.field, "o")
        await opened(window, TRIP)
        assert composer.draft == "for the trip"
        window.acts.new_session.trigger()
        await until(lambda: composer.draft == "Hello")
        # when it is sent, and something is typed meanwhile
        bench.gate = asyncio.Semaphore(1)
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: turns(window)[-1:] == [("assistant", "Because")])
        QTest.keyClicks(composer.field, "next")
        for _ in bench.answer:
            bench.gate.release()
        await until(lambda: not window.controller.running)
        # then the draft belongs to the session, not to the next new one
        window.acts.new_session.trigger()
        await until(lambda: composer.draft == "")
        assert [text for key, text in composer.drafts() if key not in (TRIP, NEW)] == ["next"]

    in_window(scene)


def test_a_draft_of_the_sample_continues_in_its_copy(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    make_sample(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        QTest.keyClicks(composer.field, "Go on")
        bench.views[77] = replace_struct(bench.views[SAMPLE], session_id=77, is_sample=False)
        bench.emit(SessionCopied(SAMPLE, bench.views[77]))
        await until(lambda: window.controller.shown is not None and window.controller.shown.session_id == 77)
        assert composer.draft == "Go on"
        assert composer.drafts() == ((77, "Go on"),)

    in_window(scene)


def test_a_new_version_of_a_turn_of_the_sample_replaces_the_turn_of_the_copy(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    make_sample(bench)

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        view = bench.views[SAMPLE]
        question = next(turn for turn in view.turns if turn.role == "user")
        window.parts.transcript.edit_requested.emit(question.node_id)
        QTest.keyClicks(composer.field, "Rather")
        begun = composer.draft
        nodes = {turn.node_id: turn.node_id + 1000 for turn in view.turns}
        again = tuple(replace_struct(t, node_id=nodes[t.node_id], variants=(nodes[t.node_id],)) for t in view.turns)
        bench.views[77] = replace_struct(view, session_id=77, is_sample=False, turns=again)
        bench.emit(SessionCopied(SAMPLE, bench.views[77], nodes))
        await until(lambda: window.controller.is_shown(77))
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: bench.asked("send") == [(77, begun, question.node_id + 1000)])

    in_window(scene)


def test_an_update_of_the_session_keeps_a_message_that_is_not_stored_yet(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer, full = window.parts.composer, asyncio.Event()

        async def refused(session_id: int, text: str, replaces: int | None = None) -> None:  # the Protocol's
            await full.wait()
            raise Refusal("the disk is full")

        bench.answers.send = refused  # type: ignore[method-assign]  # a slow store without room
        QTest.keyClicks(composer.field, "Go")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: window.controller.running)
        bench.emit(SessionChanged(replace_struct(bench.views[TRIP], title="Another title")))
        await until(lambda: window.parts.top.title.text() == "Another title")
        assert composer.draft == "Go"
        full.set()
        await until(lambda: "the disk is full" in composer.notice.words)
        assert composer.draft == "Go"

    in_window(scene)


def test_messages_of_two_sessions_can_be_sent_at_the_same_time(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        composer, saved, send = window.parts.composer, asyncio.Event(), bench.answers.send

        async def slow(session_id: int, text: str, replaces: int | None = None) -> None:
            await saved.wait()
            await send(session_id, text, replaces)

        bench.answers.send = slow  # type: ignore[method-assign]  # a slow store
        for session_id, text in ((TRIP, "first"), (OTHER, "second")):
            await opened(window, session_id)
            QTest.keyClicks(composer.field, text)
            QTest.keyClick(composer.field, Qt.Key.Key_Return)
            await until(lambda: window.controller.running)
        saved.set()
        await until(lambda: len(bench.asked("send")) == 2 and len(window.controller.tasks) == 0)
        for session_id in (TRIP, OTHER):
            await opened(window, session_id)
            assert composer.draft == ""

    in_window(scene)


def test_a_closing_window_does_not_take_the_draft_of_a_session_that_is_opening(arun: Arun, bench: FakeWorkbench) -> None:
    async def play() -> None:
        window = MainWindow(bench)
        window.show()
        window.start(TRIP)
        await until(lambda: window.controller.shown is not None)
        beside = MainWindow(bench, beside=window)
        beside.show()
        window.parts.composer.field.setPlainText("for the trip")
        await opened(window, OTHER)
        # given a session that is being opened while its window closes
        come, open_session = asyncio.Event(), bench.sessions.open

        async def slow(session_id: int) -> SessionView:
            await come.wait()
            return await open_session(session_id)

        bench.sessions.open = slow  # type: ignore[method-assign]  # as with a busy engine
        window.controller.open(TRIP)
        await asyncio.sleep(0)
        window.close()
        come.set()
        await closed(window, bench)
        assert (TRIP, "for the trip") in beside.parts.composer.drafts()
        bench.closed = False
        await closed(beside, bench)
        for one in (window, beside):
            one.deleteLater()

    arun(play())


@pytest.mark.slow
def test_drafts_are_restored_in_the_next_window(arun: Arun, bench: FakeWorkbench) -> None:
    async def play() -> None:
        kept: list[WindowState] = []
        window = MainWindow(bench, keep_state=kept.append)
        window.show()
        window.start(TRIP)
        await until(lambda: window.controller.shown is not None)
        window.parts.composer.field.setPlainText("half a thought 🌧")
        await until(lambda: bool(window.parts.transcript.tokens.page.boxes))
        begin(window, 3)
        QTest.keyClicks(window.parts.pinned.field, "Porto")
        begin(window, 2)
        QTest.keyClicks(window.parts.pinned.field, "x")
        QTest.keyClick(window.parts.pinned.field, Qt.Key.Key_Backspace)
        await opened(window, OTHER)
        window.parts.composer.field.setPlainText("and another")
        await closed(window, bench)
        # when the state is read back from the settings
        state = WindowState(**json.loads(json.dumps(asdict(kept[0]))))
        bench.closed = False
        again = MainWindow(bench, state=state)
        again.show()
        again.start(TRIP)
        await until(lambda: again.controller.shown is not None)
        assert again.parts.composer.draft == "half a thought 🌧"
        assert again.parts.composer.field.textCursor().atEnd()
        await until(lambda: bool(again.parts.transcript.tokens.page.boxes))
        begin(again, 3)
        assert again.parts.pinned.field.text() == "Porto"
        begin(again, 2)
        assert again.parts.pinned.field.text() == ""
        assert again.parts.pinned.unwritten() == kept[0].unwritten
        await opened(again, OTHER)
        assert again.parts.composer.draft == "and another"
        await closed(again, bench)
        for one in (window, again):
            one.deleteLater()

    arun(play())
