"""Requests by mouse and keys: from the parts of the window to the controller.

A signal is connected to the controller itself if one call is enough. Results go the other way, through
`ui.window.presenter`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from PySide6.QtCore import QObject, Qt, QUrl
from PySide6.QtGui import QDesktopServices, QKeySequence, QShortcut
from PySide6.QtWidgets import QApplication, QLineEdit, QPlainTextEdit, QTextEdit, QWidget

from ui.commands.menu import press
from ui.comparison.model_bar import open_menu
from ui.comparison.presenters import SimilarPresenter
from ui.controller import Controller
from ui.controller.setup import SetupController
from ui.core.shown import typed_text
from ui.core.undo import UndoStep
from ui.inspector.tab import Empty
from ui.inspector.words import token as spoken_token
from ui.port import SessionSetup, SessionView, TextFile
from ui.port.settings import SetupCommands
from ui.transcript.pane.find import BETWEEN
from ui.window.bars import FindBar
from ui.window.frame import Frame
from ui.window.presenter import Presenter


class Intents(QObject):
    """Connects the signals of the parts, and has the commands that involve several parts.

    Args:
        window: Owns it.
        controller: Carries out the commands.
        parts: Have the arguments: the draft, the pinned token, the marked branch.
        presenter: Shows the results.
        similar: Shows the results of similar turns.
        setup: Changes the settings of a session.
    """

    def __init__(
        self,
        window: QWidget,
        controller: Controller,
        parts: Frame,
        presenter: Presenter,
        similar: SimilarPresenter,
        setup: SetupController,
    ) -> None:
        super().__init__(window)
        self._window, self._controller, self._parts = window, controller, parts
        self._presenter, self._similar, self._setup = presenter, similar, setup
        self._path: tuple[int, int | None] | None = None  # the session and the last turn shown
        self._wire_comparison()
        self._wire_similar()
        self._wire_sessions()
        self._wire_tree()
        self._wire_composer()
        self._wire_top()
        self._wire_transcript()
        self._wire_finder()
        self._wire_inspector()
        self._wire_pinned_card()
        self._wire_columns()

    # ---- sessions -----------------------------------------------------------------------------------------------

    def new_session(self) -> None:
        """Opens an empty session, with the focus on the composer."""
        self._controller.new_session()
        self._parts.composer.setFocus()

    def search(self) -> None:
        """Focuses the search field of the list."""
        self._parts.show_sidebar(True)
        self._parts.sidebar.sessions.search.setFocus()

    @property
    def finder(self) -> FindBar:
        """The search in the conversation, or in the tree if that is shown."""
        return self._parts.finder if self._parts.tree.isHidden() else self._parts.tree.finder

    def show_pruned(self, show: bool) -> None:  # a state, not an option
        """Shows pruned branches faintly in outline and tree, or hides them."""
        self._parts.sidebar.tree.set_pruned_visible(show)
        self._parts.tree.set_pruned_visible(show)

    def show_hit(self, node_id: int, words: str) -> None:
        """Shows a search result of the list as a search in the session."""
        plain = re.sub(BETWEEN, " ", words)
        self._parts.finder.show_words(plain)
        self._parts.transcript.look_for(plain, node_id)

    def paste(self) -> None:
        """Pastes into the focused text field, or else into the message."""
        if not isinstance(QApplication.focusWidget(), QLineEdit | QPlainTextEdit | QTextEdit):
            self._parts.composer.setFocus()
        press(Qt.Key.Key_V)

    def rename(self) -> None:
        """Edits the title of the session shown, in the list."""
        row = self._controller.sessions.row_shown
        if row is not None:
            self._parts.show_sidebar(True)
            self._parts.sidebar.sessions.rename(row.session_id)

    def rename_by_model(self) -> None:
        """Asks the model for a title of the session shown."""
        if self._controller.shown is not None:
            self._controller.sessions.rename_by_model(self._controller.shown.session_id)

    def prune(self) -> None:
        """Prunes or restores the focused branch of outline or tree, else the branch shown."""
        tree = self._parts.tree
        self._parts.sidebar.tree.prune_current() if tree.isHidden() else tree.prune()

    def compare(self) -> None:
        """Compares the branch shown with the one selected in the outline; in the tree, the two that are marked."""
        if not self._parts.tree.isHidden():
            self._parts.tree.compare()
            return
        other = self._parts.sidebar.tree.other()
        if other is not None:
            self._controller.tree.compare(other)

    # ---- messages -----------------------------------------------------------------------------------------------

    def edit(self, node_id: int) -> None:
        """Makes a turn, the user's or the model's, a draft of another version of it."""
        turn = self._controller.shown.turn(node_id) if self._controller.shown is not None else None
        if turn is not None:
            self._parts.composer.notice.clear()
            self._parts.composer.edit(node_id, typed_text(turn.run), typed_text(turn.run))

    def pin_file(self, file: TextFile) -> None:
        """Pins a file of the draft beside the pinned ones."""

        async def pin(commands: SetupCommands, session_id: int) -> SessionSetup:
            held = (await commands.view(session_id)).files
            setup = await commands.pin_files(session_id, [*(each for each in held if each.name != file.name), file])
            self._parts.composer.detach(session_id, file)
            return setup

        self._parts.composer.notice.clear()
        self._setup.change(pin, self._presenter.refuse)

    def open_link(self, url: QUrl) -> None:
        """Opens a link in the system's program for it."""
        if not QDesktopServices.openUrl(url):
            words = self.tr("no program can open this address; click the link again to copy it")
            self._parts.composer.notice.say(words)

    # ---- answers ------------------------------------------------------------------------------------------------

    def branch(self, node_id: int, index: int, token_id: int) -> None:
        """Branches to another token at a place; in the user's own text that becomes a draft, and nothing is sent."""
        self._parts.composer.notice.clear()
        turn = self._controller.shown.turn(node_id) if self._controller.shown is not None else None
        if turn is not None and turn.role == "user":
            start = typed_text(turn.run[:index]) + b"".join(self._controller.token_bytes([token_id])).decode(errors="replace")
            self._parts.composer.edit(node_id, typed_text(turn.run), start)
        else:
            follows = self._presenter.follow(node_id, index)
            self._controller.answers.branch(node_id, index, token_id, partial(self._refuse_branch, follows))

    def write(self, node_id: int, index: int, text: str) -> None:
        """Writes words at a place, and the model goes on from them; in a message they become a draft, with the rest of it."""
        self._parts.composer.notice.clear()
        turn = self._controller.shown.turn(node_id) if self._controller.shown is not None else None
        if turn is not None and turn.role == "user":
            start = typed_text(turn.run[:index]) + text
            self._parts.composer.edit(node_id, typed_text(turn.run), start, typed_text(turn.run[index:]))
        elif turn is not None:
            follows = self._presenter.follow(node_id, index)
            self._controller.answers.write(node_id, index, text, partial(self._give_back, follows, node_id, index, text))

    def _refuse_branch(self, follows: bool, why: str) -> None:  # the presenter waits for this branch
        if follows:
            self._presenter.unfollow()
        self._presenter.refuse(why)

    def _give_back(self, follows: bool, node_id: int, index: int, text: str, why: str) -> None:
        self._refuse_branch(follows, why)
        self._parts.pinned.type_again(node_id, index, text)

    def ban(self, token_id: int) -> None:
        """Bans a token in this session; can be undone."""
        name = b"".join(self._controller.token_bytes([token_id]))

        async def ban(commands: SetupCommands, session_id: int) -> SessionSetup:
            setup = await commands.view(session_id)
            banned, own = _bans(setup)
            if token_id not in banned:
                setup = await commands.set_option(session_id, "banned_tokens", [*banned, token_id])

                def lifted(bans: list[int]) -> object:
                    rest = [each for each in bans if each != token_id]
                    return own if rest == banned else rest

                def added(bans: list[int]) -> object:
                    return bans if token_id in bans else [*bans, token_id]

                back, again = (partial(self._change_bans, setup.session_id, change) for change in (lifted, added))
                self._controller.undo_stack.remember(UndoStep(self.tr("Ban"), setup.session_id, back, again))
            words = self.tr("{0} is banned in this session; the list of bans is under Sampling").format(spoken_token(name))
            self._parts.toast.say(words)
            return setup

        self._parts.composer.notice.clear()
        self._setup.change(ban, self._presenter.refuse)

    async def _change_bans(self, session_id: int, change: Callable[[list[int]], object]) -> None:
        """Changes the present list of bans; None removes the session's own list."""

        async def rewrite(commands: SetupCommands, session: int) -> SessionSetup:
            bans, _ = _bans(await commands.view(session))
            return await commands.set_option(session, "banned_tokens", change(bans))

        await self._setup.changed_by(rewrite, session_id)

    def show_why(self) -> None:
        """Shows how the pinned token was drawn, in the inspector."""
        self._parts.show_inspector(True)
        self._parts.inspector.show_page(self._parts.inspector.why)

    def find_columns_at(self, node_id: int, index: int, count: int, beams: bool) -> None:  # as the signal brings it
        """Starts several continuations in front of a token."""
        self.find_columns(count, beams=beams, at=(node_id, index))

    def find_columns(self, count: int, *, beams: bool, at: tuple[int, int] | None = None) -> None:
        """Starts several continuations at `at`, else at the pinned token, else at the end of the last answer."""
        self._parts.composer.notice.clear()
        self._parts.pinned.close_again()  # it would cover them
        shown = self._controller.shown
        at = at or self._parts.transcript.pinned
        rules = self._parts.inspector.token.beam_rows.rules if beams else None
        turn = shown.turn(at[0]) if shown is not None and at is not None else None
        if at is not None and turn is not None and turn.role == "assistant":
            self._controller.draws.find_columns(at[0], at[1], count, beams=rules)
        elif shown is not None and shown.last_answer is not None:
            self._controller.draws.find_columns(shown.last_answer.node_id, None, count, beams=rules)

    # ---- connections ----------------------------------------------------------------------------------------------

    def _wire_comparison(self) -> None:
        controller, parts, presenter = self._controller, self._parts, self._presenter
        comparison, bar, shown = controller.comparison, parts.comparison, presenter.comparison
        comparison.menu_ready.connect(lambda choices: open_menu(parts.top.model, choices, comparison.compare))
        comparison.began.connect(shown.begin)
        comparison.progressed.connect(bar.show_progress)
        comparison.compared.connect(shown.show)
        comparison.failed.connect(lambda words, anyway: bar.say(words, anyway=anyway))
        bar.stopped.connect(comparison.stop)
        bar.closed.connect(shown.close)
        bar.next_button.clicked.connect(shown.next_disagreement)
        bar.again_wanted.connect(comparison.compare_again)
        bar.all_button.clicked.connect(comparison.compare_all)
        bar.keep.clicked.connect(comparison.keep)
        controller.session_shown.connect(shown.leave)
        parts.status.legend.difference_chosen.connect(lambda: shown.colour(difference=True))

    def _wire_similar(self) -> None:
        controller, parts = self._controller, self._parts
        similar, panel = controller.similar, parts.similar
        parts.transcript.similar_requested.connect(similar.look)
        similar.began.connect(lambda words, pooling, other: panel.begin(words, pooling, other=other))
        similar.progressed.connect(panel.show_progress)
        similar.found.connect(panel.show_found)
        similar.failed.connect(lambda words, needs_model: panel.say(words, needs_model=needs_model))
        similar.left.connect(panel.dismiss)
        panel.pooling_chosen.connect(similar.choose_pooling)
        panel.again_wanted.connect(similar.look_again)
        panel.model_wanted.connect(controller.models.ask_menu)
        panel.chosen.connect(lambda _node_id: parts.compare.dismiss())  # the turn is shown in the conversation
        panel.chosen.connect(controller.tree.go_to)
        panel.closed.connect(self._similar.close)
        panel.focus_lost.connect(parts.transcript.setFocus)
        controller.tree.turn_shown.connect(parts.transcript.go_to)

    def _wire_sessions(self) -> None:
        controller, parts = self._controller, self._parts
        panel = parts.sidebar.sessions
        panel.chosen.connect(controller.open)
        panel.found_chosen.connect(controller.tree.open_at)
        controller.tree.hit_shown.connect(self.show_hit)
        rows = panel.rows
        edits = rows.renamed, rows.tagged, rows.folder_renamed, rows.arranged, rows.moved
        for asked in (*edits, panel.pinned, panel.trashed, panel.restored, panel.folder_wanted):
            asked.connect(lambda *_asked: parts.composer.notice.clear())  # with the previous refusal
        rows.renamed.connect(controller.sessions.rename)
        panel.pinned.connect(controller.sessions.pin)
        panel.trashed.connect(controller.sessions.trash)
        panel.restored.connect(controller.sessions.restore)
        panel.searched.connect(controller.sessions.search)
        rows.tagged.connect(controller.sessions.tag)
        rows.arranged.connect(controller.sessions.arrange)
        rows.moved.connect(controller.sessions.move)
        panel.folder_wanted.connect(controller.sessions.create_folder)
        rows.folder_renamed.connect(controller.sessions.rename_folder)
        panel.folder_removed.connect(controller.sessions.remove_folder)
        panel.trash_wanted.connect(controller.sessions.show_trash)
        parts.sidebar.trash.clicked.connect(lambda: controller.sessions.show_trash(not parts.sidebar.trash_shown))
        panel.emptied.connect(controller.sessions.empty)

    def _wire_tree(self) -> None:
        controller, parts = self._controller, self._parts
        tree = parts.sidebar.tree
        tree.selected.connect(controller.tree.select)
        tree.prune_wanted.connect(controller.tree.prune)
        tree.renamed.connect(controller.tree.rename)
        tree.compare_wanted.connect(controller.tree.compare)
        controller.tree.compared.connect(parts.show_comparison)
        tree.selected.connect(lambda _node_id: parts.compare.dismiss())
        for gone_to in (controller.tree.turn_shown, controller.tree.hit_shown):
            gone_to.connect(lambda *_: parts.compare.dismiss())
        controller.session_shown.connect(self._leave_comparison)

    def _leave_comparison(self, view: SessionView) -> None:
        """Closes the comparison of branches when another session or path is shown."""
        path = view.session_id, view.turns[-1].node_id if view.turns else None
        if path != self._path:
            self._path = path
            self._parts.compare.dismiss()

    def _wire_composer(self) -> None:
        controller, parts = self._controller, self._parts
        composer = parts.composer
        composer.sent.connect(controller.answers.send)
        composer.sent.connect(lambda _text, _replaces: parts.transcript.scroll_to_end())
        composer.stopped.connect(controller.answers.stop)
        composer.drafted.connect(controller.drafts.compose)
        composer.settled.connect(controller.drafts.score)
        composer.attach_wanted.connect(controller.drafts.read_file)
        composer.leave_out_wanted.connect(controller.drafts.leave_out)
        composer.overflow.larger.clicked.connect(controller.drafts.grow_context)
        composer.new_wanted.connect(self.new_session)
        composer.chips.pin_wanted.connect(self.pin_file)
        parts.cards.answered.connect(controller.answers.answer_call)

    def _wire_top(self) -> None:
        controller, parts, presenter = self._controller, self._parts, self._presenter
        parts.top.modes.chosen.connect(presenter.set_mode)
        parts.top.branch.step_wanted.connect(controller.tree.step_variant)
        parts.top.model.chosen.connect(controller.models.choose_model)
        parts.top.model.backend_chosen.connect(controller.models.choose_backend)
        parts.top.model.clicked.connect(controller.models.ask_menu)
        parts.writer.acted.connect(controller.models.ask_menu)
        parts.top.new_button.clicked.connect(self.new_session)
        parts.status.legend.measure_chosen.connect(presenter.colour_by)

    def _wire_transcript(self) -> None:
        controller, parts, presenter = self._controller, self._parts, self._presenter
        view = parts.transcript
        view.token_pinned.connect(presenter.take_pin)
        view.tokens.range_selected.connect(presenter.show_range)
        view.tokens.alternative_chosen.connect(self.branch)
        view.tokens.why_wanted.connect(self.show_why)
        view.tokens.columns_wanted.connect(self.find_columns_at)
        view.preview_wanted.connect(controller.draws.ask_preview)
        view.tokens.ghost_left.connect(controller.draws.drop_preview)
        controller.draws.preview_found.connect(view.show_preview)
        view.variant_requested.connect(controller.tree.select)
        view.edit_requested.connect(self.edit)
        view.regenerate_requested.connect(controller.answers.regenerate)
        view.repeat_requested.connect(controller.answers.regenerate_exactly)
        view.continue_requested.connect(controller.answers.continue_turn)
        view.text_requested.connect(controller.answers.open_as_text)
        view.model_requested.connect(controller.models.ask_menu)
        parts.status.loading.stop_button.clicked.connect(controller.models.stop_loading)
        parts.status.choose.clicked.connect(lambda _checked=False: controller.models.ask_menu())
        view.copy_requested.connect(copy)
        view.earlier_requested.connect(controller.show_earlier)
        view.read.link_requested.connect(parts.link.ask)
        parts.link.copy_wanted.connect(copy)
        parts.link.open_wanted.connect(self.open_link)

    def _wire_finder(self) -> None:
        parts = self._parts
        parts.transcript.found_changed.connect(parts.finder.show_place)
        parts.finder.wanted.connect(parts.transcript.look_for)
        parts.finder.step_wanted.connect(parts.transcript.find_next)
        parts.finder.closed.connect(parts.transcript.setFocus)
        tree = self._controller.tree
        parts.transcript.earlier_texts_wanted.connect(tree.read_earlier)
        parts.transcript.earlier_turn_wanted.connect(tree.show_from)
        tree.earlier_read.connect(parts.transcript.take_earlier_texts)

    def _wire_inspector(self) -> None:
        controller, parts, presenter = self._controller, self._parts, self._presenter
        inspector = parts.inspector
        inspector.bind(controller)
        for tab in inspector.pages:
            tab.alternative_chosen.connect(self.branch)
            tab.token_chosen.connect(presenter.pin)
            tab.reported.connect(parts.toast.say)
        inspector.token.columns_wanted.connect(self.find_columns_at)
        inspector.token.preview_wanted.connect(parts.transcript.preview)
        for empty in inspector.findChildren(Empty):
            empty.token_wanted.connect(presenter.next_uncertain)
            empty.message_wanted.connect(parts.composer.setFocus)
        for number in range(1, 10):
            # Text fields keep their digits: they claim printable keys before shortcuts do.
            for place in (parts.sidebar, parts.transcript, inspector):
                key = QShortcut(QKeySequence(str(number)), place, context=Qt.ShortcutContext.WidgetWithChildrenShortcut)
                key.activated.connect(lambda number=number: self._press_alternative(number))

    def _press_alternative(self, number: int) -> None:
        """Branches to an alternative, if the alternatives are visible or a token has the focus."""
        alternatives = self._parts.inspector.token.alternatives
        if alternatives.isVisible() or self._parts.transcript.tokens.hasFocus():
            alternatives.press(number)

    def _wire_pinned_card(self) -> None:
        controller, parts = self._controller, self._parts
        card = parts.pinned
        card.find_tokens = controller.find_tokens
        parts.transcript.tokens.card_wanted.connect(card.open)
        parts.transcript.tokens.words_begun.connect(self._begin_words)
        parts.transcript.words_typed.connect(parts.composer.type_on)
        card.alternative_chosen.connect(self.branch)
        card.text_typed.connect(controller.answers.tokenise)
        card.text_written.connect(self.write)
        card.preview_wanted.connect(parts.transcript.preview)
        card.columns_wanted.connect(self.find_columns_at)
        card.ban_wanted.connect(self.ban)
        card.why.clicked.connect(self.show_why)
        card.row_wanted.connect(controller.draws.ask_row_quietly)
        controller.draws.row_found.connect(card.show_row)

    def _begin_words(self, text: str) -> None:
        """Types in place of the pinned token, or into the message if the model cannot continue from there."""
        if not self._parts.pinned.begin_words(text):
            self._parts.composer.type_on(text)

    def _wire_columns(self) -> None:
        controller, parts = self._controller, self._parts
        parts.columns.kept.connect(lambda node_id: controller.tree.select(node_id, controller.draws.close_columns))
        parts.columns.kept.connect(lambda _node_id: parts.composer.setFocus())  # the next message can be written
        parts.columns.stop_button.clicked.connect(controller.answers.stop)
        parts.columns.closed.connect(controller.draws.close_columns)


def _bans(setup: SessionSetup) -> tuple[list[int], object]:
    """The banned tokens in force; and the session's own list, None if it has none."""
    held = next(option for option in setup.options if option.name == "banned_tokens")
    return [*held.value] if isinstance(held.value, list | tuple) else [], held.own


def copy(text: str) -> None:
    """Copies a text to the clipboard."""
    QApplication.clipboard().setText(text)
