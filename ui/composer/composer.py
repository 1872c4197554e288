"""The composer of the next message: a growing text field, its cost, and Send or Stop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QKeySequence, QTextCursor
from PySide6.QtWidgets import QWidget

from ui.commands.actions import STOP_KEYS
from ui.composer.context_panel import OverflowBar
from ui.composer.draft_cost import DraftCost
from ui.composer.drafts import NEW, MessageDraft, UnsentDrafts, joined, with_files
from ui.composer.writing_box import WritingBox
from ui.port import Composition, TextFile, TokenRun
from ui.widgets.controls import column_in
from ui.widgets.fields import ask_for_file
from ui.widgets.labels import Notice
from ui.widgets.visible import one_line, utf16_length

COMPOSE_DELAY_MS = 200
MOST_OF_FILES = 2 << 20  # characters: no context holds more, and each change of the draft counts all of them again
SCORE_DELAY_MS = 500  # after counting; scoring costs a forward


class Composer(QWidget):
    """The message field with its notice line.

    A draft is never lost: only `clear_sent` empties the field; `show_session` puts it aside with its session.
    """

    # messages are `object`, not `str`: with files they may have megabytes, and Qt copies a `str` twice
    sent = Signal(object, object)  # the text, and the node id of the user's turn that it is a version of, or None
    stopped = Signal()
    attach_wanted = Signal(str)  # path of a text file
    leave_out_wanted = Signal(object)  # leave out turns until this message fits
    new_wanted = Signal()  # a new session, to which the draft was moved
    settled = Signal(object, object)  # as `sent`, when the draft has not changed for `SCORE_DELAY_MS` after `drafted`
    drafted = Signal(object, object, object)  # as `sent` with the texts of its files, `COMPOSE_DELAY_MS` after the last key

    def __init__(self) -> None:
        super().__init__()
        self.notice = Notice()
        self.version = Notice("undo")  # shown while the draft is another version of an earlier turn
        self.version.dismissed.connect(lambda: self._show_draft(self._before or MessageDraft("")))
        self.replaces: int | None = None  # the node id of the user's turn that the draft is another version of
        self._before: MessageDraft | None = None  # the draft that this version interrupted
        self._version_text = ""  # the version before any edit
        self.meter = DraftCost(self)
        self._box = box = WritingBox(self.meter)
        self.field, self.chips, self.roles = box.field, box.chips, box.roles
        self.attach_button, self.setup_button, self.send_button = box.attach_button, box.setup_button, box.send_button
        self.field.submitted.connect(self._submit)
        self.field.textChanged.connect(self._edited)
        self.overflow = OverflowBar()
        self.overflow.leave_out.clicked.connect(lambda: self.leave_out_wanted.emit(self.message))
        self.overflow.new.clicked.connect(self._move_to_new)
        self.chips.changed.connect(self._edited)
        self.attach_button.clicked.connect(self._choose_file)
        self.send_button.clicked.connect(self._send_or_stop)
        self._counted = False  # the meter shows the cost of the draft as it was when `_compose_timer` last fired
        self._running = False
        self.wait = ""  # why no message can be sent; "" where one can
        self._use(UnsentDrafts())
        self._session: int | None = None
        self._key = NEW  # of the shown session's draft
        self._keys: dict[int, int] = {}  # draft keys of all sessions that were shown
        column_in(self, self.notice, self.version, self.overflow, self.meter.panel, self._box, spacing=8)

        self._compose_timer = QTimer(self, singleShot=True, interval=COMPOSE_DELAY_MS)
        self._compose_timer.timeout.connect(self.tell_draft)
        self._score_timer = QTimer(self, singleShot=True, interval=SCORE_DELAY_MS)
        self._score_timer.timeout.connect(lambda: self.settled.emit(self.message, self.replaces))
        self._refresh()

    def setFocus(self, reason: Qt.FocusReason = Qt.FocusReason.OtherFocusReason) -> None:
        """Focuses the field; a focus proxy would make Tab skip the widgets above it."""
        self.field.setFocus(reason)

    def type_on(self, text: str) -> None:
        """Focuses the field and inserts text that was typed outside any text field."""
        self.setFocus()
        self.field.insertPlainText(text)

    @property
    def draft(self) -> str:
        return self.field.toPlainText()

    @property
    def message(self) -> str:
        """The message as it is sent: the attached files, then the draft."""
        return with_files(self.draft, self.chips.files)

    def tell_draft(self) -> None:
        """Emits `drafted`, to have the draft counted; then, if it does not change, `settled`, to have it scored."""
        self._counted = False
        self.drafted.emit(self.message, self.replaces, [file.text for file in self.chips.files])
        self._score_timer.start()

    def show_cost(self, composition: Composition) -> None:
        """Shows the token counts of the draft, its files and the context."""
        self._counted = True
        self.meter.show_cost(composition)
        self.chips.show_tokens(composition.files)
        self.roles.setVisible(not composition.takes_roles)

    def remember(self, kept: Iterable[Sequence[int | str]]) -> None:
        """Takes the drafts of the last window, see `drafts`; call it before any session is shown."""
        self._use(UnsentDrafts(kept))

    def share(self, other: Composer) -> None:
        """Shares the drafts of another window, as a session may be closed there and opened here."""
        self._use(other._drafts)

    def drafts(self) -> tuple[tuple[int | str, ...], ...]:
        """The unsent drafts of all windows: session id (0 for one without turns), text, its files."""
        return self._drafts.kept()

    def put_aside(self) -> None:
        """Stores the draft for the other windows when this window closes."""
        self._drafts.shown.remove(self._keyed_draft)
        self._drafts.put(*self._keyed_draft())

    def show_session(self, session_id: int, *, is_new: bool) -> None:
        """Stores the draft under the session it was written in, and shows that of `session_id`."""
        key = NEW if is_new else session_id
        if session_id != self._session:
            self._drafts.put(*self._keyed_draft())
            self._show_draft(self._drafts.take(key))
            self.field.document().clearUndoRedoStacks()
        self._session, self._key = session_id, key
        self._keys[session_id] = key

    def carry(self, source_id: int, copy_id: int) -> None:
        """Moves the draft of a session to its copy."""
        if self._session == source_id:
            self._session = self._key = copy_id

    def carry_version(self, nodes: Mapping[int, int]) -> None:
        """Maps the node ids of the draft to those of the session's copy, which is shown next."""
        now = self._current_draft().in_copy(nodes)
        self.replaces, self._before = now.replaces, now.before

    def clear_sent(self, session_id: int, text: str) -> None:
        """Removes the saved message `text` from the field, unless the draft has changed since."""
        if session_id != self._session:
            self._drafts.drop(session_id, text)
            self._drafts.drop(NEW, text)  # it may have been the first of its session
            return
        self._drafts.drop(self._key, text)  # it was stored if the window is closing
        before = self._before or MessageDraft("")
        self._show_draft(before if self.message == text else joined(self._current_draft(), before.whole))
        self.field.document().clearUndoRedoStacks()

    def edit(self, node_id: int, old: str, text: str, behind: str = "") -> None:
        """Begins another version of the user's turn `node_id`; nothing is sent yet.

        The current draft comes back when the version is sent or dismissed.

        Args:
            node_id: The turn.
            old: Its text.
            text: The version's text before the cursor.
            behind: The version's text after the cursor.
        """
        begun = self.replaces is None or self.draft != self._version_text or bool(self.chips.files)
        before = self._current_draft() if begun else self._before  # an unchanged version is dropped
        short = one_line(old)
        words = self.tr("Another version of “{0}”").format(short if len(short) <= 48 else short[:47] + "…")
        self._show_draft(MessageDraft(text + behind, node_id, words, utf16_length(text), before=before))
        self._version_text = self.draft
        self.field.setFocus()

    def set_running(self, running: bool) -> None:  # a state, not an option
        """Shows Stop in place of Send while an answer is being generated."""
        self._running = running
        if not running:
            self.meter.say_busy("")
        self._refresh()

    def set_waiting(self, reason: str) -> None:
        """The reason why no message can be sent; "" where one can."""
        if reason != self.wait:
            self.wait = reason
            self.meter.say_busy("")
            self._refresh()

    def set_recording(self, recording: bool) -> None:  # a state, not an option
        """Explains in the empty field that a message to the recorded sample starts a copy."""
        self.field.set_hint(self.tr("A recording: your message starts a copy") if recording else self.tr("Message…"))

    def show_score(self, text: str, run: TokenRun | None) -> None:
        """Shows the surprise of the draft; scores of an older text are ignored."""
        if text == self.message and not self._running:
            self.meter.show_bits(None if run is None else float(-np.nansum(run.logprob)) / math.log(2))
            if run is not None:
                self.field.colours.take(run, text)

    def show_unscored(self, text: str, why: str) -> None:
        """Shows why the draft has no colours."""
        if text == self.message and not self._running and self.field.colours.shown:
            self.meter.show_unscored(why)

    def refuse_file(self, why: str) -> None:
        """Shows why a file cannot be attached, below earlier such problems."""
        self.notice.say("\n".join(filter(None, [self.notice.words, why])))

    def attach(self, session_id: int, file: TextFile) -> None:
        """Attaches a file to the draft of a session, which need not be the shown one."""
        if session_id != self._session:
            self._drafts.attach(self._keys.get(session_id, session_id), file)
            return
        files = tuple(dict.fromkeys((*self.chips.files, file)))
        if sum(len(each.text) for each in files) > MOST_OF_FILES:
            words = self.tr("{0} cannot go with them: the files of a message have at most {1:,} characters together")
            self.refuse_file(words.format(one_line(file.name), MOST_OF_FILES))
            return
        self.chips.show_files(files)
        self.field.setFocus()

    def detach(self, session_id: int, file: TextFile) -> None:
        """Removes a file from a draft after it was pinned, as it is part of the context now."""
        if session_id != self._session:
            self._drafts.detach(self._keys.get(session_id, session_id), file)
            return
        self.chips.show_files([held for held in self.chips.files if held != file])

    def _edited(self) -> None:
        self.meter.say_busy("")
        self.overflow.hide()
        self._refresh()
        self._compose_timer.start()
        self._score_timer.stop()

    def _submit(self) -> None:
        if self._running:
            keys = QKeySequence(STOP_KEYS).toString(QKeySequence.SequenceFormat.NativeText)
            self.meter.say_busy(self.tr("an answer is being written: stop it first ({0})").format(keys))
        elif self.wait:
            self.meter.say_busy(self.wait)
        elif self.message.strip() and self._too_long:
            assert self.meter.composition is not None  # `_too_long` implies it
            self.overflow.offer(self.meter.composition)
        elif self.message.strip():
            self._score_timer.stop()
            self.notice.clear()
            self.sent.emit(self.message, self.replaces)

    @property
    def _too_long(self) -> bool:
        """Whether the draft is known not to fit; the workbench refuses an uncounted one, and the draft stays."""
        return self._counted and self.meter.is_too_long and not self._compose_timer.isActive()

    def _choose_file(self) -> None:
        self.notice.clear()
        ask_for_file(self.window(), self.tr("Attach a text file"), self.attach_wanted.emit)

    def _move_to_new(self) -> None:
        """Moves the draft to a new session."""
        self._drafts.put(NEW, joined(self._current_draft(), MessageDraft("")))
        if self._key != NEW:
            self._show_draft(self._before or MessageDraft(""))
        self.new_wanted.emit()

    def _use(self, drafts: UnsentDrafts) -> None:
        self._drafts = drafts
        drafts.shown.append(self._keyed_draft)

    def _keyed_draft(self) -> tuple[int, MessageDraft]:
        return self._key, self._current_draft()

    def _current_draft(self) -> MessageDraft:
        cursor = self.field.textCursor().position()
        return MessageDraft(self.draft, self.replaces, self.version.words, cursor, self.chips.files, self._before)

    def _show_draft(self, draft: MessageDraft) -> None:
        """Shows a draft; undo in the field restores the text before it."""
        self.replaces, self._before = draft.replaces, draft.before
        if draft.replaces is None:
            self.version.clear()
        else:
            self.version.say(draft.version)
        self.overflow.hide()
        self.chips.show_files(draft.files)
        cursor = self.field.textCursor()
        if draft.text != self.draft:
            cursor.select(QTextCursor.SelectionType.Document)
            cursor.insertText(draft.text)
        cursor.setPosition(min(draft.cursor, max(self.field.document().characterCount() - 1, 0)))
        self.field.setTextCursor(cursor)
        self._compose_timer.start()  # counted again: it may follow other tokens now

    def _send_or_stop(self) -> None:
        if self._running:
            self.stopped.emit()
        else:
            self._submit()

    def _refresh(self) -> None:
        self._box.show_send(running=self._running, can_send=bool(self.chips.files or self.draft.strip()), wait=self.wait)
