"""Shows the controller's results in the parts of the window, and keeps the commands enabled accordingly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec.structs import replace
from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication, QMainWindow, QWidget

from ui.commands.actions import Actions, CommandState
from ui.comparison.presenters import ComparisonPresenter
from ui.controller import Controller
from ui.core.undo import UndoStep
from ui.port import (
    BUSY,
    Columns,
    Composition,
    EngineState,
    FolderView,
    ModelChoice,
    Origin,
    SessionSummary,
    SessionView,
    StatusView,
    TrashedSession,
    TurnDepth,
    TurnView,
    translate,
)
from ui.theme.scheme import current_theme
from ui.transcript import Measure, Mode
from ui.widgets.visible import one_line
from ui.window.frame import Frame

METER_MS = 250  # between two counts of the context while an answer streams
Place = tuple[int, int]  # node id, index


class Presenter(QObject):
    """From controller to parts. Requests go the other way, through `ui.window.intents`."""

    mode_changed = Signal(object)  # Mode
    measure_changed = Signal(object)  # Measure

    def __init__(self, window: QMainWindow, controller: Controller, parts: Frame, acts: Actions) -> None:
        super().__init__(window)
        self._window, self._controller, self._parts, self._acts = window, controller, parts, acts
        self.mode = Mode.TOKENS
        self.comparison = ComparisonPresenter(parts, acts, self.set_mode, self)
        self._link_of: int | None = None  # the session of the link bar
        self._writers: tuple[int, str, str] | None = None  # session, its model and the model in use, as last shown
        self._status = StatusView(EngineState.NONE)  # the last status, which disables commands
        self._offering = False  # the draft did not fit: ways to make room are offered once it is counted
        self._counted_at: tuple[EngineState, bool] | None = None
        # pinned and followed places, in the copy that is shown next
        self._carried: tuple[Place | None, Place | None] | None = None
        self._refusal = ""  # the last refusal shown
        self._copied = False  # a copy of the session shown is shown next
        self._ran = False  # an answer was under way
        self._followed: Place | None = None  # where a new branch starts; its token there is pinned once it is shown
        controller.session_shown.connect(self._show_session)
        controller.copy_shown.connect(self._carry_pin)
        controller.turn_changed.connect(self._show_turn)
        controller.tokens_arrived.connect(parts.cards.append_tokens)  # first: Read mode hides the text of the cards
        controller.tokens_arrived.connect(parts.transcript.append_tokens)
        controller.tokens_arrived.connect(self._start_meter)
        controller.activity_changed.connect(self.refresh)
        controller.sessions.listed.connect(self._show_sessions)
        controller.sessions.trash_listed.connect(self._show_trash)
        controller.sessions.folder_made.connect(parts.sidebar.sessions.name_folder)
        controller.models.listed.connect(self._show_model)
        controller.models.menu_ready.connect(parts.top.model.open_menu)
        controller.models.fit_known.connect(parts.top.model.show_fit)
        controller.status_changed.connect(self._show_status)
        controller.answers.draft_saved.connect(parts.composer.clear_sent)
        controller.answers.did_not_fit.connect(self._offer_ways)
        controller.answers.copied.connect(parts.composer.carry)
        controller.drafts.composed.connect(self._show_cost)
        controller.drafts.scored.connect(parts.composer.show_score)
        controller.drafts.unscored.connect(parts.composer.show_unscored)
        controller.drafts.file_refused.connect(parts.composer.refuse_file)
        controller.drafts.file_read.connect(parts.composer.attach)
        controller.drafts.left_out.connect(self._show_left_out)
        controller.refused.connect(self.refuse)
        controller.other_shown.connect(self._leave_refusal)
        controller.sessions.trashed.connect(parts.sidebar.sessions.offer_undo)
        controller.sessions.trashed_in_other_window.connect(self._offer_restore)
        controller.sessions.restored.connect(parts.sidebar.sessions.withdraw_undo)
        self._in_list = False  # the list of sessions has the focus
        steps = controller.undo_stack
        steps.in_sight = self._histories
        steps.changed.connect(self.refresh)
        steps.was_undone.connect(self._show_undone)
        steps.was_redone.connect(self._show_redone)
        parts.toast.acted.connect(lambda: self._toast_act())
        self._toast_act: Callable[[], None] = steps.redo
        self._toast_step: tuple[str, Callable[[], bool]] = "", lambda: True  # words of the toast; whether they are still true
        QApplication.instance().focusChanged.connect(self._take_focus)  # type: ignore[union-attr]  # there is one, widgets exist
        controller.draws.columns_changed.connect(self._show_columns)
        controller.draws.turn_depth_found.connect(self._show_turn_depth)
        controller.draws.column_tokens.connect(parts.columns.append)
        parts.panels_changed.connect(self.refresh)
        parts.transcript.set_vocabulary(controller.token_bytes)
        parts.transcript.set_lacking(lambda control: self._status.lacking(control))
        self._counted_length = 0  # tokens of the path when its context was counted
        self._meter = QTimer(self, singleShot=True, interval=METER_MS)  # runs only while tokens arrive
        self._meter.timeout.connect(self._move_meter)
        theme = current_theme()
        theme.changed.connect(parts.transcript.set_palette_of)
        theme.scaled.connect(parts.transcript.set_text_scale)
        parts.transcript.set_palette_of(theme.palette)

    def set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self._parts.pinned.close_again()
        self._parts.transcript.set_mode(mode)
        self._parts.top.modes.show_mode(mode)
        self._parts.composer.field.colours.show(mode is Mode.TOKENS)
        self._parts.status.show_legend(mode is Mode.TOKENS)
        (self._acts.read if mode is Mode.READ else self._acts.tokens).setChecked(True)
        self.mode_changed.emit(mode)

    def next_uncertain(self) -> None:
        """Switches to Tokens mode, and pins the next of the most uncertain tokens."""
        if self.mode is not Mode.TOKENS:
            self.set_mode(Mode.TOKENS)
        self._parts.transcript.tokens.next_uncertain()

    def colour_by(self, measure: Measure) -> None:
        self.comparison.colour(difference=False)
        self._parts.transcript.colours.colour_by(measure)
        self._parts.columns.colour_by(measure)
        self._parts.tree.colour_by(measure)
        self._parts.status.legend.show_measure(measure)
        self._acts.colours[measure].setChecked(True)
        self.measure_changed.emit(measure)

    def _show_turn_depth(self, node_id: int, depth: TurnDepth) -> None:
        self._parts.transcript.colours.show_depth(node_id, depth)
        self.colour_by(Measure.LAYER)

    def pin(self, node_id: int, index: int) -> None:
        """Pins a token in transcript and inspector."""
        self._parts.transcript.set_pinned(node_id, index)
        self.take_pin((node_id, index))

    def take_pin(self, place: Place | None) -> None:
        """Takes a token that the user pinned, or (None) the loss of the pin with its path."""
        if place is not None:
            self.unfollow()
        self.show_pin(place)

    def follow(self, node_id: int, index: int) -> bool:
        """Pins the token of a new branch at this place once it is shown; False if this was requested already."""
        waits, self._followed = self._followed == (node_id, index), (node_id, index)
        return not waits

    def unfollow(self) -> None:
        """Stops waiting for a new branch."""
        self._followed = None

    def show_pin(self, place: Place | None) -> None:
        """Shows the pinned token in inspector and card."""
        shown = self._controller.shown
        spot = shown.spot(*place) if shown is not None and place is not None else None
        turn = shown.turn(spot.node_id) if shown is not None and spot is not None else None
        can_choose = turn is not None and turn.role != "system" and not self._status.lacking("branch")
        own = spot is not None and spot.record.origin is not Origin.TEMPLATE
        can_continue = own and can_choose and turn is not None and turn.role == "assistant" and not self._status.lacks_model
        focused = QApplication.focusWidget()
        if spot is None and focused is not None and self._parts.inspector.token.isAncestorOf(focused):
            self._parts.transcript.setFocus()  # the focus is not lost with the button
        for part in (self._parts.inspector, self._parts.pinned):
            part.show_spot(spot, self._controller.token_bytes, can_choose=can_choose, can_continue=can_continue)
        self.comparison.show_spot(spot)
        self._refresh_acts()

    def show_range(self, parts: Sequence[tuple[int, int, int]]) -> None:
        """Shows the sums over a selection in the inspector: (node id, first token, end) of each turn."""
        shown = self._controller.shown
        turns = [(shown.turn(node_id), first, last) for node_id, first, last in parts] if shown is not None else []
        cut = (replace(turn, run=turn.run[first:last]) for turn, first, last in turns if turn is not None)
        self._parts.inspector.path.show_range(tuple(cut))

    def refresh(self) -> None:
        """Updates the enabled commands, and what depends on a running answer."""
        shown, running, parts = self._controller.shown, self._controller.running, self._parts
        if self._ran and not running:
            self._withdraw(translate("Workbench", BUSY))
        self._ran = running
        parts.composer.set_running(running)
        parts.cards.show_turns(shown.view.turns if shown is not None else (), running=running)
        self._refresh_acts()
        self._acts.sidebar.setChecked(not parts.sidebar.isHidden())
        self._acts.inspector.setChecked(not parts.inspector.isHidden())
        self._count_again()
        self._hide_old_step()

    def _refresh_acts(self) -> None:
        shown, pinned = self._controller.shown, self._parts.transcript.pinned
        turn = shown.turn(pinned[0]) if shown is not None and pinned is not None else None
        at_token = turn is not None and turn.role == "assistant"
        running, steps, row = self._controller.running, self._controller.undo_stack, self._controller.sessions.row_shown
        self._acts.refresh(CommandState(shown, running, self._status, row, steps.label, steps.redo_label, at_token))

    def _histories(self) -> tuple[int | None, ...]:
        """The undo histories in sight: the session's and the list's (None), the focused one first."""
        shown = self._controller.shown
        session = () if shown is None else (shown.session_id,)
        if self._parts.sidebar.isHidden() or self._parts.sidebar.trash_shown:
            return session
        return (None, *session) if self._in_list else (*session, None)

    def _take_focus(self, _old: QWidget | None, now: QWidget | None) -> None:
        if now is not None and now.window() is self._window:
            in_list = self._parts.sidebar.sessions.isAncestorOf(now)
            if in_list != self._in_list:
                self._in_list = in_list
                self.refresh()

    def _show_undone(self, step: UndoStep) -> None:
        steps, words = self._controller.undo_stack, self.tr("Undone: {0}").format(step.label)
        self._show_step(words, self.tr("Redo"), partial(steps.can_redo, step), partial(steps.redo, step))

    def _show_redone(self, step: UndoStep) -> None:
        steps, words = self._controller.undo_stack, self.tr("Done again: {0}").format(step.label)
        self._show_step(words, self.tr("Undo"), partial(steps.can_undo, step), partial(steps.undo, step))

    def _show_step(self, words: str, action: str, can: Callable[[], bool], act: Callable[[], None]) -> None:
        if can():
            self._toast_step = words, can
        self._show_toast(words, action if can() else "", act)

    def _hide_old_step(self) -> None:
        """Hides the toast of a step that is out of sight, or no longer the last one."""
        words, holds = self._toast_step
        if words == self._parts.toast.words and not holds():
            self._parts.toast.hide()

    def _show_toast(self, words: str, action: str, act: Callable[[], None]) -> None:
        self._toast_act = act
        self._parts.toast.say(words, action)

    def _offer_restore(self, session_id: int, title: str) -> None:
        words = self.tr("Moved to the trash in another window: {0}").format(one_line(title))
        self._show_toast(words, self.tr("Restore"), partial(self._controller.sessions.restore, session_id))

    def _count_again(self) -> None:
        """Counts the draft again when an answer begins or ends, or the engine's state changes."""
        now = (self._controller.engine, self._controller.running)
        if self._counted_at not in (None, now):
            self._parts.composer.tell_draft()
        self._counted_at = now

    def _show_session(self, view: SessionView) -> None:
        parts = self._parts
        parts.transcript.set_session(view)
        parts.sidebar.show_session(view)
        parts.top.title.setText(view.title or self.tr("New session"))
        self._window.setWindowTitle(self.tr("{0} – Elsewise").format(one_line(view.title)) if view.title else "Elsewise")
        assert self._controller.shown is not None
        parts.top.show_branch(view.branch_name, self._controller.shown.fork)
        parts.composer.set_recording(view.is_sample)
        parts.composer.show_session(view.session_id, is_new=not any(turn.role != "system" for turn in view.turns))
        if view.session_id != self._link_of:
            self._link_of = view.session_id
            parts.link.hide()
            self.unfollow()
        parts.inspector.show_path(view.turns, self._controller.answers.how_made)
        self._show_pin_again()
        if self._carried is not None:
            (pinned, followed), self._carried = self._carried, None
            if pinned is not None:
                self.pin(*pinned)
            self._followed = followed
        if self._followed is not None:
            left, index = self._followed
            beside = (turn for turn in view.turns if left in turn.variants and turn.node_id != left and len(turn.run) > index)
            branch = next(beside, None)
            if branch is not None:
                self.pin(branch.node_id, index)
        parts.composer.tell_draft()

    def _carry_pin(self, nodes: Mapping[int, int]) -> None:
        """Translates pinned and followed places to the node ids of the copy."""

        def carried(place: Place | None) -> Place | None:
            return (nodes[place[0]], place[1]) if place is not None and place[0] in nodes else None

        self._carried = carried(self._parts.transcript.pinned), carried(self._followed)
        self._parts.composer.carry_version(nodes)
        self._parts.cards.carry(nodes)
        self._copied = True

    def refuse(self, words: str) -> None:
        """Shows a refusal, until another session is shown."""
        self._refusal = words
        self._parts.composer.notice.say(words)

    def _leave_refusal(self) -> None:
        if not self._copied:
            self._withdraw(self._refusal)
        self._copied = False

    def _withdraw(self, words: str) -> None:
        """Clears the notice, if it shows these words."""
        if words and self._parts.composer.notice.words == words:
            self._parts.composer.notice.clear()

    def _show_turn(self, turn: TurnView) -> None:
        self._parts.transcript.update_turn(turn)
        if self._controller.shown is not None:
            self._parts.inspector.show_path(self._controller.shown.view.turns, self._controller.answers.how_made)
        pinned = self._parts.inspector.token.spot
        if pinned is not None and pinned.node_id == turn.node_id:
            self._show_pin_again()

    def _start_meter(self) -> None:
        if not self._meter.isActive():
            self._meter.start()

    def _move_meter(self) -> None:
        """Moves the context meter by the number of streamed tokens; the engine counts once the answer has ended."""
        if self._controller.shown is not None and self._controller.running:
            self._parts.composer.meter.show_growth(self._controller.shown.length - self._counted_length)

    def _show_cost(self, composition: Composition) -> None:
        self._parts.composer.show_cost(composition)
        self._counted_length = self._controller.shown.length if self._controller.shown is not None else 0
        if self._offering and self._parts.composer.meter.is_too_long:
            self._parts.composer.overflow.offer(composition)
        self._offering = False

    def _offer_ways(self, session_id: int, text: str) -> None:
        """Makes a message that did not fit the draft again, and offers ways to make room."""
        composer = self._parts.composer
        if self._controller.is_shown(session_id) and not composer.message.strip():
            composer.field.setPlainText(text)
            self._offering = True

    def _show_left_out(self, count: int) -> None:
        words = self.tr("1 turn is left out") if count == 1 else self.tr("{0:,} turns are left out").format(count)
        self._parts.composer.notice.tell(
            self.tr("{0}; the whole conversation stays as another branch. Send when you are ready").format(words)
        )

    def _show_columns(self, view: Columns | None) -> None:
        panel = self._parts.columns
        opens = panel.isHidden() and view is not None
        panel.show_columns(view)
        pinned = self._parts.transcript.pinned
        if opens and pinned is not None:  # scrolls to the place in the smaller transcript
            QTimer.singleShot(0, self, lambda: self._parts.transcript.set_pinned(*pinned))

    def _show_sessions(self, sessions: Sequence[SessionSummary], folders: Sequence[FolderView]) -> None:
        self._parts.sidebar.show_place(trash=False)
        self._parts.sidebar.sessions.show_sessions(sessions, folders=folders)
        summary = self._controller.sessions.row_shown
        if summary is not None:  # the title changes with the list
            self._parts.top.title.setText(summary.title)
        self.refresh()

    def _show_trash(self, sessions: Sequence[TrashedSession]) -> None:
        self._parts.sidebar.show_place(trash=True)
        self._parts.sidebar.sessions.show_trash(sessions)
        self.refresh()

    def _show_model(self, models: Sequence[ModelChoice]) -> None:
        self._parts.top.show_model(next((choice for choice in models if choice.loaded), None))

    def _show_status(self, status: StatusView) -> None:
        self._parts.status.show_status(status)
        before, self._status = self._status, status
        runs, ran = (each.engine in (EngineState.READY, EngineState.BUSY) for each in (status, before))
        if runs != ran:  # a model was loaded or unloaded
            self._parts.pinned.forget_row()
        self._show_writer(status)
        wait = self.tr("{0}: choose a model first").format(status.reason) if status.lacks_model else ""
        self._parts.composer.set_waiting(wait)
        if (runs, *_lacking(status)) != (ran, *_lacking(before)):
            self.refresh()
            self._show_pin_again()
        self._count_again()

    def _show_writer(self, status: StatusView) -> None:
        """Shows, once per pair of models, that another model would continue the session."""
        shown = self._controller.shown
        pair = None if shown is None or not status.written_by else (shown.session_id, status.written_by, status.model)
        if pair != self._writers:
            self._writers = pair
            if pair is None:
                self._parts.writer.clear()
            else:
                words = self.tr("written with {0}; {1} would continue it").format(status.written_by, status.model)
                self._parts.writer.say(words, self.tr("Choose a model"))

    def _show_pin_again(self) -> None:
        """Updates the pinned token, whose numbers may have changed or which may be off the path."""
        held = self._parts.inspector.token.spot
        if held is not None:
            self.show_pin((held.node_id, held.index))


def _lacking(status: StatusView) -> tuple[object, ...]:
    """The part of a status that disables controls."""
    return status.lacks_model and status.reason, status.model, status.lacks
