"""Undo in the session list and in the tree, with Ctrl-Z (Cmd-Z)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from tests.ui.conftest import Scene, frames, until
from tests.ui.fakes import TRIP, FakeWorkbench
from tests.ui.window.test_conversation import finish
from ui import FolderView, MainWindow

Play = Callable[[Scene], None]
BOAT, WORK = 4, 900


def undo(window: MainWindow, label: str) -> None:
    assert window.acts.undo.text() == f"Undo {label}"
    QTest.keyClick(window.focusWidget(), Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)


def test_tags_title_and_folder_of_a_session(in_window: Play, bench: FakeWorkbench) -> None:
    bench.folder_views[WORK] = FolderView(WORK, "Work")
    bench.summaries[BOAT] = replace(bench.summaries[BOAT], tags=("sea",))

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: window.controller.sessions.rows)
        # two changes at once: undoing the second restores the result of the first
        panel.rows.tagged.emit(BOAT, ["sea", "draft"])
        panel.rows.tagged.emit(BOAT, ["done"])
        panel.rows.moved.emit(BOAT, WORK)
        panel.rows.renamed.emit(BOAT, "Names for a large boat")
        await until(lambda: window.acts.undo.text() == "Undo Rename")
        undo(window, "Rename")
        await until(lambda: bench.summaries[BOAT].title == "Names for a small boat")
        undo(window, "Move to Folder")
        await until(lambda: bench.summaries[BOAT].folder_id is None)
        undo(window, "Tags")
        await until(lambda: bench.summaries[BOAT].tags == ("sea", "draft"))
        undo(window, "Tags")
        await until(lambda: bench.summaries[BOAT].tags == ("sea",))
        assert not window.acts.undo.isEnabled()
        await until(lambda: window.controller.sessions.rows[BOAT].tags == ("sea",))  # and the list shows it
        # also for a session that a search hides, but not while the trash is shown
        window.controller.sessions.search("trip")
        await until(lambda: panel.rows.index_of(BOAT).row() < 0)
        panel.rows.renamed.emit(BOAT, "Boats")
        await until(lambda: window.acts.undo.text() == "Undo Rename")
        window.controller.sessions.show_trash(True)
        await until(lambda: not window.acts.undo.isEnabled())
        window.controller.sessions.show_trash(False)
        await until(lambda: window.acts.undo.isEnabled())

    in_window(scene)


def test_pins_and_their_order(in_window: Play, bench: FakeWorkbench) -> None:
    for each in (3, BOAT):
        bench.summaries[each] = replace(bench.summaries[each], pinned=True)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: len(window.controller.sessions.rows) > 2)
        pinned = [each for each, row in window.controller.sessions.rows.items() if row.pinned]
        panel.rows.arranged.emit([*reversed(pinned)])
        await until(lambda: window.acts.undo.text() == "Undo Reorder")
        undo(window, "Reorder")
        await until(lambda: len(bench.asked("arrange_sessions")) == 2)
        assert bench.asked("arrange_sessions") == [(*reversed(pinned),), (*pinned,)]
        panel.pinned.emit(BOAT, False)
        await until(lambda: window.acts.undo.text() == "Undo Unpin")
        assert not bench.summaries[BOAT].pinned
        undo(window, "Unpin")
        await until(lambda: bench.summaries[BOAT].pinned)
        await until(lambda: bench.asked("arrange_sessions")[-1] == (*pinned,) and len(bench.asked("arrange_sessions")) == 3)
        panel.pinned.emit(TRIP, True)
        await until(lambda: window.acts.undo.text() == "Undo Pin")
        undo(window, "Pin")
        await until(lambda: not bench.summaries[TRIP].pinned)

    in_window(scene)


def test_reordering_pins_in_a_search_keeps_the_places_of_the_others_and_can_be_undone(
    in_window: Play, bench: FakeWorkbench
) -> None:
    for each in (3, BOAT):
        bench.summaries[each] = replace(bench.summaries[each], pinned=True)

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: len(window.controller.sessions.rows) > 2)
        pinned = [each for each, row in window.controller.sessions.rows.items() if row.pinned]
        assert pinned == [TRIP, 3, BOAT]
        window.controller.sessions.search("a s")  # the session between them does not match
        await until(lambda: panel.rows.index_of(3).row() < 0)
        panel.view.setCurrentIndex(panel.rows.index_of(BOAT))
        QTest.keyClick(panel.view, Qt.Key.Key_Up, Qt.KeyboardModifier.AltModifier)
        await until(lambda: window.acts.undo.text() == "Undo Reorder")
        undo(window, "Reorder")
        await until(lambda: len(bench.asked("arrange_sessions")) == 2)
        assert bench.asked("arrange_sessions") == [(BOAT, 3, TRIP), (TRIP, 3, BOAT)]

    in_window(scene)


def test_folders(in_window: Play, bench: FakeWorkbench) -> None:
    bench.folder_views[WORK] = FolderView(WORK, "Work")
    for each in (3, BOAT):
        bench.summaries[each] = replace(bench.summaries[each], folder_id=WORK)
    removed = bench.sessions.remove_folder

    async def remove(folder_id: int) -> None:
        await removed(folder_id)
        for each, row in bench.summaries.items():
            if row.folder_id == folder_id:
                bench.summaries[each] = replace(row, folder_id=None)

    bench.sessions.remove_folder = remove  # type: ignore[method-assign]  # as the store does it

    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: window.controller.sessions.rows)
        panel.rows.folder_renamed.emit(WORK, "Office")
        await until(lambda: window.acts.undo.text() == "Undo Rename Folder")
        panel.folder_removed.emit(WORK)
        await until(lambda: window.acts.undo.text() == "Undo Remove Folder")
        assert bench.folder_views == {}
        # it returns with its sessions, and the older undo step finds it under its new id
        undo(window, "Remove Folder")
        await until(lambda: len({bench.summaries[each].folder_id for each in (3, BOAT)} - {None}) == 1 and bench.folder_views)
        (again,) = bench.folder_views.values()
        assert (again.name, bench.summaries[BOAT].folder_id) == ("Office", again.folder_id)
        undo(window, "Rename Folder")
        await until(lambda: bench.folder_views[again.folder_id].name == "Work")
        # undo removes a folder made for a session, and moves the session back
        panel.folder_wanted.emit("New folder", BOAT)
        await until(lambda: window.acts.undo.text() == "Undo New Folder")
        assert bench.summaries[BOAT].folder_id != again.folder_id
        undo(window, "New Folder")
        await until(lambda: list(bench.folder_views) == [again.folder_id])
        assert bench.summaries[BOAT].folder_id == again.folder_id

    in_window(scene)


def test_a_refused_change_leaves_no_undo_step(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        panel = window.parts.sidebar.sessions
        await until(lambda: window.controller.sessions.rows)
        bench.refusal = "a tag has at most 40 characters"
        panel.rows.tagged.emit(BOAT, ["x" * 50])
        await until(lambda: window.parts.composer.notice.words == "a tag has at most 40 characters")
        assert not window.acts.undo.isEnabled()
        # the next change starts from the stored state, not from the refused one
        panel.rows.tagged.emit(BOAT, ["sea"])
        await until(lambda: window.acts.undo.isEnabled())
        undo(window, "Tags")
        await until(lambda: bench.asked("tag_session")[-1] == (BOAT,))

    in_window(scene)


def test_branching_and_editing_can_be_undone_once_the_answer_has_ended(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)
    question, answer, *_, last = bench.views[TRIP].turns
    bench.gate = asyncio.Semaphore(0)

    async def scene(window: MainWindow) -> None:
        acts, tree = window.acts, window.controller.tree
        window.parts.show_sidebar(False)
        tree.prune(41, 0, True)
        await until(lambda: acts.undo.text() == "Undo Prune Branch")
        window.controller.answers.branch(answer.node_id, 3, 1001)
        await until(lambda: window.controller.running)
        assert not acts.undo.isEnabled()  # not the pruning either: it would be refused during an answer
        assert bench.gate is not None
        for _ in bench.answer:
            bench.gate.release()
        bench.gate = None
        await until(lambda: acts.undo.isEnabled())
        new = bench.views[TRIP].turns[-1].node_id
        undo(window, "New Branch")
        await until(lambda: bench.asked("select")[-1:] == [(TRIP, last.node_id, "as before")] and acts.redo.isEnabled())
        acts.redo.trigger()
        await until(lambda: bench.asked("select")[-1] == (TRIP, new, "as before") and acts.undo.text() == "Undo New Branch")
        window.controller.answers.send("And when?", question.node_id)
        await until(lambda: not window.controller.running and bench.views[TRIP].turns[-1].node_id > new)
        undo(window, "New Branch")
        await until(lambda: bench.asked("select")[-1] == (TRIP, new, "as before"))

    in_window(scene)


def test_a_branch_selection_cannot_be_redone_when_its_branch_was_removed(in_window: Play, bench: FakeWorkbench) -> None:
    """Given an answer that failed before its first token: it is removed when another branch is selected."""
    finish(bench)

    async def scene(window: MainWindow) -> None:
        acts, last = window.acts, bench.views[TRIP].turns[-1].node_id
        window.controller.tree.select(41)
        await until(lambda: acts.undo.isEnabled())
        bench.gone = {41}
        undo(window, "Branch Selection")
        await until(lambda: window.parts.toast.words == "Undone: Branch Selection")
        assert bench.asked("select")[-1] == (TRIP, last, "as before")
        assert (acts.redo.text(), acts.redo.isEnabled()) == ("Redo", False)
        assert not window.parts.toast.action.isVisible()

    in_window(scene)


@pytest.mark.slow
def test_a_branch_selection_is_undone_only_in_its_session_and_can_be_redone(in_window: Play, bench: FakeWorkbench) -> None:
    """Given another session that was opened meanwhile: sessions that are not shown are not changed."""
    finish(bench)

    async def scene(window: MainWindow) -> None:
        acts, toast = window.acts, window.parts.toast
        before = bench.views[TRIP].turns[-1].node_id
        window.controller.tree.select(41)
        await until(lambda: acts.undo.isEnabled())
        window.controller.open(BOAT)
        await until(lambda: window.controller.is_shown(BOAT))
        assert (acts.undo.text(), acts.undo.isEnabled()) == ("Undo", False)
        QTest.keyClick(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier)
        await frames()
        assert [call[1] for call in bench.asked("select")] == [41]
        # in the session itself it is undone, and the window reports it
        window.controller.open(TRIP)
        await until(lambda: window.controller.is_shown(TRIP))
        undo(window, "Branch Selection")
        await until(lambda: toast.words == "Undone: Branch Selection")
        assert bench.asked("select")[-1] == (TRIP, before, "as before")
        assert (acts.undo.isEnabled(), acts.redo.text()) == (False, "Redo Branch Selection")
        # and redone, by the button of the message and by the key
        QTest.mouseClick(toast.action, Qt.MouseButton.LeftButton)
        await until(lambda: toast.words == "Done again: Branch Selection")
        assert bench.asked("select")[-1] == (TRIP, 41, "as before")
        assert not acts.redo.isEnabled()
        undo(window, "Branch Selection")
        await until(lambda: acts.redo.isEnabled())
        QTest.keyClick(window, Qt.Key.Key_Z, Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier)
        await until(lambda: bench.asked("select")[-1] == (TRIP, 41, "as before") and acts.undo.isEnabled())
        # a new change clears the redo step
        undo(window, "Branch Selection")
        await until(lambda: acts.redo.isEnabled())
        window.controller.tree.select(41)
        await until(lambda: acts.undo.isEnabled())
        assert not acts.redo.isEnabled()

    in_window(scene)


def test_the_list_and_the_session_have_separate_undo_steps(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        panel, acts = window.parts.sidebar.sessions, window.acts
        await until(lambda: window.controller.sessions.rows)
        panel.rows.renamed.emit(BOAT, "Another name")
        await until(lambda: acts.undo.text() == "Undo Rename")
        window.controller.tree.prune(43, 0, True)
        window.controller.tree.select(41)  # at once: the previous step is still completed and can be undone
        await until(lambda: acts.undo.text() == "Undo Branch Selection")
        # the focused widget comes first: its own text, then the part of the window that contains it
        field = window.parts.composer.field
        field.setFocus()
        QTest.keyClicks(field, "words")
        undo(window, "Branch Selection")
        assert (field.toPlainText(), acts.undo.text()) == ("", "Undo Branch Selection")
        panel.search.setFocus()
        undo(window, "Rename")
        await until(lambda: bench.summaries[BOAT].title == "Names for a small boat")
        await until(lambda: acts.redo.text() == "Redo Rename")
        QTest.keyClick(window, Qt.Key.Key_Y, Qt.KeyboardModifier.ControlModifier)
        await until(lambda: bench.summaries[BOAT].title == "Another name")
        window.parts.transcript.setFocus()
        assert acts.undo.text() == "Undo Branch Selection"
        # without the sidebar the change of the list would not be visible
        undo(window, "Branch Selection")
        await until(lambda: acts.undo.text() == "Undo Prune Branch")
        undo(window, "Prune Branch")
        await until(lambda: bench.asked("prune") == [(TRIP, 43, 0, True), (TRIP, 43, 0, False)])
        await until(lambda: acts.undo.text() == "Undo Rename")
        window.parts.show_sidebar(False)
        assert not acts.undo.isEnabled()

    in_window(scene)


def test_the_button_of_the_message_acts_on_the_step_that_it_names(
    in_window: Play, bench: FakeWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(bench)
    monkeypatch.setattr("ui.window.toast.SHOWN_MS", 60_000)  # it does not disappear by itself

    async def scene(window: MainWindow) -> None:
        panel, acts, toast = window.parts.sidebar.sessions, window.acts, window.parts.toast
        await until(lambda: window.controller.sessions.rows)
        panel.rows.renamed.emit(BOAT, "Boats")
        await until(lambda: acts.undo.text() == "Undo Rename")
        acts.undo.trigger()
        await until(lambda: toast.words == "Undone: Rename")
        acts.redo.trigger()
        await until(lambda: toast.words == "Done again: Rename")
        # a change of the session in between
        window.controller.tree.prune(41, 0, True)
        await until(lambda: acts.undo.text() == "Undo Prune Branch")
        QTest.mouseClick(toast.action, Qt.MouseButton.LeftButton)
        await until(lambda: toast.words == "Undone: Rename")
        assert bench.summaries[BOAT].title == "Names for a small boat"
        assert bench.asked("prune") == [(TRIP, 41, 0, True)]
        # it is withdrawn after another change of the list, and when another session is opened
        panel.pinned.emit(BOAT, True)
        await until(lambda: toast.words == "")
        acts.undo.trigger()
        await until(lambda: toast.words == "Undone: Prune Branch")
        window.controller.open(BOAT)
        await until(lambda: window.controller.is_shown(BOAT))
        assert toast.words == ""

    in_window(scene)


def test_moving_a_session_to_the_trash_can_be_redone(in_window: Play, bench: FakeWorkbench) -> None:
    async def scene(window: MainWindow) -> None:
        await until(lambda: window.controller.sessions.rows)
        window.controller.sessions.trash(BOAT)
        await until(lambda: window.acts.undo.text() == "Undo Move to Trash")
        undo(window, "Move to Trash")
        await until(lambda: BOAT not in bench.trash)
        window.acts.redo.trigger()
        await until(lambda: BOAT in bench.trash and window.acts.undo.isEnabled())
        # keys pressed before the step has ended: each is executed, in order
        for _ in range(2):
            undo(window, "Move to Trash")
            window.acts.redo.trigger()
        await until(lambda: len(bench.asked("restore_session")) == 3 and BOAT in bench.trash)
        # a session deleted for good does not come back, nor do its earlier undo steps
        window.controller.sessions.restore(BOAT)
        await until(lambda: BOAT not in bench.trash)
        window.parts.sidebar.sessions.rows.renamed.emit(BOAT, "Boats")
        window.parts.sidebar.sessions.pinned.emit(BOAT, True)
        await until(lambda: window.acts.undo.text() == "Undo Pin")
        window.controller.sessions.trash(BOAT)
        await until(lambda: window.acts.undo.text() == "Undo Move to Trash")
        assert window.parts.sidebar.sessions.undo_bar.isVisible()
        window.controller.sessions.empty([BOAT])
        assert not window.parts.sidebar.sessions.undo_bar.isVisible()
        await until(lambda: BOAT not in bench.summaries)
        assert not window.acts.undo.isEnabled()

    in_window(scene)


def test_escape_closes_card_popover_edit_and_search_in_this_order(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        parts = window.parts
        question, visit = (turn.node_id for turn in bench.views[TRIP].turns[:2])
        window.activateWindow()
        await until(lambda: window.isActiveWindow() and bool(parts.transcript.tokens.page.boxes))
        parts.show_card(parts.coach, True)  # it opened by itself, and takes no key from parts that the user opened
        parts.finder.open()
        QTest.keyClicks(parts.finder.field, "we")
        QTest.keyClicks(parts.composer.field, "my own")
        window.intents.edit(question)
        window.popover.open()
        window.presenter.pin(visit, 3)
        parts.pinned.open()
        parts.finder.field.setFocus()  # whichever part has the keyboard focus
        everything = (parts.pinned, window.popover, parts.composer.version, parts.finder)
        for gone in range(4):
            assert [part.isVisible() for part in everything] == [False] * gone + [True] * (4 - gone)
            focused = QApplication.focusWidget()
            assert focused is not None
            QTest.keyClick(focused, Qt.Key.Key_Escape)
        assert not any(part.isVisible() for part in everything)
        assert parts.coach.isVisible()
        parts.coach.done_button.setFocus()
        QTest.keyClick(parts.coach.done_button, Qt.Key.Key_Escape)
        assert not parts.coach.isVisible()
        assert (parts.composer.draft, parts.composer.replaces) == ("my own", None)
        # with nothing open the key goes to the text again
        parts.transcript.tokens.setFocus()
        assert parts.transcript.pinned == (visit, 3)
        QTest.keyClick(parts.transcript.tokens, Qt.Key.Key_Escape)
        assert parts.transcript.pinned is None

    in_window(scene)


def test_a_session_moved_to_the_trash_while_it_opens_is_not_shown(in_window: Play, bench: FakeWorkbench) -> None:
    finish(bench)

    async def scene(window: MainWindow) -> None:
        sessions, undo_stack = window.controller.sessions, window.controller.undo_stack
        await until(lambda: sessions.rows)
        following = next(row for row in await bench.sessions.list() if row.session_id != TRIP).session_id
        sessions.trash(TRIP)
        sessions.trash(following)
        await until(lambda: {TRIP, following} <= bench.trash)
        await until(lambda: not (window.controller.is_shown(TRIP) or window.controller.is_shown(following)))
        # and it is shown again when it is restored
        undo_stack.undo()
        await until(lambda: window.controller.is_shown(following))
        await frames()
        assert window.controller.is_shown(following)

    in_window(scene)


def test_trashing_the_shown_session_does_not_replace_a_session_opened_meanwhile(in_window: Play, bench: FakeWorkbench) -> None:
    slow = asyncio.Event()
    listed = bench.sessions.list

    async def scene(window: MainWindow) -> None:
        await until(lambda: window.controller.sessions.rows)

        async def sessions(query: str = "") -> object:
            await slow.wait()
            return await listed(query)

        bench.sessions.list = sessions  # type: ignore[method-assign, assignment]  # slower than the user
        window.controller.sessions.trash(TRIP)
        await until(lambda: bench.asked("trash_session"))
        window.controller.open(BOAT)
        await until(lambda: window.controller.is_shown(BOAT))
        slow.set()
        await until(lambda: len(window.controller.tasks) == 0)
        assert window.controller.is_shown(BOAT)

    in_window(scene)
