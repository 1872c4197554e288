"""A change of the sample session is made and shown in a copy of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from tests.ui.conftest import frames, until
from tests.ui.fakes import SAMPLE, FakeWorkbench
from tests.ui.sidebar.test_sidebar import make_sample
from tests.ui.window.test_conversation import Play, finish, turns
from ui import MainWindow, SessionChanged, SessionCopied, SessionSummary


def test_a_change_of_the_sample_is_shown_in_its_copy(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    make_sample(bench)
    copy = 77

    async def scene(window: MainWindow) -> None:
        composer = window.parts.composer
        # given: the sample can be edited like any session
        assert "starts a copy" in composer.field.placeholderText()
        assert window.acts.regenerate.isEnabled()
        # when a message is sent, and the workbench continues in a copy
        send = bench.answers.send

        async def send_in_copy(session_id: int, text: str, replaces: int | None = None) -> None:
            assert session_id == SAMPLE
            turns = bench.views[SAMPLE].turns
            bench.add(SessionSummary(copy, "A recording (copy)", 0.0, 3, pinned=False, is_sample=False), turns)
            bench.emit(SessionCopied(SAMPLE, bench.views[copy]))
            await send(copy, text, replaces)

        bench.answers.send = send_in_copy  # type: ignore[method-assign]  # as the app does with the sample
        QTest.keyClicks(composer.field, "Go on")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        # then the copy is shown, its stream arrives, and the draft is cleared
        await until(lambda: window.parts.top.title.text() == "A recording (copy)")
        await until(lambda: not window.controller.running)
        assert turns(window)[-1] == ("assistant", "".join(bench.answer))
        assert composer.draft == ""
        assert composer.field.placeholderText() == "Message…"
        assert window.acts.rename.isEnabled()

    in_window(scene)


def test_a_new_version_of_an_answer_clears_the_field_once_it_is_in_the_copy(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    make_sample(bench)
    copy = 77

    async def scene(window: MainWindow) -> None:
        composer, turns = window.parts.composer, bench.views[SAMPLE].turns
        nodes = {turn.node_id: turn.node_id + 1000 for turn in turns}

        async def edit_in_copy(session_id: int, text: str, replaces: int | None = None) -> None:
            again = [replace(t, node_id=nodes[t.node_id], variants=(nodes[t.node_id],)) for t in turns]
            bench.add(SessionSummary(copy, "A recording (copy)", 0.0, 3, pinned=False, is_sample=False), again)
            bench.emit(SessionCopied(SAMPLE, bench.views[copy], nodes))
            await until(lambda: window.controller.is_shown(copy))
            bench.emit(SessionChanged(bench.views[copy]))

        bench.answers.send = edit_in_copy  # type: ignore[method-assign]  # the app generates no answer then
        window.parts.transcript.edit_requested.emit(turns[-1].node_id)
        QTest.keyClicks(composer.field, "Rather")
        QTest.keyClick(composer.field, Qt.Key.Key_Return)
        await until(lambda: window.controller.is_shown(copy) and not window.controller.running)
        assert (composer.draft, composer.version.words) == ("", "")

    in_window(scene)


@pytest.mark.slow
def test_the_pinned_token_is_pinned_in_the_copy(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    make_sample(bench)
    copy = 77

    async def scene(window: MainWindow) -> None:
        turns = bench.views[SAMPLE].turns
        answer = turns[-1]
        window.presenter.pin(answer.node_id, 1)
        again = [replace(t, node_id=t.node_id + 1000, variants=(t.node_id + 1000,)) for t in turns]
        nodes = {turn.node_id: turn.node_id + 1000 for turn in turns}
        bench.add(SessionSummary(copy, "A recording (copy)", 0.0, 3, pinned=False, is_sample=False), again)
        bench.emit(SessionCopied(SAMPLE, bench.views[copy], nodes))
        await until(lambda: window.parts.top.title.text() == "A recording (copy)")
        assert window.parts.transcript.pinned == (answer.node_id + 1000, 1)
        held = window.parts.inspector.token.spot
        assert held is not None
        assert (held.node_id, held.index) == (answer.node_id + 1000, 1)
        # and where its turn is not part of the copy, nothing is pinned
        bench.emit(SessionCopied(copy, bench.views[SAMPLE], {}))
        await until(lambda: window.controller.is_shown(SAMPLE))
        assert window.parts.transcript.pinned is None

    in_window(scene)


@pytest.mark.slow
def test_a_copy_of_another_session_changes_nothing(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        bench.emit(SessionCopied(5, bench.views[6]))
        await frames()
        assert window.parts.top.title.text() == "A spring trip"

    in_window(scene)
