"""What the parts and the menu ask for where that takes more than one call of the controller."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QObject, QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QApplication

from ui.controller import Controller
from ui.controller.setup import SetupController
from ui.core.shown import typed_text
from ui.port import SessionSetup, TextFile, Workbench
from ui.window.frame import Frame
from ui.window.stage import Stage


class Commands(QObject):
    """Commands of the window.

    Args:
        controller: Carries them out.
        parts: Say what is meant: the draft, the pinned token, the branch that is marked.
        stage: Knows the listed sessions.
        setup: Changes what a session is set to.
        parent: Owns it.
    """

    def __init__(self, controller: Controller, parts: Frame, stage: Stage, setup: SetupController, parent: QObject) -> None:
        super().__init__(parent)
        self._controller, self._parts, self._stage, self._setup = controller, parts, stage, setup

    # ---- sessions -----------------------------------------------------------------------------------------------

    def new_session(self) -> None:
        """Shows an empty session, ready to be written in."""
        self._controller.new_session()
        self._parts.composer.setFocus()

    def search(self) -> None:
        """To the search field of the list."""
        self._parts.show_sidebar(True)
        self._parts.sidebar.sessions.search.setFocus()

    def rename(self) -> None:
        """Edits the title of the session shown, in the list."""
        if self._controller.shown is not None:
            self._parts.show_sidebar(True)
            self._parts.sidebar.sessions.rename(self._controller.shown.session_id)

    def pin_shown(self) -> None:
        """Pins the session shown, or lets it go."""
        summary = self._stage.shown_summary
        if summary is not None:
            self._controller.sessions.pin(summary.session_id, not summary.pinned)

    def trash_shown(self) -> None:
        """The session shown goes into the trash."""
        if self._controller.shown is not None:
            self.trash(self._controller.shown.session_id)

    def trash(self, session_id: int) -> None:
        """A session goes into the trash; the sample stays."""
        summary = self._stage.sessions.get(session_id)
        if summary is not None and not summary.is_sample:
            self._controller.sessions.trash(session_id, summary.title)

    def compare(self) -> None:
        """The branch shown beside the one marked in the outline."""
        other = self._parts.sidebar.tree.other()
        if other is not None:
            self._controller.tree.compare(other)

    # ---- messages -----------------------------------------------------------------------------------------------

    def send(self, text: str, replaces: int | None) -> None:
        """Sends the draft and shows the end."""
        self._parts.composer.notice.clear()
        self._controller.answers.send(text, replaces)
        self._parts.transcript.scroll_to_end()

    def edit(self, node_id: int) -> None:
        """Another version of a turn, as a draft: of one's own, or of the model's, in one's own words."""
        turn = self._controller.shown.turn(node_id) if self._controller.shown is not None else None
        if turn is not None:
            self._parts.composer.notice.clear()
            self._parts.composer.edit(node_id, typed_text(turn.run), typed_text(turn.run))

    def pin_file(self, file: TextFile) -> None:
        """Before every turn, beside what is pinned already."""

        async def pin(workbench: Workbench, session_id: int) -> SessionSetup:
            held = (await workbench.setup(session_id)).files
            setup = await workbench.pin_files(session_id, [*(each for each in held if each.name != file.name), file])
            self._parts.composer.detach(session_id, file)
            return setup

        self._parts.composer.notice.clear()
        self._setup.change(pin, self._parts.composer.notice.say)

    def copy(self, text: str) -> None:
        """Onto the clipboard."""
        QApplication.clipboard().setText(text)

    def open_link(self, url: QUrl) -> None:
        """In the program that the system has for it."""
        if not QDesktopServices.openUrl(url):
            words = self.tr("no program here takes this address; click the link again to copy it")
            self._parts.composer.notice.say(words)

    # ---- answers ------------------------------------------------------------------------------------------------

    def regenerate(self, node_id: int = 0) -> None:
        """Another answer beside that one; 0 is the last."""
        self._with_answer(self._controller.answers.regenerate, node_id)

    def regenerate_exactly(self, node_id: int = 0) -> None:
        """The same answer once more; 0 is the last."""
        self._with_answer(self._controller.answers.regenerate_exactly, node_id)

    def continue_turn(self, node_id: int = 0) -> None:
        """Goes on with an answer that was stopped; 0 is the last."""
        self._with_answer(self._controller.answers.continue_turn, node_id)

    def branch(self, node_id: int, index: int, token_id: int) -> None:
        """Another token at that place; in words of one's own it is a draft, and nothing is sent."""
        self._parts.composer.notice.clear()
        turn = self._controller.shown.turn(node_id) if self._controller.shown is not None else None
        if turn is not None and turn.role == "user":
            start = typed_text(turn.run[:index]) + b"".join(self._controller.token_bytes([token_id])).decode(errors="replace")
            self._parts.composer.edit(node_id, typed_text(turn.run), start)
        else:
            self._controller.answers.branch(node_id, index, token_id)

    def find_columns_at(self, node_id: int, index: int, count: int, beams: bool) -> None:  # as the signal brings it
        """Several continuations in front of a token."""
        self.find_columns(count, beams=beams, at=(node_id, index))

    def find_columns(self, count: int, *, beams: bool, at: tuple[int, int] | None = None) -> None:
        """From the pinned token's place unless one is given, else from the end of the last answer."""
        self._parts.composer.notice.clear()
        shown = self._controller.shown
        at = at or self._parts.transcript.pinned
        rules = self._parts.inspector.token.beam_rows.rules if beams else None
        turn = shown.turn(at[0]) if shown is not None and at is not None else None
        if at is not None and turn is not None and turn.role == "assistant":
            self._controller.draws.find_columns(at[0], at[1], count, beams=rules)
        elif shown is not None and shown.last_answer is not None:
            self._controller.draws.find_columns(shown.last_answer.node_id, None, count, beams=rules)

    def keep_column(self, node_id: int) -> None:
        """Shows the path through that column; the others stay among the branches."""
        self._controller.draws.close_columns()
        self._controller.tree.select(node_id)

    def _with_answer(self, do: Callable[[int], None], node_id: int) -> None:
        last = self._controller.shown.last_answer if self._controller.shown is not None else None
        if node_id:
            do(node_id)
        elif last is not None:
            do(last.node_id)
